# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs under load on the simulated driver library, which runs the real kernels: what is found, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.simulators import generate

ROOT = Path(__file__).resolve().parents[5]
PROGRAM = """
import json, sys
from ansible_collections.baremetal.gpu.plugins.module_utils.accept import gpus, load
print(json.dumps(gpus.run(load.Options(**json.loads(sys.argv[1])), None)))
"""


@pytest.fixture
def under_load(cuda_library, nvml_library, tmp_path):
    def run(name="a100-sxm4-40gb-x2", options=None, **changes):
        scenario = {**generate.scenario(name), "kernel": "assume-loaded", **changes}
        # The time that the GPU would take, and not this machine.
        scenario["cuda"] = {"clock": "device", **scenario["cuda"]}
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(scenario))
        # As little as there can be: the kernels are interpreted.
        small = {"seconds": 0, "memory_mib": 2, "copy_mib": 1, "repeats": 1, "library": str(cuda_library)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, json.dumps({**small, **(options or {})})],
            env={**os.environ, "NVML_SIMULATOR_SCENARIO": str(path), "LD_LIBRARY_PATH": str(nvml_library)},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_nothing_goes_on_when_nobody_waits_for_it(cuda_library, nvml_library, tmp_path):
    scenario = {**generate.scenario("t4-x1"), "kernel": "assume-loaded"}
    (tmp_path / "scenario.json").write_text(json.dumps(scenario))
    options = {"seconds": 3600, "memory_mib": 2, "copy_mib": 1, "repeats": 1, "library": str(cuda_library)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        env={
            **os.environ,
            "NVML_SIMULATOR_SCENARIO": str(tmp_path / "scenario.json"),
            "LD_LIBRARY_PATH": str(nvml_library),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 2:
        time.sleep(0.05)
    at_work = children.read_text().split()
    process.stdout.close()
    process.wait(60)
    assert at_work
    assert not [pid for pid in at_work if Path(f"/proc/{pid}/stat").exists()]


def wrong(row):
    return {kind: row[kind]["wrong"] for kind in ("copies", "fp32", "fp64", "bf16", "memory") if kind in row}


CLEAN = {"copies": 0, "fp32": 0, "fp64": 0, "bf16": 0, "memory": 0}


def test_sound_gpus_pass_and_are_measured(under_load):
    result = under_load()
    assert (result["error"], result["nvml_error"]) == (None, None)
    assert len(result["devices"]) == 2
    for row in result["devices"]:
        assert (row["error"], wrong(row)) == (None, CLEAN)
        assert row["own_flip"]["found"] is True
        assert row["own_flip"]["others"] == 0
        assert row["tested_mib"] == 2
        assert row["copies"]["host_to_device_pinned_gb_s"] > row["copies"]["host_to_device_pageable_gb_s"] > 0
        assert all(row[kind]["tflops"] > 0 for kind in ("fp32", "fp64", "bf16"))
        assert row["readings"]["pcie"] == {"generation": 4, "generation_max": 4, "width": 16, "width_max": 16}
        assert row["readings"]["grown"] == {}
    (pair,) = result["pairs"]
    assert (pair["peers"], pair["wrong"], pair["error"]) == (True, 0, None)
    # Twelve NVLinks are faster than the bus.
    assert min(pair["there_gb_s"], pair["back_gb_s"]) > 100


def test_a_bit_of_the_memory_that_sticks_is_found_at_its_place(under_load):
    # Of the memory under test: what is allocated before it is a few KiB.
    result = under_load(cuda={"stuck_bit": {"device": 1, "byte": 1 << 20, "bit": 3}})
    sound, sick = result["devices"]
    assert wrong(sound) == CLEAN
    assert wrong(sick)["memory"] > 0
    assert {kind: count for kind, count in wrong(sick).items() if kind != "memory"} == {
        kind: 0 for kind in CLEAN if kind != "memory"
    }
    places = {row["byte"] for row in sick["memory_errors"]}
    bits = {int(row["bits"], 16) for row in sick["memory_errors"]}
    assert len(places) == 1
    assert bits == {1 << (8 * ((1 << 20) % 8) + 3)}


def test_arithmetic_that_is_wrong_is_found_with_its_multiprocessor(under_load):
    result = under_load(cuda={"wrong_real": {"device": 1, "element": 7, "bit": 2}})
    sound, sick = result["devices"]
    assert wrong(sound) == CLEAN
    counts = wrong(sick)
    assert all(counts[kind] > 0 for kind in ("fp32", "fp64", "bf16"))
    assert (counts["memory"], counts["copies"]) == (0, 0)
    assert sick["fp32"]["multiprocessors"] == [0]


def test_a_slow_gpu_and_a_narrow_link_show_in_their_rates(under_load):
    scenario = generate.scenario("a100-sxm4-40gb-x2")
    scenario["devices"][0]["pci"]["width"] = 8
    result = under_load(devices=scenario["devices"], cuda={"speed": {"device": 1, "factor": 0.93}})
    narrow, slow = result["devices"]
    for kind in ("fp32", "fp64", "bf16"):
        assert slow[kind]["tflops"] == pytest.approx(0.93 * narrow[kind]["tflops"], rel=1e-3)
    assert narrow["copies"]["host_to_device_pinned_gb_s"] == pytest.approx(
        slow["copies"]["host_to_device_pinned_gb_s"] / 2, rel=1e-2
    )


def test_a_gpu_that_hangs_costs_the_other_nothing(under_load):
    result = under_load(options={"timeout_s": 20}, faults=[{"call": "cuLaunchKernel", "device": 1, "hang": True}])
    sound, sick = result["devices"]
    assert (sound["error"], wrong(sound)) == (None, CLEAN)
    assert sick["error"]["name"] == "TIMEOUT"
    assert sick["error"]["call"].startswith("memory")


def test_gpus_without_tensor_cores_for_bf16_do_without(under_load):
    result = under_load("t4-x1")
    (row,) = result["devices"]
    assert row["error"] is None
    assert "bf16" not in row
    assert result["pairs"] == []


def test_without_a_driver_there_is_an_error_and_no_more(under_load):
    result = under_load(options={"library": "libnothing.so.1"})
    assert result["error"]["name"] == "LIBRARY_NOT_LOADED"
    assert result["devices"] == []
