# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenarios of simulators/generate.py, of hosts and patches: each is there, consistent and unlike its host."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulators import generate
from tests.unit.simulators.conftest import ROOT, SIMULATORS

EXPECTED = {
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
# How tests, documents and the lab name a scenario: as an argument, for a machine, by its GPUs.
WORDS = r"([a-z0-9]+(?:-[a-z0-9]+)+)"
NAMES = (
    re.compile(rf"""\b(?:scenario|Scenario|take|probe)\((?:\w+, )?"{WORDS}\""""),
    re.compile(rf"""\bscenario"?,? [\w{{}}]+,? "?{WORDS}"""),
    re.compile(rf"""(?::\w+:|MachineSpec\("\w+", "\w+", "){WORDS}"""),
    re.compile(rf"""\b((?:{"|".join(map(re.escape, generate.MODELS))})-x[0-9][a-z0-9-]*)"""),
)


def files_of(directory):
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in directory.glob("*.json")}


def test_make_writes_what_tests_get(built):
    """The lab installs the files, tests ask the program; both have the same."""
    assert files_of(built / "scenarios") == {name: generate.scenario(name) for name in generate.PATCHES}


def test_make_writes_anew_when_a_source_has_changed(tmp_path):
    """A scenario that is new comes, one that is no more goes."""
    for name in ("Makefile", "generate.py", "models.json", "hosts.json", "scenarios.json", "faults.json"):
        shutil.copy(SIMULATORS / name, tmp_path)
    make = ["make", "--silent", "-C", tmp_path, "scenarios"]
    subprocess.run(make, check=True)
    assert set(files_of(tmp_path / "build/scenarios")) == set(generate.PATCHES)
    source = tmp_path / "scenarios.json"
    source.write_text(source.read_text(encoding="utf-8").replace('"name": "t4-x1"', '"name": "t4-new", "of": "t4-x1"'))
    subprocess.run(make, check=True)
    fresh = files_of(tmp_path / "build/scenarios")
    assert set(fresh) == (set(generate.PATCHES) - {"t4-x1"}) | {"t4-new"}
    assert fresh["t4-new"]["devices"] == generate.scenario("t4-x1")["devices"]


def test_every_scenario_is_there_and_described():
    readme = (SIMULATORS / "README.md").read_text(encoding="utf-8")
    for name in ("scenarios", "faults"):
        rows = json.loads((SIMULATORS / f"{name}.json").read_text(encoding="utf-8"))[name]
        assert len({row["name"] for row in rows}) == len(rows)
    assert set(generate.PATCHES) >= EXPECTED | set(generate.FAULTS)
    assert [name for name in generate.PATCHES if f"`{name}`" not in readme and name not in generate.FAULTS] == []


def test_every_scenario_that_is_named_somewhere_exists():
    known = {*generate.PATCHES, *generate.HOSTS}
    named: dict[str, set[str]] = {}
    for path in (*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), SIMULATORS / "README.md"):
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        for name in {name for pattern in NAMES for name in pattern.findall(text)}:
            named.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    assert {"a100-sxm4-40gb-x2", "no-gpu", "wrong-kernel-result", "nouveau-in-use", "xid-31"} <= set(named)
    assert {name: places for name, places in named.items() if name not in known} == {}
    readme = (SIMULATORS / "README.md").read_text(encoding="utf-8")
    for start in re.findall(r"`([a-z]+-)\*`", readme):
        assert any(name.startswith(start) for name in generate.FAULTS), start


@pytest.mark.parametrize("name", generate.PATCHES)
def test_a_patch_changes_its_host(name):
    patch = generate.PATCHES[name]
    assert set(patch) <= {"name", "of", "imitates", "driver", "mig", "retired_pages", "change"}
    in_every = generate.EVERY_FAULT if name in generate.FAULTS else {}
    healthy = generate.patched({**patch, "mig": {}, "retired_pages": {}, "change": in_every})
    # A host of its own name is taken as it is.
    assert (generate.scenario(name) == healthy) == (name in generate.HOSTS)


@pytest.mark.parametrize(
    ("patch", "refusal"),
    [
        ({"change": {"devices.1.stat": "lost"}}, "no devices.1.stat"),
        ({"change": {"devices.1.pci.lanes": 8}}, "no devices.1.pci.lanes"),
        ({"change": {"devices.2.state": "lost"}}, "no devices.2.state"),
        ({"change": {"devices.*.fabric.state": 1}}, "no devices.*.fabric.state"),
        ({"change": {"devices.second.state": "lost"}}, "no devices.second.state"),
        ({"change": {"name.first": "x"}}, "no name.first"),
        ({"change": {"kernel_lines": []}}, "no kernel_lines"),
        ({"change": {"devices.1.state": "ok"}}, "devices.1.state is so in its host already"),
        ({"mig": {"1": ["3g.20gb"]}}, "no devices.1.mig with 3g.20gb"),
        ({"retired_pages": {"7": {"double_bit": 1}}}, "no devices.7.retired_pages"),
        ({"of": "t4-x3"}, "no template t4-x3"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused(patch, refusal):
    with pytest.raises(generate.PatchError) as caught:
        generate.patched({"name": "mine", "of": "t4-x2", "imitates": "something that is made up", **patch})
    assert str(caught.value).startswith("scenario mine: ")
    assert str(caught.value).endswith(refusal)


def test_a_profile_that_a_gpu_lacks_is_refused():
    patch = {"name": "mine", "of": "a100-sxm4-40gb-x2", "imitates": "something", "mig": {"0": ["1g.5gb", "9g.9gb"]}}
    with pytest.raises(
        generate.PatchError, match=r"^scenario mine: its host has no devices.0.mig with 1g.5gb, 9g.9gb$"
    ):
        generate.patched(patch)


def test_a_scenario_is_the_callers_own():
    """What one test changes, another one does not see."""
    for name in ("xid-31", "a100-sxm4-40gb-x8-mig", "wrong-kernel-result"):
        mine = generate.scenario(name)
        mine["events"].append({"id": 99})
        mine["kernel_log"].append({"id": 99})
        mine["cuda"]["wrong_copy"] = {}
        for device in mine["devices"]:
            device["pci"]["width"] = 1
            device["temperature"]["gpu"] = 99
            device["cuda"]["cores"] = 1
        assert generate.scenario(name) != mine
        assert "99" not in str([generate.scenario(name)[key] for key in ("events", "kernel_log")]).split()
        assert "wrong_copy" not in generate.scenario(name)["cuda"]
        assert generate.scenario(name)["devices"][0]["pci"]["width"] == 16
        assert generate.scenario(name)["devices"][0]["temperature"]["gpu"] < 99
        assert generate.scenario(name)["devices"][0]["cuda"]["cores"] > 1


def test_a_fault_leaves_the_first_gpu_alone():
    """So that a test can tell a verdict on the sick GPU from one on all."""
    first: dict[str, dict] = {}
    for name, row in generate.FAULTS.items():
        document = generate.scenario(name)
        assert document["imitates"] == row["imitates"]
        assert document["devices"][0] == first.setdefault(row["of"], document["devices"][0]), name
        assert set(document) > {"events", "faults"}
    for of, whole in (("a100-sxm4-40gb-x2", "a100-sxm4-40gb-x2"), ("h100-sxm-x2", "h100-sxm-x8")):
        healthy = generate.scenario(whole)["devices"][0]
        assert {**first[of], "persistence": "daemon"} == healthy | {"pci": first[of]["pci"]}


@pytest.mark.parametrize("name", generate.PATCHES)
def test_a_scenario_is_consistent(name):
    document = generate.scenario(name)
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
