# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml takes three bare machines, two of them with GPUs, to verified nodes and a storage cluster of their disks.

The homes of users are on all three. The tests of this file run in order on machines of their own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.roles.ceph_site import HOME, HOMES, SHOWN_IN_THE_LAB, as_user, ceph, changed, memory, processes
from tests.site.plays import Play, lab, run_playbook, services, ssh, until
from tests.site.test_accept import Bench, failures

pytestmark = [pytest.mark.lab, pytest.mark.slow]

GPUS = {"nd1": "a100-sxm4-40gb-x2", "nd2": "gtx1080-x2", "nd3": "no-gpu"}
MACHINES = tuple(GPUS)
# Every machine with a disk is a host of the storage cluster by the lab's inventory.
WORDS = [word for name, scenario in GPUS.items() for word in ("--machine", f"{name}:trixie:{scenario}")]


class Nodes:
    """The machines, and the run that made them."""

    def __init__(self, base: Path) -> None:
        self.variables = {**HOMES, "ceph_common_secrets_path": str(base / "ceph.json"), "cuda_versions": []}
        begun = time.monotonic()
        self.first = self.run()
        self.seconds = time.monotonic() - begun

    def run(self) -> Play:
        return run_playbook("site.yml", limit=",".join(MACHINES), extra_vars=self.variables)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Nodes]:
    lab("up", *WORDS)
    try:
        for name in MACHINES:
            lab("disk", name, f"{name}a")
        made = Nodes(tmp_path_factory.mktemp("storage"))
        said = f"\nfrom bare machines to GPUs and homes: {made.seconds:.0f} s; resident memory: {memory(MACHINES)}"
        request.config.get_terminal_writer().line(said)
        yield made
    finally:
        lab("down", *(word for name in MACHINES for word in ("--machine", name)))


def test_the_run_is_green_on_all_machines(nodes: Nodes) -> None:
    assert nodes.first.rc == 0, nodes.first.tail()
    assert nodes.first.failures == {}


def test_the_gpus_are_verified_and_watched(nodes: Nodes) -> None:
    for name, gpus in (("nd1", 2), ("nd2", 2)):
        facts = json.loads(ssh(name, "sudo /etc/ansible/facts.d/gpu.fact"))
        assert (facts["health"]["verdict"], len(facts["devices"])) == ("ok", gpus)
    assert ssh("nd3", "systemctl show -P LoadState baremetal-gpu-agent") == "not-found\n"


def test_the_storage_is_well_on_all_three(nodes: Nodes) -> None:
    status = ceph("status", "nd1")
    assert status["quorum_names"] == list(MACHINES)
    assert set(status["health"]["checks"]) <= SHOWN_IN_THE_LAB
    assert [row["up"] for row in ceph("osd dump", "nd1")["osds"]] == [1, 1, 1]


def test_a_home_written_beside_the_gpus_is_read_everywhere(nodes: Nodes) -> None:
    path = f"{HOME}/alice/data"
    written = as_user("nd1", "alice", f"dd if=/dev/urandom of={path} bs=1M count=8 conv=fsync && sha256sum {path}")
    assert written.endswith("rc=0\n")
    for name in MACHINES:
        assert as_user(name, "alice", f"sha256sum {path}").splitlines() == [written.splitlines()[-2], "rc=0"]
        assert "Permission denied" in as_user(name, "bob", f"cat {path}")


def test_a_second_run_changes_nothing_and_restarts_nothing(nodes: Nodes) -> None:
    before = {name: services(name) for name in MACHINES}, processes(MACHINES)
    play = nodes.run()
    assert play.rc == 0, play.tail()
    assert changed(play) == {}
    assert ({name: services(name) for name in MACHINES}, processes(MACHINES)) == before


def test_an_acceptance_names_a_home_without_a_quota_and_nothing_else(nodes: Nodes, tmp_path: Path) -> None:
    bench = Bench(tmp_path)

    def found() -> set[tuple[str, str, str]]:
        return failures(bench.accept("--stages", "storage", limit="nd1", **nodes.variables))

    before = found()
    home = "fs subvolume {} cephfs carol --group_name homes"
    ssh("nd1", f"sudo ceph {home.format('create')}")
    try:
        assert found() - before == {("nd1", "home carol", "storage.quota")}
    finally:
        ssh("nd1", f"sudo ceph {home.format('rm')}")
    assert "gpuops-accept" not in ssh("nd1", f"sudo ls -A {HOME}/alice")


def test_after_a_loss_of_power_gpus_and_homes_come_back_by_themselves(nodes: Nodes) -> None:
    """All machines at once: no monitor answers yet when they mount the homes."""
    path = f"{HOME}/alice/data"
    before = as_user("nd3", "alice", f"sha256sum {path}")
    assert before.endswith("rc=0\n")
    lab("power-cut", *MACHINES)
    lab("up", *WORDS)

    def seen() -> dict[str, str]:
        return {name: as_user(name, "alice", f"sha256sum {path}", 30) for name in MACHINES}

    def checks() -> set[str]:
        return set(ceph("status", "nd1")["health"]["checks"])

    until(lambda: set(seen().values()) == {before}, 600, seen)
    until(lambda: checks() <= SHOWN_IN_THE_LAB, 600, checks)
    for name in ("nd1", "nd2"):
        facts = json.loads(ssh(name, "sudo /etc/ansible/facts.d/gpu.fact"))
        assert (facts["health"]["verdict"], facts["stale"]) == ("ok", False)
    play = nodes.run()
    assert play.rc == 0, play.tail()
    assert changed(play) == {}
