/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Stands where kmod's commands were (modprobe, rmmod, insmod, modinfo). What does not concern the simulated modules
 * goes on to kmod at once: update-initramfs calls these commands thousands of times, too often to start Python.
 */
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define KMOD "/usr/bin/kmod"
#define OURS "/usr/lib/baremetal-gpu-simulators/kernel.py"

static bool is_ours(const char *word)
{
    return strncmp(word, "nvidia", 6) == 0 || strcmp(word, "nouveau") == 0;
}

int main(int argc, char **argv)
{
    char *name = basename(argv[0]);
    bool ours = false;
    for (int i = 1; i < argc; i++) {
        /* rmmod and insmod take paths; of modinfo a path is as good for kmod. */
        ours |= is_ours(strcmp(name, "modinfo") == 0 ? argv[i] : basename(strdupa(argv[i])));
    }
    char *words[argc + 3];
    int count = 0;
    if (ours) {
        words[count++] = OURS;
    }
    words[count++] = name;
    for (int i = 1; i < argc; i++) {
        words[count++] = argv[i];
    }
    words[count] = NULL;
    execv(ours ? OURS : KMOD, words);
    perror(ours ? OURS : KMOD);
    return 127;
}
