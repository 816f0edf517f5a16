/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The only program of the tests' image. Without an argument it waits, as the first program of a container; with one it
 * prints what the container has: `file 0` for a GPU's device file, `library` for the driver's library, `open 0 TEXT`
 * for what the kernel says when a device of that minor number is opened, `memory` and `shm` in bytes.
 *
 * The files that are opened are made for it, because root in a container may do that too. The real kernel has no such
 * device, so its answer tells whether the limits of the container let the request through to it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAJOR 195

int main(int argc, char **argv)
{
    (void)argv;
    while (argc == 1) {
        pause();
    }
    for (unsigned minor = 0; minor < 2; minor++) {
        char path[32];
        snprintf(path, sizeof(path), "/dev/nvidia%u", minor);
        if (access(path, F_OK) == 0) {
            printf("file %u\n", minor);
        }
        snprintf(path, sizeof(path), "/tmp/gpu%u", minor);
        if (mknod(path, S_IFCHR | 0600, makedev(MAJOR, minor)) != 0 && errno != EEXIST) {
            printf("mknod %u %s\n", minor, strerror(errno));
            continue;
        }
        printf("open %u %s\n", minor, open(path, O_RDONLY) < 0 ? strerror(errno) : "opened");
    }
    if (access("/usr/lib/x86_64-linux-gnu/libcuda.so.1", R_OK) == 0) {
        printf("library\n");
    }
    struct statvfs shm;
    if (statvfs("/dev/shm", &shm) == 0) {
        printf("shm %lu\n", (unsigned long)(shm.f_blocks * shm.f_frsize));
    }
    FILE *limit = fopen("/sys/fs/cgroup/memory/memory.limit_in_bytes", "r");
    unsigned long long bytes;
    if (limit != NULL && fscanf(limit, "%llu", &bytes) == 1) {
        printf("memory %llu\n", bytes);
    }
    return 0;
}
