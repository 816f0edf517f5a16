# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated CUDA driver library: strict about its callers, and a kernel's PTX is really run."""

from __future__ import annotations

import array
import ctypes
import json
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.simulators.conftest import ROOT, load_copy

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 1, 2, 3
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT = 100, 101, 201
INVALID_PTX, UNSUPPORTED_PTX_VERSION, NO_BINARY_FOR_GPU = 218, 222, 209
INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS = 400, 500, 700

Handle, Pointer = ctypes.c_void_p, ctypes.c_uint64

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
        return self.make(Pointer, "cuMemAlloc_v2", ctypes.c_size_t(size))

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
        assert self("cuMemcpyDtoH_v2", out, address, ctypes.c_size_t(size)) == 0
        return out.raw

    def word(self, body: str, a: int = 0, b: int = 0) -> int:
        """What a kernel of one thread stores at `out`, as an unsigned 32-bit number."""
        out = self.memory(8)
        self("cuMemsetD8_v2", out, 0, ctypes.c_size_t(8))
        function = self.function(kernel(body))
        self.launch(function, (1, 1, 1), (1, 1, 1), out, ctypes.c_uint32(a), ctypes.c_uint32(b))
        assert self("cuCtxSynchronize") == 0
        return int.from_bytes(self.read(out, 4), "little")


@pytest.fixture
def cuda(built, tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return Cuda(load_copy(built / "libcuda.so.1", tmp_path))


@pytest.fixture
def ready(cuda, scenario):
    """An initialised library with two A100, and a context on the first."""
    cuda.scenario = scenario("a100-sxm4-40gb-x2")
    assert cuda("cuInit", 0) == 0
    cuda.current = cuda.context()
    assert cuda.code == 0
    return cuda


# Strictness


def test_nothing_works_before_init(cuda, scenario):
    scenario("a100-sxm4-40gb-x2")
    assert cuda.integer("cuDeviceGetCount") == 0
    assert cuda.code == NOT_INITIALIZED
    assert cuda("cuInit", 1) == INVALID_VALUE
    # The version alone may be asked.
    assert cuda.integer("cuDriverGetVersion") == 12040
    assert cuda("cuInit", 0) == 0
    assert cuda.integer("cuDeviceGetCount") == 2


def test_a_forked_child_must_not_use_what_its_parent_initialised(ready):
    pid = os.fork()
    if pid == 0:
        os._exit(ready("cuDeviceGet", ctypes.byref(ctypes.c_int()), 0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == NOT_INITIALIZED


def test_devices_and_contexts(ready):
    assert ready("cuDeviceGet", ctypes.byref(ctypes.c_int()), 2) == INVALID_DEVICE
    assert ready("cuDeviceGet", ctypes.byref(ctypes.c_int()), -1) == INVALID_DEVICE
    assert ready("cuCtxCreate_v2", ctypes.byref(Handle()), 0, 5) == INVALID_DEVICE
    assert ready("cuCtxDestroy_v2", Handle(0x1234)) == INVALID_CONTEXT
    assert ready.integer("cuCtxGetDevice") == 0
    second = ready.context(1)
    assert ready.integer("cuCtxGetDevice") == 1
    assert ready("cuCtxDestroy_v2", second) == 0
    assert ready.integer("cuCtxGetDevice") == 0
    assert ready("cuCtxDestroy_v2", second) == INVALID_CONTEXT
    assert ready("cuCtxDestroy_v2", ready.current) == 0
    assert ready("cuCtxSynchronize") == INVALID_CONTEXT
    assert ready("cuMemAlloc_v2", ctypes.byref(Pointer()), ctypes.c_size_t(4)) == INVALID_CONTEXT


def test_primary_contexts_are_counted(ready):
    first, again = (ready.make(Handle, "cuDevicePrimaryCtxRetain", 1) for _ in range(2))
    assert first.value == again.value
    assert ready("cuCtxSetCurrent", first) == 0
    assert ready.integer("cuCtxGetDevice") == 1
    assert ready("cuCtxDestroy_v2", first) == INVALID_CONTEXT
    assert ready("cuDevicePrimaryCtxRelease_v2", 1) == 0
    assert ready("cuDevicePrimaryCtxRelease_v2", 1) == 0
    assert ready("cuDevicePrimaryCtxRelease_v2", 1) == INVALID_CONTEXT


def test_memory_is_limited_and_its_ends_are_watched(ready):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ready("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert total.value == (40960 - 571) << 20
    half = ready.memory(total.value // 2 + 1)
    assert ready.code == 0
    ready.memory(total.value // 2 + 1)
    assert ready.code == OUT_OF_MEMORY
    assert ready("cuMemFree_v2", Pointer(half.value + 1)) == INVALID_VALUE
    assert ready("cuMemFree_v2", half) == 0
    assert ready("cuMemFree_v2", half) == INVALID_VALUE
    ready.memory(0)
    assert ready.code == INVALID_VALUE

    small = ready.memory(100)
    buffer = ctypes.create_string_buffer(200)
    assert ready("cuMemcpyHtoD_v2", small, buffer, ctypes.c_size_t(101)) == INVALID_VALUE
    assert ready("cuMemcpyHtoD_v2", Pointer(small.value + 1), buffer, ctypes.c_size_t(100)) == INVALID_VALUE
    assert ready("cuMemcpyDtoH_v2", buffer, Pointer(ctypes.addressof(buffer)), ctypes.c_size_t(1)) == INVALID_VALUE
    assert ready("cuMemcpyHtoD_v2", small, buffer, ctypes.c_size_t(100)) == 0


def test_copies_carry_the_bytes(ready):
    data = os.urandom(5000)
    first, second = ready.memory(5000), ready.memory(5000)
    ready("cuMemcpyHtoD_v2", first, data, ctypes.c_size_t(5000))
    ready("cuMemcpyDtoD_v2", second, first, ctypes.c_size_t(5000))
    assert ready.read(second, 5000) == data


def test_events(ready):
    start, end = ready.make(Handle, "cuEventCreate", 0), ready.make(Handle, "cuEventCreate", 0)
    elapsed = ctypes.c_float(-1)
    assert ready("cuEventElapsedTime", ctypes.byref(elapsed), start, end) == INVALID_HANDLE
    ready("cuEventRecord", start, None)
    time.sleep(0.05)
    ready("cuEventRecord", end, None)
    assert ready("cuEventElapsedTime", ctypes.byref(elapsed), start, end) == 0
    assert 50 <= elapsed.value < 5000
    assert ready("cuEventDestroy_v2", start) == 0
    assert ready("cuEventRecord", start, None) == INVALID_HANDLE
    assert ready("cuEventDestroy_v2", ready.current) == INVALID_HANDLE


def test_names_of_errors(cuda):
    text = ctypes.c_char_p()
    assert cuda("cuGetErrorName", 802, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_SYSTEM_NOT_READY"
    assert cuda("cuGetErrorString", 100, ctypes.byref(text)) == 0
    assert text.value == b"no CUDA-capable device is detected"
    assert cuda("cuGetErrorName", 12345, ctypes.byref(text)) == INVALID_VALUE


# PTX


ADD = "ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [a]; ld.param.u32 %r2, [b]; {} st.global.u32 [%rd1], %r3; ret;"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("", INVALID_PTX, "Missing .version"),
        ("hello", INVALID_PTX, "Missing .version"),
        (".version 6.3\n.address_size 64\n", INVALID_PTX, "Missing .target"),
        (".version 6.3\n.target sm_30\n", INVALID_PTX, "address_size"),
        (".version 9.9\n.target sm_30\n.address_size 64\n", UNSUPPORTED_PTX_VERSION, "current version is '8.4'"),
        (".version 8.0\n.target sm_90\n.address_size 64\n", NO_BINARY_FOR_GPU, "compute capability 8.0"),
        (kernel("bra NOWHERE;"), INVALID_PTX, "Label 'NOWHERE' undefined"),
        (kernel("mov.u32 %r99, 1;"), INVALID_PTX, "Unknown symbol '%r99'"),
        (kernel("mov.u32 %r1, %rubbish;"), INVALID_PTX, "Unknown symbol"),
        (kernel("frobnicate.u32 %r1, 1;"), INVALID_PTX, "line 10"),
        (kernel("mul.s32 %r1, %r2, %r3;"), INVALID_PTX, "mul.s32"),
        (kernel("mov.u32 %r1 1;"), INVALID_PTX, "',' expected"),
        (kernel("L: L: ret;"), INVALID_PTX, "Duplicate definition of 'L'"),
        (kernel("@%r1 ret;"), INVALID_PTX, "no predicate"),
        (kernel("ld.param.u32 %r1, [nothing];"), INVALID_PTX, "Unknown symbol 'nothing'"),
        (kernel("ret;")[:-4], INVALID_PTX, "expected"),
    ],
)
def test_bad_ptx_is_refused_with_a_reason(ready, text, code, words):
    module, log = ready.load(text)
    assert ready.code == code
    assert words in log
    assert module.value is None


def test_what_the_driver_knows_of_ptx_grows_with_it(cuda, scenario):
    chosen = scenario("k20c-x1")
    cuda("cuInit", 0)
    cuda.context()
    for version, code in (("7.4", 0), ("7.5", UNSUPPORTED_PTX_VERSION)):
        cuda.load(kernel("ret;").replace("6.3", version))
        assert cuda.code == code
    cuda.load(kernel("ret;").replace("sm_30", "sm_37"))
    assert cuda.code == NO_BINARY_FOR_GPU
    assert chosen.devices[0]["compute_capability"] == [3, 5]


def test_functions_and_launches_are_checked(ready):
    module, _log = ready.load(kernel("ret;"))
    ready.make(Handle, "cuModuleGetFunction", module, b"other")
    assert ready.code == NOT_FOUND
    ready.make(Handle, "cuModuleGetFunction", Handle(77), b"k")
    assert ready.code == INVALID_HANDLE
    function = ready.make(Handle, "cuModuleGetFunction", module, b"k")
    arguments = (Pointer(), ctypes.c_uint32(), ctypes.c_uint32())
    assert ready.launch(function, (1, 1, 1), (1, 1, 1), *arguments) == 0
    assert ready.launch(function, (0, 1, 1), (1, 1, 1), *arguments) == INVALID_VALUE
    assert ready.launch(function, (1, 1, 1), (1025, 1, 1), *arguments) == INVALID_VALUE
    assert ready.launch(function, (1, 1, 1), (32, 33, 1), *arguments) == INVALID_VALUE
    assert ready("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == INVALID_VALUE
    assert ready.launch(module, (1, 1, 1), (1, 1, 1), *arguments) == INVALID_HANDLE
    assert ready("cuModuleUnload", module) == 0
    assert ready.launch(function, (1, 1, 1), (1, 1, 1), *arguments) == INVALID_HANDLE


SIGNED = st.integers(-(2**31), 2**31 - 1)
WORD = st.integers(0, 2**32 - 1)


def wrap(value: int) -> int:
    return value & 0xFFFFFFFF


def signed(value: int) -> int:
    return value - 2**32 if value >= 2**31 else value


@pytest.fixture(scope="module")
def calculator(built, tmp_path_factory):
    """A library for many small kernels: the scenario is there for as long as the module's tests run."""
    directory = tmp_path_factory.mktemp("calculator")
    document = json.loads((ROOT / "tests/simulators/scenarios/a100-sxm4-40gb-x2.json").read_text())
    document["kernel"] = "assume-loaded"
    path = directory / "scenario.json"
    path.write_text(json.dumps(document))
    before = os.environ.get("NVML_SIMULATOR_SCENARIO")
    os.environ["NVML_SIMULATOR_SCENARIO"] = str(path)
    cuda = Cuda(load_copy(built / "libcuda.so.1", directory))
    assert cuda("cuInit", 0) == 0
    cuda.context()
    yield cuda
    os.environ.pop("NVML_SIMULATOR_SCENARIO")
    if before is not None:
        os.environ["NVML_SIMULATOR_SCENARIO"] = before


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


@pytest.mark.parametrize("instruction", OPERATIONS)
def test_instructions_compute_what_they_say(calculator, instruction):
    @given(a=WORD, b=WORD)
    def check(a, b):
        assert calculator.word(ADD.format(instruction), a, b) == wrap(OPERATIONS[instruction](a, b))

    check()


def test_a_loop_and_comments(calculator):
    """The sum of 1 to a, counted down."""
    body = """
    ld.param.u64 %rd1, [out]; // where to
    ld.param.u32 %r1, [a];
    mov.u32 %r3, 0;
LOOP: /* until
         nothing is left */
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra.uni DONE;
    add.u32 %r3, %r3, %r1;
    sub.u32 %r1, %r1, 0x1;
    bra LOOP;
DONE:
    st.global.u32 [%rd1+0], %r3;
    exit;
    """
    assert calculator.word(body, 1000) == 500500


def test_every_thread_of_a_grid_runs_once(ready):
    body = """
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
    count = (2 * 4) * (3 * 2) * (2 * 3)
    out = ready.memory(4 * count)
    ready("cuMemsetD8_v2", out, 0, ctypes.c_size_t(4 * count))
    function = ready.function(kernel(body, ".param .u64 out"))
    assert ready.launch(function, (2, 3, 2), (4, 2, 3), out) == 0
    found = array.array("I", ready.read(out, 4 * count))
    assert list(found) == list(range(count))


def test_a_kernel_that_leaves_its_memory_breaks_its_context_only(ready):
    text = kernel("ld.param.u64 %rd1, [out]; mov.u32 %r1, 1; st.global.u32 [%rd1+4096], %r1; ret;", ".param .u64 out")
    out = ready.memory(4096)
    assert ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), out) == 0
    assert ready("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert ready("cuMemFree_v2", out) == ILLEGAL_ADDRESS
    ready.context(1)
    assert ready("cuCtxSynchronize") == 0


def test_a_misaligned_access(ready):
    text = kernel("ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1+2]; ret;", ".param .u64 out")
    ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), ready.memory(64))
    assert ready("cuCtxSynchronize") == 716


def test_one_card_does_not_reach_the_memory_of_the_other(ready):
    other = ready.memory(64)
    ready.context(1)
    text = kernel("ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1]; ret;", ".param .u64 out")
    ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), other)
    assert ready("cuCtxSynchronize") == ILLEGAL_ADDRESS


# Which cards are seen


def names(cuda) -> list[str]:
    count = cuda.integer("cuDeviceGetCount")
    buffer = ctypes.create_string_buffer(96)
    found = []
    for index in range(count):
        cuda("cuDeviceGetName", buffer, 96, index)
        found.append(buffer.value.decode())
    return found


def test_order_of_the_cards(built, tmp_path, scenario, monkeypatch):
    scenario("mixed")
    for order, first in ((None, "NVIDIA A100-SXM4-40GB"), ("PCI_BUS_ID", "NVIDIA GeForce GTX 1080")):
        if order:
            monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
        fresh = Cuda(load_copy(built / "libcuda.so.1", tmp_path, f"libcuda.{order}"))
        assert fresh("cuInit", 0) == 0
        assert names(fresh)[0] == first


@pytest.mark.parametrize(
    ("visible", "addresses"),
    [
        ("1", ["0000:AF:00.0"]),
        ("1,0", ["0000:AF:00.0", "0000:3B:00.0"]),
        ("0,7,1", ["0000:3B:00.0"]),
        ("{uuid}", ["0000:AF:00.0"]),
        ("{short}", ["0000:AF:00.0"]),
        ("", []),
        ("-1", []),
        ("0,0", []),
    ],
)
def test_visible_devices(cuda, scenario, monkeypatch, visible, addresses):
    uuid = scenario("a100-sxm4-40gb-x2").devices[1]["uuid"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible.format(uuid=uuid, short=uuid[:12]))
    assert cuda("cuInit", 0) == (0 if addresses else NO_DEVICE)
    buffer = ctypes.create_string_buffer(32)
    found = []
    for index in range(cuda.integer("cuDeviceGetCount") if addresses else 0):
        cuda("cuDeviceGetPCIBusId", buffer, 32, index)
        found.append(buffer.value.decode())
    assert found == addresses


def test_of_cut_cards_one_instance_is_seen(built, tmp_path, scenario, monkeypatch, cuda):
    chosen = scenario("a100-sxm4-40gb-x8-mig")
    assert cuda("cuInit", 0) == 0
    assert len(names(cuda)) == 6
    chosen.document["devices"] = chosen.devices[:2]
    chosen.write()
    fresh = Cuda(load_copy(built / "libcuda.so.1", tmp_path, "libcuda.one"))
    assert fresh("cuInit", 0) == 0
    assert names(fresh) == ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen.devices[1]["mig"]["instances"][0]["uuid"])
    other = Cuda(load_copy(built / "libcuda.so.1", tmp_path, "libcuda.other"))
    assert other("cuInit", 0) == 0
    assert names(other) == ["NVIDIA A100-SXM4-40GB MIG 3g.20gb"]


def test_a_lost_card_is_not_there(cuda, scenario):
    scenario("lost-one-of-eight")
    assert cuda("cuInit", 0) == 0
    assert cuda.integer("cuDeviceGetCount") == 7


def test_a_card_that_is_lost_later(ready):
    ready.scenario.devices[0]["state"] = "lost"
    ready.scenario.write()
    assert ready("cuCtxSynchronize") == 999
    ready.context(1)
    assert ready.code == 0


# Broken on demand


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("no-gpu", NO_DEVICE),
        ("fabric-not-ready", 802),
        ("a100-uvm-missing", 999),
        ("driver-library-mismatch", 803),
        ("h100-sxm-x8", 0),
        ("k20c-x1", 0),
    ],
)
def test_what_init_answers(cuda, scenario, name, code):
    scenario(name)
    assert cuda("cuInit", 0) == code


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="this machine has a driver of its own")
def test_without_a_loaded_module_there_is_no_device(cuda, scenario):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.document["kernel"] = "stand-in"
    chosen.write()
    assert cuda("cuInit", 0) == NO_DEVICE


def test_an_error_for_one_card(cuda, scenario):
    scenario("a100-sxm4-40gb-x2").fault(call="cuCtxCreate_v2", device=1, error=46)
    cuda("cuInit", 0)
    cuda.context(0)
    assert cuda.code == 0
    cuda.context(1)
    assert cuda.code == 46


def test_a_copy_that_comes_back_wrong(ready):
    ready.scenario.document["cuda"]["wrong_copy"] = {"device": 0, "byte": 3, "bit": 1}
    ready.scenario.write()
    memory = ready.memory(8)
    ready("cuMemcpyHtoD_v2", memory, b"\0" * 8, ctypes.c_size_t(8))
    assert ready.read(memory, 8) == b"\0\0\0\2\0\0\0\0"


def test_a_slow_bus(ready):
    ready.scenario.document["cuda"]["slow"] = {"device": 0, "mb_s": 10}
    ready.scenario.write()
    memory = ready.memory(1_000_000)
    start = time.monotonic()
    ready("cuMemsetD8_v2", memory, 0, ctypes.c_size_t(1_000_000))
    fast = time.monotonic() - start
    start = time.monotonic()
    ready("cuMemcpyHtoD_v2", memory, bytes(1_000_000), ctypes.c_size_t(1_000_000))
    assert time.monotonic() - start >= 0.1 > fast


# The query of this project


def query(built, **environment):
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "plugins/module_utils/cuda_driver.py",
            *("--library", built / "libcuda.so.1", "--copy-mib", "1", "--elements", "10000"),
        ],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


def test_the_device_query_passes(built, scenario):
    chosen = scenario("v100-sxm2-16gb-x8")
    result = query(built)
    assert result["ok"], result
    assert [device["uuid"] for device in result["devices"]] == [card["uuid"] for card in chosen.devices]


def test_the_device_query_finds_the_card_that_computes_wrong(built, scenario):
    scenario("wrong-kernel-result")
    result = query(built)
    assert [device["ok"] for device in result["devices"]] == [True, False]
    assert "element 4711" in result["devices"][1]["error"]["text"]
