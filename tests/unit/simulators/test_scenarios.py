# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenarios are what generate.py makes of models.json and faults.json, and each says what it imitates."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from tests.unit.simulators.conftest import ROOT, SIMULATORS

FAULTS = json.loads((SIMULATORS / "faults.json").read_text(encoding="utf-8"))["faults"]
SCENARIOS = {path.stem: path for path in (SIMULATORS / "scenarios").glob("*.json")}

WANTED = {
    "k20c-x1",
    "gtx1080-x2",
    "v100-sxm2-16gb-x8",
    "a100-sxm4-40gb-x2",
    "a100-sxm4-40gb-x8",
    "a100-sxm4-40gb-x8-mig",
    "h100-sxm-x8",
    "mixed",
    "lost-one-of-eight",
    "no-gpu",
    "nouveau-bound",
    "a100-uvm-missing",
    "fabric-not-ready",
    "driver-library-mismatch",
    "wrong-kernel-result",
}


def test_the_files_are_the_generated_ones(tmp_path):
    """Generated anew beside a copy of what they are made from."""
    for name in ("generate.py", "models.json", "faults.json"):
        (tmp_path / name).write_bytes((SIMULATORS / name).read_bytes())
    (tmp_path / "scenarios").mkdir()
    subprocess.run([sys.executable, tmp_path / "generate.py"], check=True, capture_output=True)
    fresh = {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "scenarios").iterdir()}
    assert {name: path.read_text(encoding="utf-8") for name, path in SCENARIOS.items()} == fresh


def test_every_scenario_is_there_and_described():
    readme = (SIMULATORS / "README.md").read_text(encoding="utf-8")
    faults = [row["name"] for row in FAULTS]
    assert len(set(faults)) == len(faults)
    assert set(SCENARIOS) >= WANTED | set(faults)
    assert [name for name in SCENARIOS if f"`{name}`" not in readme and name not in faults] == []


def test_a_fault_leaves_the_first_card_alone():
    """So that a test can tell a verdict on the sick card from one on all."""
    first: dict[str, dict] = {}
    for row in FAULTS:
        document = json.loads(SCENARIOS[row["name"]].read_text(encoding="utf-8"))
        assert document["imitates"] == row["imitates"]
        assert document["devices"][0] == first.setdefault(row["of"], document["devices"][0]), row["name"]
        assert set(document) > {"events", "faults"}
    for of, whole in (("a100-sxm4-40gb-x2", "a100-sxm4-40gb-x2"), ("h100-sxm-x2", "h100-sxm-x8")):
        healthy = json.loads(SCENARIOS[whole].read_text(encoding="utf-8"))["devices"][0]
        assert {**first[of], "persistence": "daemon"} == healthy | {"pci": first[of]["pci"]}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_is_consistent(name):
    document = json.loads(SCENARIOS[name].read_text(encoding="utf-8"))
    assert document["name"] == name
    assert len(document["imitates"]) > 15
    assert document["origin"].startswith("hand-made")
    devices = document["devices"]
    for key in ("uuid", "minor"):
        assert len({device[key] for device in devices}) == len(devices)
    boxes = {item["pci"]["address"] for item in [*devices, *document["switches"]]}
    assert len(boxes) == len(devices) + len(document["switches"])
    for device in devices:
        assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", device["uuid"])
        assert (device["ecc"] is None) == (device["serial"] is None)
        assert not (device["retired_pages"] and device["remapped_rows"])
        for link in (device["nvlinks"] or {"links": []})["links"]:
            assert (link["remote"] in boxes) or not link["up"]
        cut = sum(instance["slices"] for instance in (device["mig"] or {"instances": []})["instances"])
        assert cut <= 7


def test_the_simulators_import_nothing_of_the_product():
    """Else they could agree with it by construction."""
    for path in SIMULATORS.rglob("*"):
        if path.suffix in (".py", ".c", ".h") and path.is_file():
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"(import|from)\s+(ansible|gpuops|plugins)", text), path
            assert "stand-in" in text.lower() or "simulat" in text.lower(), f"{path} does not say what it is"


def test_the_product_knows_no_simulator():
    for directory in ("roles", "plugins", "playbooks"):
        for path in (ROOT / directory).rglob("*"):
            if path.suffix in (".py", ".yml", ".j2") and path.is_file():
                text = path.read_text(encoding="utf-8").lower()
                assert "baremetal-gpu-simulators" not in text, path
                assert "nvml_simulator" not in text, path
