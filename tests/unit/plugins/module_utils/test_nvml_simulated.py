# SPDX-License-Identifier: GPL-3.0-or-later
"""The real pynvml on the simulated NVML library: scenarios of cards, and of what goes wrong with them."""

from __future__ import annotations

import time

import pytest

PROBE = """
import importlib.util, json, os, pathlib, sys
from ansible_collections.baremetal.gpu.plugins.module_utils import gpu, pci
source = pathlib.Path(importlib.util.find_spec("pynvml").origin).read_text()
root = os.environ["SIMULATED_ROOT"]
print(json.dumps(gpu.probe(source, float(sys.argv[1]), root, pci.scan(root), gpu.SUBSETS)))
"""


@pytest.fixture
def probe(simulated_host):
    def run(name, deadline_s=20.0, **changes):
        simulated_host.take(name, **changes)
        return simulated_host.python(PROBE, str(deadline_s))

    return run


def test_eight_h100(probe):
    answer = probe("h100-sxm-x8")
    assert answer["error"] is None
    assert answer["cuda"] == "12.4"
    assert [card["index"] for card in answer["devices"]] == list(range(8))
    assert len({card["uuid"] for card in answer["devices"]}) == 8
    first = answer["devices"][0]
    assert (first["slug"], first["architecture"], first["compute_capability"]) == ("h100-80gb-hbm3", "hopper", "9.0")
    assert (first["memory_mib"], first["nvlinks"]) == (81559, 18)
    assert first["pcie"] == {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16}
    assert first["not_applicable"] == []


def test_a_k20c_says_what_it_does_not_have(probe):
    (card,) = probe("k20c-x1")["devices"]
    assert card["architecture"] == "kepler"
    assert (card["mig"], card["nvlinks"]) == (None, None)
    assert card["not_applicable"] == ["mig", "nvlinks"]
    assert "error" not in card


def test_a_geforce_beside_an_a100(probe):
    geforce, tesla = probe("mixed")["devices"]
    assert geforce["not_applicable"] == ["ecc", "mig", "nvlinks", "serial"]
    assert tesla["ecc"]["enabled"] is True


def test_mig_on_one_card(probe):
    modes = [card["mig"]["enabled"] for card in probe("a100-sxm4-40gb-x8-mig")["devices"]]
    assert modes[0] is True
    assert modes[7] is False


def test_one_of_eight_is_lost(probe):
    answer = probe("lost-one-of-eight")
    assert answer["error"] is None
    assert {card["index"]: card["error"]["name"] for card in answer["devices"] if "error" in card} == {5: "gpu_is_lost"}


def test_library_and_module_of_different_versions(probe):
    error = probe("driver-library-mismatch")["error"]
    assert (error["code"], error["name"]) == (18, "lib_rm_version_mismatch")


def test_no_module_is_loaded(probe):
    error = probe("a100-sxm4-40gb-x2", kernel="stand-in")["error"]
    assert (error["code"], error["name"]) == (9, "driver_not_loaded")


def test_a_card_that_hangs(probe):
    start = time.monotonic()
    answer = probe("t4-x1", deadline_s=1, faults=[{"call": "nvmlDeviceGetUUID", "hang": True}])
    assert answer["error"]["name"] == "timeout"
    assert time.monotonic() - start < 5


def test_a_library_that_crashes(probe):
    answer = probe("t4-x1", faults=[{"call": "nvmlDeviceGetName", "crash": True}])
    assert answer["error"]["name"] == "crashed"


@pytest.mark.parametrize(("code", "name"), [(16, "reset_required"), (999, "unknown")])
def test_a_question_that_fails_on_one_card(probe, code, name):
    first, second = probe(
        "a100-sxm4-40gb-x2", faults=[{"call": "nvmlDeviceGetMemoryInfo", "device": 1, "error": code}]
    )["devices"]
    assert "error" not in first
    assert first["memory_mib"] == 40960
    assert second["error"]["name"] == name
    assert second.get("memory_mib") is None
