/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Preloaded into the programs of a simulated machine whose kernel was built without modules: there is no
 * /proc/modules then, and none can be added to /proc. Whoever opens it is given the simulated kernel's list.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define REAL "/proc/modules"
#define OURS "/usr/lib/baremetal-gpu-simulators/run/proc-modules"

/* Programs do ask statx() about no path at all, to learn whether the kernel knows it. The headers of libc promise that
 * a path is never null, so without `volatile` a compiler would leave the question out. */
static const char *place_of(const char *volatile given)
{
    const char *path = given;
    return path != NULL && strcmp(path, REAL) == 0 ? OURS : path;
}

#define NEXT(name) \
    static __typeof__(&name) next; \
    if (next == NULL) { \
        next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    }

/* open() has its mode only where it may create a file. */
#define MODE_OF(flags, mode) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list list; \
        va_start(list, flags); \
        mode = va_arg(list, mode_t); \
        va_end(list); \
    }

EXPORT int open(const char *path, int flags, ...)
{
    NEXT(open)
    MODE_OF(flags, mode)
    return next(place_of(path), flags, mode);
}

EXPORT int open64(const char *path, int flags, ...)
{
    NEXT(open64)
    MODE_OF(flags, mode)
    return next(place_of(path), flags, mode);
}

EXPORT int openat(int directory, const char *path, int flags, ...)
{
    NEXT(openat)
    MODE_OF(flags, mode)
    return next(directory, place_of(path), flags, mode);
}

EXPORT int openat64(int directory, const char *path, int flags, ...)
{
    NEXT(openat64)
    MODE_OF(flags, mode)
    return next(directory, place_of(path), flags, mode);
}

EXPORT FILE *fopen(const char *path, const char *mode)
{
    NEXT(fopen)
    return next(place_of(path), mode);
}

EXPORT FILE *fopen64(const char *path, const char *mode)
{
    NEXT(fopen64)
    return next(place_of(path), mode);
}

EXPORT int access(const char *path, int mode)
{
    NEXT(access)
    return next(place_of(path), mode);
}

EXPORT int stat(const char *path, struct stat *out)
{
    NEXT(stat)
    return next(place_of(path), out);
}

EXPORT int stat64(const char *path, struct stat64 *out)
{
    NEXT(stat64)
    return next(place_of(path), out);
}

EXPORT int lstat(const char *path, struct stat *out)
{
    NEXT(lstat)
    return next(place_of(path), out);
}

EXPORT int lstat64(const char *path, struct stat64 *out)
{
    NEXT(lstat64)
    return next(place_of(path), out);
}

EXPORT int fstatat(int directory, const char *path, struct stat *out, int flags)
{
    NEXT(fstatat)
    return next(directory, place_of(path), out, flags);
}

EXPORT int fstatat64(int directory, const char *path, struct stat64 *out, int flags)
{
    NEXT(fstatat64)
    return next(directory, place_of(path), out, flags);
}

EXPORT int statx(int directory, const char *restrict path, int flags, unsigned mask, struct statx *restrict out)
{
    NEXT(statx)
    return next(directory, place_of(path), flags, mask, out);
}
