# SPDX-License-Identifier: GPL-3.0-or-later
"""What libnvidia-ml.so.1 answers whatever the GPU and the machine are: the real library and the simulated one alike.

Every expected answer was measured on an H200 with driver 580.159.04; older branches are not claimed. Nothing here
changes a GPU, and nothing but the library is needed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

SINCE = 580

Answer = int | str | tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """`ask` is given the initialised library and the handle of a GPU, and leaves the library initialised.

    What it answers is the return code, or a text, or several codes.
    """

    name: str
    ask: Callable[[Any, Any], Answer]
    expected: Answer


def branch(lib: Any) -> int:
    text = ctypes.create_string_buffer(80)
    assert lib.nvmlSystemGetDriverVersion(text, 80) == 0
    return int(text.value.split(b".")[0])


def first_gpu(lib: Any) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    assert lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
    return handle


# Arguments. A function makes what must be new for each call.

ROOM = 4096


class Gpu:
    """Stands for the handle of the GPU."""


class EventSet:
    """Stands for a new event set."""


def number() -> Any:
    return ctypes.byref(ctypes.c_ulonglong())


def room() -> Any:
    return ctypes.create_string_buffer(ROOM)


def structure(size: int, version: int) -> Callable[[], Any]:
    """One that says of itself, in its first word, that it has this size and version."""

    def make() -> Any:
        words = (ctypes.c_uint * (ROOM // 4))()
        words[0] = size | version << 24
        return words

    return make


def uuid(lib: Any, gpu: Any) -> bytes:
    text = ctypes.create_string_buffer(96)
    assert lib.nvmlDeviceGetUUID(gpu, text, 96) == 0
    return text.value


def bus_id(lib: Any, gpu: Any) -> bytes:
    """As 00000000:3B:00.0."""
    info = ctypes.create_string_buffer(ROOM)
    assert lib.nvmlDeviceGetPciInfo_v3(gpu, info) == 0
    return info.raw[36:68].split(b"\0")[0]


def call(function: str, *arguments: Any) -> Callable[[Any, Any], int]:
    def ask(lib: Any, gpu: Any) -> int:
        events = ctypes.c_void_p()
        if EventSet in arguments:
            assert lib.nvmlEventSetCreate(ctypes.byref(events)) == 0
        given = [gpu if one is Gpu else events if one is EventSet else one for one in arguments]
        given = [one() if callable(one) else one for one in given]
        code: int = getattr(lib, function)(*given)
        if EventSet in arguments:
            assert lib.nvmlEventSetFree(events) == 0
        return code

    return ask


def by_name(function: str, name: Callable[[Any, Any], bytes]) -> Callable[[Any, Any], int]:
    """Looks for the GPU by what it says of itself."""
    return lambda lib, gpu: call(function, name(lib, gpu), number)(lib, gpu)


def initialised_with(flags: int, lib: Any, gpu: Any) -> Answer:
    code: int = lib.nvmlInitWithFlags(ctypes.c_uint(flags))
    return code, lib.nvmlShutdown()


def after_shutdown(function: str, *arguments: Any) -> Callable[[Any, Any], Answer]:
    def ask(lib: Any, gpu: Any) -> Answer:
        closed = lib.nvmlShutdown()
        code = call(function, *arguments)(lib, gpu)
        return closed, code, lib.nvmlInit_v2()

    return ask


class FieldValue(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("result", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


def field_values(*fields: int) -> Callable[[Any, Any], Answer]:
    """The code of the call, then that of each field."""

    def ask(lib: Any, gpu: Any) -> Answer:
        values = (FieldValue * len(fields))(*(FieldValue(field=field) for field in fields))
        code = lib.nvmlDeviceGetFieldValues(gpu, len(fields), values)
        return code, *(value.result for value in values)

    return ask


def error_string(code: int, lib: Any, gpu: Any) -> Answer:
    lib.nvmlErrorString.restype = ctypes.c_char_p
    text: bytes = lib.nvmlErrorString(code)
    return text.decode()


def u32(value: int) -> Any:
    return ctypes.c_uint(value)


def u64(value: int) -> Any:
    return ctypes.c_ulonglong(value)


UNKNOWN_UUID = b"00000000-0000-0000-0000-000000000000"
BY_UUID, BY_BUS_ID = "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"
MEMORY, BRANCH, TEMPERATURE, FLAG = (40, 2), (84, 1), (12, 1), (8, 1)

LIFE = [
    Question("init takes known flags", partial(initialised_with, 3), (0, 0)),
    Question("init takes an unknown flag", partial(initialised_with, 4), (0, 0)),
    Question("init takes all flags", partial(initialised_with, 0xFFFFFFFF), (0, 0)),
    Question("count after shutdown", after_shutdown("nvmlDeviceGetCount_v2", number), (0, 1, 0)),
    Question("shutdown after shutdown", after_shutdown("nvmlShutdown"), (0, 1, 0)),
]
TEXTS = [
    Question("driver version", call("nvmlSystemGetDriverVersion", room, 80), 0),
    Question("driver version in 2 bytes", call("nvmlSystemGetDriverVersion", room, 2), 7),
    Question("driver version in none", call("nvmlSystemGetDriverVersion", room, 0), 7),
    Question("driver version to NULL", call("nvmlSystemGetDriverVersion", None, 80), 2),
    Question("NVML version in 2 bytes", call("nvmlSystemGetNVMLVersion", room, 2), 7),
    Question("name in 2 bytes", call("nvmlDeviceGetName", Gpu, room, 2), 7),
    Question("name in none", call("nvmlDeviceGetName", Gpu, room, 0), 7),
    Question("name to NULL", call("nvmlDeviceGetName", Gpu, None, 96), 2),
    Question("UUID in 2 bytes", call("nvmlDeviceGetUUID", Gpu, room, 2), 7),
    Question("UUID to NULL", call("nvmlDeviceGetUUID", Gpu, None, 96), 2),
    Question("VBIOS version in 2 bytes", call("nvmlDeviceGetVbiosVersion", Gpu, room, 2), 7),
    Question("name of a process", call("nvmlSystemGetProcessName", 1, room, 256), 0),
    Question("name of a process, cut", call("nvmlSystemGetProcessName", 1, room, 2), 0),
    Question("name of a process in none", call("nvmlSystemGetProcessName", 1, room, 0), 2),
    Question("name of a process to NULL", call("nvmlSystemGetProcessName", 1, None, 256), 2),
    Question("name of process 0", call("nvmlSystemGetProcessName", 0, room, 256), 6),
    Question("name of no process", call("nvmlSystemGetProcessName", 0x7FFFFFFF, room, 256), 6),
]
HANDLES = [
    Question("index 1000", call("nvmlDeviceGetHandleByIndex_v2", 1000, number), 2),
    Question("index of all bits", call("nvmlDeviceGetHandleByIndex_v2", u32(0xFFFFFFFF), number), 2),
    Question("index to NULL", call("nvmlDeviceGetHandleByIndex_v2", 0, None), 2),
    Question("UUID", by_name(BY_UUID, uuid), 0),
    Question("UUID without prefix", by_name(BY_UUID, lambda lib, gpu: uuid(lib, gpu).removeprefix(b"GPU-")), 0),
    Question("UUID in capitals", by_name(BY_UUID, lambda lib, gpu: b"GPU-" + uuid(lib, gpu)[4:].upper()), 6),
    Question("unknown UUID", call(BY_UUID, b"GPU-" + UNKNOWN_UUID, number), 6),
    Question("unknown UUID of MIG", call(BY_UUID, b"MIG-" + UNKNOWN_UUID, number), 6),
    Question("empty UUID", call(BY_UUID, b"", number), 6),
    Question("nonsense as UUID", call(BY_UUID, b"nonsense", number), 6),
    Question("UUID NULL", call(BY_UUID, None, number), 2),
    Question("UUID to NULL handle", lambda lib, gpu: call(BY_UUID, uuid(lib, gpu), None)(lib, gpu), 2),
    Question("empty serial", call("nvmlDeviceGetHandleBySerial", b"", number), 6),
    Question("bus id", by_name(BY_BUS_ID, bus_id), 0),
    Question("bus id with a short domain", by_name(BY_BUS_ID, lambda lib, gpu: bus_id(lib, gpu)[4:]), 0),
    Question("bus id in small letters", by_name(BY_BUS_ID, lambda lib, gpu: bus_id(lib, gpu).lower()), 0),
    Question("bus id without function", by_name(BY_BUS_ID, lambda lib, gpu: bus_id(lib, gpu).split(b".")[0]), 0),
    Question("unknown bus id", call(BY_BUS_ID, b"0000:fe:1f.0", number), 6),
    Question("empty bus id", call(BY_BUS_ID, b"", number), 2),
    Question("nonsense as bus id", call(BY_BUS_ID, b"nonsense", number), 2),
    Question("bus id NULL", call(BY_BUS_ID, None, number), 2),
]
NULLS = [
    Question("count to NULL", call("nvmlDeviceGetCount_v2", None), 2),
    Question("CUDA version to NULL", call("nvmlSystemGetCudaDriverVersion_v2", None), 2),
    Question("name of NULL", call("nvmlDeviceGetName", None, room, 96), 2),
    Question("UUID of NULL", call("nvmlDeviceGetUUID", None, room, 96), 2),
    Question("PCI address of NULL", call("nvmlDeviceGetPciInfo_v3", None, room), 2),
    Question("PCI address to NULL", call("nvmlDeviceGetPciInfo_v3", Gpu, None), 2),
    Question("temperature of NULL", call("nvmlDeviceGetTemperature", None, 0, number), 2),
    Question("temperature to NULL", call("nvmlDeviceGetTemperature", Gpu, 0, None), 2),
    Question("index of a GPU to NULL", call("nvmlDeviceGetIndex", Gpu, None), 2),
    Question("memory to NULL", call("nvmlDeviceGetMemoryInfo_v2", Gpu, None), 2),
    Question("NVLink state to NULL", call("nvmlDeviceGetNvLinkState", Gpu, 0, None), 2),
    Question("processes without a count", call("nvmlDeviceGetComputeRunningProcesses_v3", Gpu, None, room), 2),
]
STRUCTURES = [
    Question("memory", call("nvmlDeviceGetMemoryInfo_v2", Gpu, structure(*MEMORY)), 0),
    Question("memory, version 0", call("nvmlDeviceGetMemoryInfo_v2", Gpu, structure(0, 0)), 13),
    Question("memory, unknown version", call("nvmlDeviceGetMemoryInfo_v2", Gpu, structure(40, 3)), 13),
    Question("memory, unknown size", call("nvmlDeviceGetMemoryInfo_v2", Gpu, structure(48, 2)), 13),
    Question("branch", call("nvmlSystemGetDriverBranch", structure(*BRANCH), 80), 0),
    Question("branch in 1 byte", call("nvmlSystemGetDriverBranch", structure(*BRANCH), 1), 7),
    Question("branch, version 0", call("nvmlSystemGetDriverBranch", structure(0, 0), 80), 25),
    Question("branch, unknown version", call("nvmlSystemGetDriverBranch", structure(84, 2), 80), 25),
    Question("branch, unknown size", call("nvmlSystemGetDriverBranch", structure(92, 1), 80), 25),
    Question("temperature", call("nvmlDeviceGetTemperatureV", Gpu, structure(*TEMPERATURE)), 0),
    Question("temperature, version 0", call("nvmlDeviceGetTemperatureV", Gpu, structure(0, 0)), 25),
    Question("temperature, unknown version", call("nvmlDeviceGetTemperatureV", Gpu, structure(12, 2)), 25),
    Question("addressing mode, unknown version", call("nvmlDeviceGetAddressingMode", Gpu, structure(8, 2)), 25),
    Question("addressing mode to NULL", call("nvmlDeviceGetAddressingMode", Gpu, None), 2),
    Question("repair to NULL", call("nvmlDeviceGetRepairStatus", Gpu, None), 2),
    Question("unrepairable memory to NULL", call("nvmlDeviceGetUnrepairableMemoryFlag_v1", Gpu, None), 2),
]
ENUMERATIONS = [
    Question("temperature sensor 1", call("nvmlDeviceGetTemperature", Gpu, 1, number), 2),
    Question("temperature sensor 1000", call("nvmlDeviceGetTemperature", Gpu, 1000, number), 2),
    Question("temperature limit 1000", call("nvmlDeviceGetTemperatureThreshold", Gpu, 1000, number), 2),
    Question("clock 4", call("nvmlDeviceGetClockInfo", Gpu, 4, number), 3),
    Question("clock 1000", call("nvmlDeviceGetClockInfo", Gpu, 1000, number), 3),
    Question("greatest clock 4", call("nvmlDeviceGetMaxClockInfo", Gpu, 4, number), 2),
    Question("greatest clock 1000", call("nvmlDeviceGetMaxClockInfo", Gpu, 1000, number), 2),
    Question("PCIe counter 2", call("nvmlDeviceGetPcieThroughput", Gpu, 2, number), 2),
    Question("policy 1000", call("nvmlDeviceGetViolationStatus", Gpu, 1000, room), 2),
    Question("inforom object 1000", call("nvmlDeviceGetInforomVersion", Gpu, 1000, room, 16), 2),
    Question("nearest GPUs, counted", call("nvmlDeviceGetTopologyNearestGpus", Gpu, 50, number, None), 0),
    Question("nearest GPUs, room for none", call("nvmlDeviceGetTopologyNearestGpus", Gpu, 50, number, room), 2),
    Question("common ancestor with itself", call("nvmlDeviceGetTopologyCommonAncestor", Gpu, Gpu, number), 3),
    Question("peer access to itself", call("nvmlDeviceGetP2PStatus", Gpu, Gpu, 0, number), 0),
    Question("CPUs in no word", call("nvmlDeviceGetCpuAffinity", Gpu, 0, room), 2),
    Question("memory nodes of scope 2", call("nvmlDeviceGetMemoryAffinity", Gpu, 2, room, 2), 2),
    Question("whether it is a MIG device", call("nvmlDeviceIsMigDeviceHandle", Gpu, number), 0),
    Question("parent of a GPU", call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", Gpu, number), 2),
]
FIELDS = [
    Question("fields one by one", field_values(0, 94), (0, 2, 0)),
    Question("fields one by one, the other way round", field_values(94, 0), (0, 0, 2)),
    Question("no field", call("nvmlDeviceGetFieldValues", Gpu, 0, room), 2),
    Question("fields to NULL", call("nvmlDeviceGetFieldValues", Gpu, 1, None), 2),
    Question("fields of NULL", call("nvmlDeviceGetFieldValues", None, 1, room), 2),
]
EVENTS = [
    Question("event set to NULL", call("nvmlEventSetCreate", None), 2),
    Question("freeing NULL", call("nvmlEventSetFree", None), 2),
    Question("registering Xids", call("nvmlDeviceRegisterEvents", Gpu, u64(8), EventSet), 0),
    Question("registering nothing", call("nvmlDeviceRegisterEvents", Gpu, u64(0), EventSet), 0),
    Question("registering an unknown type", call("nvmlDeviceRegisterEvents", Gpu, u64(1 << 40), EventSet), 3),
    Question("registering with NULL", call("nvmlDeviceRegisterEvents", Gpu, u64(8), None), 2),
    Question("registering NULL", call("nvmlDeviceRegisterEvents", None, u64(8), EventSet), 2),
    Question("waiting", call("nvmlEventSetWait_v2", EventSet, room, 10), 10),
    Question("waiting not at all", call("nvmlEventSetWait_v2", EventSet, room, 0), 10),
    Question("waiting with NULL", call("nvmlEventSetWait_v2", None, room, 10), 2),
    Question("waiting for NULL", call("nvmlEventSetWait_v2", EventSet, None, 10), 2),
]
ERROR_STRINGS = [
    Question(f"text of {code}", partial(error_string, code), text)
    for code, text in {
        0: "Success",
        2: "Invalid Argument",
        3: "Not Supported",
        15: "GPU is lost",
        17: "GPU access blocked by the operating system",
        18: "Driver/library version mismatch",
        24: "Invalid Frequency",
        26: "Requested functionality has been deprecated",
        27: "System is not in ready state",
        28: "No supported GPUs were found",
        29: "Resource not in correct state to perform requested operation",
        30: "Reset type is not supported for given device",
        999: "Unknown Error",
        -1: "Unknown Error",
    }.items()
]
QUESTIONS = [
    *LIFE,
    *TEXTS,
    *HANDLES,
    *NULLS,
    *STRUCTURES,
    *ENUMERATIONS,
    *FIELDS,
    *EVENTS,
    *ERROR_STRINGS,
]
