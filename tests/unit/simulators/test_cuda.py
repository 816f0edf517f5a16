# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated CUDA driver library: strict about its callers, and a kernel's PTX is really run."""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators import generate
from tests.simulators.cuda_contract import (
    ADD,
    CONTEXT_IS_DESTROYED,
    GRID_THREADS,
    ILLEGAL_ADDRESS,
    INVALID_CONTEXT,
    INVALID_DEVICE,
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    MISALIGNED_ADDRESS,
    NO_DEVICE,
    NOT_INITIALIZED,
    OPERATIONS,
    OUT_OF_MEMORY,
    UNSUPPORTED_PTX_VERSION,
    Cuda,
    Handle,
    Pointer,
    kernel,
    threads_of_a_grid,
    wrap,
)
from tests.unit.simulators.conftest import ROOT, load_copy


@pytest.fixture
def cuda(built, tmp_path, monkeypatch):
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    return Cuda(load_copy(built / "libcuda.so.1", tmp_path))


@pytest.fixture
def ready(built, cuda, scenario):
    """An initialised library with two A100, and a context on the first."""
    cuda.scenario, cuda.path = scenario("a100-sxm4-40gb-x2"), built / "libcuda.so.1"
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


def test_devices_and_contexts(ready):
    assert ready("cuDeviceGet", ctypes.byref(ctypes.c_int()), 2) == INVALID_DEVICE
    assert ready.integer("cuCtxGetDevice") == 0
    second = ready.context(1)
    assert ready.integer("cuCtxGetDevice") == 1
    assert ready("cuCtxDestroy_v2", second) == 0
    assert ready.integer("cuCtxGetDevice") == 0
    for call in ("cuCtxDestroy_v2", "cuCtxSetCurrent", "cuCtxPushCurrent_v2"):
        assert ready(call, second) == CONTEXT_IS_DESTROYED


def test_a_context_that_another_thread_destroyed(ready):
    thread = threading.Thread(target=ready, args=("cuCtxDestroy_v2", ready.current))
    thread.start()
    thread.join()
    assert ready("cuCtxSynchronize") == CONTEXT_IS_DESTROYED


def test_primary_contexts_are_of_a_gpu(ready):
    first = ready.make(Handle, "cuDevicePrimaryCtxRetain", 1)
    assert ready("cuCtxSetCurrent", first) == 0
    assert ready.integer("cuCtxGetDevice") == 1
    assert ready("cuDevicePrimaryCtxRelease_v2", 0) == INVALID_CONTEXT


@pytest.mark.parametrize(
    "call",
    [
        lambda cuda: cuda("cuCtxDestroy_v2", Handle(0x1234)),
        lambda cuda: cuda("cuEventDestroy_v2", cuda.current),
        lambda cuda: cuda("cuModuleGetFunction", ctypes.byref(Handle()), Handle(77), b"k"),
        lambda cuda: cuda.launch(cuda.load(kernel("ret;"))[0], (1, 1, 1), (1, 1, 1), Pointer()),
        lambda cuda: cuda("cuDeviceGetName", ctypes.create_string_buffer(8), 0, 0),
    ],
    ids=["context", "event", "module", "function", "name"],
)
def test_what_makes_the_real_library_crash(ready, call):
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        cuda = Cuda(load_copy(ready.path, ready.scenario.path.parent, "libcuda.child"))
        cuda("cuInit", 0)
        cuda.current = cuda.context()
        call(cuda)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV


def test_memory_is_limited(ready):
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ready("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    assert total.value == (40960 - 571) << 20
    half = ready.memory(total.value // 2 + 1)
    assert ready.code == 0
    ready.memory(total.value // 2 + 1)
    assert ready.code == OUT_OF_MEMORY
    assert ready("cuMemFree_v2", half) == 0
    ready.memory(total.value)
    assert ready.code == 0


def test_no_memory_of_the_host_is_taken_for_the_gpu_s(ready):
    buffer = ctypes.create_string_buffer(8)
    assert ready("cuMemcpyDtoH_v2", buffer, Pointer(ctypes.addressof(buffer)), ctypes.c_size_t(1)) == INVALID_VALUE


def test_every_call_refuses_a_destroyed_event(ready):
    first, second = ready.event(), ready.event()
    ready("cuEventDestroy_v2", first)
    for call in ("cuEventSynchronize", "cuEventQuery", "cuEventDestroy_v2"):
        assert ready(call, first) == CONTEXT_IS_DESTROYED
    assert ready("cuEventElapsedTime", ctypes.byref(ctypes.c_float()), first, second) == CONTEXT_IS_DESTROYED


def test_names_of_errors(cuda):
    text = ctypes.c_char_p()
    assert cuda("cuGetErrorName", 802, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_SYSTEM_NOT_READY"
    assert cuda("cuGetErrorString", 100, ctypes.byref(text)) == 0
    assert text.value == b"no CUDA-capable device is detected"
    assert cuda("cuGetErrorName", 709, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_CONTEXT_IS_DESTROYED"
    assert cuda("cuGetErrorName", 12345, ctypes.byref(text)) == INVALID_VALUE


# PTX


HERE = "the stand-in does not know"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("\n// a comment\n", INVALID_IMAGE, "is not recognized"),
        (".version 9.9\n.target sm_30\n.address_size 64\n", UNSUPPORTED_PTX_VERSION, "current version is '8.4'"),
        (".version 8.0\n.target sm_90\n.address_size 64\n", INVALID_PTX, "higher than default SM version"),
        (".version 6.3\n.target sm_80\n", INVALID_PTX, "PTX .version 6.3 does not support .target sm_80"),
        (".version x\n.target sm_80\n", INVALID_PTX, "Missing .version directive at start of file"),
        (".version 6.3\n.target x\n", INVALID_PTX, "Target architecture not defined"),
        (kernel("ret;").replace("size 64", "size 48"), INVALID_PTX, "(must be 32 or 64)"),
        (kernel("ret;").replace("size 64", "size 32"), INVALID_PTX, "the stand-in knows 64-bit addresses only"),
        # What the real compiler knows better is not said in its words.
        (kernel("popc.b32 %r1, %r2;"), INVALID_PTX, f"{HERE} 'popc.b32'"),
        (kernel("ld.shared.u32 %r1, [%rd1];"), INVALID_PTX, f"{HERE} 'ld.shared.u32'"),
        (kernel("add.cc.u32 %r1, %r2, %r3;"), INVALID_PTX, f"{HERE} 'add.cc.u32'"),
        (kernel("mov.b64 %rd1, {%r1, %r2};"), INVALID_PTX, f"{HERE} vectors"),
        (kernel("mov.u32 %r1, %clock;"), INVALID_PTX, f"{HERE} '%clock'"),
        (kernel(".shared .u32 x;"), INVALID_PTX, f"{HERE} '.shared'"),
        (kernel("ret;") + ".global .u32 x;", INVALID_PTX, f"{HERE} '.global'"),
        (kernel("ret;") + ".nothing x;", INVALID_PTX, "Parsing error near '.nothing': syntax error"),
        (kernel("and.s32 %r1, %r2, %r3;"), INVALID_PTX, "Unexpected instruction types specified for 'and'"),
        (kernel("add.b32 %r1, %r2, %r3;"), INVALID_PTX, "Unexpected instruction types specified for 'add'"),
        (kernel("setp.s32 %p1, %r2, %r3;"), INVALID_PTX, "Comparison modifier required for instruction 'setp'"),
        (kernel("setp.lt.b32 %p1, %r2, %r3;"), INVALID_PTX, "Mismatch between instruction type and comparison"),
        (kernel("setp.hi.s32 %p1, %r2, %r3;"), INVALID_PTX, "Mismatch between instruction type and comparison"),
        (kernel("add.u32 %r1, %tid.x, 1;"), INVALID_PTX, "Special register argument not allowed for instruction 'add'"),
        (kernel("mov.u64 %rd1, %tid.x;"), INVALID_PTX, "Arguments mismatch for instruction 'mov'"),
        (kernel("mov.u32 5, %r1;"), INVALID_PTX, "Result register required for instruction 'mov'"),
        (kernel("mov.u32 %r1;"), INVALID_PTX, "Arguments mismatch for instruction 'mov'"),
        (kernel("mov.u32 %r1, %r2, %r3;"), INVALID_PTX, "Arguments mismatch for instruction 'mov'"),
        (kernel("add.u64 %r1, %r2, %r3;"), INVALID_PTX, "Arguments mismatch for instruction 'add'"),
        (kernel("ld.global.u64 %r1, [%rd1];"), INVALID_PTX, "Arguments mismatch for instruction 'ld'"),
        (kernel("shl.b64 %rd1, %rd2, %rd3;"), INVALID_PTX, "Arguments mismatch for instruction 'shl'"),
        (kernel("selp.u32 %r1, %r2, %r3, %r4;"), INVALID_PTX, "Arguments mismatch for instruction 'selp'"),
        (kernel("mov.u32 %r1, 12x;"), INVALID_PTX, "Parsing error near 'x': syntax error"),
        (kernel(".reg .u32 %r1;"), INVALID_PTX, "Duplicate definition of variable '%r1'"),
        (kernel("ret;") + kernel("ret;").split("64\n")[1], INVALID_PTX, "Duplicate definition of function 'k'"),
    ],
)
def test_bad_ptx_is_refused_with_a_reason(ready, text, code, words):
    module, log = ready.load(text)
    assert ready.code == code
    assert words in log
    assert module.value is None


def test_all_errors_are_told_but_unknown_symbols_last(ready):
    _module, log = ready.load(kernel("bra NOWHERE;\nfrobnicate.u32 %r1, 1;\nmul.s32 %r1, %r2, %r3;"))
    assert log.splitlines() == [
        "ptxas application ptx input, line 11; error   : Not a name of any known instruction: 'frobnicate'",
        "ptxas application ptx input, line 12; error   : Unexpected instruction types specified for 'mul'",
        "ptxas application ptx input, line 10; error   : Unknown symbol 'NOWHERE'",
        "ptxas fatal   : Ptx assembly aborted due to errors",
    ]


def test_what_the_driver_knows_of_ptx_grows_with_it(cuda, scenario):
    chosen = scenario("k20c-x1")
    cuda("cuInit", 0)
    cuda.context()
    for version, code in (("7.4", 0), ("7.5", UNSUPPORTED_PTX_VERSION)):
        cuda.load(kernel("ret;").replace("6.3", version))
        assert cuda.code == code
    cuda.load(kernel("ret;").replace("sm_30", "sm_37"))
    assert cuda.code == INVALID_PTX
    assert chosen.devices[0]["compute_capability"] == [3, 5]


WORD = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module")
def calculator(built, tmp_path_factory):
    """A library for many small kernels: the scenario is there for as long as the module's tests run."""
    directory = tmp_path_factory.mktemp("calculator")
    document = generate.scenario("a100-sxm4-40gb-x2")
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
    assert threads_of_a_grid(ready) == list(range(GRID_THREADS))


def test_a_kernel_that_leaves_its_memory_breaks_its_process(ready):
    text = kernel("ld.param.u64 %rd1, [out]; mov.u32 %r1, 1; st.global.u32 [%rd1+4096], %r1; ret;", ".param .u64 out")
    out = ready.memory(4096)
    assert ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), out) == 0
    assert ready("cuCtxSynchronize") == ILLEGAL_ADDRESS
    assert ready("cuMemFree_v2", out) == ILLEGAL_ADDRESS
    # The other GPU's context too.
    assert ready("cuCtxCreate_v2", ctypes.byref(Handle()), 0, 1) == ILLEGAL_ADDRESS
    assert ready("cuDevicePrimaryCtxRetain", ctypes.byref(Handle()), 1) == ILLEGAL_ADDRESS
    assert ready.integer("cuDeviceGetCount") == 2


def test_a_misaligned_access(ready):
    text = kernel("ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1+2]; ret;", ".param .u64 out")
    ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), ready.memory(64))
    assert ready("cuCtxSynchronize") == MISALIGNED_ADDRESS


def test_one_gpu_does_not_reach_the_memory_of_the_other(ready):
    other = ready.memory(64)
    ready.context(1)
    text = kernel("ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [%rd1]; ret;", ".param .u64 out")
    ready.launch(ready.function(text), (1, 1, 1), (1, 1, 1), other)
    assert ready("cuCtxSynchronize") == ILLEGAL_ADDRESS


# Which GPUs are seen


def names(cuda) -> list[str]:
    count = cuda.integer("cuDeviceGetCount")
    buffer = ctypes.create_string_buffer(96)
    found = []
    for index in range(count):
        cuda("cuDeviceGetName", buffer, 96, index)
        found.append(buffer.value.decode())
    return found


def test_order_of_the_gpus(built, tmp_path, scenario, monkeypatch):
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


def test_of_cut_gpus_one_instance_is_seen(built, tmp_path, scenario, monkeypatch, cuda):
    chosen = scenario("a100-sxm4-40gb-x8-mig")
    assert cuda("cuInit", 0) == 0
    assert len(names(cuda)) == 6
    chosen.document["devices"] = chosen.devices[:2]
    chosen.write()
    fresh = Cuda(load_copy(built / "libcuda.so.1", tmp_path, "libcuda.one"))
    assert fresh("cuInit", 0) == 0
    assert names(fresh) == ["NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen.devices[1]["mig"]["instances"][0]["compute"][0]["uuid"])
    other = Cuda(load_copy(built / "libcuda.so.1", tmp_path, "libcuda.other"))
    assert other("cuInit", 0) == 0
    assert names(other) == ["NVIDIA A100-SXM4-40GB MIG 3g.20gb"]


def test_a_lost_gpu_is_not_there(cuda, scenario):
    scenario("lost-one-of-eight")
    assert cuda("cuInit", 0) == 0
    assert cuda.integer("cuDeviceGetCount") == 7


def test_a_gpu_that_is_lost_later(ready):
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


def test_an_error_for_one_gpu(cuda, scenario):
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
            ROOT / "plugins/module_utils/verify/cuda_driver.py",
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
    assert [device["uuid"] for device in result["devices"]] == [gpu["uuid"] for gpu in chosen.devices]


def test_the_device_query_finds_the_gpu_that_computes_wrong(built, scenario):
    scenario("wrong-kernel-result")
    result = query(built)
    assert [device["ok"] for device in result["devices"]] == [True, False]
    assert "element 4711" in result["devices"][1]["error"]["text"]
