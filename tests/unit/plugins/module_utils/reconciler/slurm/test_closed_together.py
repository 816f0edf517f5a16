# SPDX-License-Identifier: GPL-3.0-or-later
"""Many nodes of Slurm whose GPUs fail at once: one order closes them, and then each has its guard and its holders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import driver as driver_module
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.driver import Driver
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.backend import SlurmBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres
from tests.unit.plugins.module_utils.reconciler.slurm.slurm_world import NODE, SlurmWorld

ACT = Policy(mode="act", settle_s=1.0, breaker_share=1.0)


class Cluster:
    """slurmctld with several nodes, each a world of its own."""

    def __init__(self, count: int) -> None:
        self.worlds = {f"n{number}": SlurmWorld(gpus=2) for number in range(1, count + 1)}
        self.orders: list[str] = []
        self.refuses = ""

    def _all(self, what: str) -> dict[str, Any]:
        return {name: found for name, world in self.worlds.items() for found in getattr(world, what)().values()}

    def gres(self) -> Gres:
        return Gres("\n".join(world.gres_conf.replace(NODE, name) for name, world in self.worlds.items()))

    def guards(self) -> dict[str, Any]:
        return self._all("guards")

    def nodes(self) -> dict[str, Any]:
        for world in self.worlds.values():
            world.schedule()
            world.now += 1.0
        return {name: {**row, "name": name} for name, row in self._all("nodes").items()}

    def holders(self) -> list[Any]:
        return [
            dataclasses.replace(one, node=name, id=self._id(name, one.id))
            for name, world in self.worlds.items()
            for one in world.holders()
        ]

    def _id(self, name: str, number: int) -> int:
        return int(name[1:]) * 1000 + number

    def jobs_on(self, name: str) -> list[Any]:
        return self.worlds[name].jobs_on(NODE)

    def drain(self, names: str, reason: str) -> None:
        self.orders.append(f"drain {names}")
        if self.refuses and "," in names:
            raise CallFailed(self.refuses)
        for name in names.split(","):
            self.worlds[name].drain(NODE, reason)

    def cancel(self, jobs: list[int]) -> None:
        for job in jobs:
            self.worlds[f"n{job // 1000}"].cancel([job % 1000])

    def __getattr__(self, what: str) -> Any:
        def act(name: str, *args: Any, **more: Any) -> None:
            self.orders.append(f"{what} {name}")
            getattr(self.worlds[name], what)(NODE, *args, **more)

        return act


class Notes:
    """The store and the journal."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.kept: dict[str, dict[str, Any]] = {}
        self.fleet: dict[str, Any] = {}

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        self.rows.append({"time": 1.0, "host": host, "what": what, **more})
        return self.rows[-1]

    def save_node(self, host: str, row: dict[str, Any]) -> None:
        self.kept[host] = row

    def save_fleet(self, row: dict[str, Any]) -> None:
        self.fleet = row

    def send(self, host: str, document: dict[str, Any]) -> None: ...

    def sent(self, host: str) -> dict[str, Any]:
        return {}


class Bench:
    def __init__(self, count: int, policy: Policy = ACT) -> None:
        self.cluster, self.notes = Cluster(count), Notes()
        backend = SlurmBackend(self.cluster)  # type: ignore[arg-type]
        self.driver = Driver(self.notes, backend, policy, self.notes, None, {})  # type: ignore[arg-type]
        self.publish()
        self.driver.turn()
        assert self.cluster.orders == []

    def publish(self) -> None:
        told: dict[str, Mapping[str, Any]] = {}
        for name, world in self.cluster.worlds.items():
            found = world.verdict()
            if found is not None:
                told[name] = {**found, "host": name, "time": 1.0}
        self.driver.verdicts = told

    def fail(self, count: int) -> None:
        for name in list(self.cluster.worlds)[:count]:
            self.cluster.worlds[name].fault(1)
        self.publish()

    def settle(self) -> None:
        for _number in range(60):
            self.driver.turn()

    def held(self) -> int:
        return sum(world.held() == {1} for world in self.cluster.worlds.values())


def test_many_nodes_are_closed_by_one_order_and_each_is_open_again_when_its_gpu_is_held() -> None:
    one = Bench(30)
    running = one.cluster.worlds["n1"].submit(1)
    one.cluster.worlds["n1"].schedule()
    one.fail(20)
    one.driver.turn()
    assert one.cluster.orders[0] == "drain " + ",".join(sorted(f"n{number}" for number in range(1, 21)))
    assert not any(order.startswith("drain") for order in one.cluster.orders[1:])
    one.settle()
    assert one.held() == 20
    for world in one.cluster.worlds.values():
        assert (world.drain_reason, world.guard_ends, world.wrong) == (None, None, [])
    # The job on the other GPU was not touched.
    assert [job.id for job in one.cluster.worlds["n1"].users() if job.positions] == [running]


def test_what_was_done_is_remembered_of_each_node() -> None:
    one = Bench(10)
    one.fail(10)
    one.driver.turn()
    assert set(one.notes.kept) == {f"n{number}" for number in range(1, 11)}
    assert {host for _at, host in one.notes.fleet["fences"]} == set(one.notes.kept)
    (begun,) = (row for row in one.notes.rows if row["host"] == "*" and row["what"] == "begin")
    assert set(begun["hosts"]) == set(one.notes.kept)
    assert one.notes.kept["n3"]["last"][0]["kind"] == "drain_node"
    assert "GPU-1 (xid_79)" in one.notes.kept["n3"]["last"][0]["why"]
    assert one.notes.kept["n3"]["memory"]["fenced"]


def test_few_nodes_have_their_guards_alone() -> None:
    one = Bench(10)
    one.fail(driver_module.TOGETHER_AT_LEAST - 1)
    one.settle()
    assert not any(order.startswith("drain") for order in one.cluster.orders)
    assert one.held() == driver_module.TOGETHER_AT_LEAST - 1


def test_an_order_that_is_refused_leaves_the_nodes_to_their_guards() -> None:
    one = Bench(10)
    one.cluster.refuses = "Invalid node name specified"
    one.fail(10)
    one.settle()
    assert one.held() == 10
    assert any(row.get("result") == "failed" and "Invalid node" in row["why"] for row in one.notes.rows)


def test_the_breaker_holds_them_back_together() -> None:
    one = Bench(30, Policy(mode="act", settle_s=1.0, breaker_share=0.2))
    one.fail(20)
    one.settle()
    assert one.cluster.orders == []


@pytest.mark.parametrize("mode", ["dry-run", "record"])
def test_who_only_shows_closes_nothing(mode: str) -> None:
    one = Bench(10, Policy(mode=mode, breaker_share=1.0))
    one.fail(10)
    one.driver.turn()
    assert one.cluster.orders == []
    assert one.notes.kept == {}


def test_a_node_that_others_have_drained_is_not_in_the_order_and_stays_drained() -> None:
    one = Bench(12)
    one.cluster.worlds["n2"].drain_reason = "the operator's"
    one.fail(12)
    one.settle()
    assert "n2" not in one.cluster.orders[0].removeprefix("drain ").split(",")
    assert one.cluster.worlds["n2"].drain_reason == "the operator's"
    assert one.held() == 11


def test_those_that_fail_while_others_have_their_steps_are_closed_before_these_end(monkeypatch) -> None:
    monkeypatch.setattr(driver_module, "MEANWHILE_S", 0.0)
    one = Bench(20)
    one.fail(10)
    guard = one.cluster.worlds["n1"].guard
    late = [f"n{number}" for number in range(11, 15)]

    def fails_meanwhile(node: str) -> None:
        guard(node)
        for name in late:
            one.cluster.worlds[name].fault(1)
        one.publish()

    monkeypatch.setattr(one.cluster.worlds["n1"], "guard", fails_meanwhile)
    one.driver.turn()
    orders = one.cluster.orders
    assert orders[1] == "guard n1"
    assert orders[2] == "drain " + ",".join(late)
    one.settle()
    assert one.held() == 14
