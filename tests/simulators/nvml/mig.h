/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The state of MIG in the simulated GPUs, which every process sees: modes and instances as NVML has set them last.
 */
#ifndef SIMULATOR_MIG_H
#define SIMULATOR_MIG_H

#include "../common/scenario.h"

#define MOST_INSTANCES 16

struct mig_compute {
    int id, serial, index, profile, start, slices, multiprocessors;
    char uuid[48], name[40];
};
struct mig_instance {
    int id, serial, profile, start, size, slices, multiprocessors, computes;
    long long total_mib, reserved_mib, used_mib;
    char name[32];
    struct mig_compute compute[8];
};
/* `serials` are given out once and never again, so that a handle of what was destroyed stays invalid. */
struct mig_state {
    bool current, pending;
    int serials, count;
    struct mig_instance instances[MOST_INSTANCES];
};

/* One process changes the state at a time: lock it, read the scenario anew, change what mig_load gave, keep it. */
int mig_lock(void);
void mig_unlock(int lock);
void mig_load(const struct json *device, struct mig_state *out);
bool mig_keep(const struct json *scenario, const struct json *device, const struct mig_state *state);

/* A UUID that nothing had before. */
void mig_uuid(char *out, size_t size);
/* The clients of a GPU or of one of its instances, but for this process; -1 for all instances. */
int mig_clients(const struct json *scenario, const struct json *device, int gpu_instance, int compute_instance);
/* The slot of an instance that was taken away is closed up. */
void mig_remove(struct mig_state *state, int place);

#endif
