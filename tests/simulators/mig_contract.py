# SPDX-License-Identifier: GPL-3.0-or-later
"""What libnvidia-ml.so.1 answers to changes of MIG: the real library and the simulated one alike.

From NVIDIA's API reference and MIG guide; not measured yet. Each question begins with a GPU in MIG mode without
instances and leaves it so. On a real GPU they run only where GPUOPS_TEST_MIG=1 says that this GPU may be cut.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Question:
    """`ask` answers with NVML's return codes, or with what is true of the GPU."""

    name: str
    ask: Callable[[Gpu], Any]
    expected: Any


def code_of(lib, question, *arguments):
    try:
        question(*arguments)
    except lib.NVMLError as error:
        return int(error.value)
    return 0


class Gpu:
    """One GPU, through pynvml."""

    def __init__(self, lib, place=0):
        self.lib, self.handle = lib, lib.nvmlDeviceGetHandleByIndex(place)

    def profiles(self):
        """(id, slices, how many there can be) of each profile, the smallest first."""
        found = []
        for number in range(self.lib.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self.lib.nvmlDeviceGetGpuInstanceProfileInfo(self.handle, number)
            except self.lib.NVMLError_NotSupported:
                continue
            found.append((info.id, info.sliceCount, info.instanceCount))
        return sorted(found, key=lambda one: (one[1], -one[2]))

    def code(self, question, *arguments):
        return code_of(self.lib, question, *arguments)

    def set_mode(self, mode):
        return self.lib.nvmlDeviceSetMigMode(self.handle, mode)

    def cut(self, profile, start=None, compute=True):
        """The GPU instance, with one compute instance that has all of it."""
        if start is None:
            made = self.lib.nvmlDeviceCreateGpuInstance(self.handle, profile)
        else:
            place = self.lib.c_nvmlGpuInstancePlacement_t(start, self.size(profile))
            made = self.lib.nvmlDeviceCreateGpuInstanceWithPlacement(self.handle, profile, ctypes.byref(place))
        if compute:
            self.lib.nvmlGpuInstanceCreateComputeInstance(made, self.whole(made))
        return made

    def size(self, profile):
        return self.placements(profile)[0][1]

    def placements(self, profile):
        count = ctypes.c_uint()
        self.lib.nvmlDeviceGetGpuInstancePossiblePlacements(self.handle, profile, None, ctypes.byref(count))
        places = (self.lib.c_nvmlGpuInstancePlacement_t * count.value)()
        self.lib.nvmlDeviceGetGpuInstancePossiblePlacements(self.handle, profile, places, ctypes.byref(count))
        return [(place.start, place.size) for place in places]

    def whole(self, instance):
        """The id of the compute profile with the most slices."""
        found = {}
        for number in range(self.lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                info = self.lib.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, 0)
            except self.lib.NVMLError:
                continue
            found[info.sliceCount] = info.id
        return found[max(found)]

    def devices(self):
        """{index: (name, UUID, id of the GPU instance, id of the compute instance)}"""
        found = {}
        for index in range(self.lib.nvmlDeviceGetMaxMigDeviceCount(self.handle)):
            try:
                one = self.lib.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
            except self.lib.NVMLError_NotFound:
                continue
            name = self.lib.nvmlDeviceGetName(one).rpartition("MIG ")[2]
            ids = self.lib.nvmlDeviceGetGpuInstanceId(one), self.lib.nvmlDeviceGetComputeInstanceId(one)
            found[index] = (name, self.lib.nvmlDeviceGetUUID(one), *ids)
        return found

    def destroy(self, instance):
        for profile in range(9):
            handles, count = (self.lib.c_nvmlComputeInstance_t * 8)(), ctypes.c_uint(8)
            self.lib.nvmlGpuInstanceGetComputeInstances(instance, profile, handles, ctypes.byref(count))
            for one in handles[: count.value]:
                self.lib.nvmlComputeInstanceDestroy(one)
        self.lib.nvmlGpuInstanceDestroy(instance)


def whole_gpu(gpu: Gpu) -> Any:
    """One instance takes all; nothing fits beside it; it goes only after its compute instance."""
    lib, (profile, *_) = gpu.lib, gpu.profiles()[-1]
    made = gpu.cut(profile)
    beside = gpu.code(gpu.cut, gpu.profiles()[0][0])
    early = gpu.code(lib.nvmlGpuInstanceDestroy, made)
    gpu.destroy(made)
    return beside, early, gpu.code(lib.nvmlGpuInstanceGetInfo, made)


def as_many_as_there_can_be(gpu: Gpu) -> Any:
    profile, _slices, most = gpu.profiles()[0]
    made = [gpu.cut(profile) for _ in range(most)]
    answer = len(gpu.devices()) == most, gpu.code(gpu.cut, profile)
    for one in made:
        gpu.destroy(one)
    return answer


def another_uuid(gpu: Gpu) -> Any:
    profile = gpu.profiles()[0][0]
    place = gpu.placements(profile)[0][0]
    uuids = []
    for _ in range(2):
        made = gpu.cut(profile, place)
        uuids += [one[1] for one in gpu.devices().values()]
        gpu.destroy(made)
    return len(set(uuids)), gpu.code(gpu.lib.nvmlDeviceGetHandleByUUID, uuids[0])


def nonsense(gpu: Gpu) -> Any:
    lib = gpu.lib
    no_place = lib.c_nvmlGpuInstancePlacement_t(63, 1)
    profile = gpu.profiles()[0][0]
    return (
        gpu.code(lib.nvmlDeviceCreateGpuInstance, gpu.handle, 1000),
        gpu.code(lib.nvmlDeviceCreateGpuInstanceWithPlacement, gpu.handle, profile, ctypes.byref(no_place)),
        gpu.code(lib.nvmlDeviceGetGpuInstanceById, gpu.handle, 14),
        gpu.code(lib.nvmlDeviceGetMigDeviceHandleByIndex, gpu.handle, 0),
        gpu.code(lib.nvmlGpuInstanceDestroy, None),
    )


def compute_beyond_its_instance(gpu: Gpu) -> Any:
    made = gpu.cut(gpu.profiles()[0][0])
    code = gpu.code(gpu.lib.nvmlGpuInstanceCreateComputeInstance, made, gpu.whole(made))
    gpu.destroy(made)
    return code


def mode_with_an_instance(gpu: Gpu) -> Any:
    made = gpu.cut(gpu.profiles()[0][0])
    status, modes = gpu.set_mode(0), gpu.lib.nvmlDeviceGetMigMode(gpu.handle)
    gpu.set_mode(1)
    gpu.destroy(made)
    return status, modes


QUESTIONS = [
    Question("an instance with all of the GPU", whole_gpu, (23, 19, 2)),
    Question("one more than there can be", as_many_as_there_can_be, (True, 23)),
    Question("the same once more", another_uuid, (2, 6)),
    Question("nonsense", nonsense, (2, 2, 6, 6, 2)),
    Question("a compute instance beyond its GPU instance", compute_beyond_its_instance, 23),
    Question("the mode with an instance", mode_with_an_instance, (19, [1, 0])),
]
