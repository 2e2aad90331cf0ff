/*
 * Preloaded into slurmd on a host that mounts cgroup v1 beside v2: shows it the v2 line of /proc/PID/cgroup
 * alone, since Slurm's cgroup/v2 refuses hosts with both. Part of the test cluster, never of an installation.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

typedef int open_fn(const char *, int, ...);

static int lists_cgroups(const char *path)
{
	size_t length = strlen(path);

	return !strncmp(path, "/proc/", 6) && length > 7 && !strcmp(path + length - 7, "/cgroup");
}

/* A memory file with those lines of this file that begin with "0::". */
static int v2_line(open_fn *real, const char *path)
{
	char text[8192];
	size_t size = 0;
	ssize_t got;
	int in = real(path, O_RDONLY | O_CLOEXEC);
	int out;

	if (in < 0)
		return -1;
	while (size < sizeof(text) - 1 && (got = read(in, text + size, sizeof(text) - 1 - size)) > 0)
		size += got;
	close(in);
	text[size] = 0;
	out = memfd_create("cgroup", MFD_CLOEXEC);
	for (char *line = strtok(text, "\n"); out >= 0 && line; line = strtok(NULL, "\n"))
		if (!strncmp(line, "0::", 3))
			dprintf(out, "%s\n", line);
	if (out >= 0)
		lseek(out, 0, SEEK_SET);
	return out;
}

#define OPEN(name)                                                                                             \
	int name(const char *path, int flags, ...)                                                             \
	{                                                                                                      \
		static open_fn *real;                                                                          \
		mode_t mode = 0;                                                                               \
                                                                                                               \
		if (!real)                                                                                     \
			real = (open_fn *)dlsym(RTLD_NEXT, #name);                                             \
		if (lists_cgroups(path))                                                                       \
			return v2_line(real, path);                                                            \
		if (flags & (O_CREAT | __O_TMPFILE)) {                                                         \
			va_list args;                                                                          \
			va_start(args, flags);                                                                 \
			mode = va_arg(args, mode_t);                                                           \
			va_end(args);                                                                          \
		}                                                                                              \
		return real(path, flags, mode);                                                                \
	}

OPEN(open)
OPEN(open64)
