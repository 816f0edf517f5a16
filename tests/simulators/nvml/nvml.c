/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for NVIDIA's management library libnvidia-ml.so.1: it answers from a scenario file (see README.md) what
 * the real one answers of real GPUs. As strict as the real one about handles, buffers and what a GPU has not: what
 * does not depend on the model was measured on an H200 with driver 580.159.04 (see ../nvml_contract.py).
 */
#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../common/scenario.h"
#include "mig.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A handle is the address of a slot. A slot belongs to a UUID for as long as the process lives, so that a handle stays
 * with its GPU when another GPU vanishes from a scenario. */
enum slot_kind { SLOT_FREE, SLOT_GPU, SLOT_MIG, SLOT_GPU_INSTANCE, SLOT_COMPUTE_INSTANCE };
struct slot {
    enum slot_kind kind;
    char uuid[96]; /* of the GPU */
    int instance; /* of MIG: the serial number of the GPU or compute instance */
};
static struct slot slots[8192];

struct registration {
    char uuid[96];
    nvmlU64 types;
};
struct event_set {
    bool used;
    struct registration gpus[64];
    long long seen; /* the greatest id of the events that were there at the registration or were handed out */
    long long registered_ms; /* when the first GPU was */
};
static struct event_set event_sets[32];

static int references;
static char module_version[32];
static char library_version[32];
static unsigned char usable[64]; /* GPUs whose device files this process may open, by their place in the scenario */

/* One call from its beginning to its end. Between enter() and leave() the scenario is locked. */
struct call {
    const char *name;
    const struct json *scenario;
    const struct json *device; /* of the handle, for a MIG handle its parent's */
    const struct json *instance, *compute; /* of a MIG handle: its GPU instance and its compute instance */
    int index; /* the device's place in the scenario */
    struct fault fault;
    struct { void *at; size_t size; } out[6];
    size_t outs;
};

static void answers(struct call *call, void *at, size_t size)
{
    if (call->outs < COUNT(call->out)) {
        call->out[call->outs].at = at;
        call->out[call->outs++].size = size;
    }
}

static nvmlReturn_t leave(struct call *call, nvmlReturn_t result)
{
    if (call->fault.garbage && result == NVML_SUCCESS) {
        for (size_t i = 0; i < call->outs; i++) {
            scenario_fill_garbage(call->out[i].at, call->out[i].size);
        }
    }
    scenario_unlock();
    return result;
}

static bool has_state(const struct json *device, const char *state)
{
    return strcmp(json_text(device, "state", "ok"), state) == 0;
}

/* Whether NVML counts the GPU. A GPU that fell off the bus while the driver held it is still counted. */
static bool is_counted(const struct json *scenario, int place)
{
    const struct json *device = json_at(json_get(scenario, "devices"), place);
    bool attached = has_state(device, "ok") || has_state(device, "lost") || has_state(device, "reset_required");
    return device != NULL && attached && scenario_driver_knows(device, module_version)
        && (scenario_alone(scenario) || (place < (int)COUNT(usable) && usable[place]));
}

static int device_count(const struct json *scenario)
{
    return json_length(scenario, "devices");
}

static int place_of_uuid(const struct json *scenario, const char *uuid)
{
    for (int place = 0; place < device_count(scenario); place++) {
        if (strcmp(json_text(json_at(json_get(scenario, "devices"), place), "uuid", ""), uuid) == 0) {
            return place;
        }
    }
    return -1;
}

static struct slot *slot_for(enum slot_kind kind, const char *uuid, int instance)
{
    for (size_t i = 0; i < COUNT(slots); i++) {
        struct slot *slot = &slots[i];
        if (slot->kind == SLOT_FREE) {
            slot->kind = kind;
            slot->instance = instance;
            snprintf(slot->uuid, sizeof(slot->uuid), "%s", uuid);
        }
        if (slot->kind == kind && slot->instance == instance && strcmp(slot->uuid, uuid) == 0) {
            return slot;
        }
    }
    return NULL;
}

static bool is_slot(const struct slot *slot)
{
    return slot >= slots && slot < slots + COUNT(slots)
        && ((const char *)slot - (const char *)slots) % sizeof(*slot) == 0 && slot->kind != SLOT_FREE;
}

/* By its id, or by another number that it has. */
static const struct json *find_instance(const struct json *device, const char *key, int value)
{
    const struct json *instances = json_integer(device, "mig.current", 0) ? json_get(device, "mig.instances") : NULL;
    for (int i = 0; instances != NULL && i < instances->count; i++) {
        const struct json *instance = json_at(instances, i);
        if (json_integer(instance, key, -1) == value) {
            return instance;
        }
    }
    return NULL;
}

/* What a call that concerns the library as a whole begins with. `since` is the first branch that has the function. */
static nvmlReturn_t enter_with(struct call *call, const char *name, int since, int place)
{
    memset(call, 0, sizeof(*call));
    call->name = name;
    call->index = place;
    scenario_lock();
    call->scenario = scenario_current();
    if (call->scenario == NULL) {
        return leave(call, NVML_UNKNOWN);
    }
    if (references == 0) {
        return leave(call, NVML_UNINITIALIZED);
    }
    if (scenario_branch(library_version) < since) {
        return leave(call, NVML_FUNCTION_NOT_FOUND);
    }
    call->fault = scenario_fault(call->scenario, name, place);
    if (call->fault.ordered) {
        scenario_unlock();
        scenario_suffer(&call->fault);
        scenario_lock();
        call->scenario = scenario_current();
        if (call->fault.error != 0) {
            return leave(call, call->fault.error);
        }
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t enter(struct call *call, const char *name, int since)
{
    return enter_with(call, name, since, -1);
}

/* What is no handle is refused if it is NULL. Anything else the real library takes for an address and follows. */
static nvmlReturn_t no_handle(struct call *call, const struct slot *handle)
{
    nvmlReturn_t result = leave(call, NVML_INVALID_ARGUMENT);
    if (handle != NULL && !is_slot(handle)) {
        raise(SIGSEGV);
    }
    return result;
}

/* What a call with a handle begins with. `mig` says whether it answers for a MIG device too. */
static nvmlReturn_t enter_device(struct call *call, const char *name, int since, nvmlDevice_t handle, bool mig)
{
    int place = -1;
    bool valid = is_slot(handle) && (handle->kind == SLOT_GPU || handle->kind == SLOT_MIG);
    if (valid) {
        scenario_lock();
        const struct json *scenario = scenario_current();
        place = scenario != NULL ? place_of_uuid(scenario, handle->uuid) : -1;
        scenario_unlock();
    }
    nvmlReturn_t result = enter_with(call, name, since, place);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!valid) {
        return no_handle(call, handle);
    }
    call->index = place_of_uuid(call->scenario, handle->uuid);
    call->device = json_at(json_get(call->scenario, "devices"), call->index);
    if (call->index < 0 || !is_counted(call->scenario, call->index) || has_state(call->device, "lost")) {
        return leave(call, NVML_GPU_IS_LOST);
    }
    if (has_state(call->device, "reset_required")) {
        return leave(call, NVML_RESET_REQUIRED);
    }
    if (handle->kind == SLOT_MIG) {
        call->compute = scenario_compute(call->device, NULL, handle->instance, &call->instance);
        if (!mig) {
            return leave(call, NVML_NOT_SUPPORTED);
        }
        if (call->compute == NULL) {
            return leave(call, NVML_INVALID_ARGUMENT);
        }
    }
    return NVML_SUCCESS;
}

/* Begins a function's body: returns with the error, if there is one. */
#define ENTER(since) \
    struct call call; \
    nvmlReturn_t begun = enter(&call, __func__, since); \
    if (begun != NVML_SUCCESS) { \
        return begun; \
    }
#define ENTER_DEVICE(since, handle, mig) \
    struct call call; \
    nvmlReturn_t begun = enter_device(&call, __func__, since, handle, mig); \
    if (begun != NVML_SUCCESS) { \
        return begun; \
    }
#define REQUIRE(condition, otherwise) \
    if (!(condition)) { \
        return leave(&call, otherwise); \
    }

/* What NVML has set: lines of "UUID KEY VALUE" in a file that every process reads, beside the scenario of a unit test,
 * in a machine on the tmpfs that a reboot empties. */
static bool find_setting(const struct json *device, const char *key, unsigned *out)
{
    char path[PATH_MAX], uuid[96], name[32];
    unsigned value;
    bool found = false;
    scenario_beside("settings", path, sizeof(path));
    FILE *file = fopen(path, "re");
    while (file != NULL && fscanf(file, "%95s %31s %u", uuid, name, &value) == 3) {
        if (strcmp(uuid, json_text(device, "uuid", "")) == 0 && strcmp(name, key) == 0) {
            *out = value;
            found = true;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return found;
}

/* The last line of a setting counts; a line is written as a whole. */
static nvmlReturn_t keep_setting(const struct json *device, const char *key, unsigned value)
{
    char path[PATH_MAX], line[192];
    scenario_beside("settings", path, sizeof(path));
    int length = snprintf(line, sizeof(line), "%s %s %u\n", json_text(device, "uuid", ""), key, value);
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    bool written = file >= 0 && write(file, line, (size_t)length) == length;
    if (file >= 0) {
        close(file);
    }
    return written ? NVML_SUCCESS : NVML_UNKNOWN;
}

/* What changes a GPU. Assumed, from the words of NVML's documentation: bad arguments are refused first, then who is
 * not root, then what the GPU does not have. */
static nvmlReturn_t may_set(const struct json *device, const char *path)
{
    if (geteuid() != 0) {
        return NVML_NO_PERMISSION;
    }
    return json_get(device, path) != NULL ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

/* A counter and what it has grown by since boot: "replays": 3, "replays_per_minute": 60. Every process sees the same.
 * "clock_offset_s" of the scenario is a time that has passed in addition. */
static nvmlU64 growing(const struct json *scenario, const struct json *node, const char *path)
{
    char rate[80];
    struct timespec now;
    snprintf(rate, sizeof(rate), "%s_per_minute", path);
    clock_gettime(CLOCK_BOOTTIME, &now);
    double seconds = (double)now.tv_sec + (double)now.tv_nsec / 1e9 + json_number(scenario, "clock_offset_s", 0);
    double grown = json_number(node, rate, 0) * seconds / 60;
    return (nvmlU64)json_integer(node, path, 0) + (nvmlU64)grown;
}

/* What the scenario has not, the GPU has not. */
static nvmlReturn_t give_unsigned(struct call *call, const struct json *node, const char *path, unsigned *out)
{
    if (out == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (json_get(node, path) == NULL) {
        return leave(call, NVML_NOT_SUPPORTED);
    }
    *out = (unsigned)json_integer(node, path, 0);
    answers(call, out, sizeof(*out));
    return leave(call, NVML_SUCCESS);
}

/* The same of what can be set: as it was set last, else as in the scenario. */
static nvmlReturn_t give_setting(
    struct call *call, const char *key, const char *path, unsigned *out)
{
    unsigned value = 0;
    if (out == NULL || json_get(call->device, path) == NULL || !find_setting(call->device, key, &value)) {
        return give_unsigned(call, call->device, path, out);
    }
    *out = value;
    answers(call, out, sizeof(*out));
    return leave(call, NVML_SUCCESS);
}

static nvmlReturn_t give_u64(struct call *call, const struct json *node, const char *path, nvmlU64 *out)
{
    if (out == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (json_get(node, path) == NULL) {
        return leave(call, NVML_NOT_SUPPORTED);
    }
    *out = (nvmlU64)json_integer(node, path, 0);
    answers(call, out, sizeof(*out));
    return leave(call, NVML_SUCCESS);
}

static nvmlReturn_t give_text(struct call *call, const char *text, char *out, unsigned size)
{
    if (out == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (text == NULL) {
        return leave(call, NVML_NOT_SUPPORTED);
    }
    if (strlen(text) + 1 > size) {
        return leave(call, NVML_INSUFFICIENT_SIZE);
    }
    strcpy(out, text);
    answers(call, out, strlen(text));
    return leave(call, NVML_SUCCESS);
}

#define GET_UNSIGNED(function, since, path) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *out) \
    { \
        ENTER_DEVICE(since, device, false) \
        return give_unsigned(&call, call.device, path, out); \
    }
#define GET_SETTING(function, since, key, path) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *out) \
    { \
        ENTER_DEVICE(since, device, false) \
        return give_setting(&call, key, path, out); \
    }
#define GET_U64(function, since, path) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, nvmlU64 *out) \
    { \
        ENTER_DEVICE(since, device, false) \
        return give_u64(&call, call.device, path, out); \
    }
#define GET_TEXT(function, since, path) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned size) \
    { \
        ENTER_DEVICE(since, device, false) \
        return give_text(&call, json_text(call.device, path, NULL), out, size); \
    }

/* Life of the library */

/* Which GPUs' files can be opened. As root on the host a missing file is made, as the real library does. */
static nvmlReturn_t open_nodes(const struct json *scenario)
{
    int error = scenario_open_node("/dev/nvidiactl");
    if (error == ENOENT && scenario_make_node("/dev/nvidiactl", 255)) {
        error = scenario_open_node("/dev/nvidiactl");
    }
    if (error != 0) {
        return error == ENOENT ? NVML_DRIVER_NOT_LOADED : error == EACCES ? NVML_NO_PERMISSION : NVML_UNKNOWN;
    }
    for (int place = 0; place < device_count(scenario) && place < (int)COUNT(usable); place++) {
        const struct json *device = json_at(json_get(scenario, "devices"), place);
        char path[64];
        int minor = (int)json_integer(device, "minor", place);
        snprintf(path, sizeof(path), "/dev/nvidia%d", minor);
        error = scenario_open_node(path);
        if (error == ENOENT && !has_state(device, "gone") && !has_state(device, "unclaimed")
            && scenario_make_node(path, minor)) {
            error = scenario_open_node(path);
        }
        usable[place] = error == 0;
    }
    return NVML_SUCCESS;
}

static nvmlReturn_t initialise(const char *name)
{
    scenario_lock();
    const struct json *scenario = scenario_current();
    struct fault fault = scenario_fault(scenario, name, -1);
    scenario_unlock();
    scenario_suffer(&fault);
    if (scenario == NULL) {
        return NVML_UNKNOWN;
    }
    if (fault.error != 0) {
        return fault.error;
    }
    scenario_lock();
    nvmlReturn_t result = NVML_SUCCESS;
    if (references == 0) {
        scenario = scenario_current();
        bool loaded = scenario_module_version(scenario, module_version, sizeof(module_version));
        scenario_library_version(scenario, (const void *)&references, library_version, sizeof(library_version));
        if (!loaded) {
            result = NVML_DRIVER_NOT_LOADED;
        } else if (strcmp(module_version, library_version) != 0) {
            result = NVML_LIB_RM_VERSION_MISMATCH;
        } else if (!scenario_alone(scenario)) {
            result = open_nodes(scenario);
        }
    }
    references += result == NVML_SUCCESS;
    scenario_unlock();
    return result;
}

/* Flags that nobody knows are taken too. */
EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned flags __attribute__((unused)))
{
    return initialise(__func__);
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return initialise(__func__);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return initialise(__func__);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    ENTER(0)
    if (--references == 0) {
        scenario_release_nodes();
    }
    return leave(&call, NVML_SUCCESS);
}

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient Resources", "Invalid Frequency", "Argument version mismatch",
        "Requested functionality has been deprecated", "System is not in ready state", "No supported GPUs were found",
        "Resource not in correct state to perform requested operation",
        "Reset type is not supported for given device",
    };
    return result >= 0 && result < (int)COUNT(texts) ? texts[result] : "Unknown Error";
}

/* What nvidia-smi asks for and nobody else: tables of functions without names. All of ours say that they are not
 * supported, which nvidia-smi shows as N/A. */
static nvmlReturn_t unnamed(void)
{
    return NVML_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlInternalGetExportTable(const void **out, const unsigned char *id)
{
    /* The first word is the size in bytes. */
    static void *table[512];
    if (out == NULL || id == NULL) {
        return NVML_INVALID_ARGUMENT;
    }
    for (size_t i = 1; i < COUNT(table); i++) {
        table[i] = (void *)unnamed;
    }
    table[0] = (void *)sizeof(table);
    *out = table;
    return NVML_SUCCESS;
}

/* The system */

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size)
{
    ENTER(0)
    return give_text(&call, module_version, out, size);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *out, unsigned size)
{
    ENTER(0)
    char text[64];
    snprintf(text, sizeof(text), "%d.%s", scenario_cuda_version(call.scenario, library_version) / 1000,
        library_version);
    return give_text(&call, text, out, size);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    ENTER(410)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = scenario_cuda_version(call.scenario, library_version);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *out)
{
    ENTER(396)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = scenario_cuda_version(call.scenario, library_version);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlDriverBranch_t *out, unsigned size)
{
    ENTER(560)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlDriverBranch_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    char text[80];
    snprintf(text, sizeof(text), "r%d_00", scenario_branch(module_version));
    return give_text(&call, text, out->branch, size);
}

/* The first word of the command line of a process that is no GPU's. */
static bool command_of(unsigned pid, char *out, unsigned size)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    size_t got = file != NULL ? fread(out, 1, size - 1, file) : 0;
    if (file != NULL) {
        fclose(file);
    }
    out[got] = '\0';
    return out[0] != '\0';
}

/* The only text that is cut to the buffer instead of refused. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size)
{
    ENTER(0)
    REQUIRE(out != NULL && size > 0, NVML_INVALID_ARGUMENT)
    char command[4096];
    const struct json *devices = json_get(call.scenario, "devices");
    for (int place = 0; devices != NULL && place < devices->count; place++) {
        const struct json *processes = json_get(json_at(devices, place), "processes");
        for (int i = 0; processes != NULL && i < processes->count; i++) {
            if (json_integer(json_at(processes, i), "pid", 0) == pid) {
                snprintf(out, size, "%s", json_text(json_at(processes, i), "name", "python3"));
                answers(&call, out, strlen(out));
                return leave(&call, NVML_SUCCESS);
            }
        }
    }
    REQUIRE(command_of(pid, command, sizeof(command)), NVML_NOT_FOUND)
    snprintf(out, size, "%s", command);
    answers(&call, out, strlen(out));
    return leave(&call, NVML_SUCCESS);
}

/* Handles */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out)
{
    ENTER(0)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = 0;
    for (int place = 0; place < device_count(call.scenario); place++) {
        *out += is_counted(call.scenario, place);
    }
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *out)
{
    return nvmlDeviceGetCount_v2(out);
}

static nvmlReturn_t give_handle(struct call *call, int place, nvmlDevice_t *out)
{
    const struct json *device = json_at(json_get(call->scenario, "devices"), place);
    /* The fault of a GPU is looked up only now: before it was not known which GPU is meant. */
    struct fault fault = scenario_fault(call->scenario, call->name, place);
    if (has_state(device, "lost")) {
        return leave(call, NVML_GPU_IS_LOST);
    }
    *out = slot_for(SLOT_GPU, json_text(device, "uuid", ""), -1);
    nvmlReturn_t result = leave(call, *out != NULL ? NVML_SUCCESS : NVML_MEMORY);
    if (fault.ordered && !call->fault.ordered) {
        scenario_suffer(&fault);
        return fault.error != 0 ? fault.error : result;
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    ENTER(0)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    for (int place = 0; place < device_count(call.scenario); place++) {
        if (is_counted(call.scenario, place) && index-- == 0) {
            return give_handle(&call, place, out);
        }
    }
    return leave(&call, NVML_INVALID_ARGUMENT);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

/* A UUID is known without its prefix too. */
static nvmlReturn_t handle_by(struct call *call, const char *path, const char *name, nvmlDevice_t *out)
{
    if (name == NULL || out == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    for (int place = 0; place < device_count(call->scenario); place++) {
        const struct json *device = json_at(json_get(call->scenario, "devices"), place);
        const char *text = json_text(device, path, NULL);
        bool same = text != NULL && (strcmp(text, name) == 0
            || (strncmp(text, "GPU-", 4) == 0 && strcmp(text + 4, name) == 0));
        if (same && is_counted(call->scenario, place)) {
            return give_handle(call, place, out);
        }
    }
    return leave(call, NVML_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
    ENTER(0)
    REQUIRE(uuid != NULL && out != NULL, NVML_INVALID_ARGUMENT)
    for (int place = 0; strncmp(uuid, "MIG-", 4) == 0 && place < device_count(call.scenario); place++) {
        const struct json *device = json_at(json_get(call.scenario, "devices"), place);
        const struct json *instance, *compute = scenario_compute(device, uuid, -1, &instance);
        if (compute != NULL) {
            *out = slot_for(SLOT_MIG, json_text(device, "uuid", ""), (int)json_integer(compute, "serial", 0));
            return leave(&call, NVML_SUCCESS);
        }
    }
    return handle_by(&call, "uuid", uuid, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
    ENTER(0)
    return handle_by(&call, "serial", serial, out);
}

/* Of "0000:3b:00.0", "00000000:3B:00.0" and "3b:00.0" the same: domain, bus and device. */
static bool parse_address(const char *text, unsigned address[3])
{
    unsigned function = 0;
    if (sscanf(text, "%x:%x:%x.%x", &address[0], &address[1], &address[2], &function) >= 3) {
        return true;
    }
    address[0] = 0;
    return sscanf(text, "%x:%x.%x", &address[1], &address[2], &function) >= 2;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *out)
{
    ENTER(0)
    unsigned requested[3], address[3];
    REQUIRE(bus_id != NULL && out != NULL && parse_address(bus_id, requested), NVML_INVALID_ARGUMENT)
    for (int place = 0; place < device_count(call.scenario); place++) {
        const struct json *device = json_at(json_get(call.scenario, "devices"), place);
        if (is_counted(call.scenario, place) && parse_address(json_text(device, "pci.address", ""), address)
            && memcmp(address, requested, sizeof(address)) == 0) {
            return give_handle(&call, place, out);
        }
    }
    return leave(&call, NVML_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *out)
{
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, out);
}

/* Identity */

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = 0;
    for (int place = 0; place < call.index; place++) {
        *out += is_counted(call.scenario, place);
    }
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *out, unsigned size)
{
    ENTER_DEVICE(0, device, true)
    char name[160];
    const char *gpu = json_text(call.device, "name", NULL);
    /* Drivers before 465 leave the maker's name out. */
    if (gpu != NULL && strncmp(gpu, "NVIDIA ", 7) == 0 && scenario_branch(library_version) < 465) {
        gpu += 7;
    }
    if (call.instance == NULL) {
        return give_text(&call, gpu, out, size);
    }
    snprintf(name, sizeof(name), "%s MIG %s", gpu, json_text(call.compute, "name", ""));
    return give_text(&call, name, out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *out, unsigned size)
{
    ENTER_DEVICE(0, device, true)
    return give_text(&call, json_text(call.compute != NULL ? call.compute : call.device, "uuid", NULL), out, size);
}

GET_TEXT(nvmlDeviceGetSerial, 0, "serial")
GET_TEXT(nvmlDeviceGetVbiosVersion, 0, "vbios")
GET_TEXT(nvmlDeviceGetBoardPartNumber, 0, "board_part_number")
GET_UNSIGNED(nvmlDeviceGetMinorNumber, 0, "minor")
GET_UNSIGNED(nvmlDeviceGetBrand, 0, "brand")
GET_UNSIGNED(nvmlDeviceGetBoardId, 0, "board_id")
GET_UNSIGNED(nvmlDeviceGetMultiGpuBoard, 0, "multi_gpu_board")
GET_UNSIGNED(nvmlDeviceGetArchitecture, 450, "architecture")
GET_UNSIGNED(nvmlDeviceGetNumGpuCores, 510, "cores")
GET_UNSIGNED(nvmlDeviceGetMemoryBusWidth, 510, "memory.bus_bits")
GET_UNSIGNED(nvmlDeviceGetIrqNum, 510, "pci.irq")
GET_UNSIGNED(nvmlDeviceGetModuleId, 545, "module_id")

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    ENTER_DEVICE(0, device, true)
    REQUIRE(major != NULL && minor != NULL, NVML_INVALID_ARGUMENT)
    *major = (int)json_integer(call.device, "compute_capability.0", 0);
    *minor = (int)json_integer(call.device, "compute_capability.1", 0);
    answers(&call, major, sizeof(*major));
    answers(&call, minor, sizeof(*minor));
    return leave(&call, NVML_SUCCESS);
}

static unsigned hexadecimal(const struct json *node, const char *path)
{
    return (unsigned)strtoul(json_text(node, path, "0"), NULL, 16);
}

static void fill_pci(const struct json *pci, nvmlPciInfo_t *out)
{
    unsigned address[3] = {0, 0, 0};
    memset(out, 0, sizeof(*out));
    parse_address(json_text(pci, "address", ""), address);
    out->domain = address[0];
    out->bus = address[1];
    out->device = address[2];
    out->pciDeviceId = hexadecimal(pci, "device") << 16 | 0x10de;
    out->pciSubSystemId = hexadecimal(pci, "subsystem_device") << 16 | hexadecimal(pci, "subsystem_vendor");
    snprintf(out->busIdLegacy, sizeof(out->busIdLegacy), "%04X:%02X:%02X.0", address[0] & 0xffff, address[1] & 0xff,
        address[2] & 0xff);
    snprintf(out->busId, sizeof(out->busId), "%08X:%02X:%02X.0", address[0], address[1] & 0xff, address[2] & 0xff);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    fill_pci(json_get(call.device, "pci"), out);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out)
{
    nvmlPciInfo_t info;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, out != NULL ? &info : NULL);
    if (result == NVML_SUCCESS) {
        /* This version's structure has no room for the longer address. */
        memcpy(out, &info, offsetof(nvmlPciInfo_t, busId));
    }
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *out)
{
    ENTER_DEVICE(525, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlPciInfoExt_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    nvmlPciInfo_t info;
    fill_pci(json_get(call.device, "pci"), &info);
    unsigned class_code = hexadecimal(call.device, "pci.class");
    out->domain = info.domain;
    out->bus = info.bus;
    out->device = info.device;
    out->pciDeviceId = info.pciDeviceId;
    out->pciSubSystemId = info.pciSubSystemId;
    out->baseClass = class_code >> 16 & 0xff;
    out->subClass = class_code >> 8 & 0xff;
    memcpy(out->busId, info.busId, sizeof(out->busId));
    answers(&call, &out->domain, sizeof(*out) - sizeof(out->version));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomImageVersion(nvmlDevice_t device, char *out, unsigned size)
{
    ENTER_DEVICE(0, device, false)
    return give_text(&call, json_text(call.device, "inforom.image", NULL), out, size);
}

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t device, unsigned object, char *out, unsigned size)
{
    static const char *const paths[] = {"inforom.oem", "inforom.ecc", "inforom.power", "inforom.den"};
    ENTER_DEVICE(0, device, false)
    REQUIRE(object < COUNT(paths), NVML_INVALID_ARGUMENT)
    return give_text(&call, json_text(call.device, paths[object], NULL), out, size);
}

GET_UNSIGNED(nvmlDeviceGetInforomConfigurationChecksum, 0, "inforom.checksum")

EXPORT nvmlReturn_t nvmlDeviceValidateInforom(nvmlDevice_t device)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(json_get(call.device, "inforom.valid") != NULL, NVML_NOT_SUPPORTED)
    return leave(&call, json_true(call.device, "inforom.valid") ? NVML_SUCCESS : NVML_CORRUPTED_INFOROM);
}

/* Memory */

static void memory_of(const struct call *call, nvmlMemory_v2_t *out)
{
    const struct json *owner = call->instance != NULL ? call->instance : call->device;
    unsigned version = out->version;
    memset(out, 0, sizeof(*out));
    out->version = version;
    out->total = (nvmlU64)json_integer(owner, "memory.total_mib", 0) << 20;
    out->reserved = (nvmlU64)json_integer(owner, "memory.reserved_mib", 0) << 20;
    out->used = (nvmlU64)json_integer(owner, "memory.used_mib", 0) << 20;
    out->free = out->total - out->reserved - out->used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out)
{
    ENTER_DEVICE(0, device, true)
    nvmlMemory_v2_t memory = {0};
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    memory_of(&call, &memory);
    /* The first version knows of no reserve: what the driver keeps counts as used. */
    *out = (nvmlMemory_t){memory.total, memory.free, memory.used + memory.reserved};
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out)
{
    ENTER_DEVICE(510, device, true)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlMemory_v2_t, 2), NVML_FUNCTION_NOT_FOUND)
    memory_of(&call, out);
    answers(&call, &out->total, sizeof(*out) - offsetof(nvmlMemory_v2_t, total));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *out)
{
    ENTER_DEVICE(0, device, true)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "memory.bar1_mib") != NULL, NVML_NOT_SUPPORTED)
    out->total = (nvmlU64)json_integer(call.device, "memory.bar1_mib", 0) << 20;
    out->used = 1 << 20;
    out->free = out->total - out->used;
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

/* ECC, retired pages, remapped rows */

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(current != NULL && pending != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "ecc") != NULL, NVML_NOT_SUPPORTED)
    *current = (unsigned)json_integer(call.device, "ecc.enabled", 0);
    *pending = (unsigned)json_integer(call.device, "ecc.pending", *current);
    answers(&call, current, sizeof(*current));
    answers(&call, pending, sizeof(*pending));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultEccMode(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(510, device, false)
    return give_unsigned(&call, call.device, "ecc.default", out);
}

/* Counters live under "ecc.<volatile|aggregate>.<corrected|uncorrected>" with a name per place and "total". A place
 * that the scenario does not name counts nothing; "absent" lists the places that the GPU does not have. */
static bool ecc_counter(const struct json *device, unsigned type, unsigned counter, const char *place, nvmlU64 *out)
{
    static const char *const types[] = {"corrected", "uncorrected"}, *const counters[] = {"volatile", "aggregate"};
    char path[80];
    snprintf(path, sizeof(path), "ecc.%s.%s.%s", counters[counter], types[type], place);
    *out = (nvmlU64)json_integer(device, path, 0);
    const struct json *absent = json_get(device, "ecc.absent");
    for (int i = 0; absent != NULL && i < absent->count; i++) {
        if (strcmp(json_text(json_at(absent, i), "", ""), place) == 0) {
            return false;
        }
    }
    return true;
}

static bool ecc_on(const struct json *device)
{
    return json_true(device, "ecc.enabled");
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter, nvmlU64 *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL && type < 2 && counter < 2, NVML_INVALID_ARGUMENT)
    REQUIRE(ecc_on(call.device), NVML_NOT_SUPPORTED)
    ecc_counter(call.device, type, counter, "total", out);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

static const char *const ecc_places[] = {"l1", "l2", "device", "registers", "texture", "texture_shm", "cbu", "sram"};

EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(
    nvmlDevice_t device, unsigned type, unsigned counter, unsigned place, nvmlU64 *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL && type < 2 && counter < 2 && place < COUNT(ecc_places), NVML_INVALID_ARGUMENT)
    REQUIRE(ecc_on(call.device) && ecc_counter(call.device, type, counter, ecc_places[place], out), NVML_NOT_SUPPORTED)
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(
    nvmlDevice_t device, unsigned type, unsigned counter, nvmlEccErrorCounts_t *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL && type < 2 && counter < 2, NVML_INVALID_ARGUMENT)
    REQUIRE(ecc_on(call.device), NVML_NOT_SUPPORTED)
    ecc_counter(call.device, type, counter, "l1", &out->l1);
    ecc_counter(call.device, type, counter, "l2", &out->l2);
    ecc_counter(call.device, type, counter, "device", &out->device);
    ecc_counter(call.device, type, counter, "registers", &out->registers);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlSramStatus_t *out)
{
    ENTER_DEVICE(545, device, false)
    const struct json *sram = json_get(call.device, "ecc.sram");
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlSramStatus_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    REQUIRE(ecc_on(call.device) && sram != NULL, NVML_NOT_SUPPORTED)
    out->aggregateUncParity = (nvmlU64)json_integer(sram, "aggregate.parity", 0);
    out->aggregateUncSecDed = (nvmlU64)json_integer(sram, "aggregate.secded", 0);
    out->aggregateCor = (nvmlU64)json_integer(sram, "aggregate.corrected", 0);
    out->volatileUncParity = (nvmlU64)json_integer(sram, "volatile.parity", 0);
    out->volatileUncSecDed = (nvmlU64)json_integer(sram, "volatile.secded", 0);
    out->volatileCor = (nvmlU64)json_integer(sram, "volatile.corrected", 0);
    out->l2 = (nvmlU64)json_integer(sram, "buckets.l2", 0);
    out->sm = (nvmlU64)json_integer(sram, "buckets.sm", 0);
    out->pcie = (nvmlU64)json_integer(sram, "buckets.pcie", 0);
    out->mcu = (nvmlU64)json_integer(sram, "buckets.mcu", 0);
    out->other = (nvmlU64)json_integer(sram, "buckets.other", 0);
    out->threshold = (unsigned)json_integer(sram, "threshold_exceeded", 0);
    answers(&call, &out->aggregateUncParity, sizeof(*out) - offsetof(nvmlSramStatus_t, aggregateUncParity));
    return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t retired_pages(
    struct call *call, unsigned cause, unsigned *count, nvmlU64 *addresses, nvmlU64 *times)
{
    static const char *const causes[] = {"retired_pages.single_bit", "retired_pages.double_bit"};
    if (count == NULL || cause >= COUNT(causes)) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (json_get(call->device, "retired_pages") == NULL) {
        return leave(call, NVML_NOT_SUPPORTED);
    }
    const struct json *pages = json_get(call->device, causes[cause]);
    unsigned have = (unsigned)json_length(call->device, causes[cause]), room = *count;
    *count = have;
    if (have > room || (have > 0 && addresses == NULL)) {
        return leave(call, NVML_INSUFFICIENT_SIZE);
    }
    for (unsigned i = 0; i < have; i++) {
        addresses[i] = (nvmlU64)json_integer(json_at(pages, (int)i), "address", 0);
        if (times != NULL) {
            times[i] = (nvmlU64)json_integer(json_at(pages, (int)i), "time", 0);
        }
    }
    return leave(call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count, nvmlU64 *addresses)
{
    ENTER_DEVICE(0, device, false)
    return retired_pages(&call, cause, count, addresses, NULL);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(
    nvmlDevice_t device, unsigned cause, unsigned *count, nvmlU64 *addresses, nvmlU64 *times)
{
    ENTER_DEVICE(410, device, false)
    return retired_pages(&call, cause, count, addresses, addresses != NULL ? times : NULL);
}

GET_UNSIGNED(nvmlDeviceGetRetiredPagesPendingStatus, 0, "retired_pages.pending")

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(
    nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failure)
{
    ENTER_DEVICE(450, device, false)
    const struct json *rows = json_get(call.device, "remapped_rows");
    REQUIRE(corrected != NULL && uncorrected != NULL && pending != NULL && failure != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(rows != NULL && !json_true(call.device, "mig.current"), NVML_NOT_SUPPORTED)
    *corrected = (unsigned)json_integer(rows, "correctable", 0);
    *uncorrected = (unsigned)json_integer(rows, "uncorrectable", 0);
    *pending = (unsigned)json_integer(rows, "pending", 0);
    *failure = (unsigned)json_integer(rows, "failure", 0);
    answers(&call, corrected, sizeof(unsigned));
    answers(&call, uncorrected, sizeof(unsigned));
    answers(&call, pending, sizeof(unsigned));
    answers(&call, failure, sizeof(unsigned));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogram_t *out)
{
    ENTER_DEVICE(460, device, false)
    const struct json *banks = json_get(call.device, "remapped_rows.histogram");
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(banks != NULL, NVML_NOT_SUPPORTED)
    out->max = (unsigned)json_integer(banks, "max", 0);
    out->high = (unsigned)json_integer(banks, "high", 0);
    out->partial = (unsigned)json_integer(banks, "partial", 0);
    out->low = (unsigned)json_integer(banks, "low", 0);
    out->none = (unsigned)json_integer(banks, "none", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t give_flag(struct call *call, const char *path, nvmlVersionedFlag_t *out)
{
    if (out == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (out->version != VERSION_OF(nvmlVersionedFlag_t, 1)) {
        return leave(call, NVML_ARGUMENT_VERSION_MISMATCH);
    }
    return give_unsigned(call, call->device, path, &out->flag);
}

EXPORT nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, nvmlVersionedFlag_t *out)
{
    ENTER_DEVICE(580, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    /* Whatever the version was, it is 0 afterwards. */
    out->version = 0;
    return give_unsigned(&call, call.device, "unrepairable_memory", &out->flag);
}

EXPORT nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *out)
{
    ENTER_DEVICE(580, device, false)
    const struct json *repair = json_get(call.device, "repair");
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlRepairStatus_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    REQUIRE(repair != NULL, NVML_NOT_SUPPORTED)
    out->channel = (unsigned)json_integer(repair, "channel", 0);
    out->tpc = (unsigned)json_integer(repair, "tpc", 0);
    answers(&call, &out->channel, sizeof(*out) - sizeof(out->version));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t device, nvmlVersionedFlag_t *out)
{
    ENTER_DEVICE(580, device, false)
    return give_flag(&call, "addressing_mode", out);
}

/* PCIe */

GET_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, 0, "pci.generation")
GET_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, 0, "pci.width")
GET_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, 0, "pci.generation_max")
GET_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, 0, "pci.width_max")
GET_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, 525, "pci.generation_gpu")

EXPORT nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "pci.replays") != NULL, NVML_NOT_SUPPORTED)
    *out = (unsigned)growing(call.scenario, call.device, "pci.replays");
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

static unsigned link_speed_mbps(unsigned generation)
{
    static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    return generation < COUNT(speeds) ? speeds[generation] : 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(470, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = link_speed_mbps((unsigned)json_integer(call.device, "pci.generation", 0));
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieLinkMaxSpeed(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(510, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    /* Unlike the speed of now, a number out of a list: that of the generation. */
    *out = (unsigned)json_integer(call.device, "pci.generation_max", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned counter, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(counter < 2, NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.device, counter == 0 ? "pci.tx_kib_s" : "pci.rx_kib_s", out);
}

/* NVLink */

#define MOST_LINKS 18 /* that the library knows of */

static const struct json *link_of(const struct call *call, unsigned link)
{
    return link < 64 ? json_at(json_get(call->device, "nvlinks.links"), (int)link) : NULL;
}

/* For a link that the GPU does not have: not supported where it has none at all, else a bad argument. */
#define REQUIRE_LINK(number, out) \
    REQUIRE((out) != NULL, NVML_INVALID_ARGUMENT) \
    REQUIRE(json_get(call.device, "nvlinks") != NULL, NVML_NOT_SUPPORTED) \
    REQUIRE(link_of(&call, number) != NULL, NVML_INVALID_ARGUMENT)

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE_LINK(link, out)
    return give_unsigned(&call, link_of(&call, link), "up", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE_LINK(link, out)
    return give_unsigned(&call, call.device, "nvlinks.version", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkCapability(
    nvmlDevice_t device, unsigned link, unsigned capability, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(link < MOST_LINKS, NVML_INVALID_ARGUMENT)
    REQUIRE_LINK(link, out)
    REQUIRE(capability < 6, NVML_INVALID_ARGUMENT)
    *out = capability == 4 ? 0 : 1;
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned link, unsigned counter, nvmlU64 *out)
{
    static const char *const names[] = {
        "errors.replay", "errors.recovery", "errors.crc_flit", "errors.crc_data", "errors.ecc_data",
    };
    ENTER_DEVICE(0, device, false)
    REQUIRE_LINK(link, out)
    REQUIRE(counter < COUNT(names), NVML_INVALID_ARGUMENT)
    REQUIRE(!json_true(call.device, "nvlinks.no_error_counters"), NVML_NOT_SUPPORTED)
    *out = growing(call.scenario, link_of(&call, link), names[counter]);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE_LINK(link, out)
    const char *remote = json_text(link_of(&call, link), "remote", NULL);
    REQUIRE(remote != NULL && json_true(link_of(&call, link), "up"), NVML_NOT_SUPPORTED)
    const char *const lists[] = {"devices", "switches"};
    for (size_t list = 0; list < COUNT(lists); list++) {
        const struct json *items = json_get(call.scenario, lists[list]);
        for (int i = 0; items != NULL && i < items->count; i++) {
            if (strcmp(json_text(json_at(items, i), "pci.address", ""), remote) == 0) {
                fill_pci(json_get(json_at(items, i), "pci"), out);
                answers(&call, out, sizeof(*out));
                return leave(&call, NVML_SUCCESS);
            }
        }
    }
    return leave(&call, NVML_UNKNOWN);
}

EXPORT nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, unsigned *out)
{
    ENTER_DEVICE(470, device, false)
    REQUIRE_LINK(link, out)
    REQUIRE(json_true(link_of(&call, link), "up"), NVML_NOT_SUPPORTED)
    return give_unsigned(&call, link_of(&call, link), "remote_type", out);
}

/* Fabric */

static nvmlReturn_t parse_cluster(const struct json *fabric, unsigned char uuid[16])
{
    const char *text = json_text(fabric, "cluster_uuid", "");
    memset(uuid, 0, 16);
    for (int i = 0; i < 16 && *text != '\0'; i++, text += 2) {
        unsigned byte;
        text += *text == '-';
        if (sscanf(text, "%2x", &byte) != 1) {
            break;
        }
        uuid[i] = (unsigned char)byte;
    }
    return (nvmlReturn_t)json_integer(fabric, "status", 0);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out)
{
    ENTER_DEVICE(525, device, false)
    const struct json *fabric = json_get(call.device, "fabric");
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(fabric != NULL, NVML_NOT_SUPPORTED)
    out->status = parse_cluster(fabric, out->uuid);
    out->clique = (unsigned)json_integer(fabric, "clique", 0);
    out->state = (unsigned)json_integer(fabric, "state", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *out)
{
    ENTER_DEVICE(550, device, false)
    const struct json *fabric = json_get(call.device, "fabric");
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    unsigned version = out->version >> 24, size = out->version & 0xffffff;
    REQUIRE((version == 2 && size == 36) || (version == 3 && size == 40), NVML_ARGUMENT_VERSION_MISMATCH)
    REQUIRE(fabric != NULL, NVML_NOT_SUPPORTED)
    out->status = parse_cluster(fabric, out->uuid);
    out->clique = (unsigned)json_integer(fabric, "clique", 0);
    out->state = (unsigned char)json_integer(fabric, "state", 0);
    memset(out->padding, 0, sizeof(out->padding));
    out->healthMask = (unsigned)json_integer(fabric, "health_mask", 0);
    if (version == 3) {
        out->healthSummary = (unsigned char)json_integer(fabric, "health_summary", 0);
    }
    answers(&call, out->uuid, size - sizeof(out->version));
    return leave(&call, NVML_SUCCESS);
}

/* Temperature, power, clocks, load */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned sensor, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(sensor == 0, NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.device, "temperature.gpu", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *out)
{
    ENTER_DEVICE(565, device, false)
    REQUIRE(out != NULL && out->sensor == 0, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlTemperature_v1_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    return give_unsigned(&call, call.device, "temperature.gpu", (unsigned *)&out->temperature);
}

EXPORT nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, unsigned threshold, unsigned *out)
{
    static const char *const names[] = {
        "temperature.shutdown", "temperature.slowdown", "temperature.memory_max", "temperature.gpu_max",
        "temperature.acoustic_min", "temperature.acoustic_current", "temperature.acoustic_max", "temperature.gps",
    };
    ENTER_DEVICE(0, device, false)
    REQUIRE(threshold < COUNT(names), NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.device, names[threshold], out);
}

EXPORT nvmlReturn_t nvmlDeviceGetMarginTemperature(nvmlDevice_t device, nvmlMarginTemperature_t *out)
{
    ENTER_DEVICE(555, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlMarginTemperature_t, 1), NVML_ARGUMENT_VERSION_MISMATCH)
    return give_unsigned(&call, call.device, "temperature.margin", (unsigned *)&out->margin);
}

GET_UNSIGNED(nvmlDeviceGetPowerUsage, 0, "power.usage_mw")
GET_UNSIGNED(nvmlDeviceGetPowerManagementMode, 0, "power.managed")
GET_SETTING(nvmlDeviceGetPowerManagementLimit, 0, "power_limit_mw", "power.limit_mw")
GET_UNSIGNED(nvmlDeviceGetPowerManagementDefaultLimit, 0, "power.default_mw")
GET_SETTING(nvmlDeviceGetEnforcedPowerLimit, 0, "power_limit_mw", "power.enforced_mw")
GET_U64(nvmlDeviceGetTotalEnergyConsumption, 410, "power.energy_mj")

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned *low, unsigned *high)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(low != NULL && high != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "power.min_mw") != NULL, NVML_NOT_SUPPORTED)
    *low = (unsigned)json_integer(call.device, "power.min_mw", 0);
    *high = (unsigned)json_integer(call.device, "power.max_mw", 0);
    answers(&call, low, sizeof(*low));
    answers(&call, high, sizeof(*high));
    return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t give_clock(struct call *call, unsigned clock, const char *kind, unsigned *out)
{
    static const char *const names[] = {"graphics", "sm", "memory", "video"};
    char path[64];
    if (clock >= COUNT(names)) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    snprintf(path, sizeof(path), "clocks.%s.%s", names[clock], kind);
    return give_unsigned(call, call->device, path, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned clock, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(clock < 4, NVML_NOT_SUPPORTED)
    return give_clock(&call, clock, "current", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned clock, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    return give_clock(&call, clock, "max", out);
}

/* From branch 590 on the library says that these are no longer to be called. */
static bool application_clocks_gone(void)
{
    return scenario_branch(library_version) >= 590;
}

EXPORT nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned clock, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(!application_clocks_gone(), NVML_DEPRECATED)
    unsigned value = 0;
    const char *key = clock == 2 ? "memory_clock" : "graphics_clock";
    if (clock < 3 && out != NULL && json_get(call.device, "clocks.graphics.application") != NULL
        && find_setting(call.device, key, &value)) {
        *out = value;
        answers(&call, out, sizeof(*out));
        return leave(&call, NVML_SUCCESS);
    }
    return give_clock(&call, clock, "application", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned clock, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(!application_clocks_gone(), NVML_DEPRECATED)
    return give_clock(&call, clock, "application_default", out);
}

GET_U64(nvmlDeviceGetCurrentClocksThrottleReasons, 0, "throttle.reasons")
GET_U64(nvmlDeviceGetSupportedClocksThrottleReasons, 0, "throttle.supported")
GET_U64(nvmlDeviceGetCurrentClocksEventReasons, 535, "throttle.reasons")
GET_U64(nvmlDeviceGetSupportedClocksEventReasons, 535, "throttle.supported")
GET_UNSIGNED(nvmlDeviceGetPerformanceState, 0, "performance_state")
GET_UNSIGNED(nvmlDeviceGetPowerState, 0, "performance_state")
GET_SETTING(nvmlDeviceGetComputeMode, 0, "compute_mode", "compute_mode")
GET_UNSIGNED(nvmlDeviceGetDisplayMode, 0, "display.mode")
GET_UNSIGNED(nvmlDeviceGetDisplayActive, 0, "display.active")
GET_UNSIGNED(nvmlDeviceGetFanSpeed, 0, "fan.percent")

EXPORT nvmlReturn_t nvmlDeviceGetNumFans(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = (unsigned)json_integer(call.device, "fan.count", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetFanSpeed_v2(nvmlDevice_t device, unsigned fan, unsigned *out)
{
    ENTER_DEVICE(410, device, false)
    REQUIRE((long long)fan < json_integer(call.device, "fan.count", 0), NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.device, "fan.percent", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned policy, nvmlViolationTime_t *out)
{
    static const char *const names[] = {
        "power", "thermal", "sync_boost", "board_limit", "low_utilization", "reliability", "", "", "", "",
        "application_clocks", "base_clocks",
    };
    ENTER_DEVICE(0, device, false)
    struct timespec now;
    char path[64];
    REQUIRE(out != NULL && policy < COUNT(names) && names[policy][0] != '\0', NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "violations") != NULL, NVML_NOT_SUPPORTED)
    snprintf(path, sizeof(path), "violations.%s", names[policy]);
    clock_gettime(CLOCK_REALTIME, &now);
    out->reference = (nvmlU64)now.tv_sec * 1000000 + (nvmlU64)now.tv_nsec / 1000;
    out->violation = (nvmlU64)json_integer(call.device, path, 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

/* Whether the daemon or an operator keeps the driver initialised. "daemon": as nvidia-persistenced's socket says. */
static unsigned persistence_of(const struct call *call)
{
    if (strcmp(json_text(call->device, "persistence", ""), "daemon") != 0) {
        return (unsigned)json_integer(call->device, "persistence", 0);
    }
    return access("/run/nvidia-persistenced/socket", F_OK) == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = persistence_of(&call);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "utilization") != NULL && !json_true(call.device, "mig.current"), NVML_NOT_SUPPORTED)
    out->gpu = (unsigned)json_integer(call.device, "utilization.gpu", 0);
    out->memory = (unsigned)json_integer(call.device, "utilization.memory", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

static nvmlReturn_t engine_load(struct call *call, const char *path, unsigned *out, unsigned *period)
{
    if (period == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    *period = json_integer(call->device, "architecture", 0) >= 9 ? 100000 : 167000;
    return give_unsigned(call, call->device, path, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *out, unsigned *period)
{
    ENTER_DEVICE(0, device, false)
    return engine_load(&call, "utilization.encoder", out, period);
}

EXPORT nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *out, unsigned *period)
{
    ENTER_DEVICE(0, device, false)
    return engine_load(&call, "utilization.decoder", out, period);
}

/* Place in the machine */

EXPORT nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(535, device, false)
    REQUIRE(json_integer(call.device, "pci.numa_node", -1) >= 0, NVML_NOT_SUPPORTED)
    return give_unsigned(&call, call.device, "pci.numa_node", out);
}

/* The CPUs of "pci.cpus", as in "0-15,32-47". */
static void cpu_set(const struct call *call, unsigned size, unsigned long *set)
{
    const char *text = json_text(call->device, "pci.cpus", "");
    memset(set, 0, size * sizeof(*set));
    while (*text != '\0') {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-') {
            last = strtoul(end + 1, &end, 10);
        }
        for (; first <= last && first / 64 < size; first++) {
            set[first / 64] |= 1ul << first % 64;
        }
        text = end + (*end == ',');
        if (*end != ',' && *end != '\0') {
            break;
        }
    }
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned size, unsigned long *set)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(set != NULL && size > 0, NVML_INVALID_ARGUMENT)
    cpu_set(&call, size, set);
    answers(&call, set, size * sizeof(*set));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(
    nvmlDevice_t device, unsigned size, unsigned long *set, unsigned scope)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(set != NULL && size > 0 && scope < 2, NVML_INVALID_ARGUMENT)
    cpu_set(&call, size, set);
    answers(&call, set, size * sizeof(*set));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(
    nvmlDevice_t device, unsigned size, unsigned long *set, unsigned scope)
{
    ENTER_DEVICE(450, device, false)
    long long node = json_integer(call.device, "pci.numa_node", -1);
    REQUIRE(set != NULL && size > 0 && scope < 2, NVML_INVALID_ARGUMENT)
    memset(set, 0, size * sizeof(*set));
    set[0] = 1ul << (node >= 0 ? node : 0);
    answers(&call, set, size * sizeof(*set));
    return leave(&call, NVML_SUCCESS);
}

/* The other GPU of a call with two handles: NVML_SUCCESS, or what is wrong with it. */
static nvmlReturn_t second_device(const struct call *call, nvmlDevice_t handle, const struct json **out)
{
    if (handle->kind != SLOT_GPU) {
        return NVML_INVALID_ARGUMENT;
    }
    int place = place_of_uuid(call->scenario, handle->uuid);
    *out = json_at(json_get(call->scenario, "devices"), place);
    return place >= 0 && is_counted(call->scenario, place) && has_state(*out, "ok") ? NVML_SUCCESS : NVML_GPU_IS_LOST;
}

/* From the way that the scenario gives for each GPU, outermost first: NUMA node, host bridge, switch, port. */
static unsigned common_ancestor(const struct json *one, const struct json *other)
{
    static const unsigned levels[] = {50, 40, 30, 20, 10};
    size_t same = 0;
    while (same < COUNT(levels) - 1) {
        char path[32];
        snprintf(path, sizeof(path), "pci.path.%zu", same);
        const char *a = json_text(one, path, NULL), *b = json_text(other, path, NULL);
        if (a == NULL || b == NULL || strcmp(a, b) != 0) {
            break;
        }
        same++;
    }
    return levels[same];
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other_handle, unsigned *out)
{
    ENTER_DEVICE(0, device, false)
    if (!is_slot(other_handle)) {
        return no_handle(&call, other_handle);
    }
    const struct json *other = NULL;
    nvmlReturn_t result = second_device(&call, other_handle, &other);
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(result == NVML_SUCCESS, result)
    REQUIRE(other != call.device, NVML_NOT_SUPPORTED)
    *out = common_ancestor(call.device, other);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(
    nvmlDevice_t device, unsigned level, unsigned *count, nvmlDevice_t *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(count != NULL && level <= 50 && level % 10 == 0, NVML_INVALID_ARGUMENT)
    unsigned room = *count;
    REQUIRE(out == NULL || room > 0, NVML_INVALID_ARGUMENT)
    *count = 0;
    for (int place = 0; place < device_count(call.scenario); place++) {
        const struct json *other = json_at(json_get(call.scenario, "devices"), place);
        if (place == call.index || !is_counted(call.scenario, place)
            || common_ancestor(call.device, other) != level) {
            continue;
        }
        if (out != NULL && *count < room) {
            out[*count] = slot_for(SLOT_GPU, json_text(other, "uuid", ""), -1);
        }
        ++*count;
    }
    return leave(&call, NVML_SUCCESS);
}

static bool linked(const struct json *one, const struct json *other)
{
    const struct json *links = json_get(one, "nvlinks.links");
    for (int i = 0; links != NULL && i < links->count; i++) {
        const char *remote = json_text(json_at(links, i), "remote", "");
        bool to_switch = json_integer(json_at(links, i), "remote_type", 0) == 2 && json_get(other, "nvlinks") != NULL;
        if (json_true(json_at(links, i), "up")
            && (to_switch || strcmp(remote, json_text(other, "pci.address", "?")) == 0)) {
            return true;
        }
    }
    return false;
}

EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(
    nvmlDevice_t device, nvmlDevice_t other_handle, unsigned capability, unsigned *out)
{
    enum { OK = 0, GPU_NOT_SUPPORTED = 2, NOT_SUPPORTED = 5 };
    ENTER_DEVICE(0, device, false)
    if (!is_slot(other_handle)) {
        return no_handle(&call, other_handle);
    }
    const struct json *other = NULL;
    nvmlReturn_t result = second_device(&call, other_handle, &other);
    REQUIRE(out != NULL && (capability < 5 || other == call.device), NVML_INVALID_ARGUMENT)
    REQUIRE(result == NVML_SUCCESS, result)
    if (other == call.device) {
        *out = capability < 5 ? NOT_SUPPORTED : OK;
        answers(&call, out, sizeof(*out));
        return leave(&call, NVML_SUCCESS);
    }
    bool nvlink = linked(call.device, other);
    /* 2 asks for NVLink, 3 for atomics; the others for reading, writing and PCIe. */
    if (capability == 2 || capability == 3) {
        *out = nvlink ? OK : NOT_SUPPORTED;
    } else {
        *out = nvlink || (json_true(call.device, "pci.peer_to_peer") && json_true(other, "pci.peer_to_peer"))
            ? OK : GPU_NOT_SUPPORTED;
    }
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

/* Processes */

static nvmlReturn_t give_processes(struct call *call, const char *type, unsigned version, unsigned *count, void *out)
{
    if (count == NULL) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    const struct json *processes = json_get(call->device, "processes");
    unsigned have = 0, room = *count;
    for (int pass = 0; pass < 2; pass++) {
        unsigned number = 0;
        for (int i = 0; processes != NULL && i < processes->count; i++) {
            const struct json *process = json_at(processes, i);
            unsigned instance = (unsigned)json_integer(process, "gpu_instance", -1);
            if (strcmp(json_text(process, "type", "C"), type) != 0
                || (call->instance != NULL
                    && (json_integer(call->instance, "id", -1) != (long long)instance
                        || json_integer(call->compute, "id", -1) != json_integer(process, "compute_instance", 0)))) {
                continue;
            }
            unsigned pid = (unsigned)json_integer(process, "pid", 0);
            nvmlU64 memory = json_get(process, "memory_mib") != NULL
                ? (nvmlU64)json_integer(process, "memory_mib", 0) << 20 : ~0ull;
            if (pass == 1 && version == 1) {
                ((nvmlProcessInfo_v1_t *)out)[number] = (nvmlProcessInfo_v1_t){pid, memory};
            } else if (pass == 1) {
                ((nvmlProcessInfo_t *)out)[number] = (nvmlProcessInfo_t){
                    pid, memory, instance, (unsigned)json_integer(process, "compute_instance", -1)};
            }
            number++;
        }
        have = number;
        *count = have;
        if (have > room || (have > 0 && out == NULL)) {
            return leave(call, NVML_INSUFFICIENT_SIZE);
        }
    }
    if (have > 0) {
        answers(call, out, have * (version == 1 ? sizeof(nvmlProcessInfo_v1_t) : sizeof(nvmlProcessInfo_t)));
    }
    return leave(call, NVML_SUCCESS);
}

#define PROCESSES(function, since, type, version) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, unsigned *count, void *out) \
    { \
        ENTER_DEVICE(since, device, true) \
        return give_processes(&call, type, version, count, out); \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, 0, "C", 1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, 450, "C", 2)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, 510, "C", 3)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 0, "G", 1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, 450, "G", 2)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, 510, "G", 3)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 450, "M", 1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, 450, "M", 2)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, 510, "M", 3)

/* MIG */

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(current != NULL && pending != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "mig") != NULL, NVML_NOT_SUPPORTED)
    *current = (unsigned)json_integer(call.device, "mig.current", 0);
    *pending = (unsigned)json_integer(call.device, "mig.pending", *current);
    answers(&call, current, sizeof(*current));
    answers(&call, pending, sizeof(*pending));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "mig") != NULL, NVML_NOT_SUPPORTED)
    /* Of a GPU that could have some, while MIG is off: none. */
    *out = json_true(call.device, "mig.current") ? (unsigned)json_integer(call.device, "mig.max_devices", 0) : 0;
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(450, device, true)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = call.instance != NULL;
    return leave(&call, NVML_SUCCESS);
}

/* Indices are not given out anew while their instances live, so there may be gaps. */
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "mig") != NULL, NVML_NOT_SUPPORTED)
    REQUIRE(json_true(call.device, "mig.current"), NVML_NOT_FOUND)
    REQUIRE((long long)index < json_integer(call.device, "mig.max_devices", 0), NVML_INVALID_ARGUMENT)
    struct mig_state state;
    mig_load(call.device, &state);
    for (int i = 0; i < state.count; i++) {
        for (int j = 0; j < state.instances[i].computes; j++) {
            if (state.instances[i].compute[j].index == (int)index) {
                *out = slot_for(SLOT_MIG, json_text(call.device, "uuid", ""), state.instances[i].compute[j].serial);
                return leave(&call, *out != NULL ? NVML_SUCCESS : NVML_MEMORY);
            }
        }
    }
    return leave(&call, NVML_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *out)
{
    ENTER_DEVICE(450, device, true)
    REQUIRE(out != NULL && call.instance != NULL, NVML_INVALID_ARGUMENT)
    *out = slot_for(SLOT_GPU, json_text(call.device, "uuid", ""), -1);
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(450, device, true)
    REQUIRE(call.instance != NULL, NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.instance, "id", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *out)
{
    ENTER_DEVICE(450, device, true)
    REQUIRE(call.instance != NULL, NVML_INVALID_ARGUMENT)
    return give_unsigned(&call, call.compute, "id", out);
}

EXPORT nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *out)
{
    ENTER_DEVICE(450, device, true)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(call.instance != NULL, NVML_NOT_SUPPORTED)
    memset(out, 0, sizeof(*out));
    out->multiprocessorCount = (unsigned)json_integer(call.compute, "multiprocessors", 0);
    out->sharedCopyEngineCount = (unsigned)json_integer(call.instance, "copy_engines", 1);
    out->gpuInstanceSliceCount = (unsigned)json_integer(call.instance, "slices", 1);
    out->computeInstanceSliceCount = (unsigned)json_integer(call.compute, "slices", 1);
    out->memorySizeMB = (nvmlU64)json_integer(call.instance, "memory.total_mib", 0);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

#define MOST_PROFILES 18 /* that the library knows of; pynvml's NVML_GPU_INSTANCE_PROFILE_COUNT */

/* A profile is named by its place in NVML's list (0: 1 slice, 1: 2 slices ...), an instance names its profile's id. */
static const struct json *find_profile(const struct json *device, const char *key, long long value)
{
    const struct json *profiles = json_get(device, "mig.profiles");
    for (int i = 0; profiles != NULL && i < profiles->count; i++) {
        if (json_integer(json_at(profiles, i), key, -1) == value) {
            return json_at(profiles, i);
        }
    }
    return NULL;
}

static nvmlReturn_t profile_info(struct call *call, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    const struct json *profile = find_profile(call->device, "number", number);
    if (json_get(call->device, "mig") == NULL) {
        return NVML_NOT_SUPPORTED;
    }
    if (number >= MOST_PROFILES) {
        return NVML_INVALID_ARGUMENT;
    }
    if (profile == NULL) {
        return NVML_NOT_SUPPORTED;
    }
    unsigned version = out->version;
    memset(out, 0, sizeof(*out));
    out->version = version;
    out->id = (unsigned)json_integer(profile, "id", 0);
    out->sliceCount = (unsigned)json_integer(profile, "slices", 0);
    out->instanceCount = (unsigned)json_integer(profile, "instances", 0);
    out->multiprocessorCount = (unsigned)json_integer(profile, "multiprocessors", 0);
    out->copyEngineCount = (unsigned)json_integer(profile, "copy_engines", 1);
    out->memorySizeMB = (nvmlU64)json_integer(profile, "memory_mib", 0);
    snprintf(out->name, sizeof(out->name), "MIG %s", json_text(profile, "name", ""));
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(
    nvmlDevice_t device, unsigned number, nvmlGpuInstanceProfileInfo_t *out)
{
    ENTER_DEVICE(450, device, false)
    nvmlGpuInstanceProfileInfo_v2_t info = {0};
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    nvmlReturn_t result = profile_info(&call, number, &info);
    REQUIRE(result == NVML_SUCCESS, result)
    *out = (nvmlGpuInstanceProfileInfo_t){info.id, 0, info.sliceCount, info.instanceCount, info.multiprocessorCount,
        info.copyEngineCount, 0, 0, 0, 0, info.memorySizeMB};
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

/* Assumed: since 510, as the versioned memory is. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(
    nvmlDevice_t device, unsigned number, nvmlGpuInstanceProfileInfo_v2_t *out)
{
    ENTER_DEVICE(510, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlGpuInstanceProfileInfo_v2_t, 2), NVML_ARGUMENT_VERSION_MISMATCH)
    nvmlReturn_t result = profile_info(&call, number, out);
    answers(&call, &out->id, sizeof(*out) - sizeof(out->version));
    return leave(&call, result);
}

/* The state of a GPU in MIG mode, and one profile of it. */
static nvmlReturn_t begin_profile(
    struct call *call, unsigned id, const struct json **profile, struct mig_state *state)
{
    *profile = find_profile(call->device, "id", id);
    mig_load(call->device, state);
    if (json_get(call->device, "mig") == NULL || !state->current) {
        return NVML_NOT_SUPPORTED;
    }
    return *profile != NULL ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

static bool is_free(const struct mig_state *state, int start, int size)
{
    for (int i = 0; i < state->count; i++) {
        const struct mig_instance *other = &state->instances[i];
        if (start < other->start + other->size && other->start < start + size) {
            return false;
        }
    }
    return true;
}

/* Where instances of the profile can still be made: how many starts there are in `starts`, the last first. */
static int free_starts(const struct json *profile, const struct mig_state *state, int starts[16])
{
    const struct json *possible = json_get(profile, "starts");
    int found = 0, there = 0, size = (int)json_integer(profile, "memory_slices", 1);
    for (int i = 0; i < state->count; i++) {
        there += state->instances[i].profile == json_integer(profile, "id", -1);
    }
    for (int i = possible != NULL ? possible->count - 1 : -1; i >= 0; i--) {
        int start = (int)json_at(possible, i)->integer;
        if (there < json_integer(profile, "instances", 0) && is_free(state, start, size)) {
            starts[found++] = start;
        }
    }
    return found;
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(
    nvmlDevice_t device, unsigned profile_id, nvmlPlacement_t *out, unsigned *count)
{
    ENTER_DEVICE(470, device, false)
    const struct json *profile;
    struct mig_state state;
    REQUIRE(count != NULL, NVML_INVALID_ARGUMENT)
    nvmlReturn_t result = begin_profile(&call, profile_id, &profile, &state);
    REQUIRE(result == NVML_SUCCESS, result)
    unsigned have = (unsigned)json_length(profile, "starts"), room = *count;
    *count = have;
    REQUIRE(out == NULL || room >= have, NVML_INSUFFICIENT_SIZE)
    for (unsigned i = 0; out != NULL && i < have; i++) {
        out[i].start = (unsigned)json_at(json_get(profile, "starts"), (int)i)->integer;
        out[i].size = (unsigned)json_integer(profile, "memory_slices", 1);
    }
    return leave(&call, NVML_SUCCESS);
}

/* As many instances of this profile alone as still fit. */
EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, unsigned profile_id, unsigned *out)
{
    ENTER_DEVICE(450, device, false)
    const struct json *profile;
    struct mig_state state;
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    nvmlReturn_t result = begin_profile(&call, profile_id, &profile, &state);
    REQUIRE(result == NVML_SUCCESS, result)
    int starts[16];
    for (*out = 0; free_starts(profile, &state, starts) > 0 && state.count < MOST_INSTANCES; ++*out) {
        struct mig_instance *next = &state.instances[state.count++];
        next->profile = (int)profile_id;
        next->start = starts[0];
        next->size = (int)json_integer(profile, "memory_slices", 1);
    }
    return leave(&call, NVML_SUCCESS);
}

/* Changes of MIG. As of other changes assumed: bad arguments are refused first, then who is not root, then what the GPU
 * does not have. What the scenario says is read anew under the lock. */
static nvmlReturn_t leave_mig(struct call *call, int lock, nvmlReturn_t result)
{
    mig_unlock(lock);
    return leave(call, result);
}

static int lock_mig(struct call *call)
{
    int lock = mig_lock();
    call->scenario = scenario_current();
    call->device = json_at(json_get(call->scenario, "devices"), call->index);
    return lock;
}

EXPORT nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, unsigned mode, nvmlReturn_t *activation)
{
    ENTER_DEVICE(450, device, false)
    struct mig_state state;
    REQUIRE(activation != NULL && mode < 2, NVML_INVALID_ARGUMENT)
    nvmlReturn_t may = may_set(call.device, "mig");
    REQUIRE(may == NVML_SUCCESS, may)
    int lock = lock_mig(&call);
    mig_load(call.device, &state);
    state.pending = mode;
    *activation = NVML_SUCCESS;
    if (state.current != state.pending) {
        if (state.count > 0 || mig_clients(call.scenario, call.device, -1, -1) > 0) {
            *activation = NVML_IN_USE;
        } else if (json_true(call.device, "mig.needs_reset") && json_true(call.device, "mig.cannot_reset")) {
            *activation = NVML_RESET_REQUIRED;
        } else {
            /* Where it needs a reset, the driver resets the GPU for it. */
            state.current = state.pending;
        }
    }
    return leave_mig(&call, lock, mig_keep(call.scenario, call.device, &state) ? NVML_SUCCESS : NVML_UNKNOWN);
}

/* The lowest number that no instance has, beginning with the one that belongs to its place. Assumed: NVIDIA's guide shows
 * such numbers with gaps, and says nothing about them. */
static int instance_id(const struct mig_state *state, int start, int size)
{
    int wanted = size == 8 ? 0 : size == 4 ? 1 + start / 4 : size == 2 ? 3 + start / 2 : 7 + start;
    for (int step = 0;; step++) {
        int id = (wanted + step) % 15;
        bool taken = false;
        for (int i = 0; i < state->count; i++) {
            taken = taken || state->instances[i].id == id;
        }
        if (!taken) {
            return id;
        }
    }
}

static nvmlReturn_t create_instance(
    struct call *call, unsigned profile_id, const nvmlPlacement_t *wanted, nvmlGpuInstance_t *out)
{
    const struct json *profile;
    struct mig_state state;
    int starts[16];
    if (geteuid() != 0) {
        return leave(call, NVML_NO_PERMISSION);
    }
    int lock = lock_mig(call);
    nvmlReturn_t result = begin_profile(call, profile_id, &profile, &state);
    if (result != NVML_SUCCESS) {
        return leave_mig(call, lock, result);
    }
    int size = (int)json_integer(profile, "memory_slices", 1), found = free_starts(profile, &state, starts), at = 0;
    if (wanted != NULL) {
        const struct json *possible = json_get(profile, "starts");
        bool legal = false;
        for (int i = 0; i < json_length(profile, "starts"); i++) {
            legal = legal || json_at(possible, i)->integer == (long long)wanted->start;
        }
        if (!legal || (int)wanted->size != size) {
            return leave_mig(call, lock, NVML_INVALID_ARGUMENT);
        }
        while (at < found && starts[at] != (int)wanted->start) {
            at++;
        }
    }
    /* One GPU has the media engines for one instance with all of them. */
    if (at >= found || state.count >= MOST_INSTANCES) {
        return leave_mig(call, lock, NVML_INSUFFICIENT_RESOURCES);
    }
    struct mig_instance fresh = {
        .id = instance_id(&state, starts[at], size),
        .serial = state.serials++,
        .profile = (int)profile_id,
        .start = starts[at],
        .size = size,
        .slices = (int)json_integer(profile, "slices", 1),
        .multiprocessors = (int)json_integer(profile, "multiprocessors", 0),
        .total_mib = json_integer(profile, "memory_mib", 0),
        .used_mib = 12,
    };
    snprintf(fresh.name, sizeof(fresh.name), "%s", json_text(profile, "name", ""));
    state.instances[state.count++] = fresh;
    const char *uuid = json_text(call->device, "uuid", "");
    *out = slot_for(SLOT_GPU_INSTANCE, uuid, fresh.serial);
    bool kept = *out != NULL && mig_keep(call->scenario, call->device, &state);
    return leave_mig(call, lock, kept ? NVML_SUCCESS : NVML_UNKNOWN);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, unsigned profile_id, nvmlGpuInstance_t *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    return create_instance(&call, profile_id, NULL, out);
}

EXPORT nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(
    nvmlDevice_t device, unsigned profile_id, const nvmlPlacement_t *placement, nvmlGpuInstance_t *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL && placement != NULL, NVML_INVALID_ARGUMENT)
    return create_instance(&call, profile_id, placement, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstances(
    nvmlDevice_t device, unsigned profile, nvmlGpuInstance_t *out, unsigned *count)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL && count != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "mig") != NULL, NVML_NOT_SUPPORTED)
    REQUIRE(find_profile(call.device, "id", profile) != NULL, NVML_INVALID_ARGUMENT)
    bool on = json_true(call.device, "mig.current");
    const struct json *instances = on ? json_get(call.device, "mig.instances") : NULL;
    *count = 0;
    for (int i = 0; instances != NULL && i < instances->count; i++) {
        if (json_integer(json_at(instances, i), "profile_id", -1) == profile) {
            out[(*count)++] = slot_for(SLOT_GPU_INSTANCE, json_text(call.device, "uuid", ""),
                (int)json_integer(json_at(instances, i), "serial", 0));
        }
    }
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, unsigned id, nvmlGpuInstance_t *out)
{
    ENTER_DEVICE(450, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(json_get(call.device, "mig") != NULL, NVML_NOT_SUPPORTED)
    const struct json *instance = find_instance(call.device, "id", (int)id);
    REQUIRE(instance != NULL, NVML_NOT_FOUND)
    *out = slot_for(SLOT_GPU_INSTANCE, json_text(call.device, "uuid", ""), (int)json_integer(instance, "serial", 0));
    return leave(&call, NVML_SUCCESS);
}

/* What a call with the handle of a GPU or compute instance begins with: `gi` and `ci` are their places in `state`. One
 * that was destroyed is a bad argument for ever, whatever was made at its place since. With `lock` the call is one that
 * changes something. */
static nvmlReturn_t enter_instance(struct call *call, const char *name, struct slot *handle, enum slot_kind kind,
    int *lock, struct mig_state *state, int *gi, int *ci)
{
    nvmlReturn_t result = enter(call, name, 450);
    if (result != NVML_SUCCESS) {
        return result;
    }
    if (!is_slot(handle)) {
        return no_handle(call, handle);
    }
    if (handle->kind != kind) {
        return leave(call, NVML_INVALID_ARGUMENT);
    }
    if (lock != NULL && geteuid() != 0) {
        return leave(call, NVML_NO_PERMISSION);
    }
    call->index = place_of_uuid(call->scenario, handle->uuid);
    if (call->index < 0) {
        return leave(call, NVML_GPU_IS_LOST);
    }
    call->device = json_at(json_get(call->scenario, "devices"), call->index);
    if (lock != NULL) {
        *lock = lock_mig(call);
    }
    mig_load(call->device, state);
    for (*gi = 0; state->current && *gi < state->count; ++*gi) {
        const struct mig_instance *one = &state->instances[*gi];
        if (kind == SLOT_GPU_INSTANCE && one->serial == handle->instance) {
            return NVML_SUCCESS;
        }
        for (*ci = 0; kind == SLOT_COMPUTE_INSTANCE && *ci < one->computes; ++*ci) {
            if (one->compute[*ci].serial == handle->instance) {
                return NVML_SUCCESS;
            }
        }
    }
    return leave_mig(call, lock != NULL ? *lock : -1, NVML_INVALID_ARGUMENT);
}

#define ENTER_INSTANCE(handle, kind, lock) \
    struct call call; \
    struct mig_state state; \
    int gi = 0, ci = 0; \
    nvmlReturn_t begun = enter_instance(&call, __func__, handle, kind, lock, &state, &gi, &ci); \
    if (begun != NVML_SUCCESS) { \
        return begun; \
    } \
    struct mig_instance *instance = &state.instances[gi];

EXPORT nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t handle, nvmlGpuInstanceInfo_t *out)
{
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, NULL)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    out->device = slot_for(SLOT_GPU, handle->uuid, -1);
    out->id = (unsigned)instance->id;
    out->profileId = (unsigned)instance->profile;
    out->placement = (nvmlPlacement_t){(unsigned)instance->start, (unsigned)instance->size};
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t handle)
{
    int lock;
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, &lock)
    if (instance->computes > 0 || mig_clients(call.scenario, call.device, instance->id, -1) > 0) {
        return leave_mig(&call, lock, NVML_IN_USE);
    }
    mig_remove(&state, gi);
    return leave_mig(&call, lock, mig_keep(call.scenario, call.device, &state) ? NVML_SUCCESS : NVML_UNKNOWN);
}

/* Compute instances: a part of the slices of a GPU instance, or all of them. NVML's list has them by their slices, and
 * one with the media engines. Source: nvidia-smi mig -lcip in NVIDIA's guide. */
static const struct { int number, id, slices; bool media; } compute_profiles[] = {
    {0, 0, 1, false}, {1, 1, 2, false}, {2, 2, 3, false}, {3, 3, 4, false}, {4, 4, 7, false}, {7, 7, 1, true},
};
#define MOST_COMPUTE_PROFILES 9

static bool has_compute(const struct mig_instance *instance, size_t i)
{
    bool media = strstr(instance->name, "+me") != NULL;
    if (compute_profiles[i].media || media) {
        return compute_profiles[i].media == media && compute_profiles[i].slices == instance->slices;
    }
    int slices = compute_profiles[i].slices;
    bool third = slices == 3 && instance->slices == 4;
    return slices <= instance->slices && !third;
}

static int compute_multiprocessors(const struct mig_instance *instance, int slices)
{
    return instance->multiprocessors * slices / instance->slices;
}

static nvmlReturn_t compute_info(
    const struct mig_instance *instance, unsigned number, unsigned engine, nvmlComputeInstanceProfileInfo_t *out)
{
    if (number >= MOST_COMPUTE_PROFILES || engine > 0) {
        return NVML_INVALID_ARGUMENT;
    }
    for (size_t i = 0; i < COUNT(compute_profiles); i++) {
        if (compute_profiles[i].number == (int)number && has_compute(instance, i)) {
            int slices = compute_profiles[i].slices;
            *out = (nvmlComputeInstanceProfileInfo_t){.id = (unsigned)compute_profiles[i].id,
                .sliceCount = (unsigned)slices,
                .instanceCount = (unsigned)(instance->slices / slices),
                .multiprocessorCount = (unsigned)compute_multiprocessors(instance, slices),
                .sharedCopyEngineCount = 1};
            return NVML_SUCCESS;
        }
    }
    return NVML_NOT_SUPPORTED;
}

static void compute_name(const struct mig_instance *instance, int slices, char *out, size_t size)
{
    if (slices == instance->slices) {
        snprintf(out, size, "%s", instance->name);
    } else {
        snprintf(out, size, "%dc.%s", slices, instance->name);
    }
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(
    nvmlGpuInstance_t handle, unsigned number, unsigned engine, nvmlComputeInstanceProfileInfo_t *out)
{
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, NULL)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    return leave(&call, compute_info(instance, number, engine, out));
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(
    nvmlGpuInstance_t handle, unsigned number, unsigned engine, nvmlComputeInstanceProfileInfo_v2_t *out)
{
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, NULL)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    REQUIRE(out->version == VERSION_OF(nvmlComputeInstanceProfileInfo_v2_t, 2), NVML_ARGUMENT_VERSION_MISMATCH)
    nvmlReturn_t result = compute_info(instance, number, engine, &out->info);
    if (result == NVML_SUCCESS) {
        char name[64];
        compute_name(instance, (int)out->info.sliceCount, name, sizeof(name));
        snprintf(out->name, sizeof(out->name), "MIG %s", name);
    }
    return leave(&call, result);
}

EXPORT nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(
    nvmlGpuInstance_t handle, unsigned profile_id, nvmlComputeInstance_t *out)
{
    int lock;
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, &lock)
    int slices = -1;
    for (size_t i = 0; i < COUNT(compute_profiles); i++) {
        if (compute_profiles[i].id == (int)profile_id) {
            slices = has_compute(instance, i) ? compute_profiles[i].slices : 0;
        }
    }
    if (out == NULL || slices <= 0) {
        return leave_mig(&call, lock, slices == 0 && out != NULL ? NVML_NOT_SUPPORTED : NVML_INVALID_ARGUMENT);
    }
    unsigned taken = 0, ids = 0, indexes = 0;
    for (int i = 0; i < state.count; i++) {
        for (int j = 0; j < state.instances[i].computes; j++) {
            const struct mig_compute *one = &state.instances[i].compute[j];
            indexes |= 1u << one->index;
            if (i == gi) {
                taken |= ((1u << one->slices) - 1) << one->start;
                ids |= 1u << one->id;
            }
        }
    }
    int start = 0;
    while (start + slices <= instance->slices && (taken & ((1u << slices) - 1) << start) != 0) {
        start++;
    }
    if (start + slices > instance->slices) {
        return leave_mig(&call, lock, NVML_INSUFFICIENT_RESOURCES);
    }
    struct mig_compute fresh = {.id = __builtin_ctz(~ids),
        .serial = state.serials++,
        .index = __builtin_ctz(~indexes),
        .profile = (int)profile_id,
        .start = start,
        .slices = slices,
        .multiprocessors = compute_multiprocessors(instance, slices)};
    mig_uuid(fresh.uuid, sizeof(fresh.uuid));
    compute_name(instance, slices, fresh.name, sizeof(fresh.name));
    instance->compute[instance->computes++] = fresh;
    *out = slot_for(SLOT_COMPUTE_INSTANCE, handle->uuid, fresh.serial);
    bool kept = *out != NULL && mig_keep(call.scenario, call.device, &state);
    return leave_mig(&call, lock, kept ? NVML_SUCCESS : NVML_UNKNOWN);
}

EXPORT nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t handle)
{
    int lock;
    ENTER_INSTANCE(handle, SLOT_COMPUTE_INSTANCE, &lock)
    if (mig_clients(call.scenario, call.device, instance->id, instance->compute[ci].id) > 0) {
        return leave_mig(&call, lock, NVML_IN_USE);
    }
    instance->computes--;
    memmove(&instance->compute[ci], &instance->compute[ci + 1],
        (size_t)(instance->computes - ci) * sizeof(instance->compute[0]));
    return leave_mig(&call, lock, mig_keep(call.scenario, call.device, &state) ? NVML_SUCCESS : NVML_UNKNOWN);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstances(
    nvmlGpuInstance_t handle, unsigned profile_id, nvmlComputeInstance_t *out, unsigned *count)
{
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, NULL)
    REQUIRE(out != NULL && count != NULL, NVML_INVALID_ARGUMENT)
    *count = 0;
    for (int i = 0; i < instance->computes; i++) {
        if (instance->compute[i].profile == (int)profile_id) {
            out[(*count)++] = slot_for(SLOT_COMPUTE_INSTANCE, handle->uuid, instance->compute[i].serial);
        }
    }
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(
    nvmlGpuInstance_t handle, unsigned id, nvmlComputeInstance_t *out)
{
    ENTER_INSTANCE(handle, SLOT_GPU_INSTANCE, NULL)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    for (int i = 0; i < instance->computes; i++) {
        if (instance->compute[i].id == (int)id) {
            *out = slot_for(SLOT_COMPUTE_INSTANCE, handle->uuid, instance->compute[i].serial);
            return leave(&call, NVML_SUCCESS);
        }
    }
    return leave(&call, NVML_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t handle, nvmlComputeInstanceInfo_t *out)
{
    ENTER_INSTANCE(handle, SLOT_COMPUTE_INSTANCE, NULL)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    const struct mig_compute *one = &instance->compute[ci];
    out->device = slot_for(SLOT_GPU, handle->uuid, -1);
    out->gpuInstance = slot_for(SLOT_GPU_INSTANCE, handle->uuid, instance->serial);
    out->id = (unsigned)one->id;
    out->profileId = (unsigned)one->profile;
    out->placement = (nvmlPlacement_t){(unsigned)one->start, (unsigned)one->slices};
    return leave(&call, NVML_SUCCESS);
}

/* Field values: the cheap ones. What is not known here is answered, per field, as not supported. */

enum { VALUE_DOUBLE = 0, VALUE_UNSIGNED = 1, VALUE_U64 = 3, VALUE_SIGNED = 5 };

/* The type of a field that the GPU does not have, which is mostly left at 0. */
static unsigned type_without_value(unsigned id)
{
    static const struct { unsigned first, last, type; } types[] = {
        {1, 31, VALUE_U64}, {91, 91, VALUE_UNSIGNED}, {92, 93, VALUE_U64}, {138, 141, VALUE_U64},
        {146, 146, VALUE_UNSIGNED}, {161, 163, VALUE_U64}, {164, 172, VALUE_UNSIGNED}, {200, 200, VALUE_UNSIGNED},
        {223, 225, VALUE_UNSIGNED}, {231, 234, VALUE_UNSIGNED}, {251, 253, VALUE_UNSIGNED}, {259, 259, VALUE_UNSIGNED},
    };
    for (size_t i = 0; i < COUNT(types); i++) {
        if (types[i].first <= id && id <= types[i].last) {
            return types[i].type;
        }
    }
    return VALUE_DOUBLE;
}

static bool sum_links(const struct call *call, const char *counter, nvmlU64 *out)
{
    const struct json *links = json_get(call->device, "nvlinks.links");
    *out = 0;
    for (int i = 0; links != NULL && i < links->count; i++) {
        *out += growing(call->scenario, json_at(links, i), counter);
    }
    return links != NULL;
}

static nvmlReturn_t field_value(const struct call *call, nvmlFieldValue_t *field)
{
    static const struct { unsigned id, type; const char *path; } plain[] = {
        {1, VALUE_U64, "ecc.enabled"}, {2, VALUE_U64, "ecc.pending"}, {31, VALUE_U64, "retired_pages.pending"},
        {82, VALUE_UNSIGNED, "temperature.memory"}, {83, VALUE_U64, "power.energy_mj"},
        {94, VALUE_UNSIGNED, "pci.replays"}, {193, VALUE_SIGNED, "temperature.t_limit.shutdown"},
        {194, VALUE_SIGNED, "temperature.t_limit.slowdown"}, {195, VALUE_SIGNED, "temperature.t_limit.memory_max"},
        {196, VALUE_SIGNED, "temperature.t_limit.gpu_max"}, {230, VALUE_UNSIGNED, "recovery_action"},
    };
    static const struct { unsigned id, type, counter; const char *place; } ecc[] = {
        {3, 0, 0, "total"}, {4, 1, 0, "total"}, {5, 0, 1, "total"}, {6, 1, 1, "total"}, {11, 0, 0, "device"},
        {12, 1, 0, "device"}, {22, 0, 1, "device"}, {23, 1, 1, "device"},
    };
    static const struct { unsigned id; const char *counter; } links[] = {
        {38, "errors.crc_flit"}, {45, "errors.crc_data"}, {52, "errors.replay"}, {59, "errors.recovery"},
    };
    const struct json *device = call->device;
    field->valueType = VALUE_U64;
    for (size_t i = 0; i < COUNT(plain); i++) {
        if (plain[i].id == field->fieldId) {
            if (plain[i].type == VALUE_SIGNED) {
                field->value.i = (int)json_integer(device, plain[i].path, 0);
            } else {
                field->value.ull = growing(call->scenario, device, plain[i].path);
            }
            field->valueType = plain[i].type;
            bool late = plain[i].id == 230 && scenario_branch(library_version) < 570;
            return json_get(device, plain[i].path) != NULL && !late ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
        }
    }
    for (size_t i = 0; i < COUNT(ecc); i++) {
        if (ecc[i].id == field->fieldId) {
            bool shown = strcmp(ecc[i].place, "total") == 0 || !json_true(device, "ecc.no_device_fields");
            return ecc_on(device) && shown
                    && ecc_counter(device, ecc[i].type, ecc[i].counter, ecc[i].place, &field->value.ull)
                ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
        }
    }
    for (size_t i = 0; i < COUNT(links); i++) {
        if (links[i].id == field->fieldId) {
            return sum_links(call, links[i].counter, &field->value.ull) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
        }
    }
    if (field->fieldId == 29 || field->fieldId == 30) {
        field->value.ull = (nvmlU64)json_length(device,
            field->fieldId == 29 ? "retired_pages.single_bit" : "retired_pages.double_bit");
        return json_get(device, "retired_pages") != NULL ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
    }
    if (field->fieldId == 90 || field->fieldId == 91) {
        field->valueType = VALUE_UNSIGNED;
        field->value.ull = field->fieldId == 90 ? (nvmlU64)json_integer(device, "nvlinks.speed_mbps", 0)
                                                : (nvmlU64)json_length(device, "nvlinks.links");
        return json_get(device, "nvlinks") != NULL ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
    }
    return field->fieldId == 0 ? NVML_INVALID_ARGUMENT : NVML_NOT_SUPPORTED;
}

EXPORT nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *fields)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(fields != NULL && count > 0, NVML_INVALID_ARGUMENT)
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        fields[i].latencyUsec = 1;
        fields[i].value.ull = 0;
        fields[i].result = field_value(&call, &fields[i]);
        if (fields[i].result != NVML_SUCCESS) {
            fields[i].valueType = type_without_value(fields[i].fieldId);
        }
        if (i < 2) {
            answers(&call, &fields[i].value, sizeof(fields[i].value));
        }
    }
    return leave(&call, NVML_SUCCESS);
}

/* Events: the scenario's list "events" with growing ids. What is in it when a set is registered is the past, but for
 * events with "after_ms": they come that long after the registration, to every set. */

#define EVENT_XID 8ull

/* Assumed: branches before 580 know the five types that there always were. */
static nvmlU64 event_types(const struct json *device)
{
    return (nvmlU64)json_integer(device, "event_types", 0) & (scenario_branch(library_version) < 580 ? 31 : ~0ull);
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, nvmlU64 *out)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    *out = event_types(call.device);
    answers(&call, out, sizeof(*out));
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
    ENTER(0)
    REQUIRE(out != NULL, NVML_INVALID_ARGUMENT)
    for (size_t i = 0; i < COUNT(event_sets); i++) {
        if (!event_sets[i].used) {
            memset(&event_sets[i], 0, sizeof(event_sets[i]));
            event_sets[i].used = true;
            *out = &event_sets[i];
            return leave(&call, NVML_SUCCESS);
        }
    }
    return leave(&call, NVML_MEMORY);
}

static long long milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool is_event_set(const struct event_set *set)
{
    return set >= event_sets && set < event_sets + COUNT(event_sets)
        && ((const char *)set - (const char *)event_sets) % sizeof(*set) == 0 && set->used;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(0)
    REQUIRE(is_event_set(set), NVML_INVALID_ARGUMENT)
    set->used = false;
    return leave(&call, NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, nvmlU64 types, nvmlEventSet_t set)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(is_event_set(set), NVML_INVALID_ARGUMENT)
    REQUIRE((types & ~event_types(call.device)) == 0, NVML_NOT_SUPPORTED)
    REQUIRE(types != 0, NVML_SUCCESS)
    const struct json *events = json_get(call.scenario, "events");
    bool first = set->gpus[0].types == 0;
    set->registered_ms = first ? milliseconds() : set->registered_ms;
    for (int i = 0; first && events != NULL && i < events->count; i++) {
        long long id = json_integer(json_at(events, i), "id", 0);
        bool past = json_get(json_at(events, i), "after_ms") == NULL;
        set->seen = past && id > set->seen ? id : set->seen;
    }
    for (size_t i = 0; i < COUNT(set->gpus); i++) {
        struct registration *gpu = &set->gpus[i];
        if (gpu->types == 0 || strcmp(gpu->uuid, device->uuid) == 0) {
            snprintf(gpu->uuid, sizeof(gpu->uuid), "%s", device->uuid);
            gpu->types |= types;
            return leave(&call, NVML_SUCCESS);
        }
    }
    return leave(&call, NVML_MEMORY);
}

static bool next_event(const struct json *scenario, struct event_set *set, nvmlEventData_t *out)
{
    const struct json *events = json_get(scenario, "events"), *next = NULL, *device = NULL;
    for (int i = 0; events != NULL && i < events->count; i++) {
        const struct json *event = json_at(events, i);
        long long id = json_integer(event, "id", 0);
        bool due = milliseconds() - set->registered_ms >= json_integer(event, "after_ms", 0);
        if (!due || id <= set->seen || (next != NULL && id >= json_integer(next, "id", 0))) {
            continue;
        }
        const struct json *gpu
            = json_at(json_get(scenario, "devices"), (int)json_integer(event, "device", 0));
        for (size_t r = 0; r < COUNT(set->gpus) && set->gpus[r].types != 0; r++) {
            if (strcmp(set->gpus[r].uuid, json_text(gpu, "uuid", "")) == 0
                && (set->gpus[r].types & (nvmlU64)json_integer(event, "type", EVENT_XID)) != 0) {
                next = event;
                device = gpu;
            }
        }
    }
    if (next == NULL) {
        return false;
    }
    set->seen = json_integer(next, "id", 0);
    out->device = slot_for(SLOT_GPU, json_text(device, "uuid", ""), -1);
    out->type = (nvmlU64)json_integer(next, "type", EVENT_XID);
    out->data = (nvmlU64)json_integer(next, "xid", 0);
    out->gpuInstanceId = (unsigned)json_integer(next, "gpu_instance", -1);
    out->computeInstanceId = (unsigned)json_integer(next, "compute_instance", -1);
    return true;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    /* The scenario is looked at this often: what a test measures includes it, in time and in CPU. */
    const char *setting = getenv("NVML_SIMULATOR_EVENT_PAUSE_MS");
    long pause_ms = setting != NULL && atol(setting) > 0 ? atol(setting) : 10;
    const struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};
    long long end = milliseconds() + timeout_ms;
    for (bool first = true;; first = false) {
        struct call call;
        nvmlReturn_t begun = first ? enter(&call, __func__, 0) : (scenario_lock(), NVML_SUCCESS);
        if (begun != NVML_SUCCESS) {
            return begun;
        }
        if (!first) {
            memset(&call, 0, sizeof(call));
            call.scenario = scenario_current();
        }
        REQUIRE(out != NULL && is_event_set(set), NVML_INVALID_ARGUMENT)
        if (next_event(call.scenario, set, out)) {
            return leave(&call, NVML_SUCCESS);
        }
        /* One GPU that was lost ends the wait for all. */
        for (size_t r = 0; r < COUNT(set->gpus) && set->gpus[r].types != 0; r++) {
            int place = place_of_uuid(call.scenario, set->gpus[r].uuid);
            const struct json *device = json_at(json_get(call.scenario, "devices"), place);
            REQUIRE(place >= 0 && !has_state(device, "lost") && !has_state(device, "gone"), NVML_GPU_IS_LOST)
        }
        REQUIRE(milliseconds() < end, NVML_TIMEOUT)
        scenario_unlock();
        nanosleep(&pause, NULL);
    }
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *out, unsigned timeout_ms)
{
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}

/* What changes a GPU. */

EXPORT nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, unsigned mode)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(mode < 4, NVML_INVALID_ARGUMENT)
    nvmlReturn_t may = may_set(call.device, "compute_mode");
    REQUIRE(may == NVML_SUCCESS, may)
    /* One thread alone: no longer supported. */
    REQUIRE(mode != 1, NVML_NOT_SUPPORTED)
    return leave(&call, keep_setting(call.device, "compute_mode", mode));
}

EXPORT nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned limit)
{
    ENTER_DEVICE(0, device, false)
    nvmlReturn_t may = may_set(call.device, "power.min_mw");
    REQUIRE(may == NVML_SUCCESS, may)
    REQUIRE((long long)limit >= json_integer(call.device, "power.min_mw", 0)
        && (long long)limit <= json_integer(call.device, "power.max_mw", 0), NVML_INVALID_ARGUMENT)
    return leave(&call, keep_setting(call.device, "power_limit_mw", limit));
}

static nvmlReturn_t keep_clocks(const struct json *device, unsigned memory, unsigned graphics)
{
    nvmlReturn_t kept = keep_setting(device, "memory_clock", memory);
    return kept == NVML_SUCCESS ? keep_setting(device, "graphics_clock", graphics) : kept;
}

/* Which pairs a GPU knows is not in a scenario: taken are its one clock of memory, and what the cores reach. */
EXPORT nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned memory, unsigned graphics)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(!application_clocks_gone(), NVML_DEPRECATED)
    nvmlReturn_t may = may_set(call.device, "clocks.graphics.application");
    REQUIRE(may == NVML_SUCCESS, may)
    REQUIRE((long long)memory == json_integer(call.device, "clocks.memory.application_default", 0)
        && graphics > 0 && (long long)graphics <= json_integer(call.device, "clocks.graphics.max", 0),
        NVML_INVALID_ARGUMENT)
    return leave(&call, keep_clocks(call.device, memory, graphics));
}

EXPORT nvmlReturn_t nvmlDeviceResetApplicationsClocks(nvmlDevice_t device)
{
    ENTER_DEVICE(0, device, false)
    REQUIRE(!application_clocks_gone(), NVML_DEPRECATED)
    nvmlReturn_t may = may_set(call.device, "clocks.graphics.application");
    REQUIRE(may == NVML_SUCCESS, may)
    return leave(&call, keep_clocks(call.device,
        (unsigned)json_integer(call.device, "clocks.memory.application_default", 0),
        (unsigned)json_integer(call.device, "clocks.graphics.application_default", 0)));
}

/* Refused to everybody: what needs a reset, or is the operator's own. */
static nvmlReturn_t refuse(struct call *call)
{
    return leave(call, geteuid() == 0 ? NVML_NOT_SUPPORTED : NVML_NO_PERMISSION);
}

#define REFUSE(function, since, ...) \
    EXPORT nvmlReturn_t function(nvmlDevice_t device, __VA_ARGS__) \
    { \
        ENTER_DEVICE(since, device, false) \
        return refuse(&call); \
    }
REFUSE(nvmlDeviceSetPersistenceMode, 0, unsigned mode __attribute__((unused)))
REFUSE(nvmlDeviceSetEccMode, 0, unsigned mode __attribute__((unused)))
REFUSE(nvmlDeviceClearEccErrorCounts, 0, unsigned type __attribute__((unused)))
