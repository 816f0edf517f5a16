# SPDX-License-Identifier: GPL-3.0-or-later
"""Random sequences of faults, clears, drains by others, restarts, reboots and kills, against the model of a node.

Never a task on a fatal GPU after it was fenced, never undone what others took out, never an agent started with another
list under tasks, never a host taken out while the breaker holds; and when it all calms down, every GPU that is well is
given out again.

What Mesos cannot tell is left out: others that bring our agent back and take it out again before we looked, that take
it out between our look and the end of an order that has begun, or that deactivate it just while we are killed between
writing down the same and doing it. And an operator who clears a whole host that has not answered a withdrawn order:
nobody can tell then whether it was carried out, and the next agent is taken out as the one before it was.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from tests.unit.plugins.module_utils.reconciler.mesos.mesos_world import Killed, World

GPUS = 3
OUT = ("deactivated", "draining", "drained")


class Sequences(RuleBasedStateMachine):
    @initialize(
        jobs=st.sampled_from(["finish", "kill"]),
        silent=st.sampled_from(["watch", "deactivate"]),
        repairs=st.sampled_from([(), ("reset_gpu",), ("reset_gpu", "reboot")]),
        tries=st.sampled_from([1, 9]),
    )
    def begin(self, jobs: str, silent: str, repairs: tuple[str, ...], tries: int) -> None:
        policy = Policy(
            mode="act",
            jobs=jobs,
            silent=silent,
            repairs=repairs,
            grace_s=120,
            suspect_s=200,
            resets=tries,
            reboots=tries,
        )
        self.world = World(GPUS, policy)

    @rule(seconds=st.sampled_from([1, 20, 90]))
    def time_passes(self, seconds: int) -> None:
        self.world.now += seconds
        self.world.round()

    @rule(kill=st.sampled_from(["", "begin", "call", "unheard", "unanswered"]))
    def reconciler(self, kill: str) -> None:
        self.world.now += 1
        try:
            self.world.round(kill)
        except Killed:
            self.world.restart()

    @rule()
    def restart(self) -> None:
        self.world.restart()

    @rule(gpu=st.integers(0, GPUS - 1))
    def fault(self, gpu: int) -> None:
        self.world.fault(self.world.uuids[gpu])

    @rule(gpu=st.integers(0, GPUS - 1))
    def mend(self, gpu: int) -> None:
        self.world.mend(self.world.uuids[gpu])

    @rule(gpu=st.sampled_from([None, *range(GPUS)]))
    def operator_clears(self, gpu: int | None) -> None:
        order = self.world.memory["order"]
        if gpu is None and order and order.get("withdrawn"):
            return
        self.world.clear(None if gpu is None else self.world.uuids[gpu])

    @rule()
    def agent_restarts(self) -> None:
        self.world.agent_restarts()

    @rule(held=st.booleans())
    def breaker(self, held: bool) -> None:
        self.world.held = "too many fail" if held else ""

    @rule()
    def launch(self) -> None:
        self.world.launch()

    @rule()
    def jobs_end(self) -> None:
        self.world.end_tasks()

    @rule(session=st.booleans())
    def session(self, session: bool) -> None:
        self.world.session = session

    @rule()
    def node_acts(self) -> None:
        self.world.node_acts()

    @rule()
    def host_reboots(self) -> None:
        # Under an order, the node goes on with it at its next start.
        if self.world.place == 0:
            self.world.reboot()

    @rule()
    def others_drain(self) -> None:
        self.world.now += 60
        self.world.others_drain()
        self.world.round()

    def is_open(self) -> bool:
        return self.world.memory["intent"] is not None

    @precondition(lambda self: not self.is_open())
    @rule()
    def others_deactivate(self) -> None:
        self.world.round()
        if not self.is_open():
            self.world.others_deactivate()
            self.world.round()

    @rule()
    def others_reactivate(self) -> None:
        self.world.others_reactivate()
        self.world.round()

    @rule(scheduled=st.booleans())
    def maintenance(self, scheduled: bool) -> None:
        self.world.scheduled = scheduled

    @invariant()
    def nothing_went_wrong(self) -> None:
        assert self.world.wrong == [], self.world.wrong

    def teardown(self) -> None:
        world = self.world
        world.session, world.scheduled, world.held = True, False, ""
        # Counts of repairs and quarantine would keep a GPU out until somebody says that it was mended.
        for uuid in world.uuids:
            world.clear(uuid)
        for _turn in range(60):
            world.now += 20
            world.round()
            world.node_acts()
            world.end_tasks()
        assert world.wrong == [], world.wrong
        agent = world.agent
        assert agent is not None
        if agent.id in world.foreign:
            assert agent.state in OUT, "what others took out is in again"
        else:
            assert agent.state == "active"
            assert sorted(world.listed) == world.uuids


Sequences.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
test_sequences = Sequences.TestCase
