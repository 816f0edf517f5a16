/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What the stand-ins for NVIDIA's libraries share: the scenario file, re-read when it changes; the state of the
 * simulated kernel; the faults that a scenario orders for a call.
 */
#ifndef SIMULATOR_SCENARIO_H
#define SIMULATOR_SCENARIO_H

#include "json.h"

#define SIMULATOR_DIRECTORY "/usr/lib/baremetal-gpu-simulators"

/* The current scenario, read again if the file changed; NULL when there is none that can be read. The caller holds
 * scenario_lock() while it uses the tree. */
const struct json *scenario_current(void);
void scenario_lock(void);
void scenario_unlock(void);

/* The path of a file that belongs to the scenario: beside that of a unit test, in a machine in the tmpfs that a reboot
 * empties. Only "mig-at-boot" outlives a reboot: what the next one finds. */
void scenario_beside(const char *name, char *out, size_t size);

/* The compute instance of a GPU with this UUID, else with this serial number, else the first, and in `instance` the GPU
 * instance that it is in; NULL where there is none. */
const struct json *scenario_compute(
    const struct json *device, const char *uuid, long long serial, const struct json **instance);
/* The node without which an instance cannot be opened; compute_instance -1 for that of the GPU instance. */
void scenario_capability(int minor, int gpu_instance, int compute_instance, char *out, size_t size);

/* Whether the scenario stands alone ("kernel": "assume-loaded") or the simulated kernel decides what is loaded. */
bool scenario_alone(const struct json *scenario);

/* The version of the loaded kernel module, false when none is loaded. */
bool scenario_module_version(const struct json *scenario, char *out, size_t size);
/* Whether the simulated kernel lists a character device of this name ("nvidia-uvm"). */
bool scenario_has_character_device(const char *name);
/* The version of the library that the symbol `self` is in: the one in its file's name, as in libcuda.so.550.163.01. */
void scenario_library_version(const struct json *scenario, const void *self, char *out, size_t size);
int scenario_branch(const char *version);
/* The newest CUDA of a driver branch, as cuDriverGetVersion has it: 12040 is 12.4. */
int scenario_cuda_version(const struct json *scenario, const char *driver_version);

/* The same, in the form of NVML and CUDA, where GPUs that the loaded driver does not know are not seen. */
bool scenario_driver_knows(const struct json *device, const char *driver_version);

/* The result of opening a device file: 0 when it is there and may be used, else an errno. The real kernel has no such
 * device and says ENXIO where the file is there: that counts as there. The file stays held, as by the real library,
 * so that what looks for the users of a device finds this process. */
int scenario_open_node(const char *path);
void scenario_release_nodes(void);
/* As NVML and its kin do on the host: makes the missing file of a device, by itself as root, else with the help of
 * nvidia-modprobe, which is setuid root; unless the driver's parameters say that its files are not to be touched. */
bool scenario_make_node(const char *path, int minor);

struct fault {
    bool ordered;
    int error; /* 0: none */
    long delay_ms;
    bool hang, crash, garbage;
};

/* The fault that the scenario orders for this call; `device` is the place in the scenario's list, -1 for none.
 * A fault may begin after some calls and end after some ("after", "times"): counted per process. */
struct fault scenario_fault(const struct json *scenario, const char *call, int device);
/* Sleeps, hangs or aborts as ordered. To be called without the lock. */
void scenario_suffer(const struct fault *fault);
void scenario_fill_garbage(void *out, size_t size);

#endif
