# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Put every GPU of this host through a copy and a kernel, with nothing but the driver's own libcuda.so.1.

The CUDA driver API is called through ctypes, and the kernel is PTX text that the driver compiles for the GPU it
finds, so that no toolkit is needed. The file imports only the standard library and runs by itself too:
`python3 cuda_driver.py`, or `python3 - < cuda_driver.py` in a container that has no copy of it.

What may hang or crash runs in a forked child. The child tells its parent where it is, so that a GPU which never
answers is a finding with a name and costs the other GPUs nothing.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import functools
import glob
import json
import os
import select
import signal
import sys
import time
from dataclasses import dataclass, replace
from typing import Any, Callable

SCHEMA = 1
KERNEL_ENTRY = "gpu_query_vector_add"

# Element-wise addition of 32-bit integers, modulo 2**32: exact, so that one wrong bit is a wrong result.
KERNEL_BODY = """
.address_size 64

.visible .entry gpu_query_vector_add(
    .param .u64 param_a,
    .param .u64 param_b,
    .param .u64 param_out,
    .param .u32 param_n
)
{
    .reg .pred %p<2>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<11>;

    ld.param.u64 %rd1, [param_a];
    ld.param.u64 %rd2, [param_b];
    ld.param.u64 %rd3, [param_out];
    ld.param.u32 %r1, [param_n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    cvta.to.global.u64 %rd4, %rd1;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    mul.wide.u32 %rd7, %r5, 4;
    add.s64 %rd8, %rd4, %rd7;
    add.s64 %rd9, %rd5, %rd7;
    add.s64 %rd10, %rd6, %rd7;
    ld.global.u32 %r6, [%rd8];
    ld.global.u32 %r7, [%rd9];
    add.s32 %r8, %r6, %r7;
    st.global.u32 [%rd10], %r8;
DONE:
    ret;
}
"""

# PTX of an old version for an old architecture is compiled by newer drivers for newer GPUs, never the other way:
# the first pair suits every driver since 331 and every GPU since Kepler. The second is for the day on which a
# driver drops the first, and is tried only then.
PTX_TARGETS = (("3.2", "sm_30"), ("6.3", "sm_75"))

# CUDA_ERROR_INVALID_PTX, _NO_BINARY_FOR_GPU, _UNSUPPORTED_PTX_VERSION
PTX_REFUSED = (218, 209, 222)

# Names of what libcuda may answer, for the case in which there is no libcuda to ask for the name.
ERROR_NAMES = {
    1: "CUDA_ERROR_INVALID_VALUE",
    2: "CUDA_ERROR_OUT_OF_MEMORY",
    3: "CUDA_ERROR_NOT_INITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    46: "CUDA_ERROR_DEVICE_UNAVAILABLE",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    214: "CUDA_ERROR_ECC_UNCORRECTABLE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    719: "CUDA_ERROR_LAUNCH_FAILED",
    800: "CUDA_ERROR_NOT_PERMITTED",
    801: "CUDA_ERROR_NOT_SUPPORTED",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    999: "CUDA_ERROR_UNKNOWN",
}

# CUdevice_attribute of cuda.h -> the name in the result and what the value is divided by.
ATTRIBUTES = {
    "multiprocessors": (16, 1),
    "clock_mhz": (13, 1000),
    "memory_clock_mhz": (36, 1000),
    "memory_bus_bits": (37, 1),
    "l2_cache_kib": (38, 1024),
    "warp_size": (10, 1),
    "max_threads_per_block": (1, 1),
    "async_engines": (40, 1),
}
ATTRIBUTE_COMPUTE_MODE = 20
ATTRIBUTE_ECC = 32
ATTRIBUTE_MAJOR = 75
ATTRIBUTE_MINOR = 76
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive_process"}

MEMHOSTALLOC_PORTABLE = 1
JIT_ERROR_LOG_BUFFER = 5
JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6

Handle = ctypes.c_void_p
DevicePointer = ctypes.c_uint64
_OUT = ctypes.POINTER

# Every call this file makes, with the types of cuda.h. The suffixed names are the ones that cuda.h has meant
# since CUDA 4; libcuda exports the plain ones as well, with 32-bit sizes.
PROTOTYPES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuDriverGetVersion": [_OUT(ctypes.c_int)],
    "cuDeviceGetCount": [_OUT(ctypes.c_int)],
    "cuDeviceGet": [_OUT(ctypes.c_int), ctypes.c_int],
    "cuDeviceGetName": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceGetUuid": [ctypes.c_char_p, ctypes.c_int],
    "cuDeviceGetPCIBusId": [ctypes.c_char_p, ctypes.c_int, ctypes.c_int],
    "cuDeviceTotalMem_v2": [_OUT(ctypes.c_size_t), ctypes.c_int],
    "cuDeviceGetAttribute": [_OUT(ctypes.c_int), ctypes.c_int, ctypes.c_int],
    "cuCtxCreate_v2": [_OUT(Handle), ctypes.c_uint, ctypes.c_int],
    "cuCtxDestroy_v2": [Handle],
    "cuCtxSynchronize": [],
    "cuMemGetInfo_v2": [_OUT(ctypes.c_size_t), _OUT(ctypes.c_size_t)],
    "cuMemAlloc_v2": [_OUT(DevicePointer), ctypes.c_size_t],
    "cuMemFree_v2": [DevicePointer],
    "cuMemHostAlloc": [_OUT(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint],
    "cuMemFreeHost": [ctypes.c_void_p],
    "cuMemsetD8_v2": [DevicePointer, ctypes.c_ubyte, ctypes.c_size_t],
    "cuMemcpyHtoD_v2": [DevicePointer, ctypes.c_void_p, ctypes.c_size_t],
    "cuMemcpyDtoH_v2": [ctypes.c_void_p, DevicePointer, ctypes.c_size_t],
    "cuMemcpyHtoDAsync_v2": [DevicePointer, ctypes.c_void_p, ctypes.c_size_t, Handle],
    "cuMemcpyDtoHAsync_v2": [ctypes.c_void_p, DevicePointer, ctypes.c_size_t, Handle],
    "cuMemcpyDtoDAsync_v2": [DevicePointer, DevicePointer, ctypes.c_size_t, Handle],
    "cuEventCreate": [_OUT(Handle), ctypes.c_uint],
    "cuEventRecord": [Handle, Handle],
    "cuEventSynchronize": [Handle],
    "cuEventElapsedTime": [_OUT(ctypes.c_float), Handle, Handle],
    "cuEventDestroy_v2": [Handle],
    "cuModuleLoadDataEx": [
        _OUT(Handle),
        ctypes.c_char_p,
        ctypes.c_uint,
        _OUT(ctypes.c_int),
        _OUT(ctypes.c_void_p),
    ],
    "cuModuleUnload": [Handle],
    "cuModuleGetFunction": [_OUT(Handle), Handle, ctypes.c_char_p],
    "cuLaunchKernel": [Handle, *([ctypes.c_uint] * 7), Handle, _OUT(ctypes.c_void_p), _OUT(ctypes.c_void_p)],
    "cuGetErrorName": [ctypes.c_int, _OUT(ctypes.c_char_p)],
    "cuGetErrorString": [ctypes.c_int, _OUT(ctypes.c_char_p)],
}


class CudaError(Exception):
    """A call that did not answer CUDA_SUCCESS, or a result that is not what it must be."""

    def __init__(self, call: str, code: int | None, name: str, text: str) -> None:
        super().__init__(f"{call}: {name}: {text}")
        self.call, self.code, self.name, self.text = call, code, name, text

    def as_dict(self) -> dict[str, Any]:
        return {"call": self.call, "code": self.code, "name": self.name, "text": self.text}


@dataclass(frozen=True)
class Options:
    """What is asked of each GPU."""

    copy_mib: int = 64
    repeats: int = 5
    elements: int = 1 << 18
    timeout_s: float = 60.0
    library: str = "libcuda.so.1"
    devices: tuple[int, ...] = ()


class Driver:
    """libcuda with checked calls."""

    def __init__(self, library: str, prototypes: dict[str, list[Any]] = PROTOTYPES) -> None:
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as error:
            raise CudaError("dlopen", None, "LIBRARY_NOT_LOADED", str(error)) from None
        for name, argtypes in prototypes.items():
            try:
                function = getattr(self._lib, name)
            except AttributeError:
                text = f"{library} has no {name}; it is not a CUDA driver library, or it is older than branch 390"
                raise CudaError("dlsym", None, "SYMBOL_NOT_FOUND", text) from None
            function.argtypes = argtypes
            function.restype = ctypes.c_int

    def __call__(self, name: str, *args: Any) -> None:
        code = getattr(self._lib, name)(*args)
        if code:
            raise CudaError(
                name, code, self._describe("cuGetErrorName", code), self._describe("cuGetErrorString", code)
            )

    def _describe(self, function: str, code: int) -> str:
        answer = ctypes.c_char_p()
        if getattr(self._lib, function)(code, ctypes.byref(answer)) == 0 and answer.value:
            return answer.value.decode("utf-8", "replace")
        return ERROR_NAMES.get(code, f"CUDA error {code}")

    def integer(self, name: str, *args: Any) -> int:
        value = ctypes.c_int()
        self(name, ctypes.byref(value), *args)
        return value.value

    def attribute(self, attribute: int, device: int) -> int:
        return self.integer("cuDeviceGetAttribute", attribute, device)


class Context:
    """A CUDA context of a device, and what was allocated in it. Leaving it frees everything, in reverse order."""

    def __init__(self, cuda: Driver, device: int) -> None:
        self._cuda = cuda
        self._device = device
        self._undo: list[tuple[str, Any]] = []
        self.handle: Any = None
        self._events: tuple[Any, Any] | None = None

    def __enter__(self) -> Context:
        self.handle = self._make("cuCtxDestroy_v2", Handle, "cuCtxCreate_v2", 0, self._device)
        return self

    def __exit__(self, *exc: object) -> None:
        failure: CudaError | None = None
        while self._undo:
            undo, value = self._undo.pop()
            try:
                self._cuda(undo, value)
            except CudaError as error:
                failure = failure or error
        # After a failure every further call of the context repeats it: what came first is what is told.
        if failure is not None and exc[0] is None:
            raise failure

    def _make(self, undo: str, kind: Any, call: str, *args: Any) -> Any:
        value = kind()
        self._cuda(call, ctypes.byref(value), *args)
        self._undo.append((undo, value))
        return value

    def device_memory(self, size: int) -> Any:
        return self._make("cuMemFree_v2", DevicePointer, "cuMemAlloc_v2", size)

    def pinned_memory(self, size: int) -> Any:
        return self._make("cuMemFreeHost", ctypes.c_void_p, "cuMemHostAlloc", size, MEMHOSTALLOC_PORTABLE)

    def event(self) -> Any:
        return self._make("cuEventDestroy_v2", Handle, "cuEventCreate", 0)

    def function(self, entry: str, body: str = KERNEL_BODY, targets: tuple[tuple[str, str], ...] = PTX_TARGETS) -> Any:
        module = self._module(body, targets)
        function = Handle()
        self._cuda("cuModuleGetFunction", ctypes.byref(function), module, entry.encode())
        return function

    def _module(self, body: str, targets: tuple[tuple[str, str], ...]) -> Any:
        for version, target in targets:
            last = (version, target) == targets[-1]
            log = ctypes.create_string_buffer(4096)
            keys = (ctypes.c_int * 2)(JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
            values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
            try:
                return self._make(
                    "cuModuleUnload",
                    Handle,
                    "cuModuleLoadDataEx",
                    ptx(version, target, body).encode(),
                    2,
                    keys,
                    values,
                )
            except CudaError as error:
                if error.code not in PTX_REFUSED or last:
                    detail = log.value.decode("utf-8", "replace").strip()
                    if detail:
                        error.text = f"{error.text}: {detail[:300]}"
                    raise
        raise AssertionError("there is no target")

    def milliseconds(self, work: Callable[[], None]) -> float:
        """The time that work takes on the device, between two events."""
        self._events = self._events or (self.event(), self.event())
        start, stop = self._events
        self._cuda("cuEventRecord", start, None)
        work()
        self._cuda("cuEventRecord", stop, None)
        self._cuda("cuEventSynchronize", stop)
        elapsed = ctypes.c_float()
        self._cuda("cuEventElapsedTime", ctypes.byref(elapsed), start, stop)
        return elapsed.value


def ptx(version: str, target: str, body: str = KERNEL_BODY) -> str:
    return f".version {version}\n.target {target}{body}"


def normalise_pci_address(address: str) -> str:
    """Lower case with the four-digit domain that /sys uses: '00000000:3B:00.0' and '3B:00.0' give '0000:3b:00.0'."""
    parts = address.strip().lower().split(":")
    domain = parts[-3] if len(parts) > 2 else "0"
    return f"{int(domain, 16):04x}:{parts[-2]}:{parts[-1]}"


def format_uuid(raw: bytes) -> str:
    text = raw.hex()
    return f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def properties(cuda: Driver, index: int) -> tuple[int, dict[str, Any]]:
    """The handle of a device and what it says of itself."""
    device = cuda.integer("cuDeviceGet", index)
    name = ctypes.create_string_buffer(256)
    uuid = ctypes.create_string_buffer(16)
    bus = ctypes.create_string_buffer(32)
    memory = ctypes.c_size_t()
    cuda("cuDeviceGetName", name, len(name), device)
    cuda("cuDeviceGetUuid", uuid, device)
    cuda("cuDeviceGetPCIBusId", bus, len(bus), device)
    cuda("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    mode = cuda.attribute(ATTRIBUTE_COMPUTE_MODE, device)
    found: dict[str, Any] = {
        "name": name.value.decode("utf-8", "replace"),
        "uuid": format_uuid(uuid.raw),
        "pci_address": normalise_pci_address(bus.value.decode("ascii", "replace")),
        "compute_capability": f"{cuda.attribute(ATTRIBUTE_MAJOR, device)}.{cuda.attribute(ATTRIBUTE_MINOR, device)}",
        "memory_mib": memory.value >> 20,
        "ecc": bool(cuda.attribute(ATTRIBUTE_ECC, device)),
        "compute_mode": COMPUTE_MODES.get(mode, str(mode)),
    }
    for key, (attribute, divisor) in ATTRIBUTES.items():
        found[key] = cuda.attribute(attribute, device) // divisor
    return device, found


def check_copies(cuda: Driver, context: Context, options: Options) -> dict[str, Any]:
    """Random bytes from pinned host memory to the device, across it, and back; then compared."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    # A GPU that a job fills is still checked, with what is left of it.
    size = min(options.copy_mib << 20, max(free.value // 4, 1 << 20))
    source, back = context.pinned_memory(size), context.pinned_memory(size)
    first, second = context.device_memory(size), context.device_memory(size)
    ctypes.memmove(source.value, os.urandom(size), size)
    ctypes.memset(back.value, 0, size)
    cuda("cuMemsetD8_v2", second, 0, size)

    def rate(call: str, *args: Any) -> float:
        cuda(call, *args, size, None)

        def work() -> None:
            for _repeat in range(options.repeats):
                cuda(call, *args, size, None)

        milliseconds = context.milliseconds(work)
        return round(size * options.repeats / max(milliseconds, 1e-6) / 1e6, 2)

    result = {
        "mib": size >> 20,
        "host_to_device_gb_s": rate("cuMemcpyHtoDAsync_v2", first, source),
        "device_to_device_gb_s": rate("cuMemcpyDtoDAsync_v2", second, first),
        "device_to_host_gb_s": rate("cuMemcpyDtoHAsync_v2", back, second),
    }
    cuda("cuCtxSynchronize")
    result["ok"] = ctypes.string_at(source.value, size) == ctypes.string_at(back.value, size)
    if not result["ok"]:
        raise CudaError("copy", None, "WRONG_RESULT", f"{size} bytes came back from the device changed")
    return result


def check_kernel(cuda: Driver, context: Context, options: Options) -> dict[str, Any]:
    """Add two vectors on the device and compare every element with what the host computes."""
    count = options.elements
    left = array.array("I", ((index * 2654435761) & 0xFFFFFFFF for index in range(count)))
    right = array.array("I", ((index * 40503 + 4000000007) & 0xFFFFFFFF for index in range(count)))
    expected = array.array("I", ((a + b) & 0xFFFFFFFF for a, b in zip(left, right)))
    answer = array.array("I", bytes(4 * count))
    size = 4 * count
    function = context.function(KERNEL_ENTRY)
    pointers = [context.device_memory(size) for _vector in range(3)]
    cuda("cuMemcpyHtoD_v2", pointers[0], left.buffer_info()[0], size)
    cuda("cuMemcpyHtoD_v2", pointers[1], right.buffer_info()[0], size)
    # What is there before the kernel is no right answer for any element but by chance.
    cuda("cuMemsetD8_v2", pointers[2], 0xA5, size)
    arguments = [*pointers, ctypes.c_uint32(count)]
    parameters = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(argument) for argument in arguments))
    threads = 256
    blocks = (count + threads - 1) // threads

    def work() -> None:
        cuda("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, parameters, None)

    milliseconds = context.milliseconds(work)
    cuda("cuCtxSynchronize")
    cuda("cuMemcpyDtoH_v2", answer.buffer_info()[0], pointers[2], size)
    wrong = 0 if answer == expected else sum(a != b for a, b in zip(answer, expected))
    if wrong:
        at = next(index for index in range(count) if answer[index] != expected[index])
        text = f"{wrong} of {count} elements are wrong, first element {at}: {answer[at]} instead of {expected[at]}"
        raise CudaError(KERNEL_ENTRY, None, "WRONG_RESULT", text)
    return {"entry": KERNEL_ENTRY, "elements": count, "wrong": 0, "ms": round(milliseconds, 3), "ok": True}


def query_device(cuda: Driver, index: int, options: Options, tell: Callable[[str], None]) -> dict[str, Any]:
    """All that is asked of one GPU. An error ends it; what was learnt before is kept."""
    result: dict[str, Any] = {"index": index, "ok": False, "copy": None, "kernel": None, "error": None}
    try:
        tell("properties")
        device, found = properties(cuda, index)
        result.update(found)
        tell("context")
        with Context(cuda, device) as context:
            tell("copy")
            result["copy"] = check_copies(cuda, context, options)
            tell("kernel")
            result["kernel"] = check_kernel(cuda, context, options)
        result["ok"] = True
    except CudaError as error:
        result["error"] = error.as_dict()
    return result


def device_files() -> list[str]:
    """The device files that a process here can see: in a container, the ones that it was given."""
    return sorted(path for path in glob.glob("/dev/nvidia*") if not os.path.isdir(path))


def _tell_stage(tell: Callable[[dict[str, Any]], None], index: int, stage: str) -> None:
    tell({"event": "stage", "index": index, "stage": stage})


def work(options: Options, tell: Callable[[dict[str, Any]], None]) -> None:
    """The child's part: say each step before it is taken and each result as soon as it is there."""
    tell({"event": "stage", "index": None, "stage": "init"})
    try:
        cuda = Driver(options.library)
        cuda("cuInit", 0)
        version = cuda.integer("cuDriverGetVersion")
        count = cuda.integer("cuDeviceGetCount")
    except CudaError as error:
        tell({"event": "failed", "error": error.as_dict()})
        return
    cuda_version = f"{version // 1000}.{version % 1000 // 10}"
    tell({"event": "counted", "count": count, "cuda": cuda_version})
    for index in options.devices or range(count):
        device = query_device(cuda, index, options, functools.partial(_tell_stage, tell, index))
        tell({"event": "device", "device": device})
        if not device["ok"]:
            # After some errors every further call of the process answers the same, also on other GPUs.
            break
    tell({"event": "end"})


class Watch:
    """What the parent knows of one child."""

    def __init__(self) -> None:
        self.index: int | None = None
        self.stage = "start"
        self.count: int | None = None
        self.cuda: str | None = None
        self.error: dict[str, Any] | None = None
        self.devices: list[dict[str, Any]] = []
        self.finished = False

    def take(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "stage":
            self.index, self.stage = event["index"], event["stage"]
        elif kind == "counted":
            self.count, self.cuda = event["count"], event["cuda"]
        elif kind == "device":
            self.devices.append(event["device"])
        elif kind == "failed":
            self.error, self.finished = event["error"], True
        elif kind == "end":
            self.finished = True


def _child(options: Options, fd: int, program: str | None) -> None:
    """Runs in the forked child and never returns."""
    status = 1
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        # Every GPU, numbered as the PCI bus has them; and nothing is written to the home directory.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_CACHE_DISABLE="1")
        if program:
            _exec(program, options, fd)
        work(options, lambda event: _write_all(fd, json.dumps(event).encode() + b"\n"))
        status = 0
    except BaseException as error:  # the parent must hear of it, whatever it is
        failed = {"call": "python", "code": None, "name": type(error).__name__, "text": str(error)}
        _write_all(fd, json.dumps({"event": "failed", "error": failed}).encode() + b"\n")
    finally:
        # Not sys.exit: the parent's buffers and exit handlers are not the child's to run.
        os._exit(status)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _reap(pid: int, patience_s: float) -> int | None:
    """The wait status of a child, or None when it has not gone by then."""
    end = time.monotonic() + patience_s
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if time.monotonic() >= end:
            return None
        time.sleep(0.02)


def _exec(program: str, options: Options, fd: int) -> None:
    """Runs in the forked child and becomes a program that tells its steps as work() does."""
    arguments = [program, "--copy-mib", str(options.copy_mib), "--repeats", str(options.repeats)]
    arguments += ["--elements", str(options.elements)]
    if options.devices:
        arguments += ["--devices", ",".join(map(str, options.devices))]
    os.dup2(fd, 1)
    try:
        os.execv(program, arguments)
    except OSError as error:
        raise OSError(f"{program}: {error.strerror}") from None


def run_child(options: Options, program: str | None = None) -> Watch:
    """One child, watched: silence of timeout_s after a step began means that the step hangs."""
    watch = Watch()
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        _child(options, write_end, program)
    os.close(write_end)
    pending = b""
    hung = False
    try:
        while True:
            ready, _writable, _failed = select.select([read_end], [], [], options.timeout_s)
            if not ready:
                hung = True
                break
            data = os.read(read_end, 65536)
            if not data:
                break
            *lines, pending = (pending + data).split(b"\n")
            for line in filter(None, lines):
                watch.take(json.loads(line))
    finally:
        os.close(read_end)
        if hung:
            os.kill(pid, signal.SIGKILL)
        # A process that waits in the kernel for a dead GPU does not go even then; it is left, and said.
        status = _reap(pid, 5.0)
    if hung:
        text = f"no answer within {options.timeout_s:g} s in step '{watch.stage}'"
        if status is None:
            text += f"; process {pid} waits in the kernel and cannot be ended"
        watch.error = {"call": watch.stage, "code": None, "name": "TIMEOUT", "text": text}
    elif not watch.finished:
        how = f"signal {status & 0x7F}" if status is not None and status & 0x7F else f"status {status}"
        text = f"the process ended with {how} in step '{watch.stage}'"
        watch.error = {"call": watch.stage, "code": None, "name": "CRASH", "text": text}
    return watch


def run(options: Options, program: str | None = None) -> dict[str, Any]:
    """Query every GPU, or those of options.devices. Never raises for what a GPU or a driver does.

    With `program`, that program queries, which tells its steps in the same lines: the CUDA runtime's device_query.
    """
    result: dict[str, Any] = {
        "schema": SCHEMA,
        "source": "runtime_api" if program else "driver_api",
        "ok": False,
        "cuda": None,
        "count": 0,
        "devices": [],
        "error": None,
        "device_files": device_files(),
    }
    wanted: list[int] | None = list(options.devices) or None
    while True:
        watch = run_child(replace(options, devices=tuple(wanted or ())), program)
        result["devices"] += watch.devices
        if watch.count is not None:
            result["count"], result["cuda"] = watch.count, watch.cuda
            wanted = wanted or list(range(watch.count))
        if watch.error is not None:
            if watch.index is None:
                # Not a GPU but the driver: there is nothing that another child could still learn.
                result["error"] = watch.error
                break
            result["devices"].append(
                {"index": watch.index, "ok": False, "copy": None, "kernel": None, "error": watch.error}
            )
        # A child ends with the first GPU that fails; the next one asks those that are left.
        done = {device["index"] for device in result["devices"]}
        left = [index for index in wanted or [] if index not in done]
        if left == wanted or not left:
            break
        wanted = left
    result["ok"] = (
        result["error"] is None
        and result["count"] > 0
        and len(result["devices"]) == (len(options.devices) or result["count"])
        and all(device["ok"] for device in result["devices"])
    )
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Query every GPU through the CUDA driver API; prints JSON.")
    default = Options()
    parser.add_argument(
        "--copy-mib", type=int, default=default.copy_mib, help="size of each copy (default %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=default.repeats, help="timed copies (default %(default)s)")
    parser.add_argument("--elements", type=int, default=default.elements, help="size of the vectors")
    parser.add_argument("--timeout", type=float, default=default.timeout_s, help="seconds that one step may take")
    parser.add_argument("--library", default=default.library, help="the driver library (default %(default)s)")
    parser.add_argument("--devices", default="", help="CUDA indexes, comma-separated (default: every device)")
    args = parser.parse_args(argv)
    devices = tuple(int(index) for index in args.devices.split(",") if index)
    options = Options(args.copy_mib, args.repeats, args.elements, args.timeout, args.library, devices)
    result = run(options)
    sys.stdout.write(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
