/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stands in for kmod's commands in front of kernel.py. What does not name a simulated module goes to the real kmod at
 * once: the tools that make an initramfs call modinfo hundreds of times, and an interpreter each time would cost more
 * than all the rest of their work.
 */
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KMOD "/usr/bin/kmod"
#define STAND_INS "/usr/lib/baremetal-gpu-simulators/commands/"

int main(int argc, char **argv)
{
    char *name = basename(argv[0]);
    int ours = 0, plain = 0;
    for (int i = 1; i < argc; i++) {
        ours |= strstr(argv[i], "nvidia") != NULL || strstr(argv[i], "nouveau") != NULL;
        plain |= strchr(argv[i], '/') != NULL || strcmp(argv[i], "-k") == 0;
    }
    if (!ours || (plain && strcmp(name, "modinfo") == 0)) {
        argv[0] = name;
        execv(KMOD, argv);
    } else {
        char path[256];
        snprintf(path, sizeof(path), STAND_INS "%s", name);
        argv[0] = path;
        execv(path, argv);
    }
    perror(name);
    return 127;
}
