/* SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The part of NVML's binary interface that the stand-in offers, written down from what the public binding pynvml
 * passes to it. NVIDIA's own nvml.h is not used.
 */
#ifndef SIMULATOR_NVML_H
#define SIMULATOR_NVML_H

#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct slot *nvmlDevice_t;
typedef struct slot *nvmlGpuInstance_t;
typedef struct slot *nvmlComputeInstance_t;
typedef struct event_set *nvmlEventSet_t;
typedef unsigned long long nvmlU64;

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_FUNCTION_NOT_FOUND = 13,
    NVML_CORRUPTED_INFOROM = 14,
    NVML_GPU_IS_LOST = 15,
    NVML_RESET_REQUIRED = 16,
    NVML_LIB_RM_VERSION_MISMATCH = 18,
    NVML_IN_USE = 19,
    NVML_MEMORY = 20,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_DEPRECATED = 26,
    NVML_UNKNOWN = 999,
};

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
} nvmlPciInfoExt_t;

typedef struct { nvmlU64 total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; nvmlU64 total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { nvmlU64 total, free, used; } nvmlBAR1Memory_t;
typedef struct { unsigned gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned pid; nvmlU64 memory; } nvmlProcessInfo_v1_t;
typedef struct { unsigned pid; nvmlU64 memory; unsigned gpuInstanceId, computeInstanceId; } nvmlProcessInfo_t;
typedef struct { nvmlU64 l1, l2, device, registers; } nvmlEccErrorCounts_t;
typedef struct { nvmlU64 reference, violation; } nvmlViolationTime_t;
typedef struct { unsigned max, high, partial, low, none; } nvmlRowRemapperHistogram_t;
typedef struct { unsigned version; int margin; } nvmlMarginTemperature_t;
typedef struct { unsigned version, sensor; int temperature; } nvmlTemperature_v1_t;
typedef struct { unsigned version, flag; } nvmlVersionedFlag_t;
typedef struct { unsigned version, channel, tpc; } nvmlRepairStatus_t;
typedef struct { unsigned version; char branch[80]; } nvmlDriverBranch_t;
typedef struct {
    unsigned version;
    nvmlU64 aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed, volatileCor;
    nvmlU64 l2, sm, pcie, mcu, other;
    unsigned threshold;
} nvmlSramStatus_t;

typedef struct { unsigned char uuid[16]; int status; unsigned clique, state; } nvmlGpuFabricInfo_t;
typedef struct {
    unsigned version;
    unsigned char uuid[16];
    int status;
    unsigned clique;
    unsigned char state; /* one byte in nvml.h; pynvml reads the whole word */
    unsigned char padding[3];
    unsigned healthMask;
    unsigned char healthSummary; /* version 3 */
} nvmlGpuFabricInfoV_t;

typedef struct {
    nvmlDevice_t device;
    nvmlU64 type, data;
    unsigned gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef union {
    double d;
    unsigned u;
    unsigned long ul;
    nvmlU64 ull;
    long long ll;
    int i;
    unsigned short us;
} nvmlValue_t;
typedef struct {
    unsigned fieldId, scopeId;
    int64_t timestamp, latencyUsec;
    unsigned valueType;
    nvmlReturn_t result;
    nvmlValue_t value;
} nvmlFieldValue_t;

typedef struct { unsigned start, size; } nvmlPlacement_t;
typedef struct { nvmlDevice_t device; unsigned id, profileId; nvmlPlacement_t placement; } nvmlGpuInstanceInfo_t;
typedef struct {
    unsigned id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    nvmlU64 memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;
typedef struct {
    unsigned version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount,
        encoderCount, jpegCount, ofaCount;
    nvmlU64 memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;
typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;
typedef struct {
    unsigned id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount,
        sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;
typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t info;
    char name[96];
} nvmlComputeInstanceProfileInfo_v2_t;
typedef struct {
    unsigned multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount,
        sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    nvmlU64 memorySizeMB;
} nvmlDeviceAttributes_t;

/* What the versioned structures carry in their first word: the size and the version. */
#define VERSION_OF(type, version) ((unsigned)sizeof(type) | (unsigned)(version) << 24)

#endif
