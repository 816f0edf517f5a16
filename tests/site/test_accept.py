# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops accept on the finished machines of the lab: a sound node passes, each fault is named, and nothing else is.

The kernels really run, interpreted, so little memory is tested.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpuops.accept import record, report
from tests.site.plays import INVENTORY, ROOT, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NODE, OTHER = "gpu1", "gpu2"
SCENARIO = "/opt/baremetal-gpu-simulators/scenario.json"
SMALL = ("--", "-e", "accept_memory_mib=4", "-e", "accept_copy_mib=2")
# What is the lab's host's, and not the machine's.
NOT_ITS_OWN = {"node.time", "node.iommu", "node.hugepages", "node.disk", "node.nic"}


class Bench:
    """A directory of a site that has the lab's inventory, and gpuops called there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.inventory = directory / "inventory"
        self.inventory.mkdir()
        (self.inventory / "lab.py").write_text(f"#!/bin/sh\nexec {sys.executable} {INVENTORY}/hosts.py\n")
        (self.inventory / "lab.py").chmod(0o755)
        for name in ("group_vars", "host_vars"):
            (self.inventory / name).symlink_to(INVENTORY / name)

    def words(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "gpuops", "accept", "-i", str(self.inventory), "-o", self.output, *words, *SMALL]

    @property
    def output(self) -> str:
        return str(self.directory / "acceptance.html")

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}

    def accept(self, *words: str, limit: str = NODE) -> dict[str, Any]:
        done = subprocess.run(
            self.words("--minutes", "0", *(("--limit", limit) if limit else ()), *words),
            cwd=self.directory,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=1800,
        )
        assert done.returncode in (0, 2), done.stdout + done.stderr
        found: dict[str, Any] = json.loads(Path(self.output).with_suffix(".json").read_text())
        jsonschema.validate(found, json.loads(report.SCHEMA_FILE.read_text()))
        return found


def failures(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {
        (row["host"], row["subject"], row["id"])
        for row in found["items"]
        if row["outcome"] == "fail" and row["id"] not in NOT_ITS_OWN
    }


def scenario(change: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Changes the simulated GPUs of the node; without a change they are as they were at first."""
    kept = f"{SCENARIO}.well"
    ssh(NODE, f"test -e {kept} || sudo cp {SCENARIO} {kept}")
    content = deepcopy(json.loads(ssh(NODE, f"cat {kept}")))
    if change:
        # The time that such a GPU would take, and not the time of this machine.
        content["cuda"] = {"clock": "device"}
        change(content)
    ssh(
        NODE,
        f"sudo tee {SCENARIO}.new >/dev/null <<'END'\n{json.dumps(content)}\nEND\nsudo mv {SCENARIO}.new {SCENARIO}",
    )


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    scenario(lambda content: None)
    yield Bench(tmp_path)
    scenario()


def traces() -> str:
    """What is on the node that an acceptance could have left."""
    return ssh(NODE, "sudo find /tmp /var/tmp /root /var/lib/baremetal-gpu -newer /tmp/before -type f | sort")


def test_a_sound_node_is_accepted_and_has_no_trace_of_it(bench: Bench) -> None:
    ssh(NODE, "touch /tmp/before")
    before = traces()
    found = bench.accept()
    assert failures(found) == set()
    by_id = {row["id"]: row["outcome"] for row in found["items"]}
    for id in ("gpu.present", "gpu.memory", "gpu.memory_test", "gpu.fp32", "gpu.fp64", "gpu.bf16", "gpu.copies"):
        assert by_id[id] == "pass", id
    assert by_id["gpu.peer"] == "pass"
    assert by_id["gpu.fleet.fp32"] == "not_applicable", "of two GPUs nobody can say which one is slow"
    assert [line for line in traces().splitlines() if line not in before.splitlines() and "agent" not in line] == []


def _slow(content: dict[str, Any]) -> None:
    content["cuda"]["speed"] = {"device": 1, "factor": 0.4}


def _stuck(content: dict[str, Any]) -> None:
    content["cuda"]["stuck_bit"] = {"device": 1, "byte": 1 << 20, "bit": 3}


def _wrong(content: dict[str, Any]) -> None:
    content["cuda"]["wrong_real"] = {"device": 0, "element": 7, "bit": 2}


def _narrow(content: dict[str, Any]) -> None:
    content["devices"][1]["pci"]["width"] = 8


def _hot(content: dict[str, Any]) -> None:
    content["devices"][1]["throttle"]["reasons"] = 0x40


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], None], set[tuple[str, str]], set[str]]] = {
    "a slow GPU": (_slow, {("GPU 1", "gpu.nominal.memory"), ("GPU 1", "gpu.nominal.fp32")}, {"GPU 1"}),
    "a flipped bit": (_stuck, {("GPU 1", "gpu.memory")}, {"GPU 1"}),
    "wrong arithmetic": (_wrong, {("GPU 0", "gpu.fp32"), ("GPU 0", "gpu.bf16")}, {"GPU 0"}),
    "a narrow link": (_narrow, {("GPU 1", "node.pcie_width"), ("GPU 1", "gpu.pcie_load")}, {"GPU 1", ""}),
    "heat": (_hot, {("GPU 1", "gpu.throttle")}, {"GPU 1", ""}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_and_nothing_else(bench: Bench, name: str) -> None:
    change, wanted, subjects = FAULTS[name]
    scenario(change)
    found = failures(bench.accept())
    assert {(subject, id) for _host, subject, id in found} >= wanted
    assert {host for host, _subject, _id in found} == {NODE}
    assert {subject for _host, subject, _id in found} <= subjects
    # What is about the host itself is what its agent says of the same fault.
    assert {id for _host, subject, id in found if not subject} <= {"node.health"}


def test_two_nodes_with_different_drivers_are_told_apart(bench: Bench) -> None:
    found = failures(bench.accept("--stages", "node", limit=""))
    assert {(NODE, "", "node.driver"), (OTHER, "", "node.driver")} <= found


def test_killed_at_any_moment_it_goes_on(bench: Bench) -> None:
    for moment in (5.0, 15.0):
        process = subprocess.Popen(
            bench.words("--minutes", "0", "--limit", NODE),
            cwd=bench.directory,
            env=bench.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(moment)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        kept = record.load(bench.inventory / ".gpuops")
        found = bench.accept("--resume", limit="") if kept else bench.accept()
        assert failures(found) == set()
        assert kept is None or found["started"] == kept.started
    # The children of the killed ones have gone with their parents.
    until(lambda: not ssh(NODE, "pgrep -f '[g]pu_load'", check=False).strip(), 60.0, lambda: ssh(NODE, "ps -ef"))
