/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * A stand-in for NVIDIA's CUDA driver library libcuda.so.1: the part of the driver API that a device query needs. The
 * GPUs come from a scenario file (see README.md), their memory is the host's, and kernels are really run, by reading
 * their PTX. As strict as the real one about initialisation, handles, ranges and PTX. It knows nothing of what the
 * CUDA runtime (libcudart) asks of a driver.
 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../common/scenario.h"
#include "ptx.h"

#define EXPORT __attribute__((visibility("default")))
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define MAX_DEVICES 64

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    DEVICE_UNAVAILABLE = 46,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702,
    PEER_ACCESS_UNSUPPORTED = 217,
    PEER_ACCESS_ALREADY_ENABLED = 704,
    CONTEXT_IS_DESTROYED = 709,
    LAUNCH_FAILED = 719,
    MISALIGNED_ADDRESS = 716,
    NOT_SUPPORTED = 801,
    SYSTEM_NOT_READY = 802,
    SYSTEM_DRIVER_MISMATCH = 803,
    UNKNOWN = 999,
};

/* As measured on an H200 with driver 580.159.04. */
static const struct { CUresult code; const char *name, *text; } errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled while using external profiling tool"},
    {6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized: call cudaProfilerInitialize()"},
    {7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started"},
    {8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "API call is not supported in the installed CUDA driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping of buffer object failed"},
    {206, "CUDA_ERROR_UNMAP_FAILED", "unmapping of buffer object failed"},
    {207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {210, "CUDA_ERROR_ALREADY_ACQUIRED", "resource already acquired"},
    {211, "CUDA_ERROR_NOT_MAPPED", "resource not mapped"},
    {212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "resource not mapped as array"},
    {213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "resource not mapped as pointer"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"},
    {216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "exclusive-thread device already in use by a different thread"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    {224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "the provided execution affinity is not supported"},
    {225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "the provided PTX contains unsupported call to cudaDeviceSynchronize"},
    {226, "CUDA_ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error"},
    {300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"},
    {303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch uses incompatible texturing mode"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {710, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {711, "CUDA_ERROR_TOO_MANY_PEERS", "peer mapping resources exhausted"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"},
    {718, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "MPS client failed to connect to the MPS control daemon or the MPS server"},
    {806, "CUDA_ERROR_MPS_RPC_FAILURE", "the remote procedural call between the MPS server and the MPS client failed"},
    {807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "MPS server is not ready to accept new MPS client requests"},
    {808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED",
        "the hardware resources required to create MPS client have been exhausted"},
    {809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED",
        "the hardware resources required to support device connections have been exhausted"},
    {810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated by the server"},
    {811, "CUDA_ERROR_CDP_NOT_SUPPORTED",
        "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it"},
    {812, "CUDA_ERROR_CDP_VERSION_MISMATCH",
        "unsupported interaction between different versions of CUDA Dynamic Parallelism"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
        "operation would make the legacy stream depend on a capturing blocking stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
        "attempt to terminate a thread-local capture sequence from another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "wait operation timed out"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE",
        "the graph update was not performed because it included changes which violated constraints specific "
        "to instantiated graph update"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occured in external entity outside of CUDA"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "a kernel launch error has occurred due to cluster misconfiguration"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

/* What is handed out as a handle, found again by its address and kind in one list. */
enum kind { KIND_CONTEXT, KIND_MODULE, KIND_FUNCTION, KIND_EVENT, KIND_DEVICE_MEMORY, KIND_HOST_MEMORY };
struct object {
    enum kind kind;
    struct object *next;
    struct object *context; /* the owner; of a function its module */
    int device; /* of a context: the CUDA ordinal */
    bool primary;
    struct ptx_module *module;
    struct ptx_function *function;
    unsigned char *memory;
    size_t size, place; /* `place`: where in the memory of its GPU, as a cell that is broken has its place */
    bool untimed, recorded; /* of an event */
    double time; /* of an event, in seconds */
    uint64_t peers; /* of a context: the GPUs whose memory it may use */
};
static struct object *objects;
static struct object *destroyed; /* handles that were given out, so that each differs from one that never was */

/* The GPUs as CUDA numbers them, fixed by cuInit as in the real library. */
static struct {
    char uuid[96];
    int instance; /* of MIG: the serial number of the compute instance, 0 for the whole GPU */
    size_t allocated;
    double clock; /* seconds that it has worked */
    struct object *primary;
    int primary_users;
} gpus[MAX_DEVICES];
static int gpu_count;
static pid_t initialised_by;
static char module_version[32];
/* After a kernel that touched what it must not, "the process must be terminated and relaunched" (CUDA's documentation):
 * every call that needs a context repeats the error, with whichever GPU. */
static CUresult process_failure;

/* The contexts of a thread; the last is current. */
static __thread struct object *stack[64];
static __thread int depth;

struct call {
    const struct json *scenario;
    const struct json *gpu;
    struct object *context;
    struct fault fault;
};

static CUresult leave(CUresult result)
{
    scenario_unlock();
    return result;
}

static struct object *new_object(enum kind kind, struct object *owner)
{
    struct object *object = calloc(1, sizeof(*object));
    if (object != NULL) {
        object->kind = kind;
        object->context = owner;
        object->next = objects;
        objects = object;
    }
    return object;
}

static struct object *find_object(const void *handle, enum kind kind)
{
    for (struct object *object = objects; object != NULL; object = object->next) {
        if (object == handle && object->kind == kind) {
            return object;
        }
    }
    return NULL;
}

static void free_object(struct object *object)
{
    for (struct object **at = &objects; *at != NULL; at = &(*at)->next) {
        if (*at == object) {
            *at = object->next;
            break;
        }
    }
    if (object->kind == KIND_MODULE) {
        ptx_free(object->module);
    }
    if (object->memory != NULL) {
        munmap(object->memory, object->size);
    }
    if (object->kind == KIND_DEVICE_MEMORY) {
        gpus[object->device].allocated -= object->size;
    }
    if (object->kind == KIND_DEVICE_MEMORY || object->kind == KIND_HOST_MEMORY) {
        free(object);
    } else {
        object->next = destroyed;
        destroyed = object;
    }
}

static bool was_destroyed(const void *handle, enum kind kind)
{
    const struct object *object = destroyed;
    while (object != NULL && (object != handle || object->kind != kind)) {
        object = object->next;
    }
    return object != NULL;
}

/* What a call answers to a handle that is none. One that never was makes the real library crash, as measured on an H200
 * with driver 580.159.04. */
static CUresult bad_handle(const void *handle, enum kind kind, CUresult of_null, CUresult of_destroyed)
{
    if (handle != NULL && !was_destroyed(handle, kind)) {
        raise(SIGSEGV);
    }
    return handle == NULL ? of_null : of_destroyed;
}

/* Frees what belongs to the owner, and what belongs to that. */
static void free_owned(const struct object *owner)
{
    for (struct object *object = objects; object != NULL;) {
        if (object->context == owner) {
            free_owned(object);
            free_object(object);
            object = objects;
        } else {
            object = object->next;
        }
    }
}

static const struct json *device_of(const struct json *scenario, int ordinal)
{
    const struct json *devices = json_get(scenario, "devices");
    for (int place = 0; devices != NULL && place < devices->count; place++) {
        if (strcmp(json_text(json_at(devices, place), "uuid", ""), gpus[ordinal].uuid) == 0) {
            return json_at(devices, place);
        }
    }
    return NULL;
}

static int place_of(const struct json *scenario, const struct json *gpu)
{
    const struct json *devices = json_get(scenario, "devices");
    for (int place = 0; devices != NULL && place < devices->count; place++) {
        if (json_at(devices, place) == gpu) {
            return place;
        }
    }
    return -1;
}

static const struct json *instance_of(const struct json *gpu, int serial)
{
    const struct json *instance = NULL;
    return serial != 0 && scenario_compute(gpu, NULL, serial, &instance) != NULL ? instance : NULL;
}

/* As CUDA's documentation says of each error. */
static bool ends_the_process(CUresult error)
{
    return error == ILLEGAL_ADDRESS || error == LAUNCH_TIMEOUT || (error >= 714 && error <= 719);
}

/* Begins a call: initialised?, scenario, the fault that is ordered for it. `ordinal` is the GPU it concerns, or -1. */
static CUresult enter(struct call *call, const char *name, int ordinal)
{
    memset(call, 0, sizeof(*call));
    scenario_lock();
    if (initialised_by != getpid()) {
        return leave(NOT_INITIALIZED);
    }
    for (int again = 0; again < 2; again++) {
        call->scenario = scenario_current();
        call->gpu = ordinal >= 0 ? device_of(call->scenario, ordinal) : NULL;
        if (again == 0) {
            call->fault = scenario_fault(call->scenario, name, place_of(call->scenario, call->gpu));
            if (!call->fault.ordered) {
                break;
            }
            scenario_unlock();
            scenario_suffer(&call->fault);
            scenario_lock();
        }
    }
    if (call->fault.error != 0) {
        process_failure = ends_the_process(call->fault.error) ? call->fault.error : process_failure;
        return leave(call->fault.error);
    }
    if (ordinal >= 0 && (call->gpu == NULL || strcmp(json_text(call->gpu, "state", "ok"), "ok") != 0)) {
        return leave(UNKNOWN);
    }
    return SUCCESS;
}

/* The same for a call that works in the thread's current context. */
static CUresult enter_context(struct call *call, const char *name)
{
    scenario_lock();
    struct object *context = depth > 0 ? find_object(stack[depth - 1], KIND_CONTEXT) : NULL;
    int ordinal = context != NULL ? context->device : -1;
    scenario_unlock();
    CUresult result = enter(call, name, ordinal);
    if (result != SUCCESS) {
        return result;
    }
    if (context == NULL) {
        return leave(depth > 0 ? CONTEXT_IS_DESTROYED : INVALID_CONTEXT);
    }
    call->context = context;
    return process_failure != SUCCESS ? leave(process_failure) : SUCCESS;
}

#define ENTER(ordinal) \
    struct call call; \
    CUresult begun = enter(&call, __func__, ordinal); \
    if (begun != SUCCESS) { \
        return begun; \
    }
#define ENTER_DEVICE(device) \
    if (initialised_by == getpid() && ((device) < 0 || (device) >= gpu_count)) { \
        return INVALID_DEVICE; \
    } \
    ENTER(device)
#define ENTER_CONTEXT() \
    struct call call; \
    CUresult begun = enter_context(&call, __func__); \
    if (begun != SUCCESS) { \
        return begun; \
    }
#define REQUIRE(condition, otherwise) \
    if (!(condition)) { \
        return leave(otherwise); \
    }

/* Initialisation */

/* Whether this process may use the GPU: its state, the driver's age, its device file. */
static bool usable(const struct json *scenario, const struct json *gpu)
{
    char path[64];
    snprintf(path, sizeof(path), "/dev/nvidia%lld", json_integer(gpu, "minor", 0));
    return strcmp(json_text(gpu, "state", "ok"), "ok") == 0 && scenario_driver_knows(gpu, module_version)
        && (scenario_alone(scenario) || scenario_open_node(path) == 0);
}

static void add_gpu(const struct json *gpu, int instance)
{
    if (gpu_count < MAX_DEVICES) {
        memset(&gpus[gpu_count], 0, sizeof(gpus[gpu_count]));
        snprintf(gpus[gpu_count].uuid, sizeof(gpus[gpu_count].uuid), "%s", json_text(gpu, "uuid", ""));
        gpus[gpu_count++].instance = instance;
    }
}

static double speed_of(const struct json *gpu)
{
    return json_number(gpu, "cores", 1) * json_number(gpu, "clocks.sm.max", 1);
}

/* A process needs the nodes of both capabilities of an instance; it holds them from then on. */
static bool may_open(
    const struct json *scenario, const struct json *gpu, const struct json *instance, const struct json *compute)
{
    for (int i = 0; i < 2 && !scenario_alone(scenario); i++) {
        char path[64];
        scenario_capability((int)json_integer(gpu, "minor", 0), (int)json_integer(instance, "id", 0),
            i == 0 ? -1 : (int)json_integer(compute, "id", 0), path, sizeof(path));
        if (scenario_open_node(path) != 0) {
            return false;
        }
    }
    return true;
}

/* All GPUs in CUDA's order: by speed, or by PCI address if CUDA_DEVICE_ORDER says so. Of GPUs that MIG has cut, one
 * instance at most is seen, and only where there is no whole GPU. */
static void enumerate(const struct json *scenario)
{
    const struct json *ordered[MAX_DEVICES], *devices = json_get(scenario, "devices"), *cut = NULL;
    const char *order = getenv("CUDA_DEVICE_ORDER");
    bool by_address = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
    int count = 0;
    for (int place = 0; devices != NULL && place < devices->count && count < MAX_DEVICES; place++) {
        const struct json *gpu = json_at(devices, place);
        if (!usable(scenario, gpu)) {
            continue;
        }
        if (json_true(gpu, "mig.current")) {
            const struct json *instance;
            cut = cut == NULL && scenario_compute(gpu, NULL, -1, &instance) != NULL ? gpu : cut;
            continue;
        }
        int at = count++;
        for (; at > 0; at--) {
            bool before = by_address ? strcmp(json_text(gpu, "pci.address", ""),
                                           json_text(ordered[at - 1], "pci.address", "")) < 0
                                     : speed_of(gpu) > speed_of(ordered[at - 1]);
            if (!before) {
                break;
            }
            ordered[at] = ordered[at - 1];
        }
        ordered[at] = gpu;
    }
    gpu_count = 0;
    for (int i = 0; i < count; i++) {
        add_gpu(ordered[i], 0);
    }
    if (count == 0 && cut != NULL) {
        const struct json *instance;
        const struct json *compute = scenario_compute(cut, NULL, -1, &instance);
        if (may_open(scenario, cut, instance, compute)) {
            add_gpu(cut, (int)json_integer(compute, "serial", 0));
        }
    }
}

/* Finds the MIG instance of a UUID among the usable GPUs; 0 when there is none. */
static int find_mig(const struct json *scenario, const char *uuid, const struct json **gpu)
{
    const struct json *devices = json_get(scenario, "devices"), *instance;
    for (int place = 0; devices != NULL && place < devices->count; place++) {
        *gpu = json_at(devices, place);
        const struct json *compute = scenario_compute(*gpu, uuid, -1, &instance);
        if (compute != NULL && usable(scenario, *gpu) && may_open(scenario, *gpu, instance, compute)) {
            return (int)json_integer(compute, "serial", 0);
        }
    }
    return 0;
}

/* CUDA_VISIBLE_DEVICES: numbers or UUIDs, whole or their beginnings; what follows a bad one is not seen. False when one
 * is named twice. */
static bool select_visible(const struct json *scenario, const char *list)
{
    char all[MAX_DEVICES][96], copy[4096], *rest = NULL;
    int count = gpu_count, chosen[MAX_DEVICES], number = 0;
    for (int i = 0; i < count; i++) {
        memcpy(all[i], gpus[i].uuid, sizeof(all[i]));
    }
    snprintf(copy, sizeof(copy), "%s", list);
    for (char *word = strtok_r(copy, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        char *end;
        long index = strtol(word, &end, 10);
        int match = -1;
        if (strncmp(word, "MIG-", 4) == 0) {
            const struct json *gpu = NULL;
            int instance = find_mig(scenario, word, &gpu);
            gpu_count = 0;
            if (instance != 0) {
                add_gpu(gpu, instance);
            }
            return true;
        }
        if (end != word && *end == '\0') {
            match = index >= 0 && index < count ? (int)index : -1;
        } else {
            for (int i = 0; strlen(word) > 4 && i < count; i++) {
                match = strncasecmp(all[i], word, strlen(word)) == 0 ? i : match;
            }
        }
        for (int i = 0; i < number; i++) {
            if (chosen[i] == match) {
                return false;
            }
        }
        if (match < 0) {
            break;
        }
        chosen[number++] = match;
    }
    for (int i = 0; i < number; i++) {
        snprintf(gpus[i].uuid, sizeof(gpus[i].uuid), "%s", all[chosen[i]]);
        gpus[i].instance = 0;
    }
    gpu_count = number;
    return true;
}

static bool fabric_manager_missing(const struct json *scenario)
{
    const char *manager = json_text(scenario, "fabric_manager", "not-needed");
    if (strcmp(manager, "unit") == 0) {
        return access("/run/nvidia-fabricmanager/nv-fabricmanager.pid", F_OK) != 0;
    }
    return strcmp(manager, "stopped") == 0;
}

static CUresult initialise(const struct json *scenario)
{
    char library_version[32];
    if (!scenario_module_version(scenario, module_version, sizeof(module_version))) {
        return NO_DEVICE;
    }
    scenario_library_version(scenario, (const void *)&objects, library_version, sizeof(library_version));
    if (strcmp(library_version, module_version) != 0) {
        return SYSTEM_DRIVER_MISMATCH;
    }
    if (!scenario_alone(scenario)) {
        if (scenario_open_node("/dev/nvidiactl") != 0) {
            return NO_DEVICE;
        }
        if (!scenario_has_character_device("nvidia-uvm") || scenario_open_node("/dev/nvidia-uvm") != 0) {
            return UNKNOWN;
        }
    }
    if (json_true(scenario, "cuda.without_uvm")) {
        return UNKNOWN;
    }
    enumerate(scenario);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && !select_visible(scenario, visible)) {
        return INVALID_DEVICE;
    }
    if (gpu_count == 0) {
        return NO_DEVICE;
    }
    return fabric_manager_missing(scenario) ? SYSTEM_NOT_READY : SUCCESS;
}

EXPORT CUresult cuInit(unsigned flags)
{
    scenario_lock();
    const struct json *scenario = scenario_current();
    struct fault fault = scenario_fault(scenario, __func__, -1);
    scenario_unlock();
    scenario_suffer(&fault);
    if (flags != 0) {
        return INVALID_VALUE;
    }
    if (scenario == NULL || fault.error != 0) {
        return scenario == NULL ? UNKNOWN : fault.error;
    }
    scenario_lock();
    if (initialised_by == getpid()) {
        return leave(SUCCESS);
    }
    if (initialised_by != 0) {
        /* A child of a process that had initialised CUDA cannot use it. */
        return leave(NOT_INITIALIZED);
    }
    CUresult result = initialise(scenario_current());
    if (result == SUCCESS) {
        initialised_by = getpid();
    }
    return leave(result);
}

EXPORT CUresult cuDriverGetVersion(int *out)
{
    char version[32];
    if (out == NULL) {
        return INVALID_VALUE;
    }
    scenario_lock();
    const struct json *scenario = scenario_current();
    scenario_library_version(scenario, (const void *)&objects, version, sizeof(version));
    *out = scenario_cuda_version(scenario, version);
    return leave(SUCCESS);
}

static CUresult describe(CUresult code, const char **out, bool name)
{
    if (out == NULL) {
        return INVALID_VALUE;
    }
    *out = NULL;
    for (size_t i = 0; i < COUNT(errors); i++) {
        if (errors[i].code == code) {
            *out = name ? errors[i].name : errors[i].text;
            return SUCCESS;
        }
    }
    return INVALID_VALUE;
}

EXPORT CUresult cuGetErrorName(CUresult code, const char **out)
{
    return describe(code, out, true);
}

EXPORT CUresult cuGetErrorString(CUresult code, const char **out)
{
    return describe(code, out, false);
}

/* Devices */

EXPORT CUresult cuDeviceGetCount(int *out)
{
    ENTER(-1)
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = gpu_count;
    return leave(SUCCESS);
}

EXPORT CUresult cuDeviceGet(CUdevice *out, int ordinal)
{
    ENTER_DEVICE(ordinal)
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = ordinal;
    return leave(SUCCESS);
}

EXPORT CUresult cuDeviceGetName(char *out, int size, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL && size >= 0, INVALID_VALUE)
    if (size == 0) {
        raise(SIGSEGV); /* as the real library does, measured on an H200 with driver 580.159.04 */
        return leave(INVALID_VALUE);
    }
    const struct json *instance, *compute = scenario_compute(call.gpu, NULL, gpus[device].instance, &instance);
    snprintf(out, (size_t)size, "%s%s%s", json_text(call.gpu, "name", ""), compute != NULL ? " MIG " : "",
        json_text(compute, "name", ""));
    return leave(SUCCESS);
}

static CUresult give_uuid(const char *text, unsigned char *out)
{
    const char *at = strchr(text, '-');
    for (int i = 0; at != NULL && i < 16; i++, at += 2) {
        unsigned byte;
        at += *at == '-';
        if (sscanf(at, "%2x", &byte) != 1) {
            return leave(UNKNOWN);
        }
        out[i] = (unsigned char)byte;
    }
    return leave(at != NULL ? SUCCESS : UNKNOWN);
}

EXPORT CUresult cuDeviceGetUuid(unsigned char *out, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    return give_uuid(gpus[device].uuid, out);
}

EXPORT CUresult cuDeviceGetUuid_v2(unsigned char *out, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    const struct json *instance, *compute = scenario_compute(call.gpu, NULL, gpus[device].instance, &instance);
    return give_uuid(compute != NULL ? json_text(compute, "uuid", "") : gpus[device].uuid, out);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *out, int size, CUdevice device)
{
    ENTER_DEVICE(device)
    const char *address = json_text(call.gpu, "pci.address", "");
    REQUIRE(out != NULL && size > (int)strlen(address), INVALID_VALUE)
    for (size_t i = 0; i <= strlen(address); i++) {
        out[i] = (char)(address[i] >= 'a' && address[i] <= 'f' ? address[i] - 32 : address[i]);
    }
    return leave(SUCCESS);
}

static size_t memory_total(const struct call *call, int ordinal)
{
    const struct json *instance = instance_of(call->gpu, gpus[ordinal].instance);
    const struct json *owner = instance != NULL ? instance : call->gpu;
    long long mib = json_integer(owner, "memory.total_mib", 0) - json_integer(owner, "memory.reserved_mib", 0);
    return (size_t)mib << 20;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *out, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = memory_total(&call, device);
    return leave(SUCCESS);
}

EXPORT CUresult cuDeviceGetAttribute(int *out, int attribute, CUdevice device)
{
    static const struct { int attribute, value; } constants[] = {
        {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
        {10, 32}, {11, 2147483647}, {12, 65536}, {14, 512}, {15, 1}, {17, 0}, {18, 0}, {19, 1}, {31, 1}, {35, 0},
        {39, 2048}, {41, 1}, {83, 1}, {84, 0}, {85, 0},
    };
    static const struct { int attribute; const char *path; int factor; } values[] = {
        {13, "clocks.sm.max", 1000}, {16, "cuda.multiprocessors", 1}, {20, "compute_mode", 1}, {32, "ecc.enabled", 1},
        {36, "clocks.memory.max", 1000}, {37, "memory.bus_bits", 1}, {38, "cuda.l2_kib", 1024},
        {40, "cuda.async_engines", 1}, {75, "compute_capability.0", 1}, {76, "compute_capability.1", 1},
    };
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    for (size_t i = 0; i < COUNT(constants); i++) {
        if (constants[i].attribute == attribute) {
            *out = constants[i].value;
            return leave(SUCCESS);
        }
    }
    for (size_t i = 0; i < COUNT(values); i++) {
        if (values[i].attribute == attribute) {
            *out = (int)json_integer(call.gpu, values[i].path, 0) * values[i].factor;
            return leave(SUCCESS);
        }
    }
    unsigned domain = 0, bus = 0, slot = 0;
    sscanf(json_text(call.gpu, "pci.address", ""), "%x:%x:%x", &domain, &bus, &slot);
    REQUIRE(attribute == 33 || attribute == 34 || attribute == 50, INVALID_VALUE)
    *out = (int)(attribute == 33 ? bus : attribute == 34 ? slot : domain);
    return leave(SUCCESS);
}

/* Contexts */

static CUresult push(struct object *context)
{
    if (depth == (int)COUNT(stack)) {
        return leave(OUT_OF_MEMORY);
    }
    stack[depth++] = context;
    return leave(SUCCESS);
}

static void remove_from_stack(const struct object *context)
{
    int kept = 0;
    for (int i = 0; i < depth; i++) {
        if (stack[i] != context) {
            stack[kept++] = stack[i];
        }
    }
    depth = kept;
}

EXPORT CUresult cuCtxCreate_v2(struct object **out, unsigned flags, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL && flags < 0x100, INVALID_VALUE)
    REQUIRE(process_failure == SUCCESS, process_failure)
    /* Prohibited, or exclusive and taken. */
    long long mode = json_integer(call.gpu, "compute_mode", 0);
    REQUIRE(mode != 2 && (mode != 3 || json_length(call.gpu, "processes") == 0), DEVICE_UNAVAILABLE)
    struct object *context = new_object(KIND_CONTEXT, NULL);
    REQUIRE(context != NULL, OUT_OF_MEMORY)
    context->device = device;
    *out = context;
    return push(context);
}

EXPORT CUresult cuCtxDestroy_v2(struct object *handle)
{
    ENTER(-1)
    struct object *context = find_object(handle, KIND_CONTEXT);
    REQUIRE(context != NULL, bad_handle(handle, KIND_CONTEXT, INVALID_VALUE, CONTEXT_IS_DESTROYED))
    REQUIRE(!context->primary, INVALID_CONTEXT)
    free_owned(context);
    remove_from_stack(context);
    free_object(context);
    return leave(SUCCESS);
}

EXPORT CUresult cuCtxSetCurrent(struct object *handle)
{
    ENTER(-1)
    REQUIRE(handle == NULL || find_object(handle, KIND_CONTEXT) != NULL,
        bad_handle(handle, KIND_CONTEXT, SUCCESS, CONTEXT_IS_DESTROYED))
    depth -= depth > 0;
    return handle != NULL ? push(handle) : leave(SUCCESS);
}

EXPORT CUresult cuCtxGetCurrent(struct object **out)
{
    ENTER(-1)
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = depth > 0 ? stack[depth - 1] : NULL;
    return leave(SUCCESS);
}

EXPORT CUresult cuCtxPushCurrent_v2(struct object *handle)
{
    ENTER(-1)
    REQUIRE(find_object(handle, KIND_CONTEXT) != NULL,
        bad_handle(handle, KIND_CONTEXT, INVALID_CONTEXT, CONTEXT_IS_DESTROYED))
    return push(handle);
}

EXPORT CUresult cuCtxPopCurrent_v2(struct object **out)
{
    ENTER(-1)
    REQUIRE(depth > 0, INVALID_CONTEXT)
    depth--;
    if (out != NULL) {
        *out = stack[depth];
    }
    return leave(SUCCESS);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
    ENTER_CONTEXT()
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = call.context->device;
    return leave(SUCCESS);
}

EXPORT CUresult cuCtxSynchronize(void)
{
    ENTER_CONTEXT()
    return leave(SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(struct object **out, CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    REQUIRE(process_failure == SUCCESS, process_failure)
    REQUIRE(json_integer(call.gpu, "compute_mode", 0) != 2, DEVICE_UNAVAILABLE)
    if (gpus[device].primary == NULL) {
        gpus[device].primary = new_object(KIND_CONTEXT, NULL);
        REQUIRE(gpus[device].primary != NULL, OUT_OF_MEMORY)
        gpus[device].primary->device = device;
        gpus[device].primary->primary = true;
    }
    gpus[device].primary_users++;
    *out = gpus[device].primary;
    return leave(SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    ENTER_DEVICE(device)
    REQUIRE(gpus[device].primary_users > 0, INVALID_CONTEXT)
    if (--gpus[device].primary_users == 0) {
        free_owned(gpus[device].primary);
        remove_from_stack(gpus[device].primary);
        free_object(gpus[device].primary);
        gpus[device].primary = NULL;
    }
    return leave(SUCCESS);
}

/* Memory: a device's memory is the host's, and an address of it is the host's address. */

EXPORT CUresult cuMemGetInfo_v2(size_t *free_out, size_t *total_out)
{
    ENTER_CONTEXT()
    REQUIRE(free_out != NULL && total_out != NULL, INVALID_VALUE)
    size_t used = gpus[call.context->device].allocated + ((size_t)json_integer(call.gpu, "memory.used_mib", 0) << 20);
    *total_out = memory_total(&call, call.context->device);
    *free_out = used < *total_out ? *total_out - used : 0;
    return leave(SUCCESS);
}

static struct object *map_memory(enum kind kind, struct object *context, size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct object *object = memory != MAP_FAILED ? new_object(kind, context) : NULL;
    if (object != NULL) {
        object->memory = memory;
        object->size = size;
        object->device = context->device;
    }
    return object;
}

/* "cuda.stuck_bit": {"device": 1, "byte": 5000, "bit": 3}: this bit of the memory of one GPU is 1, whatever is written. The
 * first memory that a process allocates begins at byte 0. */
static void spoil_memory(const struct call *call)
{
    const struct json *stuck = json_get(call->scenario, "cuda.stuck_bit");
    int device = call->context->device;
    if (stuck == NULL || json_integer(stuck, "device", -1) != place_of(call->scenario, call->gpu)) {
        return;
    }
    size_t byte = (size_t)json_integer(stuck, "byte", 0);
    for (struct object *object = objects; object != NULL; object = object->next) {
        if (object->kind == KIND_DEVICE_MEMORY && object->device == device && byte >= object->place
            && byte - object->place < object->size) {
            object->memory[byte - object->place] |= (unsigned char)(1u << json_integer(stuck, "bit", 0) % 8);
        }
    }
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
    ENTER_CONTEXT()
    REQUIRE(out != NULL && size > 0, INVALID_VALUE)
    int device = call.context->device;
    size_t used = gpus[device].allocated + ((size_t)json_integer(call.gpu, "memory.used_mib", 0) << 20);
    size_t total = memory_total(&call, device);
    REQUIRE(size <= total && used <= total - size, OUT_OF_MEMORY)
    struct object *object = map_memory(KIND_DEVICE_MEMORY, call.context, size);
    REQUIRE(object != NULL, OUT_OF_MEMORY)
    object->place = gpus[device].allocated;
    gpus[device].allocated += size;
    *out = (CUdeviceptr)(uintptr_t)object->memory;
    return leave(SUCCESS);
}

static struct object *memory_at(uint64_t address, size_t size, enum kind kind)
{
    for (struct object *object = objects; object != NULL; object = object->next) {
        uint64_t start = (uint64_t)(uintptr_t)object->memory;
        if (object->kind == kind && address >= start && size <= object->size
            && address - start <= object->size - size) {
            return object;
        }
    }
    return NULL;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    ENTER_CONTEXT()
    struct object *object = memory_at(address, 0, KIND_DEVICE_MEMORY);
    REQUIRE(address == 0 || (object != NULL && (uint64_t)(uintptr_t)object->memory == address), INVALID_VALUE)
    if (object != NULL) {
        free_object(object);
    }
    return leave(SUCCESS);
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned flags)
{
    ENTER_CONTEXT()
    REQUIRE(out != NULL && flags < 8, INVALID_VALUE)
    *out = NULL;
    REQUIRE(size > 0, SUCCESS)
    struct object *object = map_memory(KIND_HOST_MEMORY, call.context, size);
    REQUIRE(object != NULL, OUT_OF_MEMORY)
    *out = object->memory;
    return leave(SUCCESS);
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t size)
{
    return cuMemHostAlloc(out, size, 0);
}

EXPORT CUresult cuMemFreeHost(void *address)
{
    ENTER_CONTEXT()
    struct object *object = memory_at((uint64_t)(uintptr_t)address, 0, KIND_HOST_MEMORY);
    REQUIRE(address == NULL || (object != NULL && object->memory == address), INVALID_VALUE)
    if (object != NULL) {
        free_object(object);
    }
    return leave(SUCCESS);
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t size)
{
    ENTER_CONTEXT()
    REQUIRE(memory_at(address, size, KIND_DEVICE_MEMORY) != NULL, INVALID_VALUE)
    memset((void *)(uintptr_t)address, value, size);
    spoil_memory(&call);
    return leave(SUCCESS);
}

/* How fast a GPU works and copies, in bytes and instructions a second: of what its model says, what a good one of them
 * is seen to reach. */

static double memory_speed(const struct json *gpu)
{
    double wires = json_number(gpu, "memory.bus_bits", 256), clock = json_number(gpu, "clocks.memory.max", 1000);
    return 0.85 * wires / 8 * clock * 1e6 * 2;
}

static double bus_speed(const struct json *gpu)
{
    static const double lanes[] = {0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563};
    long long generation = json_integer(gpu, "pci.generation_max", 3), width = json_integer(gpu, "pci.width", 16);
    generation = generation >= 1 && generation <= 6 ? generation : 3;
    return 0.85 * lanes[generation] * (double)(width > 0 ? width : 16) * 1e9;
}

/* Links that join two GPUs, directly or through switches. */
static int links_between(const struct json *one, const struct json *other)
{
    const struct json *links = json_get(one, "nvlinks.links");
    int count = 0;
    for (int i = 0; links != NULL && i < links->count; i++) {
        const char *remote = json_text(json_at(links, i), "remote", "");
        bool to_switch = json_integer(json_at(links, i), "remote_type", 0) == 2 && json_get(other, "nvlinks") != NULL;
        count += json_true(json_at(links, i), "up")
            && (to_switch || strcmp(remote, json_text(other, "pci.address", "?")) == 0);
    }
    return count;
}

static double peer_speed(const struct json *one, const struct json *other)
{
    int links = links_between(one, other);
    if (links > 0) {
        return 0.85 * links * json_number(one, "nvlinks.speed_mbps", 25000) * 1e6;
    }
    double first = bus_speed(one), second = bus_speed(other);
    return first < second ? first : second;
}

/* "cuda.speed": {"device": 1, "factor": 0.93} lets one GPU compute that much slower. */
static double factor_of(const struct call *call)
{
    const struct json *speed = json_get(call->scenario, "cuda.speed");
    bool concerned = json_integer(speed, "device", -1) == place_of(call->scenario, call->gpu);
    return concerned ? json_number(speed, "factor", 1) : 1;
}

/* "cuda.slow": {"device": 1, "mb_s": 800} holds the copies of one GPU back to that rate. */
static void wait_for_bus(const struct call *call, size_t size)
{
    const struct json *slow = json_get(call->scenario, "cuda.slow");
    double rate = json_number(slow, "mb_s", 0) * 1e6;
    if (rate > 0 && json_integer(slow, "device", -1) == place_of(call->scenario, call->gpu)) {
        double seconds = (double)size / rate;
        gpus[call->context->device].clock += seconds;
        struct timespec rest = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
        nanosleep(&rest, NULL);
    }
}

/* "cuda.wrong_copy": {"device": 1, "byte": 77, "bit": 3} turns a bit of what comes back from one GPU. */
static void spoil_copy(const struct call *call, unsigned char *to, size_t size)
{
    const struct json *wrong = json_get(call->scenario, "cuda.wrong_copy");
    long long byte = json_integer(wrong, "byte", -1);
    if (byte >= 0 && (size_t)byte < size
        && json_integer(wrong, "device", -1) == place_of(call->scenario, call->gpu)) {
        to[byte] ^= (unsigned char)(1u << json_integer(wrong, "bit", 0) % 8);
    }
}

static CUresult copy(const char *name, uint64_t to, uint64_t from, size_t size, bool to_device, bool from_device)
{
    struct call call;
    CUresult begun = enter_context(&call, name);
    if (begun != SUCCESS) {
        return begun;
    }
    REQUIRE(size == 0 || (to != 0 && from != 0), INVALID_VALUE)
    REQUIRE(!to_device || memory_at(to, size, KIND_DEVICE_MEMORY) != NULL, INVALID_VALUE)
    REQUIRE(!from_device || memory_at(from, size, KIND_DEVICE_MEMORY) != NULL, INVALID_VALUE)
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    if (!to_device) {
        spoil_copy(&call, (unsigned char *)(uintptr_t)to, size);
    } else {
        spoil_memory(&call);
    }
    double speed = memory_speed(call.gpu) / 2;
    if (!to_device || !from_device) {
        /* What is not pinned goes through a buffer of the driver. */
        bool pinned = memory_at(to_device ? from : to, size, KIND_HOST_MEMORY) != NULL;
        speed = bus_speed(call.gpu) * (pinned ? 1 : 0.6);
    }
    gpus[call.context->device].clock += (double)size / speed;
    wait_for_bus(&call, size);
    return leave(SUCCESS);
}

#define HOST(pointer) ((uint64_t)(uintptr_t)(pointer))

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
    return copy(__func__, to, HOST(from), size, true, false);
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size)
{
    return copy(__func__, HOST(to), from, size, false, true);
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size)
{
    return copy(__func__, to, from, size, true, true);
}

/* There is one stream, the default one, and it is always done at once. */
EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream)
{
    return stream != NULL ? INVALID_HANDLE : copy(__func__, to, HOST(from), size, true, false);
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream)
{
    return stream != NULL ? INVALID_HANDLE : copy(__func__, HOST(to), from, size, false, true);
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, void *stream)
{
    return stream != NULL ? INVALID_HANDLE : copy(__func__, to, from, size, true, true);
}

/* Peers: which GPU may use the memory of which. Without it a copy between two goes through the host. */

static bool may_be_peers(const struct json *one, const struct json *other)
{
    return one != other
        && (links_between(one, other) > 0
            || (json_true(one, "pci.peer_to_peer") && json_true(other, "pci.peer_to_peer")));
}

EXPORT CUresult cuDeviceCanAccessPeer(int *out, CUdevice device, CUdevice peer)
{
    if (initialised_by == getpid() && (peer < 0 || peer >= gpu_count)) {
        return INVALID_DEVICE;
    }
    ENTER_DEVICE(device)
    REQUIRE(out != NULL, INVALID_VALUE)
    *out = may_be_peers(call.gpu, device_of(call.scenario, peer));
    return leave(SUCCESS);
}

EXPORT CUresult cuCtxEnablePeerAccess(struct object *handle, unsigned flags)
{
    ENTER_CONTEXT()
    struct object *peer = find_object(handle, KIND_CONTEXT);
    REQUIRE(peer != NULL, bad_handle(handle, KIND_CONTEXT, INVALID_CONTEXT, CONTEXT_IS_DESTROYED))
    REQUIRE(flags == 0, INVALID_VALUE)
    REQUIRE(may_be_peers(call.gpu, device_of(call.scenario, peer->device)), PEER_ACCESS_UNSUPPORTED)
    REQUIRE((call.context->peers >> peer->device & 1) == 0, PEER_ACCESS_ALREADY_ENABLED)
    call.context->peers |= 1ull << peer->device;
    return leave(SUCCESS);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to, struct object *to_handle, CUdeviceptr from,
    struct object *from_handle, size_t size, void *stream)
{
    ENTER_CONTEXT()
    struct object *to_context = find_object(to_handle, KIND_CONTEXT);
    struct object *from_context = find_object(from_handle, KIND_CONTEXT);
    REQUIRE(stream == NULL, INVALID_HANDLE)
    REQUIRE(to_context != NULL, bad_handle(to_handle, KIND_CONTEXT, INVALID_CONTEXT, CONTEXT_IS_DESTROYED))
    REQUIRE(from_context != NULL, bad_handle(from_handle, KIND_CONTEXT, INVALID_CONTEXT, CONTEXT_IS_DESTROYED))
    const struct object *target = memory_at(to, size, KIND_DEVICE_MEMORY);
    const struct object *source = memory_at(from, size, KIND_DEVICE_MEMORY);
    REQUIRE(target != NULL && source != NULL && target->device == to_context->device
            && source->device == from_context->device, INVALID_VALUE)
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    const struct json *one = device_of(call.scenario, to_context->device);
    const struct json *other = device_of(call.scenario, from_context->device);
    bool direct = to_context->peers >> from_context->device & 1 || from_context->peers >> to_context->device & 1;
    gpus[call.context->device].clock += (double)size / (direct ? peer_speed(one, other) : bus_speed(one) / 2);
    spoil_memory(&call);
    return leave(SUCCESS);
}

/* Events */

/* "cuda.clock": "device" lets events tell the time that the model of the GPU would have worked, and not how long this
 * machine took for it: so rates can be compared. */
static double moment(const struct call *call)
{
    if (strcmp(json_text(call->scenario, "cuda.clock", ""), "device") == 0) {
        return gpus[call->context->device].clock;
    }
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static CUresult bad_event(const void *handle)
{
    return bad_handle(handle, KIND_EVENT, INVALID_HANDLE, CONTEXT_IS_DESTROYED);
}

EXPORT CUresult cuEventCreate(struct object **out, unsigned flags)
{
    enum { DISABLE_TIMING = 2 };
    ENTER_CONTEXT()
    REQUIRE(out != NULL && flags < 8, INVALID_VALUE)
    *out = new_object(KIND_EVENT, call.context);
    REQUIRE(*out != NULL, OUT_OF_MEMORY)
    (*out)->untimed = (flags & DISABLE_TIMING) != 0;
    return leave(SUCCESS);
}

EXPORT CUresult cuEventRecord(struct object *handle, void *stream)
{
    ENTER_CONTEXT()
    struct object *event = find_object(handle, KIND_EVENT);
    REQUIRE(event != NULL, bad_event(handle))
    REQUIRE(stream == NULL, INVALID_HANDLE)
    event->recorded = true;
    event->time = moment(&call);
    return leave(SUCCESS);
}

EXPORT CUresult cuEventSynchronize(struct object *handle)
{
    ENTER_CONTEXT()
    REQUIRE(find_object(handle, KIND_EVENT) != NULL, bad_event(handle))
    return leave(SUCCESS);
}

EXPORT CUresult cuEventQuery(struct object *handle)
{
    ENTER_CONTEXT()
    REQUIRE(find_object(handle, KIND_EVENT) != NULL, bad_event(handle))
    return leave(SUCCESS);
}

EXPORT CUresult cuEventElapsedTime(float *out, struct object *start_handle, struct object *end_handle)
{
    ENTER_CONTEXT()
    struct object *start = find_object(start_handle, KIND_EVENT), *end = find_object(end_handle, KIND_EVENT);
    REQUIRE(out != NULL, INVALID_VALUE)
    REQUIRE(start != NULL, bad_event(start_handle))
    REQUIRE(end != NULL, bad_event(end_handle))
    REQUIRE(start->recorded && end->recorded && !start->untimed && !end->untimed, INVALID_HANDLE)
    *out = (float)((end->time - start->time) * 1e3);
    return leave(SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(struct object *handle)
{
    ENTER_CONTEXT()
    struct object *event = find_object(handle, KIND_EVENT);
    REQUIRE(event != NULL, bad_event(handle))
    free_object(event);
    return leave(SUCCESS);
}

/* Modules and kernels */

/* The PTX that the compiler of a CUDA version reads: 8.4 came with CUDA 12.4. */
static int newest_ptx(int cuda_version)
{
    int major = cuda_version / 1000, minor = cuda_version % 1000 / 10;
    return major >= 11 ? (major - 4) * 10 + minor : major == 10 ? 63 + minor : major == 9 ? 60 + minor : 50;
}

EXPORT CUresult cuModuleLoadDataEx(
    struct object **out, const char *image, unsigned option_count, const int *options, void **values)
{
    enum { ERROR_LOG = 5, ERROR_LOG_SIZE = 6 };
    ENTER_CONTEXT()
    REQUIRE(out != NULL && image != NULL && (option_count == 0 || (options != NULL && values != NULL)), INVALID_VALUE)
    char *log = NULL;
    size_t log_size = 0;
    for (unsigned i = 0; i < option_count; i++) {
        log = options[i] == ERROR_LOG ? values[i] : log;
        log_size = options[i] == ERROR_LOG_SIZE ? (size_t)(unsigned)(uintptr_t)values[i] : log_size;
    }
    if (log != NULL && log_size > 0) {
        log[0] = '\0';
    }
    /* Compiled images begin with these; there is nothing here that could run them. */
    REQUIRE(memcmp(image, "\x7f" "ELF", 4) != 0 && memcmp(image, "\x50\xed\x55\xba", 4) != 0, INVALID_IMAGE)
    struct ptx_module *module = NULL;
    int capability = (int)(json_integer(call.gpu, "compute_capability.0", 0) * 10
        + json_integer(call.gpu, "compute_capability.1", 0));
    int version = newest_ptx(scenario_cuda_version(call.scenario, module_version));
    switch (ptx_load(image, version, capability, &module, log, log_size)) {
    case PTX_IMAGE: return leave(INVALID_IMAGE);
    case PTX_INVALID: return leave(INVALID_PTX);
    case PTX_VERSION: return leave(UNSUPPORTED_PTX_VERSION);
    default: break;
    }
    struct object *object = new_object(KIND_MODULE, call.context);
    if (object == NULL) {
        ptx_free(module);
        return leave(OUT_OF_MEMORY);
    }
    object->module = module;
    *out = object;
    return leave(SUCCESS);
}

EXPORT CUresult cuModuleLoadData(struct object **out, const char *image)
{
    return cuModuleLoadDataEx(out, image, 0, NULL, NULL);
}

EXPORT CUresult cuModuleUnload(struct object *handle)
{
    ENTER_CONTEXT()
    struct object *module = find_object(handle, KIND_MODULE);
    REQUIRE(module != NULL, bad_handle(handle, KIND_MODULE, INVALID_HANDLE, INVALID_HANDLE))
    free_owned(module);
    free_object(module);
    return leave(SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(struct object **out, struct object *handle, const char *name)
{
    ENTER_CONTEXT()
    struct object *module = find_object(handle, KIND_MODULE);
    REQUIRE(out != NULL && name != NULL, INVALID_VALUE)
    REQUIRE(module != NULL, bad_handle(handle, KIND_MODULE, INVALID_HANDLE, INVALID_HANDLE))
    struct ptx_function *function = ptx_find(module->module, name);
    REQUIRE(function != NULL, NOT_FOUND)
    *out = new_object(KIND_FUNCTION, module);
    REQUIRE(*out != NULL, OUT_OF_MEMORY)
    (*out)->function = function;
    return leave(SUCCESS);
}

/* What a kernel may touch: memory of its GPU, and pinned memory of the host. */
static void *kernel_memory(void *context, uint64_t address, size_t size)
{
    static __thread struct object *last; /* neighbours come one after the other */
    const struct object *owner = context;
    uint64_t start = last != NULL ? (uint64_t)(uintptr_t)last->memory : 0;
    if (last == NULL || find_object(last, KIND_DEVICE_MEMORY) == NULL || last->device != owner->device
        || address < start || size > last->size || address - start > last->size - size) {
        last = memory_at(address, size, KIND_DEVICE_MEMORY);
        if (last != NULL && last->device != owner->device) {
            last = NULL;
        }
    }
    bool allowed = last != NULL || memory_at(address, size, KIND_HOST_MEMORY) != NULL;
    return allowed ? (void *)(uintptr_t)address : NULL;
}

EXPORT CUresult cuLaunchKernel(struct object *handle, unsigned grid_x, unsigned grid_y, unsigned grid_z,
    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **parameters,
    void **extra)
{
    ENTER_CONTEXT()
    struct object *function = find_object(handle, KIND_FUNCTION);
    REQUIRE(function != NULL, bad_handle(handle, KIND_FUNCTION, INVALID_HANDLE, INVALID_HANDLE))
    REQUIRE(stream == NULL, INVALID_HANDLE)
    REQUIRE(extra == NULL, NOT_SUPPORTED)
    REQUIRE(grid_x > 0 && grid_y > 0 && grid_z > 0 && grid_x <= 2147483647u && grid_y <= 65535 && grid_z <= 65535,
        INVALID_VALUE)
    REQUIRE(block_x > 0 && block_y > 0 && block_z > 0 && block_x <= 1024 && block_y <= 1024 && block_z <= 64
            && block_x * block_y * block_z <= 1024 && shared_bytes <= 49152, INVALID_VALUE)
    REQUIRE(parameters != NULL || ptx_parameter_count(function->function) == 0, INVALID_VALUE)
    struct ptx_launch launch = {
        .grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z}, .parameters = parameters,
        .memory = kernel_memory, .context = call.context, .wrong_thread = -1, .wrong_real_thread = -1,
        .multiprocessors = (unsigned)json_integer(call.gpu, "cuda.multiprocessors", 1),
    };
    /* "cuda.wrong_result": {"device": 1, "element": 4711, "bit": 17} */
    const struct json *wrong = json_get(call.scenario, "cuda.wrong_result");
    if (wrong != NULL && json_integer(wrong, "device", -1) == place_of(call.scenario, call.gpu)) {
        launch.wrong_thread = json_integer(wrong, "element", 0);
        launch.wrong_bit = (unsigned)json_integer(wrong, "bit", 0);
    }
    /* The same for each real number that the thread computes. */
    const struct json *unsound = json_get(call.scenario, "cuda.wrong_real");
    if (unsound != NULL && json_integer(unsound, "device", -1) == place_of(call.scenario, call.gpu)) {
        launch.wrong_real_thread = json_integer(unsound, "element", 0);
        launch.wrong_bit = (unsigned)json_integer(unsound, "bit", 0);
    }
    /* As on a GPU the launch succeeds, and what goes wrong later is reported by the calls that follow. */
    switch (ptx_run(function->function, &launch)) {
    case PTX_ILLEGAL_ADDRESS: process_failure = ILLEGAL_ADDRESS; break;
    case PTX_MISALIGNED: process_failure = MISALIGNED_ADDRESS; break;
    case PTX_TIMEOUT: process_failure = LAUNCH_TIMEOUT; break;
    case PTX_DIVERGED: process_failure = LAUNCH_FAILED; break;
    default: break;
    }
    /* One instruction for each core and clock; or what memory takes, if that is more. */
    double computing = (double)launch.steps / (0.9 * json_number(call.gpu, "cores", 1024)
        * json_number(call.gpu, "clocks.sm.max", 1000) * 1e6);
    double moving = (double)launch.bytes / memory_speed(call.gpu);
    gpus[call.context->device].clock += (computing > moving ? computing : moving) / factor_of(&call);
    spoil_memory(&call);
    return leave(SUCCESS);
}
