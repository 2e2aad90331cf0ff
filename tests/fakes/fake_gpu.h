/* The fake GPU that fake_libcuda.c and fake_libnvml.c share: a directory, FAKE_GPU_DIR.
 *
 *   total            bytes of device memory (default 1 GiB)
 *   minor            NVML's minor number of the device (default 0)
 *   others           bytes that somebody else holds on the device (default 0)
 *   version          cuDriverGetVersion (default 13000)
 *   driver           NVML's driver version (default 580.159.03)
 *   needs_root       if there, checkpoint calls of anybody but root answer 800
 *   busy             if there, a lock finds the process busy until its time is over (600)
 *   keeps_file       if there, a checkpoint leaves the device file open
 *   mig              if there, the device has MIG on, with one instance
 *   inject           lines "FUNCTION CODE [MILLISECONDS]": that function answers CODE, after so long
 *   dev/nvidia0      the fake device file; dev/nvidiactl the driver's own
 *   p.PID            one process's share, mapped by the process and by whoever checkpoints it
 */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { RUNNING, LOCKED, CHECKPOINTED, FAILED };

struct share {
    atomic_int state;
    atomic_int wanted; /* the state that the process's own thread is asked to bring about */
    atomic_ullong bytes;
    atomic_ullong remapped; /* pairs given to the last restore */
    unsigned char new_uuid[16];
};

static const char *fake_dir(void) {
    const char *dir = getenv("FAKE_GPU_DIR");
    return dir ? dir : "/nonexistent-fake-gpu";
}

static void fake_path(char *out, size_t size, const char *name) { snprintf(out, size, "%s/%s", fake_dir(), name); }

static int fake_has(const char *name) {
    char path[512];
    fake_path(path, sizeof path, name);
    return access(path, F_OK) == 0;
}

static unsigned long long fake_number(const char *name, unsigned long long otherwise) {
    char path[512];
    fake_path(path, sizeof path, name);
    FILE *f = fopen(path, "r");
    if (!f) return otherwise;
    unsigned long long n = otherwise;
    if (fscanf(f, "%llu", &n) != 1) n = otherwise;
    fclose(f);
    return n;
}

static void fake_sleep_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) == -1 && errno == EINTR) {}
}

/* The injected answer of a function, or -1. */
static int fake_injected(const char *function) {
    char path[512], name[128], line[256];
    fake_path(path, sizeof path, "inject");
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    int code = -1;
    while (fgets(line, sizeof line, f)) {
        int c;
        long ms = 0;
        if (sscanf(line, "%127s %d %ld", name, &c, &ms) >= 2 && !strcmp(name, function)) {
            fclose(f);
            fake_sleep_ms(ms);
            return c;
        }
    }
    fclose(f);
    return code;
}

static struct share *fake_share(int pid, int create) {
    char name[64], path[512];
    snprintf(name, sizeof name, "p.%d", pid);
    fake_path(path, sizeof path, name);
    int fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0666);
    if (fd < 0) return NULL;
    if (create && (fchmod(fd, 0666) || ftruncate(fd, sizeof(struct share)))) {
        close(fd);
        return NULL;
    }
    struct share *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    /* Whoever is on the device keeps its share locked, until it ends or becomes another program. */
    if (create && s != MAP_FAILED) flock(fd, LOCK_EX);
    else close(fd);
    return s == MAP_FAILED ? NULL : s;
}

static int fake_is_on(const char *name) {
    char path[512];
    fake_path(path, sizeof path, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    int locked = flock(fd, LOCK_SH | LOCK_NB) && errno == EWOULDBLOCK;
    close(fd);
    return locked;
}

/* Calls `each` for every process that is alive and has a share. */
static void fake_each(void (*each)(int pid, struct share *s, void *arg), void *arg) {
    DIR *d = opendir(fake_dir());
    if (!d) return;
    struct dirent *e;
    while ((e = readdir(d))) {
        int pid;
        if (sscanf(e->d_name, "p.%d", &pid) != 1 || (kill(pid, 0) && errno == ESRCH) || !fake_is_on(e->d_name)) continue;
        struct share *s = fake_share(pid, 0);
        if (!s) continue;
        each(pid, s, arg);
        munmap(s, sizeof *s);
    }
    closedir(d);
}

#define CONTEXT_BYTES (8ULL << 20)

static int on_device(const struct share *s) { return s->state == RUNNING || s->state == LOCKED; }

static void fake_add(int pid, struct share *s, void *arg) {
    (void)pid;
    if (on_device(s)) *(unsigned long long *)arg += s->bytes + CONTEXT_BYTES;
}

static unsigned long long fake_used(void) {
    unsigned long long used = fake_number("others", 0);
    fake_each(fake_add, &used);
    return used;
}

static unsigned long long fake_total(void) { return fake_number("total", 1ULL << 30); }

static const unsigned char FAKE_UUID[16] = {0xfa, 0x4e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
#define FAKE_UUID_TEXT "GPU-fa4e0000-0000-0000-0000-000000000001"
#endif
