/*
 * Preloaded into slurmd on a host that mounts cgroup v1 beside v2: shows it the v2 line of /proc/self/cgroup
 * alone, since Slurm's cgroup/v2 refuses hosts with both. Part of the test cluster, never of an installation.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

static int v2_line(void)
{
	int fd = memfd_create("cgroup", MFD_CLOEXEC);

	if (fd >= 0 && (write(fd, "0::/\n", 5) != 5 || lseek(fd, 0, SEEK_SET) != 0)) {
		close(fd);
		return -1;
	}
	return fd;
}

#define OPEN(name)                                                                                             \
	int name(const char *path, int flags, ...)                                                             \
	{                                                                                                      \
		static int (*real)(const char *, int, ...);                                                    \
		mode_t mode = 0;                                                                               \
                                                                                                               \
		if (!strcmp(path, "/proc/self/cgroup"))                                                        \
			return v2_line();                                                                      \
		if (flags & (O_CREAT | __O_TMPFILE)) {                                                         \
			va_list args;                                                                          \
			va_start(args, flags);                                                                 \
			mode = va_arg(args, mode_t);                                                           \
			va_end(args);                                                                          \
		}                                                                                              \
		if (!real)                                                                                     \
			real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name);                       \
		return real(path, flags, mode);                                                                \
	}

OPEN(open)
OPEN(open64)
