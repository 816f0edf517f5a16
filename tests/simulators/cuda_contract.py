# SPDX-License-Identifier: GPL-3.0-or-later
"""What libcuda.so.1 answers, whichever GPU it has: held against the real library and against the simulated one.

The answers were measured on an H200 with driver 580.159.04. Each group needs a process of its own, because some errors
leave it unusable: `python -m tests.simulators.cuda_contract LIBRARY GROUP` prints a line of JSON for each answer, with
what it is, what the answer was and what is expected. It imports nothing from the product.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
NO_DEVICE, INVALID_DEVICE = 100, 101
INVALID_IMAGE, INVALID_CONTEXT, INVALID_PTX, UNSUPPORTED_PTX_VERSION = 200, 201, 218, 222
INVALID_HANDLE, NOT_FOUND = 400, 500
ILLEGAL_ADDRESS, CONTEXT_IS_DESTROYED, MISALIGNED_ADDRESS = 700, 709, 716

Handle, Pointer, Size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t

HEADER = ".version 6.3\n.target sm_30\n.address_size 64\n"


def kernel(body: str, parameters: str = ".param .u64 out, .param .u32 a, .param .u32 b") -> str:
    """A kernel `k` around a body, with registers of each kind."""
    return f"""{HEADER}
.visible .entry k({parameters}) {{
    .reg .pred %p<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .reg .s32 %signed;
    {body}
}}
"""


class Cuda:
    """The driver API with Python's values. `code` is the last return code; errors are not raised."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.code = 0

    def __call__(self, name: str, *arguments) -> int:
        function = getattr(self.library, name)
        function.restype = ctypes.c_int
        self.code = function(*arguments)
        return self.code

    def make(self, kind, name: str, *arguments):
        value = kind()
        self(name, ctypes.byref(value), *arguments)
        return value

    def integer(self, name: str, *arguments) -> int:
        return self.make(ctypes.c_int, name, *arguments).value

    def context(self, device: int = 0):
        return self.make(Handle, "cuCtxCreate_v2", 0, device)

    def memory(self, size: int):
        return self.make(Pointer, "cuMemAlloc_v2", Size(size))

    def event(self, flags: int = 0):
        return self.make(Handle, "cuEventCreate", flags)

    def load(self, text: str):
        """The module, or None, and the compiler's words."""
        log = ctypes.create_string_buffer(1024)
        keys = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        module = self.make(Handle, "cuModuleLoadDataEx", text.encode(), 2, keys, values)
        return module, log.value.decode()

    def function(self, text: str, name: bytes = b"k"):
        module, log = self.load(text)
        assert self.code == 0, log
        return self.make(Handle, "cuModuleGetFunction", module, name)

    def launch(self, function, grid, block, *arguments) -> int:
        pointers = (ctypes.c_void_p * max(len(arguments), 1))(*(ctypes.addressof(a) for a in arguments))
        return self("cuLaunchKernel", function, *grid, *block, 0, None, pointers, None)

    def read(self, address, size: int) -> bytes:
        out = ctypes.create_string_buffer(size)
        assert self("cuMemcpyDtoH_v2", out, address, Size(size)) == 0
        return out.raw

    def word(self, body: str, a: int = 0, b: int = 0) -> int:
        """What a kernel of one thread stores at `out`, as an unsigned 32-bit number."""
        out = self.memory(8)
        result = self.store(self.function(kernel(body)), out, a, b)
        self("cuMemFree_v2", out)
        return result

    def store(self, function, out, a: int, b: int) -> int:
        """The same with a kernel that is loaded and memory that is there."""
        self("cuMemsetD8_v2", out, 0, Size(8))
        self.launch(function, (1, 1, 1), (1, 1, 1), out, ctypes.c_uint32(a), ctypes.c_uint32(b))
        assert self("cuCtxSynchronize") == 0
        return int.from_bytes(self.read(out, 4), "little")


def wrap(value: int) -> int:
    return value & 0xFFFFFFFF


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


ADD = "ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; {} st.global.u32 [%rd1], %r3; ret;"

OPERATIONS = {
    "add.u32 %r3, %r1, %r2;": lambda a, b: a + b,
    "sub.s32 %r3, %r1, %r2;": lambda a, b: a - b,
    "mul.lo.u32 %r3, %r1, %r2;": lambda a, b: a * b,
    "mul.hi.u32 %r3, %r1, %r2;": lambda a, b: a * b >> 32,
    "mul.hi.s32 %r3, %r1, %r2;": lambda a, b: signed(a) * signed(b) >> 32,
    "mad.lo.s32 %r3, %r1, %r2, 7;": lambda a, b: a * b + 7,
    "mul.wide.u32 %rd2, %r1, %r2; shr.u64 %rd2, %rd2, 16; cvt.u32.u64 %r3, %rd2;": lambda a, b: a * b >> 16,
    "mul.wide.s32 %rd2, %r1, %r2; shr.s64 %rd2, %rd2, 40; cvt.u32.u64 %r3, %rd2;": (
        lambda a, b: signed(a) * signed(b) >> 40
    ),
    "mad.wide.u32 %rd2, %r1, %r2, 5; cvt.u32.u64 %r3, %rd2;": lambda a, b: a * b + 5,
    "and.b32 %r3, %r1, %r2;": lambda a, b: a & b,
    "xor.b32 %r3, %r1, %r2; not.b32 %r3, %r3;": lambda a, b: ~(a ^ b),
    "or.b32 %r3, %r1, -2;": lambda a, _b: a | 0xFFFFFFFE,
    "min.s32 %r3, %r1, %r2;": lambda a, b: min(signed(a), signed(b)),
    "max.u32 %r3, %r1, %r2;": lambda a, b: max(a, b),
    "and.b32 %r2, %r2, 31; shl.b32 %r3, %r1, %r2;": lambda a, b: a << (b & 31),
    "and.b32 %r2, %r2, 31; shr.s32 %r3, %r1, %r2;": lambda a, b: signed(a) >> (b & 31),
    "or.b32 %r2, %r2, 1; div.u32 %r3, %r1, %r2;": lambda a, b: a // (b | 1),
    "or.b32 %r2, %r2, 1; rem.u32 %r3, %r1, %r2;": lambda a, b: a % (b | 1),
    "setp.lt.s32 %p1, %r1, %r2; selp.u32 %r3, 10, 20, %p1;": lambda a, b: 10 if signed(a) < signed(b) else 20,
    "setp.ge.u32 %p1, %r1, %r2; mov.u32 %r3, 1; @%p1 mov.u32 %r3, 2; @!%p1 mov.u32 %r3, 3;": (
        lambda a, b: 2 if a >= b else 3
    ),
    "cvt.s64.s32 %rd2, %r1; shr.s64 %rd2, %rd2, 33; cvt.u32.u64 %r3, %rd2;": lambda a, _b: signed(a) >> 33,
    "cvt.u32.u8 %r3, %r1;": lambda a, _b: a & 0xFF,
    "neg.s32 %r3, %r1;": lambda a, _b: -a,
}

GRID = """
    .reg .u32 x, y, z;
    mov.u32 x, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 x, x, %r1, %r2;
    mov.u32 y, %ctaid.y; mov.u32 %r1, %ntid.y; mov.u32 %r2, %tid.y; mad.lo.u32 y, y, %r1, %r2;
    mov.u32 z, %ctaid.z; mov.u32 %r1, %ntid.z; mov.u32 %r2, %tid.z; mad.lo.u32 z, z, %r1, %r2;
    mov.u32 %r1, %ntid.x; mov.u32 %r2, %nctaid.x; mul.lo.u32 %r3, %r1, %r2;
    mov.u32 %r1, %ntid.y; mov.u32 %r2, %nctaid.y; mul.lo.u32 %r4, %r1, %r2;
    mad.lo.u32 %r5, z, %r4, y;
    mad.lo.u32 %r5, %r5, %r3, x;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    mad.wide.u32 %rd2, %r5, 4, %rd1;
    ld.global.u32 %r6, [%rd2];
    add.u32 %r6, %r6, %r5;
    st.global.u32 [%rd2], %r6;
    ret;
    """
GRID_THREADS = (2 * 4) * (3 * 2) * (2 * 3)


def threads_of_a_grid(cuda: Cuda) -> list[int]:
    """What the threads of a grid of three dimensions add to zeros: their numbers, if each runs once."""
    out = cuda.memory(4 * GRID_THREADS)
    cuda("cuMemsetD8_v2", out, 0, Size(4 * GRID_THREADS))
    function = cuda.function(kernel(GRID, ".param .u64 out"))
    assert cuda.launch(function, (2, 3, 2), (4, 2, 3), out) == 0
    return list(array.array("I", cuda.read(out, 4 * GRID_THREADS)))


# The groups

Check = Callable[[str, Any, Any], None]
GROUPS: dict[str, Callable[[Cuda, Check], None]] = {}


def group(function: Callable[[Cuda, Check], None]) -> Callable[[Cuda, Check], None]:
    GROUPS[function.__name__] = function
    return function


def start(cuda: Cuda):
    """Initialise, with a context on the first GPU."""
    assert cuda("cuInit", 0) == 0
    context = cuda.context()
    assert cuda.code == 0
    return context


def in_child(function: Callable[[], Any]) -> Any:
    """What a function answers in a forked child."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_end, json.dumps(function()).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(answer or "null")


@group
def initialisation(cuda: Cuda, check: Check) -> None:
    cuda.integer("cuDeviceGetCount")
    check("count before init", cuda.code, NOT_INITIALIZED)
    check("init with flags", cuda("cuInit", 1), INVALID_VALUE)
    # The version alone is answered.
    check("version", [cuda.integer("cuDriverGetVersion") >= 3000, cuda.code], [True, 0])
    check("init", cuda("cuInit", 0), 0)
    check("count", [cuda.integer("cuDeviceGetCount") > 0, cuda.code], [True, 0])
    check("in a forked child", in_child(lambda: cuda("cuDeviceGet", ctypes.byref(ctypes.c_int()), 0)), NOT_INITIALIZED)


@group
def ordinals(cuda: Cuda, check: Check) -> None:
    start(cuda)
    none = cuda.integer("cuDeviceGetCount")
    for ordinal in (none, none + 4, -1):
        check(f"device {ordinal}", cuda("cuDeviceGet", ctypes.byref(ctypes.c_int()), ordinal), INVALID_DEVICE)
    check("nowhere to put it", cuda("cuDeviceGet", None, 0), INVALID_VALUE)
    check("context", cuda("cuCtxCreate_v2", ctypes.byref(Handle()), 0, none), INVALID_DEVICE)
    check("context flags", cuda("cuCtxCreate_v2", ctypes.byref(Handle()), 0xFFFF, 0), INVALID_VALUE)


@group
def properties(cuda: Cuda, check: Check) -> None:
    """As documented."""
    start(cuda)
    none = cuda.integer("cuDeviceGetCount")
    buffer = ctypes.create_string_buffer(96)
    check("name", cuda("cuDeviceGetName", buffer, 96, 0), 0)
    name = buffer.value.decode()
    for size in (1, 5):
        check(
            f"name in {size}", [cuda("cuDeviceGetName", buffer, size, 0), buffer.value.decode()], [0, name[: size - 1]]
        )
    for size, code in ((1, INVALID_VALUE), (12, INVALID_VALUE), (13, 0), (32, 0)):
        check(f"address in {size}", cuda("cuDeviceGetPCIBusId", buffer, size, 0), code)
    check("address", len(buffer.value), 12)
    check("name of none", cuda("cuDeviceGetName", buffer, 96, none), INVALID_DEVICE)
    check("UUID of none", cuda("cuDeviceGetUuid", buffer, none), INVALID_DEVICE)
    check("memory of none", cuda("cuDeviceTotalMem_v2", ctypes.byref(Size()), none), INVALID_DEVICE)
    for attribute, value in ((1, 1024), (10, 32)):
        check(f"attribute {attribute}", [cuda.integer("cuDeviceGetAttribute", attribute, 0), cuda.code], [value, 0])
    for attribute in (0, 9999, -1):
        cuda.integer("cuDeviceGetAttribute", attribute, 0)
        check(f"attribute {attribute}", cuda.code, INVALID_VALUE)


@group
def contexts(cuda: Cuda, check: Check) -> None:
    first = start(cuda)
    check("device", [cuda.integer("cuCtxGetDevice"), cuda.code], [0, 0])
    second = cuda.context()
    check("second", cuda.code, 0)
    check("destroy the second", cuda("cuCtxDestroy_v2", second), 0)
    check("the first is current", [cuda.integer("cuCtxGetDevice"), cuda.code], [0, 0])
    check("destroy it again", cuda("cuCtxDestroy_v2", second), CONTEXT_IS_DESTROYED)
    check("destroy none", cuda("cuCtxDestroy_v2", None), INVALID_VALUE)
    check("destroy the first", cuda("cuCtxDestroy_v2", first), 0)
    check("no context: wait", cuda("cuCtxSynchronize"), INVALID_CONTEXT)
    check("no context: device", cuda("cuCtxGetDevice", ctypes.byref(ctypes.c_int())), INVALID_CONTEXT)
    check("no context: memory", cuda("cuMemAlloc_v2", ctypes.byref(Pointer()), Size(4)), INVALID_CONTEXT)
    check("no context: host memory", cuda("cuMemHostAlloc", ctypes.byref(Handle()), Size(64), 1), INVALID_CONTEXT)
    check("no context: event", cuda("cuEventCreate", ctypes.byref(Handle()), 0), INVALID_CONTEXT)
    cuda.load(kernel("ret;"))
    check("no context: module", cuda.code, INVALID_CONTEXT)


@group
def primary_contexts(cuda: Cuda, check: Check) -> None:
    start(cuda)
    first, again = (cuda.make(Handle, "cuDevicePrimaryCtxRetain", 0) for _ in range(2))
    check("the same", first.value == again.value, True)
    check("make it current", cuda("cuCtxSetCurrent", first), 0)
    check("device", cuda.integer("cuCtxGetDevice"), 0)
    check("destroy it", cuda("cuCtxDestroy_v2", first), INVALID_CONTEXT)
    for time_of, code in (("first", 0), ("second", 0), ("third", INVALID_CONTEXT)):
        check(f"{time_of} release", cuda("cuDevicePrimaryCtxRelease_v2", 0), code)


@group
def memory(cuda: Cuda, check: Check) -> None:
    start(cuda)
    free, total = Size(), Size()
    check("sizes", cuda("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total)), 0)
    part = free.value // 4
    first = cuda.memory(part)
    check("a quarter of what is free", cuda.code, 0)
    cuda.memory(total.value - part + (1 << 20))
    check("more than the rest", cuda.code, OUT_OF_MEMORY)
    check("free in the middle", cuda("cuMemFree_v2", Pointer(first.value + 1)), INVALID_VALUE)
    check("free", cuda("cuMemFree_v2", first), 0)
    check("free again", cuda("cuMemFree_v2", first), INVALID_VALUE)
    check("free nothing", cuda("cuMemFree_v2", Pointer(0)), 0)
    cuda.memory(0)
    check("0 bytes", cuda.code, INVALID_VALUE)
    check("nowhere to put it", cuda("cuMemAlloc_v2", None, Size(4)), INVALID_VALUE)
    check("0 bytes of the host", cuda("cuMemHostAlloc", ctypes.byref(Handle()), Size(0), 1), 0)
    check("flags", cuda("cuMemHostAlloc", ctypes.byref(Handle()), Size(4), 0x100), INVALID_VALUE)
    check("free nothing of the host", cuda("cuMemFreeHost", None), 0)
    check("free what is not there", cuda("cuMemFreeHost", Handle(0x1000)), INVALID_VALUE)


@group
def copies(cuda: Cuda, check: Check) -> None:
    start(cuda)
    small = cuda.memory(100)
    buffer = ctypes.create_string_buffer(1 << 22)
    for size in (100, 0):
        check(f"{size} bytes to 100", cuda("cuMemcpyHtoD_v2", small, buffer, Size(size)), 0)
    for size in (101, 512, 513, 1 << 21, 1 << 22):
        check(f"{size} bytes to 100", cuda("cuMemcpyHtoD_v2", small, buffer, Size(size)), INVALID_VALUE)
    check("one further", cuda("cuMemcpyHtoD_v2", Pointer(small.value + 1), buffer, Size(100)), INVALID_VALUE)
    check("from nowhere", cuda("cuMemcpyHtoD_v2", small, None, Size(100)), INVALID_VALUE)
    check("from no memory", cuda("cuMemcpyDtoH_v2", buffer, Pointer(0x1000), Size(1)), INVALID_VALUE)
    check("set nothing", cuda("cuMemsetD8_v2", small, 0, Size(0)), 0)
    check("set too much", cuda("cuMemsetD8_v2", small, 0, Size(1 << 22)), INVALID_VALUE)
    check("the context is well", cuda("cuCtxSynchronize"), 0)

    size = 5000
    data = os.urandom(size)
    first, second = cuda.memory(size), cuda.memory(size)
    check("to the GPU", cuda("cuMemcpyHtoD_v2", first, data, Size(size)), 0)
    check("on the GPU", cuda("cuMemcpyDtoD_v2", second, first, Size(size)), 0)
    check("the bytes", cuda.read(second, size) == data, True)
    pinned = [cuda.make(Handle, "cuMemHostAlloc", Size(size), 1) for _ in range(2)]
    data = os.urandom(size)
    ctypes.memmove(pinned[0].value, data, size)
    check("to the GPU, later", cuda("cuMemcpyHtoDAsync_v2", first, pinned[0], Size(size), None), 0)
    check("on the GPU, later", cuda("cuMemcpyDtoDAsync_v2", second, first, Size(size), None), 0)
    check("from the GPU, later", cuda("cuMemcpyDtoHAsync_v2", pinned[1], second, Size(size), None), 0)
    check("wait", cuda("cuCtxSynchronize"), 0)
    check("the bytes, later", ctypes.string_at(pinned[1].value, size) == data, True)


@group
def events(cuda: Cuda, check: Check) -> None:
    start(cuda)
    begin, end, untimed = cuda.event(), cuda.event(), cuda.event(2)
    elapsed = ctypes.c_float(-1)
    check(
        "between what was not recorded", cuda("cuEventElapsedTime", ctypes.byref(elapsed), begin, end), INVALID_HANDLE
    )
    check("ask what was not recorded", cuda("cuEventQuery", begin), 0)
    check("record", cuda("cuEventRecord", begin, None), 0)
    time.sleep(0.05)
    for event in (end, untimed):
        cuda("cuEventRecord", event, None)
        check("wait", cuda("cuEventSynchronize", event), 0)
    check("between", cuda("cuEventElapsedTime", ctypes.byref(elapsed), begin, end), 0)
    check("milliseconds", 49 <= elapsed.value < 5000 or elapsed.value, True)
    check("without timing", cuda("cuEventElapsedTime", ctypes.byref(elapsed), begin, untimed), INVALID_HANDLE)
    check("flags", cuda("cuEventCreate", ctypes.byref(Handle()), 0xFF00), INVALID_VALUE)
    check("record none", cuda("cuEventRecord", None, None), INVALID_HANDLE)
    check("destroy none", cuda("cuEventDestroy_v2", None), INVALID_HANDLE)
    check("destroy", cuda("cuEventDestroy_v2", begin), 0)
    check("record what is destroyed", cuda("cuEventRecord", begin, None), CONTEXT_IS_DESTROYED)


NOT_PTX = "Binary format for key='0', ident='' is not recognized"
NO_ADDRESS_SIZE = "error   : Feature '.address_size directive' requires PTX ISA .version 2.3 or later"
ABORTED = "\nptxas fatal   : Ptx assembly aborted due to errors"

BAD_PTX = {
    "nothing": ("", INVALID_IMAGE, NOT_PTX),
    "no PTX": ("hello", INVALID_IMAGE, NOT_PTX),
    "no version": (".target sm_30\n.address_size 64\n", INVALID_IMAGE, NOT_PTX),
    "no target": (
        ".version 6.3\n.address_size 64\n",
        INVALID_PTX,
        "line 2; fatal   : Missing .target directive at start of file 'application ptx input'" + ABORTED,
    ),
    "version of the future": (
        HEADER.replace("6.3", "9.9"),
        UNSUPPORTED_PTX_VERSION,
        "line 1; fatal   : Unsupported .version 9.9; current version is '",
    ),
    "address size in 1.4": (
        kernel("ret;").replace("6.3", "1.4").replace("sm_30", "sm_10"),
        INVALID_PTX,
        "line 3; " + NO_ADDRESS_SIZE + ABORTED,
    ),
    "address size in 2.0": (
        kernel("ret;").replace("6.3", "2.0").replace("sm_30", "sm_20"),
        INVALID_PTX,
        "line 3; " + NO_ADDRESS_SIZE + ABORTED,
    ),
    "label": (kernel("bra NOWHERE;"), INVALID_PTX, "line 10; error   : Unknown symbol 'NOWHERE'" + ABORTED),
    "register": (kernel("mov.u32 %r99, 1;"), INVALID_PTX, "line 10; error   : Unknown symbol '%r99'" + ABORTED),
    "arguments": (
        kernel("mov.u32 %r1, %rubbish;"),
        INVALID_PTX,
        "line 10; error   : Arguments mismatch for instruction 'mov'",
    ),
    "instruction": (
        kernel("frobnicate.u32 %r1, 1;"),
        INVALID_PTX,
        "line 10; error   : Not a name of any known instruction: 'frobnicate'" + ABORTED,
    ),
    "types": (
        kernel("mul.s32 %r1, %r2, %r3;"),
        INVALID_PTX,
        "line 10; error   : Unexpected instruction types specified for 'mul'" + ABORTED,
    ),
    "comma": (
        kernel("mov.u32 %r1 1;"),
        INVALID_PTX,
        "line 10; fatal   : Parsing error near '1': syntax error" + ABORTED,
    ),
    "label twice": (
        kernel("L: L: ret;"),
        INVALID_PTX,
        "line 10; error   : Duplicate definition of label 'L'" + ABORTED,
    ),
    "predicate": (kernel("@%r1 ret;"), INVALID_PTX, "line 10; error   : Predicate expression expected" + ABORTED),
    "parameter": (
        kernel("ld.param.u32 %r1, [nothing];"),
        INVALID_PTX,
        "line 10; error   : Unknown symbol 'nothing'" + ABORTED,
    ),
    "operand": (
        kernel("ld.param.u32 %r1, [nothing];"),
        INVALID_PTX,
        "line 10; error   : Illegal operand type to instruction 'ld'",
    ),
    "end": (kernel("ret;")[:-4], INVALID_PTX, "line 10; fatal   : Parsing error near '': syntax error" + ABORTED),
}
GOOD_PTX = {
    "6.3 for sm_30": kernel("ret;"),
    "3.2 for sm_30": kernel("ret;").replace("6.3", "3.2"),
    "3.1 for sm_30": kernel("ret;").replace("6.3", "3.1"),
    "no kernel": HEADER,
    "no address size": HEADER.replace(".address_size 64\n", ""),
}
# Version, target, its capability and the CUDA that brought the version.
TARGETS = (("8.0", "sm_90", 90, 12000), ("8.7", "sm_100", 100, 12080), ("8.8", "sm_121", 121, 12090))


def capability(cuda: Cuda) -> int:
    return 10 * cuda.integer("cuDeviceGetAttribute", 75, 0) + cuda.integer("cuDeviceGetAttribute", 76, 0)


@group
def ptx(cuda: Cuda, check: Check) -> None:
    start(cuda)
    refused = dict(BAD_PTX)
    cuda_version = cuda.integer("cuDriverGetVersion")
    for version, target, required, needs in TARGETS:
        if capability(cuda) < required and cuda_version >= needs:
            text = HEADER.replace("6.3", version).replace("sm_30", target)
            words = "ptxas fatal   : SM version specified by .target is higher than default SM version assumed"
            refused[target] = (text, INVALID_PTX, words)
            break
    if capability(cuda) >= 90:
        refused["32-bit addresses"] = (
            kernel("ret;").replace("size 64", "size 32"),
            INVALID_PTX,
            "32-Bit ABI (--machine 32 or 32-Bit addressing) is not supported on sm_90 or higher architectures.",
        )
    for name, (text, code, words) in refused.items():
        module, log = cuda.load(text)
        check(name, [cuda.code, module.value, words if words in log else log], [code, None, words])
        check(f"{name}, without a log", cuda("cuModuleLoadData", ctypes.byref(Handle()), text.encode()), code)
    for name, text in GOOD_PTX.items():
        module, log = cuda.load(text)
        check(name, [cuda.code, bool(module.value), log], [0, True, ""])


LAUNCHES = (
    ((1, 1, 1), (1, 1, 1), 0),
    ((0, 1, 1), (1, 1, 1), INVALID_VALUE),
    ((1, 0, 1), (1, 1, 1), INVALID_VALUE),
    ((1, 65535, 1), (1, 1, 1), 0),
    ((1, 65536, 1), (1, 1, 1), INVALID_VALUE),
    ((2**31, 1, 1), (1, 1, 1), INVALID_VALUE),
    ((1, 1, 1), (0, 1, 1), INVALID_VALUE),
    ((1, 1, 1), (1024, 1, 1), 0),
    ((1, 1, 1), (1025, 1, 1), INVALID_VALUE),
    ((1, 1, 1), (32, 33, 1), INVALID_VALUE),
    ((1, 1, 1), (1, 1, 64), 0),
    ((1, 1, 1), (1, 1, 65), INVALID_VALUE),
)


@group
def launches(cuda: Cuda, check: Check) -> None:
    start(cuda)
    module, _log = cuda.load(kernel("ret;"))
    cuda.make(Handle, "cuModuleGetFunction", module, b"other")
    check("no such function", cuda.code, NOT_FOUND)
    check("no module", cuda("cuModuleGetFunction", ctypes.byref(Handle()), None, b"k"), INVALID_HANDLE)
    function = cuda.make(Handle, "cuModuleGetFunction", module, b"k")
    arguments = (Pointer(), ctypes.c_uint32(), ctypes.c_uint32())
    for grid, block, code in LAUNCHES:
        check(f"{grid} of {block}", cuda.launch(function, grid, block, *arguments), code)
    pointers = (ctypes.c_void_p * 3)(*(ctypes.addressof(argument) for argument in arguments))
    ones = (1, 1, 1, 1, 1, 1)
    check("shared memory", cuda("cuLaunchKernel", function, *ones, 1 << 20, None, pointers, None), INVALID_VALUE)
    check("no parameters", cuda("cuLaunchKernel", function, *ones, 0, None, None, None), INVALID_VALUE)
    check("no function", cuda("cuLaunchKernel", None, *ones, 0, None, None, None), INVALID_HANDLE)
    check("the context is well", cuda("cuCtxSynchronize"), 0)
    check("unload", cuda("cuModuleUnload", module), 0)
    check("of an unloaded module", cuda.launch(function, (1, 1, 1), (1, 1, 1), *arguments), INVALID_HANDLE)


VALUES = (0, 1, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678, 0xDEADBEEF)


@group
def instructions(cuda: Cuda, check: Check) -> None:
    start(cuda)
    out = cuda.memory(8)
    for text, compute in OPERATIONS.items():
        function = cuda.function(kernel(ADD.format(text)))
        pairs = [(a, b) for a in VALUES for b in VALUES]
        check(text, [cuda.store(function, out, a, b) for a, b in pairs], [wrap(compute(a, b)) for a, b in pairs])


@group
def grids(cuda: Cuda, check: Check) -> None:
    start(cuda)
    check("threads", threads_of_a_grid(cuda), list(range(GRID_THREADS)))


# Nothing is ever mapped there. An address beyond an allocation may be in the window of shared or local memory, which is
# another error (717).
NOWHERE = kernel("mov.u64 %rd1, 64; mov.u32 %r1, 1; st.global.u32 [%rd1], %r1; ret;", ".param .u64 out")
ODD = kernel(
    "ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1+2]; st.global.u32 [%rd1], %r1; ret;", ".param .u64 out"
)


def after_a_bad_access(cuda: Cuda, text: str) -> list[int]:
    """The answers of a process whose kernel touches what it must not, to the end."""
    context = start(cuda)
    out = cuda.memory(4096)
    answers = [cuda.launch(cuda.function(text), (1, 1, 1), (1, 1, 1), out)]
    answers += [cuda("cuCtxSynchronize"), cuda("cuMemFree_v2", out), cuda("cuCtxSynchronize")]
    answers += [cuda("cuCtxDestroy_v2", context)]
    cuda.context()
    return [*answers, cuda.code, cuda("cuCtxSynchronize")]


@group
def bad_accesses(cuda: Cuda, check: Check) -> None:
    """The process cannot go on, not even with another context; another process can."""
    for what, text, code in (("illegal", NOWHERE, ILLEGAL_ADDRESS), ("misaligned", ODD, MISALIGNED_ADDRESS)):
        answers = in_child(lambda text=text: after_a_bad_access(cuda, text))
        check(what, answers, [0, code, code, code, 0, code, INVALID_CONTEXT])
    start(cuda)
    check("another process", cuda("cuCtxSynchronize"), 0)


@group
def visible_devices(cuda: Cuda, check: Check) -> None:
    def seen(value: str) -> list[int]:
        os.environ["CUDA_VISIBLE_DEVICES"] = value
        return [cuda("cuInit", 0), cuda.integer("cuDeviceGetCount")]

    def first_uuid() -> str:
        start(cuda)
        text = cuda.make(ctypes.c_ubyte * 16, "cuDeviceGetUuid", 0)
        digits = bytes(text).hex()
        return f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    uuid = in_child(first_uuid)
    for value in ("0", " 0", "0,99", "0,-1", uuid, uuid[:12]):
        check(f"visible '{value}'", in_child(lambda value=value: seen(value)), [0, 1])
    for value in ("", "-1", "99", "nonsense", "GPU-"):
        check(f"visible '{value}'", in_child(lambda value=value: seen(value)), [NO_DEVICE, 0])
    for value in ("0,0", f"{uuid},{uuid}"):
        check(f"visible '{value}'", in_child(lambda value=value: seen(value)), [INVALID_DEVICE, 0])


# Running them


def broken(library: str | Path, name: str) -> list[Any]:
    """The answers of a group that are not the expected ones, and how its process ended if not well."""
    chosen = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
    environment = {name: value for name, value in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulators.cuda_contract", str(library), name],
        # Nothing of what is compiled is kept in the home directory.
        env={**environment, "CUDA_CACHE_DISABLE": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [row for row in rows if row["answer"] != row["expected"]]
    if done.returncode or not rows:
        wrong.append(
            {"ended": done.returncode, "after": rows[-1]["what"] if rows else None, "stderr": done.stderr[-2000:]}
        )
    return wrong


def main(library: str, name: str) -> None:
    def check(what: str, answer: Any, expected: Any) -> None:
        # At once, so that a library that crashes has shown where.
        print(json.dumps({"what": what, "answer": answer, "expected": expected}), flush=True)

    GROUPS[name](Cuda(ctypes.CDLL(library)), check)


if __name__ == "__main__":
    main(*sys.argv[1:])
