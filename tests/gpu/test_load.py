# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs under load for a minute: right results, figures that can be, and a memory test that finds what it turned."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import gpu as judge
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import nominal
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL


@pytest.fixture(scope="module")
def load(module, facts):
    if any((gpu.get("mig") or {}).get("enabled") for gpu in facts["devices"]):
        pytest.skip("MIG is on: CUDA shows one partition only")
    return module("gpu_load", minutes=1)["load"]


def test_every_result_is_right(load):
    assert (load["error"], load["nvml_error"]) == (None, None)
    for gpu in load["devices"]:
        assert gpu["error"] is None
        kinds = ("copies", "fp32", "fp64", "bf16", "memory")
        assert {kind: gpu[kind]["wrong"] for kind in kinds if kind in gpu} == {kind: 0 for kind in kinds if kind in gpu}
        assert gpu["own_flip"]["found"] is True
        assert gpu["own_flip"]["others"] == 0
        capable = tuple(map(int, gpu["compute_capability"].split("."))) >= (8, 0)
        assert ("bf16" in gpu) == capable


def test_nearly_all_memory_is_tested(load):
    for gpu in load["devices"]:
        assert gpu["tested_mib"] > 0.9 * gpu["memory_mib"]


def test_no_figure_is_beyond_the_data_sheet(load):
    for gpu in load["devices"]:
        sheet = nominal.NOMINAL.get(gpu["name"])
        if sheet is None:
            pytest.skip(f"no data sheet of {gpu['name']} is known")
        for kind, rate in (("fp32", "tflops"), ("fp64", "tflops"), ("bf16", "tflops"), ("memory", "gb_s")):
            if kind in gpu and sheet.of(kind):
                # A GPU may clock a little higher than its data sheet says.
                assert 0 < gpu[kind][rate] < 1.15 * sheet.of(kind), (kind, gpu[kind])


def test_the_load_is_one(load):
    for gpu in load["devices"]:
        assert gpu["seconds"] >= 60
        assert gpu["readings"]["samples"] > 5
        assert gpu["readings"]["most"]["power_w"] > 0.3 * gpu["readings"]["power_limit_w"]


def test_a_sound_host_has_nothing_that_fails(load, facts):
    found = judge.items({"here": {"gpu": facts, "load": load}})
    assert [item for item in found if item.outcome == FAIL] == []


def test_pairs_copy_right(load):
    if len(load["devices"]) < 2:
        pytest.skip("there is one GPU here, and no pair")
    for pair in load["pairs"]:
        assert (pair["error"], pair["wrong"]) == (None, 0)
