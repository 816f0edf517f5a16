/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for NVIDIA's libnvidia-cfg.so.1, as far as the real nvidia-persistenced asks it: which GPUs there are,
 * and to hold them. The interface is the one that the published source of nvidia-persistenced calls.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../common/scenario.h"

#define EXPORT __attribute__((visibility("default")))

struct pci_device {
    int domain, bus, slot, function;
};

static bool address_of(const struct json *device, struct pci_device *out)
{
    memset(out, 0, sizeof(*out));
    return sscanf(json_text(device, "pci.address", ""), "%x:%x:%x", (unsigned *)&out->domain, (unsigned *)&out->bus,
               (unsigned *)&out->slot) == 3;
}

static bool node_usable(const char *path, int minor)
{
    int error = scenario_open_node(path);
    if (error == ENOENT && scenario_make_node(path, minor)) {
        error = scenario_open_node(path);
    }
    return error == 0;
}

static bool is_usable(const struct json *device, const char *version)
{
    return strcmp(json_text(device, "state", "ok"), "ok") == 0 && scenario_driver_knows(device, version);
}

EXPORT int nvCfgGetPciDevices(int *count, struct pci_device **out)
{
    char version[32];
    scenario_lock();
    const struct json *scenario = scenario_current();
    if (scenario == NULL || !scenario_module_version(scenario, version, sizeof(version))
        || (!scenario_alone(scenario) && !node_usable("/dev/nvidiactl", 255))) {
        scenario_unlock();
        return 0;
    }
    const struct json *devices = json_get(scenario, "devices");
    int length = json_length(scenario, "devices");
    *count = 0;
    *out = calloc((size_t)length + 1, sizeof(**out));
    for (int i = 0; *out != NULL && i < length; i++) {
        if (is_usable(json_at(devices, i), version)) {
            *count += address_of(json_at(devices, i), &(*out)[*count]);
        }
    }
    /* Asking holds no GPU; opening one does. */
    scenario_release_nodes();
    scenario_unlock();
    return *out != NULL;
}

EXPORT int nvCfgOpenPciDevice(int domain, int bus, int slot, int function, void **handle)
{
    static char held;
    bool opened = false;
    (void)function;
    scenario_lock();
    const struct json *scenario = scenario_current(), *devices = json_get(scenario, "devices");
    for (int i = 0; scenario != NULL && i < json_length(scenario, "devices"); i++) {
        struct pci_device address;
        if (address_of(json_at(devices, i), &address) && address.domain == domain && address.bus == bus
            && address.slot == slot) {
            char path[64];
            int minor = (int)json_integer(json_at(devices, i), "minor", i);
            snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
            opened = scenario_alone(scenario) || node_usable(path, minor);
        }
    }
    scenario_unlock();
    *handle = opened ? &held : NULL;
    return opened;
}

EXPORT int nvCfgAttachPciDevice(int domain, int bus, int slot, int function, void **handle)
{
    return nvCfgOpenPciDevice(domain, bus, slot, function, handle);
}

/* The GPU stays held until the process ends: the daemon closes it at once when it cannot ask the real kernel for the
 * GPU's memory nodes, which it never can here, and would hold nothing. */
EXPORT int nvCfgCloseDevice(void *handle)
{
    return handle != NULL;
}

EXPORT int nvCfgDetachDevice(void *handle)
{
    return nvCfgCloseDevice(handle);
}

EXPORT unsigned nvCfgEnableUVMPersistence(void *handle)
{
    return handle == NULL;
}

EXPORT unsigned nvCfgDisableUVMPersistence(void *handle)
{
    return handle == NULL;
}
