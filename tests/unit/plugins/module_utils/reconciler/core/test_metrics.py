# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler tells Prometheus of a fleet, on Mesos and on Slurm, and the file that it writes.

The service with its file and a real ZooKeeper is in tests/unit/reconcile.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.backend import MesosBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan as slurm_plan
from tests.unit.plugins.exposition import Family, parse, style_faults
from tests.unit.plugins.module_utils.reconciler.slurm.slurm_world import NODE, SlurmWorld
from tests.unit.plugins.promtool import faults, needs_promtool

LEADER = "gpuops_reconciler_leader"
FENCE = "gpuops_reconciler_fence_timestamp_seconds"
BREAKER = "gpuops_reconciler_breaker_waiting_hosts"
QUARANTINE = "gpuops_reconciler_quarantine_info"
PROBLEMS = "gpuops_reconciler_problems"


class Nothing:
    """Where the driver writes: nothing is kept."""

    def __getattr__(self, _name: str) -> Any:
        return lambda *_words: {}

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        return {"time": 0.0, "host": host, "what": what, **more}


class Masters(Nothing):
    """Mesos with these hosts, each with an agent that is taken out when it is told to. `refuses`: it is not."""

    def __init__(self, *hosts: str) -> None:
        self.refuses = ""
        self.rows = [
            {"id": f"S-{host}", "hostname": host, "pid": "slave(1)@10.0.0.1:5051", "active": True}
            | {"resources": {"gpus": 2.0}}
            for host in hosts
        ]

    def get(self, _path: str) -> Any:
        return {"slaves": self.rows, "frameworks": []}

    def deactivate(self, agent_id: str) -> None:
        if self.refuses:
            raise CallFailed(self.refuses)
        for row in self.rows:
            if row["id"] == agent_id:
                row["deactivated"] = True


def verdict(host: str, *fatal: int) -> dict[str, Any]:
    reason = {"code": "xid_79", "verdict": "fatal", "action": "reboot", "text": "Xid 79"}
    rows = [
        {
            "uuid": f"GPU-{host}-{number}",
            "index": number,
            "verdict": "fatal" if number in fatal else "ok",
            "reasons": [reason] if number in fatal else [],
        }
        for number in range(2)
    ]
    uuids = [row["uuid"] for row in rows]
    return {"schema": 1, "host": host, "boot_id": "1", "reasons": [], "devices": rows, "listed": uuids}


class Fleet:
    """A fleet on Mesos whose time a test sets."""

    def __init__(self, *hosts: str, **policy: Any) -> None:
        self.masters, self.now = Masters(*hosts), 1000.0
        given = {"mode": "act", **policy}
        self.driver = Driver(
            Nothing(),
            MesosBackend(self.masters),  # type: ignore[arg-type]
            Policy(**given),
            Nothing(),  # type: ignore[arg-type]
            None,
            {},
            clock=lambda: self.now,
        )
        self.driver.verdicts = {host: verdict(host) for host in hosts}
        self.driver.turn()

    def fault(self, host: str, gpu: int = 0) -> None:
        self.driver.verdicts = {**self.driver.verdicts, host: verdict(host, gpu)}

    def told(self, refused: tuple[str, ...] = (), complaint: str = "") -> dict[str, Family]:
        return parse(exposition(metrics.leader(self.driver, refused, complaint), metrics.METRICS))


def series(families: dict[str, Family], name: str) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for labels, value in families[name].series.items()] if name in families else []


def one(families: dict[str, Family], name: str) -> float:
    return families[name].series[()]


def test_a_leader_of_a_well_fleet_tells_that_it_leads_and_that_nothing_is_wrong() -> None:
    found = Fleet("n1", "n2").told()
    assert {name: family.series for name, family in found.items()} == {
        LEADER: {(): 1.0},
        BREAKER: {(): 0.0},
        PROBLEMS: {(): 0.0},
    }


def test_a_fence_of_mesos_is_one_of_the_whole_host_since_it_began() -> None:
    fleet = Fleet("n1", "n2")
    fleet.fault("n1")
    fleet.driver.turn()
    fleet.now = 5000.0
    fleet.driver.turn()
    assert series(fleet.told(), FENCE) == [({"node": "n1", "step": "drain"}, 1000.0)]


def test_of_slurm_each_gpu_that_is_held_is_told_and_the_end_of_the_fence_ends_it() -> None:
    world = SlurmWorld()
    driver = Driver(Nothing(), world.backend, world.policy, Nothing(), None, {}, clock=lambda: world.now)  # type: ignore[arg-type]

    def turns(number: int) -> list[tuple[dict[str, str], float]]:
        for _turn in range(number):
            driver.verdicts = {NODE: world.verdict() or {}}
            driver.turn()
            world.memory = driver.memories[NODE]
            world.schedule()
            world.now += 30.0
        return series(parse(exposition(metrics.leader(driver, (), ""), metrics.METRICS)), FENCE)

    assert turns(1) == []
    world.fault(2)
    world.fault(3)
    begun = world.now
    assert turns(5) == [
        ({"node": NODE, "uuid": "GPU-2", "step": "hold"}, begun),
        ({"node": NODE, "uuid": "GPU-3", "step": "hold"}, begun),
    ]
    assert world.held() == {2, 3}
    world.node_codes = ["driver_hung"]
    assert turns(5) == [({"node": NODE, "step": "drain_node"}, begun)]
    world.node_codes = []
    world.mend(2)
    world.mend(3)
    assert turns(20) == []


def test_while_the_breaker_holds_the_hosts_that_wait_are_counted() -> None:
    fleet = Fleet("n1", "n2", "n3", "n4", "n5", breaker_count=2)
    for host in ("n1", "n2", "n3"):
        fleet.fault(host)
    fleet.driver.turn()
    found = fleet.told()
    assert one(found, BREAKER) == 3.0
    assert FENCE not in found
    fleet.driver.request("r-1", {"kind": "permit"})
    fleet.driver.turn()
    found = fleet.told()
    assert one(found, BREAKER) == 0.0
    assert [labels["node"] for labels, _value in series(found, FENCE)] == ["n1", "n2", "n3"]


def test_a_gpu_in_quarantine_is_told_until_it_is_cleared() -> None:
    fleet = Fleet("n1")
    fleet.driver.memories["n1"]["gpus"]["GPU-n1-0"] = {"resets": 1, "reboots": 0, "at": 1.0, "quarantine": True}
    fleet.driver.memories["n1"]["gpus"]["GPU-n1-1"] = {"resets": 1, "reboots": 0, "at": 1.0}
    assert series(fleet.told(), QUARANTINE) == [({"node": "n1", "uuid": "GPU-n1-0"}, 1.0)]
    fleet.driver.request("r-1", {"kind": "clear", "host": "n1", "uuid": "GPU-n1-0"})
    assert QUARANTINE not in fleet.told()


@pytest.mark.parametrize("uuid", ["GPU-n1-0", None])
def test_a_clear_that_comes_before_the_verdict_of_the_repair_ends_the_quarantine(uuid: str | None) -> None:
    """What the node told before is no proof of a GPU that was mended since."""
    fleet = Fleet("n1")
    broken = verdict("n1", 0)
    broken["devices"][0]["reasons"][0]["action"] = "rma"
    fleet.driver.verdicts = {"n1": broken}
    fleet.driver.turn()
    assert series(fleet.told(), QUARANTINE) == [({"node": "n1", "uuid": "GPU-n1-0"}, 1.0)]
    fleet.driver.request("r-1", {"kind": "clear", "host": "n1", "uuid": uuid})
    fleet.driver.turn()
    assert QUARANTINE not in fleet.told()
    fleet.driver.verdicts = {"n1": verdict("n1")}
    fleet.driver.turn()
    assert QUARANTINE not in fleet.told()
    # One that is found to be broken still is in quarantine again, when its time is over.
    fleet.driver.verdicts = {"n1": broken}
    fleet.now += 1000.0
    fleet.driver.turn()
    assert QUARANTINE in fleet.told()


def test_a_host_counts_once_as_a_problem_and_what_is_away_counts_once_more() -> None:
    fleet = Fleet("n1", "n2", "n3")
    fleet.driver.verdicts = {**fleet.driver.verdicts, "n2": {**verdict("n2"), "time": 9e9}}
    fleet.driver.turn()
    assert one(fleet.told(), PROBLEMS) == 1.0
    assert one(fleet.told(refused=("n2", "n4")), PROBLEMS) == 2.0
    assert one(fleet.told(refused=("n2", "n4"), complaint="ZooKeeper: ConnectionLoss"), PROBLEMS) == 3.0


def test_a_step_that_fails_is_a_problem_until_it_is_not_tried_any_more() -> None:
    fleet = Fleet("n1", retry_s=60.0)
    fleet.masters.refuses = "403 Forbidden"
    fleet.fault("n1")
    fleet.driver.turn()
    assert one(fleet.told(), PROBLEMS) == 1.0
    # Mended before it was ever fenced.
    fleet.driver.verdicts = {"n1": verdict("n1")}
    fleet.now += 3600
    fleet.driver.turn()
    assert one(fleet.told(), PROBLEMS) == 0.0


def everything() -> str:
    fleet = Fleet("n1", "n2", "n3", "n4", breaker_count=1)
    fleet.fault("n1")
    fleet.driver.turn()
    fleet.driver.memories["n1"]["gpus"]["GPU-n1-0"] = {"quarantine": True, "at": 1.0}
    fleet.driver.memories["n2"]["fenced"] = {"at": 1.0}
    # Only a fence of Slurm names the GPU.
    fleet.driver.plan, fleet.driver.nodes = slurm_plan, {}
    fleet.driver.memories = {host: {**slurm_plan.empty(host), **row} for host, row in fleet.driver.memories.items()}
    fleet.driver.memories["n2"]["slurm"]["bad"] = {"GPU-n2-0": {"codes": [], "minor": 0}}
    return exposition(metrics.leader(fleet.driver, (), ""), metrics.METRICS)


def test_every_metric_is_in_the_table_with_its_labels_and_follows_the_conventions() -> None:
    found = parse(everything())
    assert set(found) == set(metrics.METRICS)
    assert not style_faults(found)
    for name, (kind, labels, text) in metrics.METRICS.items():
        assert (found[name].kind, found[name].help, found[name].labels()) == (kind, text, set(labels))


@needs_promtool
def test_promtool_finds_nothing() -> None:
    assert faults(everything()) == ""
    assert faults(exposition(metrics.STANDBY, metrics.METRICS)) == ""


# --- the file ---------------------------------------------------------------------------------------------------------


def test_one_that_waits_to_lead_tells_that_and_nothing_else(tmp_path: Path) -> None:
    file = metrics.Textfile(f"{tmp_path}/r.prom", print)
    file.write(metrics.STANDBY)
    assert parse((tmp_path / "r.prom").read_text())[LEADER].series == {(): 0.0}
    assert len(parse((tmp_path / "r.prom").read_text())) == 1
    assert (tmp_path / "r.prom").stat().st_mode & 0o777 == 0o644


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = metrics.Textfile(None, print)
    file.write(metrics.STANDBY)
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_missing_is_told_once_and_written_to_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "INTERVAL_S", 0.0)
    told: list[str] = []
    file = metrics.Textfile(f"{tmp_path}/none/r.prom", told.append)
    for _number in range(3):
        file.write(metrics.STANDBY)
    assert told == [
        f"{tmp_path}/none/r.prom cannot be written: No such file or directory. To do: see the directory and its disk"
    ]
    (tmp_path / "none").mkdir()
    file.write(metrics.STANDBY)
    assert (tmp_path / "none/r.prom").exists()
    file.remove()
    assert os.listdir(tmp_path / "none") == []
    (tmp_path / "none").rmdir()
    file.write(metrics.STANDBY)
    assert len(told) == 2


@pytest.mark.parametrize(
    "wrong", [OSError(28, "No space left on device"), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates")]
)
def test_a_file_that_cannot_be_replaced_does_not_stay_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Exception
) -> None:
    told: list[str] = []
    file = metrics.Textfile(f"{tmp_path}/r.prom", told.append)
    file.write(metrics.STANDBY)

    def refuse(*_given: object, **_named: object) -> None:
        raise wrong

    monkeypatch.setattr(metrics.host_files, "write", refuse)
    file.write([(LEADER, {}, 1.0)])
    assert os.listdir(tmp_path) == []
    assert len(told) == 1
    assert told[0].startswith(f"{tmp_path}/r.prom cannot be written: ")


def test_what_is_the_same_is_not_written_at_every_turn_and_yet_from_time_to_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(metrics.time, "monotonic", lambda: clock[0])
    file = metrics.Textfile(f"{tmp_path}/r.prom", print)
    inodes = []
    for clock[0] in (1000.0, 1001.0, 1000.0 + metrics.INTERVAL_S):
        file.write(metrics.STANDBY)
        inodes.append((tmp_path / "r.prom").stat().st_ino)
    assert inodes[0] == inodes[1] != inodes[2]


def test_a_clear_of_a_node_that_is_well_clears_nothing_that_fails_after_it() -> None:
    """An agent that is well hears of it late, and its next fault would be gone."""
    fleet = Fleet("n1")
    sent: list[dict[str, Any]] = []
    fleet.driver.store.send = lambda _host, document: sent.append(document)  # type: ignore[method-assign]
    fleet.driver.verdicts = {"n1": {**verdict("n1"), "verdict": "ok"}}
    fleet.driver.request("r-1", {"kind": "clear", "host": "n1", "uuid": None})
    assert [row["clear"] for row in sent] == [None]
    fleet.driver.verdicts = {"n1": {**verdict("n1", 0), "verdict": "fatal"}}
    fleet.driver.request("r-2", {"kind": "clear", "host": "n1", "uuid": None})
    assert sent[-1]["clear"]["id"].startswith("r-2")
