# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds with every scheduler: one suite of scenarios over the models of a node of Mesos, Slurm and Kubernetes.

How each gets there is in mesos/test_plan.py, slurm/test_plan.py and kubernetes/test_plan.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Protocol

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.memory import lasting
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from tests.unit.plugins.module_utils.reconciler.kubernetes import kubernetes_world
from tests.unit.plugins.module_utils.reconciler.mesos import mesos_world
from tests.unit.plugins.module_utils.reconciler.slurm import slurm_world

ACT = Policy(mode="act", settle_s=60.0)
GPUS = 4
YEAR_S = 365 * 86400.0


class Node(Protocol):
    """One node of a scheduler. GPUs are told by their number, jobs have one GPU each."""

    wrong: list[str]

    def launch(self) -> bool:
        """A user's job of one GPU; whether it got one."""

    def jobs(self) -> set[int]:
        """The GPUs that jobs have."""

    def end_jobs(self) -> None: ...
    def fault(self, gpu: int) -> None: ...
    def mend(self, gpu: int) -> None: ...
    def silence(self, silent: bool) -> None:
        """Its agent publishes no more, or does again."""

    def reboot(self) -> None: ...
    def others_take_out(self) -> None: ...
    def others_bring_back(self) -> None: ...
    def hold_back(self, why: str) -> None:
        """What the fleet breaker says; empty if it lets go."""

    def quarantine(self, gpu: int) -> None: ...
    def clear(self) -> None:
        """An operator says that all is mended."""

    def round(self, cut: bool = False) -> None:
        """One turn of the reconciler; with `cut` it is killed at its next call, and starts again."""

    def settle(self) -> None:
        """Time passes, and nothing new happens."""

    def pass_time(self, seconds: float) -> None: ...
    def calls(self) -> int:
        """How often something was changed in the scheduler."""

    def given_out(self) -> set[int]:
        """The free GPUs that a new job can get."""

    def fenced(self) -> bool:
        """Whether the reconciler remembers a fence."""


class MesosNode:
    def __init__(self, policy: Policy) -> None:
        self.world = mesos_world.World(GPUS, policy)
        self.wrong = self.world.wrong

    def _gpu(self, uuid: str) -> int:
        return self.world.uuids.index(uuid)

    def launch(self) -> bool:
        before = len(self.world.tasks)
        self.world.launch()
        return len(self.world.tasks) > before

    def jobs(self) -> set[int]:
        return {self._gpu(uuid) for uuids in self.world.tasks.values() for uuid in uuids}

    def end_jobs(self) -> None:
        self.world.end_tasks()

    def fault(self, gpu: int) -> None:
        self.world.fault(self.world.uuids[gpu])

    def mend(self, gpu: int) -> None:
        self.world.mend(self.world.uuids[gpu])

    def silence(self, silent: bool) -> None:
        self.world.session = not silent

    def reboot(self) -> None:
        self.world.reboot()

    def others_take_out(self) -> None:
        self.world.others_deactivate()

    def others_bring_back(self) -> None:
        self.world.others_reactivate()

    def hold_back(self, why: str) -> None:
        self.world.held = why

    def quarantine(self, gpu: int) -> None:
        self.world.memory["gpus"][self.world.uuids[gpu]] = QUARANTINE

    def clear(self) -> None:
        self.world.clear(None)

    def round(self, cut: bool = False) -> None:
        try:
            self.world.round("call" if cut else "")
        except mesos_world.Killed:
            self.world.restart()
        self.world.node_acts()
        self.world.now += 1.0

    def settle(self) -> None:
        self.world.settle()

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    def calls(self) -> int:
        return len([step for step in self.world.log if step not in ("settle", "close")])

    def given_out(self) -> set[int]:
        agent = self.world.agent
        if agent is None or agent.state != "active":
            return set()
        return {self._gpu(uuid) for uuid in self.world.listed} - self.jobs()

    def fenced(self) -> bool:
        return self.world.memory["fenced"] is not None


class SlurmNode:
    def __init__(self, policy: Policy) -> None:
        self.world = slurm_world.SlurmWorld(gpus=GPUS, cores=2 * GPUS, policy=policy)
        self.wrong, self.held = self.world.wrong, ""

    def launch(self) -> bool:
        number = self.world.submit(1)
        self.world.schedule()
        got = any(job.id == number and job.positions for job in self.world.users())
        if not got:
            self.world.end(number)
        return got

    def jobs(self) -> set[int]:
        return {position for job in self.world.users() for position in job.positions or ()}

    def end_jobs(self) -> None:
        for job in list(self.world.users()):
            self.world.end(job.id)
        self.world.schedule()

    def fault(self, gpu: int) -> None:
        self.world.fault(gpu)

    def mend(self, gpu: int) -> None:
        self.world.mend(gpu)

    def silence(self, silent: bool) -> None:
        self.world.session = not silent

    def reboot(self) -> None:
        self.world.reboot()
        for job in list(self.world.users()):
            self.world.end(job.id)

    def others_take_out(self) -> None:
        self.world.drain_reason = "new power supply"

    def others_bring_back(self) -> None:
        self.world.drain_reason = None

    def hold_back(self, why: str) -> None:
        self.held = why

    def quarantine(self, gpu: int) -> None:
        self.world.memory["gpus"][self.world.uuids[gpu]] = QUARANTINE

    def clear(self) -> None:
        for gpu in list(self.world.fatal):
            self.mend(gpu)
        self.world.memory = self.world.backend.plan.clear(self.world.memory, None, self.world.now)

    def round(self, cut: bool = False) -> None:
        self.world.cut = 0 if cut else None
        try:
            self.world.step(self.held)
        except slurm_world.Killed:
            written = json.loads(json.dumps(lasting(self.world.memory)))
            self.world.memory = {**self.world.backend.plan.empty(slurm_world.NODE), **written}
        self.world.cut = None
        self.world.schedule()
        self.world.now += 1.0

    def settle(self) -> None:
        for _turn in range(60):
            self.round()
            self.pass_time(19.0)

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    def calls(self) -> int:
        return len(self.world.calls)

    def given_out(self) -> set[int]:
        closed = self.world.drain_reason is not None or self.world.guard_ends is not None
        return set() if closed else set(self.world.free_gpus())

    def fenced(self) -> bool:
        return self.world.memory["fenced"] is not None


class KubernetesNode:
    def __init__(self, policy: Policy) -> None:
        self.world = kubernetes_world.KubernetesWorld(gpus=GPUS, policy=policy)
        self.wrong, self.held = self.world.wrong, ""

    def launch(self) -> bool:
        return bool(self.world.launch())

    def jobs(self) -> set[int]:
        return {gpu for gpus in self.world.pods().values() for gpu in gpus}

    def end_jobs(self) -> None:
        for path in self.world.pods():
            self.world.api.remove(path)

    def fault(self, gpu: int) -> None:
        self.world.fatal.add(gpu)

    def mend(self, gpu: int) -> None:
        self.world.fatal.discard(gpu)

    def silence(self, silent: bool) -> None:
        self.world.session = not silent

    def reboot(self) -> None:
        self.world.reboot()

    def others_take_out(self) -> None:
        self.world.change(unschedulable=True)

    def others_bring_back(self) -> None:
        self.world.change(unschedulable=False)

    def hold_back(self, why: str) -> None:
        self.held = why

    def quarantine(self, gpu: int) -> None:
        self.world.memory["gpus"][self.world.uuids[gpu]] = QUARANTINE

    def clear(self) -> None:
        self.world.fatal.clear()
        self.world.memory = self.world.backend.plan.clear(self.world.memory, None, self.world.now)

    def round(self, cut: bool = False) -> None:
        self.world.caller.cut = 0 if cut else None
        try:
            self.world.step(self.held)
        except kubernetes_world.Killed:
            written = json.loads(json.dumps(lasting(self.world.memory)))
            self.world.memory = {**self.world.backend.plan.empty(kubernetes_world.NODE), **written}
        self.world.caller.cut = None
        self.world.now += 1.0

    def settle(self) -> None:
        for _turn in range(60):
            self.round()
            self.pass_time(19.0)

    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    def calls(self) -> int:
        return len(self.world.caller.calls)

    def given_out(self) -> set[int]:
        return self.world.free()

    def fenced(self) -> bool:
        return self.world.memory["fenced"] is not None


Kind = type[MesosNode] | type[SlurmNode] | type[KubernetesNode]
QUARANTINE: dict[str, Any] = {"resets": 1, "reboots": 2, "at": 0.0, "quarantine": True}
BACKENDS: dict[str, Kind] = {"mesos": MesosNode, "slurm": SlurmNode, "kubernetes": KubernetesNode}
ALL = set(range(GPUS))


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return BACKENDS[request.param]


@pytest.fixture
def node(kind: Kind) -> Iterator[Node]:
    made = kind(ACT)
    yield made
    assert made.wrong == []


def test_a_well_node_is_left_alone(node: Node) -> None:
    node.launch()
    node.settle()
    assert (node.calls(), node.jobs()) == (0, {0})


def test_no_job_gets_a_fatal_gpu_and_those_on_the_others_go_on(node: Node) -> None:
    node.launch()
    node.launch()
    node.fault(3)
    node.round()
    assert 3 not in node.given_out()
    node.settle()
    assert node.jobs() == {0, 1}
    assert 3 not in node.given_out()
    node.end_jobs()
    node.settle()
    assert node.given_out() == {0, 1, 2}


def test_the_job_on_the_fatal_gpu_may_end_and_nobody_gets_the_gpu_after_it(node: Node) -> None:
    node.launch()
    node.fault(0)
    node.settle()
    assert node.jobs() == {0}
    node.end_jobs()
    assert 0 not in node.given_out()
    node.settle()
    assert node.given_out() == {1, 2, 3}


def test_two_gpus_that_fail_one_after_the_other_are_both_out(node: Node) -> None:
    node.fault(1)
    node.settle()
    node.fault(2)
    node.settle()
    assert node.given_out() == {0, 3}


def test_a_node_whose_gpus_are_all_fatal_gives_out_none(node: Node) -> None:
    for gpu in ALL:
        node.fault(gpu)
    node.settle()
    assert node.given_out() == set()
    assert not node.launch()


def test_a_gpu_that_is_well_comes_back_after_a_while_and_costs_no_job(node: Node) -> None:
    node.fault(3)
    node.settle()
    node.mend(3)
    node.round()
    assert 3 not in node.given_out()
    node.settle()
    assert node.given_out() == ALL
    assert not node.fenced()


def test_a_gpu_that_an_operator_clears_comes_back(node: Node) -> None:
    node.fault(1)
    node.settle()
    node.clear()
    node.settle()
    assert node.given_out() == ALL


def test_a_gpu_in_quarantine_stays_out_though_it_is_well_until_it_is_cleared(node: Node) -> None:
    node.fault(1)
    node.settle()
    node.quarantine(1)
    node.mend(1)
    node.settle()
    assert node.given_out() == {0, 2, 3}
    node.clear()
    node.settle()
    assert node.given_out() == ALL


def test_a_node_that_others_took_out_stays_theirs(node: Node) -> None:
    node.others_take_out()
    node.settle()
    assert node.given_out() == set()
    node.fault(1)
    node.settle()
    node.mend(1)
    node.settle()
    assert node.given_out() == set()
    node.others_bring_back()
    node.settle()
    assert node.given_out() == ALL


def test_a_node_that_falls_silent_is_only_told(node: Node) -> None:
    node.round()
    node.silence(True)
    node.settle()
    assert (node.calls(), node.given_out()) == (0, ALL)


def test_a_silent_node_is_taken_out_where_the_policy_says_so_and_comes_back(
    kind: Kind,
) -> None:
    node: Node = kind(Policy(mode="act", silent="deactivate", suspect_s=300))
    node.round()
    node.silence(True)
    node.round()
    assert node.given_out() == ALL
    node.settle()
    assert node.given_out() == set()
    node.silence(False)
    node.settle()
    assert node.given_out() == ALL


def test_a_node_that_never_published_is_never_suspected(kind: Kind) -> None:
    node: Node = kind(Policy(mode="act", silent="deactivate", suspect_s=0))
    node.silence(True)
    node.settle()
    assert node.calls() == 0


def test_what_the_breaker_holds_back_is_not_begun_and_goes_on_afterwards(node: Node) -> None:
    node.fault(1)
    node.hold_back("too many fail")
    node.settle()
    assert node.calls() == 0
    node.hold_back("")
    node.settle()
    assert node.given_out() == {0, 2, 3}


def test_what_was_fenced_stays_fenced_while_the_breaker_holds(node: Node) -> None:
    node.fault(1)
    node.round()
    node.hold_back("too many fail")
    node.settle()
    assert 1 not in node.given_out()
    node.hold_back("")
    node.settle()
    assert node.given_out() == {0, 2, 3}


def test_a_boot_ends_no_fence(node: Node) -> None:
    node.fault(1)
    node.settle()
    node.silence(True)
    node.round()
    node.reboot()
    node.silence(False)
    node.settle()
    assert node.given_out() == {0, 2, 3}


def test_a_clock_that_is_set_back_by_a_year_keeps_no_gpu_out(node: Node) -> None:
    node.fault(1)
    node.settle()
    node.mend(1)
    node.round()
    node.pass_time(-YEAR_S)
    node.settle()
    assert node.given_out() == ALL


@pytest.mark.parametrize("number", range(8))
def test_killed_at_each_call_it_goes_on(node: Node, number: int) -> None:
    node.launch()
    node.fault(1)
    for turn in range(20):
        node.round(cut=turn == number)
    node.end_jobs()
    node.settle()
    assert node.given_out() == {0, 2, 3}
    node.mend(1)
    for turn in range(120):
        node.round(cut=turn % 8 == number)
    node.settle()
    assert node.given_out() == ALL
    assert not node.fenced()
