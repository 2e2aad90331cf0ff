/* A FAKE libcuda.so.1 for tests: device memory is host memory, and a process is checkpointed by a thread of its own,
 * as the real driver does it. It checks what the real one checks of the arguments (unused bytes must be zero in each
 * generation), keeps the real one's traps (a restore without room is stuck for ever: 304, then 401), and can be told
 * to fail or to hang at each call (fake_gpu.h). It computes nothing. */
#include "fake_gpu.h"
#include <pthread.h>

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, OS_ERROR = 304, ILLEGAL_STATE = 401, NOT_READY = 600, NOT_PERMITTED = 800 };

#define INJECT(function) do { int code = fake_injected(function); if (code > 0) return code; } while (0)

static struct share *mine;
static int device_fd = -1, control_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int open_device(void) {
    char path[512];
    fake_path(path, sizeof path, "dev/nvidia0");
    device_fd = open(path, O_RDWR | O_CLOEXEC);
    if (device_fd < 0) return NO_DEVICE;
    fake_path(path, sizeof path, "dev/nvidiactl");
    control_fd = open(path, O_RDWR | O_CLOEXEC);
    return OK;
}

static void close_device(void) {
    if (device_fd >= 0) close(device_fd);
    if (control_fd >= 0) close(control_fd);
    device_fd = control_fd = -1;
}

/* The thread inside the process that takes it off the device and back. */
static void *restore_thread(void *arg) {
    (void)arg;
    for (;;) {
        int wanted = mine->wanted;
        if (wanted == CHECKPOINTED && mine->state == LOCKED) {
            if (!fake_has("keeps_file")) close_device();
            mine->state = CHECKPOINTED;
        } else if (wanted == LOCKED && mine->state == CHECKPOINTED) {
            if (device_fd >= 0 || open_device() == OK) mine->state = LOCKED;
        }
        fake_sleep_ms(1);
    }
    return NULL;
}

/* As the real driver's calls do in a locked process: wait. */
static void wait_until_running(void) {
    while (mine && mine->state != RUNNING) fake_sleep_ms(1);
}

EXPORT int cuDriverGetVersion(int *version) {
    INJECT("cuDriverGetVersion");
    *version = (int)fake_number("version", 13000);
    return OK;
}

EXPORT int cuInit(unsigned flags) {
    (void)flags;
    INJECT("cuInit");
    /* By an open, as the real one does: access() is no open, and where opens are counted it is refused. */
    char path[512];
    fake_path(path, sizeof path, "dev/nvidia0");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NO_DEVICE;
    close(fd);
    return OK;
}

EXPORT int cuDeviceGetCount(int *count) { INJECT("cuDeviceGetCount"); *count = 1; return OK; }
EXPORT int cuDeviceGet(int *device, int ordinal) { INJECT("cuDeviceGet"); *device = ordinal; return ordinal == 0 ? OK : 101; }
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int device) { INJECT("cuDeviceGetUuid"); (void)device; memcpy(uuid, FAKE_UUID, 16); return OK; }

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    INJECT("cuDevicePrimaryCtxRetain");
    pthread_mutex_lock(&lock);
    int code = OK;
    if (!mine) {
        code = open_device();
        if (code == OK && !(mine = fake_share(getpid(), 1))) code = OS_ERROR;
        pthread_t thread;
        if (code == OK && pthread_create(&thread, NULL, restore_thread, NULL)) code = OS_ERROR;
    }
    pthread_mutex_unlock(&lock);
    *context = mine;
    return code;
}

EXPORT int cuCtxSetCurrent(void *context) { INJECT("cuCtxSetCurrent"); return context ? OK : INVALID; }
EXPORT int cuCtxSynchronize(void) { INJECT("cuCtxSynchronize"); wait_until_running(); return OK; }

/* A block: its size before its bytes. */
struct block { size_t bytes; char data[]; };

EXPORT int cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    INJECT("cuMemAlloc_v2");
    if (!mine) return NOT_INITIALIZED;
    wait_until_running();
    if (fake_used() + bytes > fake_total()) return NO_MEMORY;
    struct block *b = malloc(sizeof *b + bytes);
    if (!b) return NO_MEMORY;
    b->bytes = bytes;
    mine->bytes += bytes;
    *at = (uint64_t)(uintptr_t)b->data;
    return OK;
}

EXPORT int cuMemFree_v2(uint64_t at) {
    INJECT("cuMemFree_v2");
    wait_until_running();
    struct block *b = (struct block *)((char *)(uintptr_t)at - sizeof(struct block));
    mine->bytes -= b->bytes;
    free(b);
    return OK;
}

EXPORT int cuMemsetD8_v2(uint64_t at, unsigned char byte, size_t n) { INJECT("cuMemsetD8_v2"); wait_until_running(); memset((void *)(uintptr_t)at, byte, n); return OK; }
EXPORT int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { INJECT("cuMemcpyDtoH_v2"); wait_until_running(); memcpy(to, (void *)(uintptr_t)from, n); return OK; }
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { INJECT("cuMemcpyHtoD_v2"); wait_until_running(); memcpy((void *)(uintptr_t)to, from, n); return OK; }
EXPORT int cuMemHostAlloc(void **at, size_t bytes, unsigned flags) { (void)flags; INJECT("cuMemHostAlloc"); *at = calloc(1, bytes); return *at ? OK : NO_MEMORY; }
EXPORT int cuMemFreeHost(void *at) { INJECT("cuMemFreeHost"); free(at); return OK; }

/* --- the checkpoint calls, made by another process --- */

static int all_zero(const void *p, size_t n) {
    const char *c = p;
    while (n--) if (*c++) return 0;
    return 1;
}

static int permitted(void) { return geteuid() == 0 || !fake_has("needs_root"); }

static int wait_for(struct share *s, int pid, int state) {
    s->wanted = state;
    while (s->state != state) {
        if (kill(pid, 0) && errno == ESRCH) return INVALID;
        fake_sleep_ms(1);
    }
    return OK;
}

EXPORT int cuCheckpointProcessGetState(int pid, int *state) {
    INJECT("cuCheckpointProcessGetState");
    struct share *s = fake_share(pid, 0);
    if (!s) return INVALID;
    *state = s->state;
    munmap(s, sizeof *s);
    return OK;
}

struct lock_args { unsigned timeout_ms, reserved0; uint64_t reserved1[7]; };

EXPORT int cuCheckpointProcessLock(int pid, struct lock_args *args) {
    INJECT("cuCheckpointProcessLock");
    if (!permitted()) return NOT_PERMITTED;
    if (args->reserved0 || !all_zero(args->reserved1, sizeof args->reserved1)) return INVALID;
    struct share *s = fake_share(pid, 0);
    if (!s) return INVALID;
    int code = OK, running = RUNNING;
    if (fake_has("busy")) {
        fake_sleep_ms(args->timeout_ms > 200 ? 200 : args->timeout_ms);
        code = NOT_READY;
    } else if (!atomic_compare_exchange_strong(&s->state, &running, LOCKED)) {
        code = ILLEGAL_STATE;
    }
    munmap(s, sizeof *s);
    return code;
}

EXPORT int cuCheckpointProcessCheckpoint(int pid, void *args) {
    INJECT("cuCheckpointProcessCheckpoint");
    if (!permitted()) return NOT_PERMITTED;
    if (!all_zero(args, 64)) return INVALID;
    struct share *s = fake_share(pid, 0);
    if (!s) return INVALID;
    int code = ILLEGAL_STATE;
    if (s->state == LOCKED) code = wait_for(s, pid, CHECKPOINTED);
    /* "ruin": the driver gives the process up, as it does after some failures. */
    if (fake_has("ruin")) { s->state = FAILED; code = 999; }
    munmap(s, sizeof *s);
    return code;
}

struct pair { unsigned char old[16], new[16]; };
struct restore_args { struct pair *pairs; unsigned count; char reserved[44]; uint64_t reserved1; };

EXPORT int cuCheckpointProcessRestore(int pid, struct restore_args *args) {
    INJECT("cuCheckpointProcessRestore");
    if (!permitted()) return NOT_PERMITTED;
    if (fake_number("version", 13000) < 13000 ? !all_zero(args, 64)
                                              : !all_zero(args->reserved, sizeof args->reserved) || args->reserved1)
        return INVALID;
    struct share *s = fake_share(pid, 0);
    if (!s) return INVALID;
    int code = OK;
    if (s->state == FAILED) code = OS_ERROR;
    else if (s->state != CHECKPOINTED) code = ILLEGAL_STATE;
    else if (fake_used() + s->bytes + CONTEXT_BYTES > fake_total()) {
        s->state = FAILED;
        code = NO_MEMORY;
    } else {
        if (args->count) {
            s->remapped = args->count;
            memcpy(s->new_uuid, args->pairs[0].new, 16);
        }
        code = wait_for(s, pid, LOCKED);
    }
    munmap(s, sizeof *s);
    return code;
}

EXPORT int cuCheckpointProcessUnlock(int pid, void *args) {
    INJECT("cuCheckpointProcessUnlock");
    if (!permitted()) return NOT_PERMITTED;
    if (!all_zero(args, 64)) return INVALID;
    struct share *s = fake_share(pid, 0);
    if (!s) return INVALID;
    int locked = LOCKED;
    int code = atomic_compare_exchange_strong(&s->state, &locked, RUNNING) ? OK : ILLEGAL_STATE;
    s->wanted = RUNNING;
    munmap(s, sizeof *s);
    return code;
}
