/* A FAKE libnvidia-ml.so.1 for tests: one device, and the processes that fake_libcuda.c put on it. What it doesn't
 * have, nvml-wrapper reports as a missing symbol, as with an old driver. */
#include "fake_gpu.h"

#define EXPORT __attribute__((visibility("default")))
enum { OK = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9 };
#define INJECT(function) do { int code = fake_injected(function); if (code > 0) return code; } while (0)
static char device, instance;
typedef void *dev_t_;

static int init(void) { return fake_has("no_nvml") ? DRIVER_NOT_LOADED : OK; }
EXPORT int nvmlInit_v2(void) { INJECT("nvmlInit_v2"); return init(); }
EXPORT int nvmlInitWithFlags(unsigned flags) { INJECT("nvmlInitWithFlags"); (void)flags; return init(); }
EXPORT int nvmlShutdown(void) { INJECT("nvmlShutdown"); return OK; }
EXPORT const char *nvmlErrorString(int code) { (void)code; return "an error of the fake NVML"; }

static int put(char *out, unsigned size, const char *text) { if (strlen(text) >= size) return INSUFFICIENT_SIZE; strcpy(out, text); return OK; }

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned size) { INJECT("nvmlSystemGetDriverVersion");
    char path[512], text[64] = "580.159.03";
    fake_path(path, sizeof path, "driver");
    FILE *f = fopen(path, "r");
    if (f) { if (fscanf(f, "%63s", text) != 1) text[0] = 0; fclose(f); }
    return put(out, size, text);
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { INJECT("nvmlSystemGetCudaDriverVersion_v2"); *version = (int)fake_number("version", 13000); return OK; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { INJECT("nvmlDeviceGetCount_v2"); *count = 1; return OK; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, dev_t_ *out) { INJECT("nvmlDeviceGetHandleByIndex_v2"); *out = &device; return index ? INVALID_ARGUMENT : OK; }
EXPORT int nvmlDeviceGetUUID(dev_t_ d, char *out, unsigned size) { INJECT("nvmlDeviceGetUUID");
    return put(out, size, d == &instance ? "MIG-fa4e0000-0000-0000-0000-0000000000aa" : FAKE_UUID_TEXT);
}
EXPORT int nvmlDeviceGetName(dev_t_ d, char *out, unsigned size) { INJECT("nvmlDeviceGetName"); (void)d; return put(out, size, "FAKE GPU"); }
EXPORT int nvmlDeviceGetIndex(dev_t_ d, unsigned *out) { INJECT("nvmlDeviceGetIndex"); (void)d; *out = 0; return OK; }
EXPORT int nvmlDeviceGetMinorNumber(dev_t_ d, unsigned *out) { INJECT("nvmlDeviceGetMinorNumber"); (void)d; *out = (unsigned)fake_number("minor", 0); return OK; }

struct memory { unsigned long long total, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo(dev_t_ d, struct memory *m) { INJECT("nvmlDeviceGetMemoryInfo");
    (void)d;
    m->total = fake_total();
    m->used = fake_used();
    m->free = m->total > m->used ? m->total - m->used : 0;
    return OK;
}
struct memory2 { unsigned version; unsigned long long total, reserved, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo_v2(dev_t_ d, struct memory2 *m) { INJECT("nvmlDeviceGetMemoryInfo_v2");
    struct memory one;
    nvmlDeviceGetMemoryInfo(d, &one);
    m->total = one.total; m->reserved = 0; m->free = one.free; m->used = one.used;
    return OK;
}
struct rates { unsigned gpu, memory; };
EXPORT int nvmlDeviceGetUtilizationRates(dev_t_ d, struct rates *r) { INJECT("nvmlDeviceGetUtilizationRates"); if (d == &instance) return NOT_SUPPORTED; r->gpu = 37; r->memory = 12; return OK; }
EXPORT int nvmlDeviceGetPowerUsage(dev_t_ d, unsigned *mw) { INJECT("nvmlDeviceGetPowerUsage"); if (d == &instance) return NOT_SUPPORTED; *mw = 123456; return OK; }
EXPORT int nvmlDeviceGetTotalEnergyConsumption(dev_t_ d, unsigned long long *mj) { INJECT("nvmlDeviceGetTotalEnergyConsumption"); if (d == &instance) return NOT_SUPPORTED; *mj = 7000; return OK; }

struct process { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; };
struct list { struct process *out; unsigned room, n; };
static void list_one(int pid, struct share *s, void *arg) {
    struct list *l = arg;
    if (!on_device(s)) return;
    if (l->n < l->room) l->out[l->n] = (struct process){(unsigned)pid, s->bytes + CONTEXT_BYTES, 0xffffffffu, 0xffffffffu};
    l->n++;
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(dev_t_ d, unsigned *count, struct process *out) { INJECT("nvmlDeviceGetComputeRunningProcesses_v3");
    (void)d;
    struct list l = {out, out ? *count : 0, 0};
    fake_each(list_one, &l);
    *count = l.n;
    return l.n > l.room ? INSUFFICIENT_SIZE : OK;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(dev_t_ d, unsigned *count, struct process *out) { INJECT("nvmlDeviceGetGraphicsRunningProcesses_v3"); (void)d; (void)out; *count = 0; return OK; }
EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(dev_t_ d, unsigned *count, struct process *out) { INJECT("nvmlDeviceGetMPSComputeRunningProcesses_v3"); (void)d; (void)out; *count = 0; return OK; }
EXPORT int nvmlDeviceGetProcessUtilization(dev_t_ d, void *out, unsigned *count, unsigned long long since) { INJECT("nvmlDeviceGetProcessUtilization"); (void)d; (void)out; (void)since; *count = 0; return NOT_FOUND; }
EXPORT int nvmlDeviceGetMigMode(dev_t_ d, unsigned *now, unsigned *pending) { INJECT("nvmlDeviceGetMigMode"); (void)d; *now = *pending = fake_has("mig"); return OK; }
EXPORT int nvmlDeviceGetMaxMigDeviceCount(dev_t_ d, unsigned *count) { INJECT("nvmlDeviceGetMaxMigDeviceCount"); (void)d; *count = 7; return OK; }
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(dev_t_ d, unsigned index, dev_t_ *out) { INJECT("nvmlDeviceGetMigDeviceHandleByIndex"); (void)d; *out = &instance; return index ? NOT_FOUND : OK; }
EXPORT int nvmlDeviceIsMigDeviceHandle(dev_t_ d, unsigned *is) { INJECT("nvmlDeviceIsMigDeviceHandle"); *is = d == &instance; return OK; }
