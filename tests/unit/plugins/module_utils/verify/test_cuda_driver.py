# SPDX-License-Identifier: GPL-3.0-or-later
"""The query of the GPUs on the simulated driver library, run as a program: what passes, and what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from tests.simulators import generate

ROOT = Path(__file__).resolve().parents[5]
SIMULATORS = ROOT / "tests" / "simulators"
PROGRAM = Path(cuda_driver.__file__)


@pytest.fixture
def query(cuda_library, tmp_path):
    def run(name, *arguments, **changes):
        scenario = generate.scenario(name)
        # Without a simulated kernel the scenario itself says that the module is loaded.
        scenario.update({"kernel": "assume-loaded", **changes})
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario))
        # Small, so that interpreting the kernel takes no time.
        small = ["--copy-mib", "2", "--repeats", "2", "--elements", "5000"]
        done = subprocess.run(
            [sys.executable, "-I", "-", "--library", str(cuda_library), *small, *arguments],
            env={**os.environ, "NVML_SIMULATOR_SCENARIO": str(path), "CUDA_VISIBLE_DEVICES": "1"},
            input=PROGRAM.read_text(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stderr == ""
        result = json.loads(done.stdout)
        assert done.returncode == (0 if result["ok"] else 1)
        return result

    return run


def fault(call, device=None, **what):
    return [{"call": call, **({} if device is None else {"device": device}), **what}]


def test_two_gpus_pass(query):
    result = query("a100-sxm4-40gb-x2")
    assert result["ok"] is True
    assert (result["count"], result["cuda"], result["error"]) == (2, "12.4", None)
    # All GPUs, whatever the caller's environment says of visible devices.
    assert [gpu["pci_address"] for gpu in result["devices"]] == ["0000:3b:00.0", "0000:af:00.0"]
    first = result["devices"][0]
    assert first["uuid"] == "GPU-c18f9569-83a8-5313-9d05-77b2d6e79883"
    assert (first["name"], first["compute_capability"]) == ("NVIDIA A100-SXM4-40GB", "8.0")
    assert (first["multiprocessors"], first["ecc"], first["compute_mode"]) == (108, True, "default")
    assert (first["copy"]["mib"], first["copy"]["ok"]) == (2, True)
    for way in ("host_to_device", "device_to_device", "device_to_host"):
        assert first["copy"][f"{way}_gb_s"] > 0
    assert first["kernel"]["elements"] == 5000
    assert first["kernel"]["wrong"] == 0


def test_a_kepler_takes_the_same_kernel(query):
    result = query("k20c-x1", driver={"version": "470.256.02", "library_version": None, "cuda_version": None})
    assert result["ok"] is True
    assert (result["cuda"], result["devices"][0]["compute_capability"]) == ("11.4", "3.5")


def test_some_gpus_only(query):
    result = query("a100-sxm4-40gb-x8", "--devices", "3,5")
    assert [gpu["index"] for gpu in result["devices"]] == [3, 5]
    assert (result["ok"], result["count"]) == (True, 8)


def test_a_wrong_bit_is_found(query):
    result = query("wrong-kernel-result")
    assert result["ok"] is False
    good, bad = result["devices"]
    assert good["ok"] is True
    assert bad["copy"]["ok"] is True
    assert (bad["kernel"], bad["error"]["name"]) == (None, "WRONG_RESULT")
    assert bad["error"]["text"].startswith("1 of 5000 elements are wrong, first element 4711: ")


def test_a_byte_that_changes_in_a_copy_is_found(query):
    result = query("a100-sxm4-40gb-x2", cuda={"wrong_copy": {"device": 0, "byte": 77, "bit": 3}})
    assert [gpu["ok"] for gpu in result["devices"]] == [False, True]
    assert result["devices"][0]["error"] == {
        "call": "copy",
        "code": None,
        "name": "WRONG_RESULT",
        "text": "2097152 bytes came back from the device changed",
    }


def test_a_slow_gpu_shows_in_its_bandwidth(query):
    result = query("a100-sxm4-40gb-x2", cuda={"slow": {"device": 1, "mb_s": 100}})
    fast, slow = (gpu["copy"]["host_to_device_gb_s"] for gpu in result["devices"])
    assert slow <= 0.11
    assert fast > 3 * slow


@pytest.mark.parametrize("error", [700, 716, 719])
def test_an_error_that_ends_its_process_is_told_of_its_gpu_only(query, error):
    result = query("a100-sxm4-40gb-x8", "--devices", "1,3,4,6", faults=fault("cuEventSynchronize", 3, error=error))
    assert [(gpu["index"], gpu["ok"]) for gpu in result["devices"]] == [(1, True), (3, False), (4, True), (6, True)]
    assert result["devices"][1]["error"]["code"] == error
    assert result["error"] is None


@pytest.mark.parametrize(
    ("scenario", "changes", "call", "code"),
    [
        ("driver-library-mismatch", {}, "cuInit", 803),
        ("fabric-not-ready", {}, "cuInit", 802),
        ("no-gpu", {}, "cuInit", 100),
        ("a100-sxm4-40gb-x2", {"faults": fault("cuInit", error=999)}, "cuInit", 999),
        ("a100-sxm4-40gb-x2", {"faults": fault("cuDeviceGetCount", error=999)}, "cuDeviceGetCount", 999),
    ],
)
def test_a_driver_that_does_not_start(query, scenario, changes, call, code):
    result = query(scenario, **changes)
    assert result["ok"] is False
    assert result["devices"] == []
    assert (result["error"]["call"], result["error"]["code"]) == (call, code)
    assert result["error"]["name"].startswith("CUDA_ERROR_")
    assert result["error"]["text"]


# Every call that is made for a GPU, each failing on the second GPU only.
CALLS = [
    "cuDeviceGetName",
    "cuDeviceGetUuid",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetAttribute",
    "cuCtxCreate_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemAlloc_v2",
    "cuMemsetD8_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuModuleLoadDataEx",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuCtxSynchronize",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_fails_on_one_gpu_leaves_the_other_alone(query, call):
    result = query("a100-sxm4-40gb-x2", faults=fault(call, 1, error=719))
    assert [gpu["ok"] for gpu in result["devices"]] == [True, False]
    assert (result["devices"][1]["error"]["call"], result["devices"][1]["error"]["code"]) == (call, 719)


def test_a_failing_release_is_no_pass(query):
    result = query("a100-sxm4-40gb-x2", faults=fault("cuMemFree_v2", 1, error=700))
    assert [gpu["ok"] for gpu in result["devices"]] == [True, False]
    assert result["devices"][1]["error"]["call"] == "cuMemFree_v2"


def test_every_call_for_a_gpu_is_tested():
    of_no_gpu = {
        "cuInit",
        "cuDriverGetVersion",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuGetErrorName",
        "cuGetErrorString",
    }
    releases = {"cuCtxDestroy_v2", "cuMemFree_v2", "cuMemFreeHost", "cuEventDestroy_v2", "cuModuleUnload"}
    assert set(CALLS) | of_no_gpu | releases == set(cuda_driver.PROTOTYPES)


def test_a_gpu_that_hangs_is_named_and_the_others_are_queried(query):
    start = time.monotonic()
    result = query("a100-sxm4-40gb-x8", "--timeout", "2", faults=fault("cuMemAlloc_v2", 2, hang=True))
    assert time.monotonic() - start < 60
    states = {gpu["index"]: gpu["ok"] for gpu in result["devices"]}
    assert states == {index: index != 2 for index in range(8)}
    hung = next(gpu for gpu in result["devices"] if gpu["index"] == 2)
    assert hung["error"] == {
        "call": "copy",
        "code": None,
        "name": "TIMEOUT",
        "text": "no answer within 2 s in step 'copy'",
    }


def test_a_driver_that_hangs(query):
    result = query("a100-sxm4-40gb-x2", "--timeout", "1", faults=fault("cuInit", hang=True))
    assert (result["error"]["name"], result["error"]["call"]) == ("TIMEOUT", "init")
    assert (result["devices"], result["ok"]) == ([], False)


def test_a_library_that_ends_the_process(query):
    result = query("a100-sxm4-40gb-x2", faults=fault("cuLaunchKernel", 0, crash=True))
    assert [(gpu["index"], gpu["ok"]) for gpu in result["devices"]] == [(0, False), (1, True)]
    assert result["devices"][0]["error"]["name"] == "CRASH"
    assert result["devices"][0]["error"]["text"] == "the process ended with signal 6 in step 'kernel'"


def test_no_library(query):
    result = query("a100-sxm4-40gb-x2", "--library", "libnothing.so.1")
    assert result["error"]["name"] == "LIBRARY_NOT_LOADED"
    assert "libnothing.so.1" in result["error"]["text"]


def test_another_library(query):
    result = query("a100-sxm4-40gb-x2", "--library", "libc.so.6")
    assert result["error"]["name"] == "SYMBOL_NOT_FOUND"
    assert "libc.so.6 has no cuInit" in result["error"]["text"]


# -- without a library ------------------------------------------------------------------------------------------------


def program(tmp_path, body):
    path = tmp_path / "device_query"
    path.write_text(f"#!/bin/sh\n{body}")
    path.chmod(0o755)
    return str(path)


def test_a_program_tells_its_steps_in_the_same_lines(tmp_path):
    path = program(
        tmp_path,
        """echo '{"event": "stage", "index": null, "stage": "init"}'
echo "$@" > "$0.arguments"
echo '{"event": "counted", "count": 1, "cuda": "12.4"}'
echo '{"event": "device", "device": {"index": 0, "ok": true, "error": null}}'
echo '{"event": "end"}'
""",
    )
    result = cuda_driver.run(cuda_driver.Options(timeout_s=10, elements=7), path)
    assert (result["ok"], result["source"], result["count"]) == (True, "runtime_api", 1)
    assert Path(path + ".arguments").read_text() == "--copy-mib 64 --repeats 5 --elements 7\n"


def test_a_program_that_hangs_at_a_gpu_is_called_again_for_the_rest(tmp_path):
    path = program(
        tmp_path,
        """echo '{"event": "counted", "count": 3, "cuda": "12.4"}'
case "$*" in
*--devices*) echo "$*" > "$0.again";;
*)
    echo '{"event": "stage", "index": 0, "stage": "copy"}'
    exec sleep 60
    ;;
esac
for index in 1 2; do
    echo '{"event": "device", "device": {"index": '$index', "ok": true, "error": null}}'
done
echo '{"event": "end"}'
""",
    )
    result = cuda_driver.run(cuda_driver.Options(timeout_s=0.5), path)
    assert Path(path + ".again").read_text().endswith("--devices 1,2\n")
    assert [(gpu["index"], gpu["ok"]) for gpu in result["devices"]] == [(0, False), (1, True), (2, True)]


def test_a_program_that_cannot_be_run(tmp_path):
    result = cuda_driver.run(cuda_driver.Options(timeout_s=5), str(tmp_path / "nothing"))
    assert "No such file or directory" in result["error"]["text"]
    assert result["ok"] is False


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00000000:AF:00.0", "0000:af:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("3B:00.0", "0000:3b:00.0"),
    ],
)
def test_pci_addresses(given, expected):
    assert cuda_driver.normalise_pci_address(given) == expected


@pytest.mark.parametrize(("version", "target"), cuda_driver.PTX_TARGETS)
def test_the_kernel_is_accepted_by_the_real_assembler(tmp_path, version, target):
    assembler = shutil.which("ptxas", path=f"/usr/local/cuda/bin:{os.environ['PATH']}")
    if assembler is None:
        pytest.skip("no ptxas here: it comes with a CUDA toolkit")
    source = tmp_path / "kernel.ptx"
    source.write_text(cuda_driver.ptx(version, target))
    done = subprocess.run(
        [assembler, "-arch=sm_80", str(source), "-o", "/dev/null"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
