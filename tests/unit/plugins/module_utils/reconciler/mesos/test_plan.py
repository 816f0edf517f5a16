# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler decides, in a model of a node and its master: the ways that it has to go, one by one."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import fleet as reconcile_fleet
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Decision, Node, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan as reconcile
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import Agent, MesosStep
from tests.unit.plugins.module_utils.reconciler.mesos.mesos_world import Killed, World

ACT = Policy(mode="act")
WAY = ["deactivate", "drain", "order", "settle", "close"]


def waiting(memories: dict[str, dict], nodes: list[Node], now: float) -> list[str]:
    decisions = {node.host: reconcile.decide(memories[node.host], node, ACT, now) for node in nodes}
    return reconcile_fleet.waiting(memories, nodes, decisions)


def decide(memory: dict, node: Node, held: str, now: float) -> Decision:
    """What the driver takes."""
    return reconcile.hold_back(reconcile.decide(memory, node, ACT, now), memory, ACT, held, now)


def world(gpus: int = 4, policy: Policy = ACT) -> World:
    return World(gpus, policy)


def test_a_well_node_is_left_alone():
    one = world()
    one.settle()
    assert one.log == []


def test_a_fatal_gpu_is_fenced_while_the_jobs_of_the_others_run_and_then_taken_out_of_the_list():
    one = world()
    one.launch()
    one.launch()
    one.fault("GPU-1")
    step = one.round()
    assert step is not None
    assert (step.kind, step.agent_id) == ("deactivate", "S0")
    assert "GPU-1 (xid)" in step.why
    assert step.evidence["boot_id"] == "1"
    one.settle(turns=10)
    assert one.log == ["deactivate"]
    assert len(one.tasks) == 2
    one.end_tasks()
    one.settle()
    assert one.log == WAY
    assert one.listed == ["GPU-0", "GPU-2", "GPU-3"]
    assert one.agent is not None
    assert one.agent.state == "active"


def test_a_gpu_that_is_well_for_long_enough_comes_back_and_costs_no_job():
    one = world()
    one.fault("GPU-1")
    one.settle()
    one.launch()
    one.mend("GPU-1")
    one.round()
    assert one.log == WAY
    one.settle(turns=10)
    assert one.log == [*WAY, "deactivate"]
    assert one.tasks
    one.end_tasks()
    one.settle()
    assert one.listed == one.uuids
    assert one.log == WAY * 2


def test_a_gpu_that_is_held_back_goes_when_the_jobs_have_ended_and_comes_back_by_nobody_elses_word():
    one = world()
    one.launch()
    one.held_back = {"GPU-1"}
    one.settle()
    assert one.tasks
    one.end_tasks()
    one.settle()
    assert one.listed == ["GPU-0", "GPU-2", "GPU-3"]
    one.fault("GPU-1")
    one.settle()
    one.mend("GPU-1")
    one.settle(turns=100)
    assert one.listed == ["GPU-0", "GPU-2", "GPU-3"]
    one.held_back = set()
    one.settle(turns=100)
    assert one.listed == one.uuids
    assert one.wrong == []


def test_jobs_are_ended_after_the_grace_where_the_policy_says_so():
    one = world(policy=Policy(mode="act", jobs="kill", grace_s=100))
    one.launch()
    one.fault("GPU-0")
    one.settle(turns=4)
    assert one.tasks
    one.settle(turns=3)
    assert not one.tasks
    assert "drain" in one.log


def test_a_fault_that_is_cleared_before_the_node_is_empty_brings_the_agent_back_as_it_was():
    one = world()
    one.launch()
    one.fault("GPU-1")
    one.round()
    one.mend("GPU-1")
    one.round()
    assert one.log == ["deactivate", "reactivate"]
    assert one.agent is not None
    assert one.agent.state == "active"
    assert one.tasks


@pytest.mark.parametrize("point", ["begin", "call", "unheard", "unanswered"])
def test_an_agent_is_brought_back_though_the_call_for_it_was_cut(point: str):
    one = world()
    one.launch()
    one.fault("GPU-0")
    one.settle(turns=1)
    one.mend("GPU-0")
    with contextlib.suppress(Killed):
        one.round(point)
    assert one.log[-1] == "reactivate"
    one.restart()
    one.settle(turns=10)
    assert one.agent is not None
    assert one.agent.state == "active"
    assert one.memory["intent"] is None


def test_a_node_without_a_well_gpu_stays_out_and_is_not_restarted():
    one = world(gpus=1)
    one.fault("GPU-0")
    one.settle()
    assert one.log == ["deactivate"]
    one.mend("GPU-0")
    one.settle()
    assert one.log == ["deactivate", "reactivate"]


@pytest.mark.parametrize("way", ["others_drain", "others_deactivate"])
def test_an_agent_that_others_took_out_is_not_touched(way: str):
    one = world()
    getattr(one, way)()
    one.fault("GPU-1")
    one.settle()
    assert one.log == []
    one.others_reactivate()
    one.settle()
    assert one.log == WAY


def test_a_drain_of_others_on_top_of_ours_stops_us():
    one = world()
    one.launch()
    one.fault("GPU-1")
    one.round()
    one.now += 100
    one.others_drain()
    one.end_tasks()
    one.settle()
    assert one.log == ["deactivate"]


def test_a_drain_of_others_after_our_drain_is_told_by_its_beginning():
    one = world()
    one.fault("GPU-1")
    one.round()
    one.round()
    one.now += 100
    one.others_drain()
    one.master["S0"]["grace_s"] = ACT.kill_s
    one.settle()
    assert one.log == ["deactivate", "drain"]


def test_a_machine_in_the_maintenance_schedule_is_fenced_and_no_more():
    one = world()
    one.scheduled = True
    one.fault("GPU-1")
    one.settle()
    assert one.log == ["deactivate"]
    one.scheduled = False
    one.settle()
    assert one.log == WAY


def test_a_node_that_falls_silent_is_suspected_and_nothing_is_done():
    one = world()
    one.round()
    one.session = False
    one.settle()
    assert one.log == []
    decision = decide(one.memory, one.node(), "", one.now)
    assert decision.why.startswith("suspected")


def test_a_node_that_stays_silent_is_fenced_where_the_policy_says_so_and_comes_back_by_itself():
    one = world(policy=Policy(mode="act", silent="deactivate", suspect_s=300))
    one.round()
    one.session = False
    one.settle(turns=10)
    assert one.log == []
    one.settle(turns=10)
    assert one.log == ["deactivate"]
    one.session = True
    one.settle()
    assert one.log == ["deactivate", "reactivate"]


def test_a_node_that_never_published_is_never_suspected():
    one = world(policy=Policy(mode="act", silent="deactivate", suspect_s=0))
    one.session = False
    one.settle()
    assert one.log == []


def test_what_is_held_back_is_not_begun_and_goes_on_afterwards():
    one = world()
    one.fault("GPU-1")
    one.held = "too many"
    one.settle()
    assert one.log == []
    one.held = ""
    one.settle()
    assert one.log == WAY


def test_what_others_do_after_they_brought_our_agent_back_is_theirs():
    one = world()
    one.launch()
    one.fault("GPU-1")
    one.round()
    one.mend("GPU-1")
    one.others_reactivate()
    one.round()
    one.others_deactivate()
    one.settle()
    assert one.log == ["deactivate", "close"]
    assert one.wrong == []


def test_an_agent_that_gave_its_place_to_another_is_not_brought_back_while_mesos_still_lists_it():
    one = world()
    one.fault("GPU-1")
    register, one.register = one.register, lambda: None
    one.settle()
    assert one.log == ["deactivate", "drain", "order", "settle"]
    assert one.master["S0"]["state"] == "drained"
    one.register = register
    one.register()
    one.settle()
    assert one.log == WAY


def test_an_order_is_withdrawn_when_somebody_brought_the_agent_back():
    one = world()
    one.fault("GPU-1")
    for _step in range(3):
        one.round()
    assert one.log == ["deactivate", "drain", "order"]
    one.others_reactivate()
    one.launch()
    one.round()
    assert one.log[-1] == "withdraw"
    one.node_acts()
    assert one.answer is not None
    assert one.answer["state"] == "failed"
    assert one.tasks
    one.end_tasks()
    one.settle()
    assert "GPU-1" not in one.listed


def others_drain_while_the_node_exchanges_its_agent(one: World) -> None:
    one.fault("GPU-1")
    for _step in range(3):
        one.round()
    # The node has begun: the agent is stopped, and what it was told cannot be taken back.
    one.node_acts()
    one.now += 100
    one.others_drain()


@pytest.mark.parametrize("late", [False, True])
def test_a_drain_of_others_goes_over_to_the_agent_that_takes_its_place(late: bool):
    one = world()
    register = one.register
    others_drain_while_the_node_exchanges_its_agent(one)
    if late:
        # Mesos lists the old one for a while.
        one.register = lambda: None
        one.settle()
        one.register = register
        one.register()
    one.settle()
    assert one.latest == "S1"
    assert one.agent is not None
    assert one.agent.state == "drained"
    assert one.agent.grace_s == 600


@pytest.mark.parametrize("seen", [False, True], ids=["before we look", "after we looked"])
@pytest.mark.parametrize("repairs", [(), ("reset_gpu", "reboot")], ids=["restarted by us", "rebooted by us"])
def test_a_drain_of_others_ends_when_the_host_boots_as_it_does_without_us(seen: bool, repairs: tuple[str, ...]):
    one = world(policy=Policy(mode="act", repairs=repairs, resets=0))
    others_drain_while_the_node_exchanges_its_agent(one)
    while one.answer is None:
        one.round()
        one.node_acts()
    if seen:
        one.round()
        # What a silent node has done meanwhile nobody knows.
        one.session = False
    one.reboot()
    one.settle()
    one.session = True
    one.settle()
    assert one.agent is not None
    assert one.agent.id not in ("S0", "S1")
    assert one.agent.state == "active"


def test_an_order_that_was_never_sent_is_sent_though_the_agent_has_another_id_by_now():
    one = world()
    one.fault("GPU-1")
    one.round()
    one.round()
    with pytest.raises(Killed):
        one.round("begin")
    one.restart()
    one.reboot()
    one.settle()
    assert "GPU-1" not in one.listed
    assert one.memory["order"] is None


def test_an_agent_that_comes_back_by_a_reboot_with_the_old_list_is_fenced_again():
    one = world()
    one.launch()
    one.fault("GPU-1")
    one.round()
    one.reboot()
    one.settle()
    assert one.log == ["deactivate", "deactivate", "drain", "order", "settle", "close"]
    assert "GPU-1" not in one.listed


def test_what_others_do_after_a_call_that_was_refused_is_not_ours():
    one = world()
    one.fault("GPU-1")
    step = decide(one.memory, one.node(), "", one.now).step
    assert step is not None
    memory = reconcile.end(reconcile.begin(one.memory, step, one.now), "refused", one.now, refused=True)
    assert memory["ours"] == {}
    assert memory["failed"]["why"] == "refused"


def test_a_call_without_an_answer_is_ours_when_the_master_does_it_later():
    one = world()
    one.fault("GPU-1")
    for _try in range(3):
        step = decide(one.memory, one.node(), "", one.now).step
        assert step is not None
        one.memory = reconcile.end(reconcile.begin(one.memory, step, one.now), "timed out", one.now)
        one.now += 2
        one.memory = reconcile.observe(one.memory, one.node(), ACT, one.now)
    assert one.memory["ours"]["S0"]["before"] is None
    one.master["S0"]["state"] = "deactivated"
    one.mend("GPU-1")
    one.settle()
    assert one.log == ["reactivate"]


def test_a_call_without_an_answer_of_which_nothing_came_is_not_ours_for_ever():
    one = world()
    one.fault("GPU-1")
    step = decide(one.memory, one.node(), "", one.now).step
    assert step is not None
    one.memory = reconcile.end(reconcile.begin(one.memory, step, one.now), "timed out", one.now)
    one.mend("GPU-1")
    one.settle(turns=2)
    one.others_deactivate()
    one.settle()
    assert one.log == []


def test_a_sticky_drain_is_posted_again():
    one = world()
    one.fault("GPU-1")
    one.round()
    one.round()
    one.master["S0"]["state"] = "draining"
    one.now += 5
    assert one.round() is None
    one.now += ACT.kill_s
    step = one.round()
    assert step is not None
    assert step.kind == "drain"


def test_repairs_go_up_the_ladder_one_after_the_other_and_end_in_quarantine():
    policy = Policy(mode="act", repairs=("reset_gpu", "reboot"), resets=1, reboots=1, proof_s=100)
    one = world(policy=policy)
    one.fault("GPU-1")
    mend, one.mend = one.mend, lambda uuid: None  # no repair helps
    one.settle(turns=100)
    assert one.memory["gpus"]["GPU-1"]["resets"] == 1
    assert one.memory["gpus"]["GPU-1"]["reboots"] == 1
    assert one.boot == 2
    assert one.memory["gpus"]["GPU-1"]["quarantine"]
    mend("GPU-1")
    one.settle()
    assert "GPU-1" not in one.listed
    one.memory = reconcile.clear(one.memory, "GPU-1")
    one.settle()
    assert one.listed == one.uuids


def test_nothing_is_repaired_without_leave_and_what_to_do_is_told():
    one = world()
    one.fault("GPU-1")
    one.settle()
    assert one.boot == 1
    assert one.memory["gpus"] == {}
    assert decide(one.memory, one.node(), "", one.now).why == "GPU-1 is not given out: reset_gpu"


@pytest.mark.parametrize("point", ["begin", "call"])
@pytest.mark.parametrize("number", range(5))
def test_killed_at_each_step_it_goes_on(point: str, number: int):
    one = world()
    one.fault("GPU-1")
    for turn in range(200):
        if turn == 100:
            one.mend("GPU-1")
        one.now += 20
        due = len(one.log) in (number, number + len(WAY))
        try:
            one.round(point if due else "")
        except Killed:
            one.restart()
        one.node_acts()
    assert one.wrong == []
    assert one.listed == one.uuids
    assert one.agent is not None
    assert one.agent.state == "active"
    assert one.memory["fenced"] is None


def test_the_memory_is_json_and_a_policy_names_what_is_wrong_with_it():
    one = world()
    one.fault("GPU-1")
    one.settle(turns=3)
    assert json.loads(json.dumps(one.memory)) == one.memory
    assert Policy().problems() == []
    wrong = Policy(mode="maybe", breaker_share=0, kill_s=-1, repairs=("pray",)).problems()
    assert [text.split(" is ")[0].split(" has ")[0] for text in wrong] == ["mode", "repairs", "breaker_share", "kill_s"]


# --- an agent that cannot start ---


def stuck(**more: Any) -> Node:
    """A host whose Mesos agent ends as it starts, since GPU-1 of its list does not answer."""
    one = world(gpus=3)
    one.fault("GPU-1")
    mesos = {"agent_id": "S0", "unit": "activating", "executors": 0, "unread": None}
    verdict = {**(one.node().verdict or {}), "mesos": mesos}
    scheduled = more.pop("scheduled", False)
    verdict["mesos"] = {**verdict["mesos"], **{key: more.pop(key) for key in list(more) if key in verdict["mesos"]}}
    return Node("n1", {**verdict, **more}, None, scheduled)


def decided(node: Node, seconds: float = 60.0, memory: dict | None = None) -> Decision:
    before = reconcile.observe(memory or {**reconcile.empty("n1"), "known": True}, node, ACT, 0.5)
    return decide(reconcile.observe(before, node, ACT, seconds + 1), node, "", seconds + 1)


def test_an_agent_that_never_registers_for_a_fatal_gpu_of_its_list_is_replaced():
    step = decided(stuck()).step
    assert step is not None
    assert (step.kind, step.agent_id) == ("order", "S0")
    assert step.order == {"kind": "replace", "agent_id": "S0", "gpus": ["GPU-0", "GPU-2"]}
    # After a boot with a GPU that is not even told of.
    rows = [row for row in stuck().verdict["devices"] if row["uuid"] != "GPU-1"]  # type: ignore[index]
    step = decided(stuck(devices=rows, agent_id=None)).step
    assert step is not None
    assert step.order == {"kind": "replace", "agent_id": "", "gpus": ["GPU-0", "GPU-2"]}
    assert "GPU-1 (not_told_of)" in step.why


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"executors": 1}, "1 of its executors run"),
        ({"executors": None}, "it is unknown whether its executors run"),
        ({"unit": "inactive"}, "its unit was stopped by hand"),
        (
            {"unread": "/var/lib/mesos: Permission denied", "executors": None},
            "its host's gpu-agent cannot read /var/lib/mesos: Permission denied; run `gpuops up --tags mesos_agent` "
            "for it",
        ),
        ({"unit": "unknown"}, "the state of its unit is unknown"),
        ({"scheduled": True}, "maintenance schedule"),
        ({"listed": ["GPU-0", "GPU-2"]}, "no agent of this name is registered"),
        ({"listed": ["GPU-1"], "devices": []}, "no agent of this name is registered"),
        ({"mesos": None}, "no agent of this name is registered"),
    ],
)
def test_where_jobs_may_live_or_somebody_has_his_way_with_it_nothing_is_ordered(more: dict, words: str):
    decision = decided(stuck(**more))
    assert decision.step is None
    assert words in decision.why


def test_an_agent_that_may_still_come_and_one_that_others_took_out_are_waited_for():
    assert "it may still register" in decided(stuck(), 10).why
    seen = Node("n1", stuck().verdict, Agent("S0", "deactivated", 3.0))
    memory = reconcile.observe({**reconcile.empty("n1"), "known": True}, seen, ACT, 0.1)
    assert "another client took it out before" in decided(stuck(), memory=memory).why
    memory = reconcile.observe(memory, Node("n1", seen.verdict, Agent("S0", "active", 3.0)), ACT, 0.2)
    assert decided(stuck(), memory=memory).step is not None


def test_the_breaker_counts_agents_that_cannot_start():
    memories, nodes = {}, []
    for place in range(5):
        name = f"n{place}"
        nodes.append(Node(name, stuck().verdict, None))
        memories[name] = {**reconcile.empty(name), "known": True, "absent": 1.0}
    wait = waiting(memories, nodes, 100)
    assert wait == [node.host for node in nodes]
    held = reconcile_fleet.held(reconcile_fleet.empty(), wait, 5, ACT, 100)
    assert "5 of 5 nodes fail" in held
    decision = decide(memories["n0"], nodes[0], held, 100)
    assert (decision.step, decision.why.split(":")[0]) == (None, "order is held back")


# --- the fleet ---


def fleet_of(number: int, sick: int) -> tuple[dict[str, dict], list[Node]]:
    nodes, memories = [], {}
    for place in range(number):
        one = world(gpus=2)
        if place < sick:
            one.fault("GPU-0")
        node = one.node()
        nodes.append(Node(f"n{place}", node.verdict, node.row))
        memories[f"n{place}"] = reconcile.empty(f"n{place}")
    return memories, nodes


def test_the_breaker_holds_when_most_nodes_fail_at_once_and_an_operator_lets_go():
    memories, nodes = fleet_of(10, 6)
    wait = waiting(memories, nodes, 0)
    assert wait == [f"n{place}" for place in range(6)]
    fleet = reconcile_fleet.empty()
    why = reconcile_fleet.held(fleet, wait, 10, ACT, 0)
    assert why.startswith("6 of 10 nodes fail within 300 s, and 2 may")
    permitted = reconcile_fleet.permit(fleet, wait)
    assert reconcile_fleet.held(permitted, wait, 10, ACT, 0) == ""


def test_the_breaker_counts_those_that_were_fenced_in_the_window_and_forgets_older_ones():
    fleet = reconcile_fleet.empty()
    for at, host in ((0, "a"), (10, "b")):
        fleet = reconcile_fleet.fenced(fleet, host, ACT, at)
    assert reconcile_fleet.held(fleet, ["c"], 5, ACT, 20)
    assert reconcile_fleet.held(fleet, ["c"], 5, ACT, 301) == ""


def test_a_permit_ends_when_its_node_is_well():
    memories, nodes = fleet_of(4, 0)
    fleet = reconcile_fleet.after(reconcile_fleet.permit(reconcile_fleet.empty(), ["n0"]), [], memories)
    assert fleet["permitted"] == []
    memories["n0"]["fenced"] = {"at": 0}
    fleet = reconcile_fleet.after(reconcile_fleet.permit(reconcile_fleet.empty(), ["n0"]), [], memories)
    assert fleet["permitted"] == ["n0"]
    assert len(nodes) == 4


def test_the_limit_is_the_share_or_the_count_whichever_is_more():
    assert reconcile_fleet.limit(5, ACT) == 2
    assert reconcile_fleet.limit(100, ACT) == 20


YEAR = 365 * 86400.0


def test_a_clock_that_is_set_back_by_a_year_keeps_no_gpu_out():
    one = world()
    one.fault("GPU-1")
    one.settle()
    one.mend("GPU-1")
    one.round()
    one.now -= YEAR
    one.settle()
    assert one.listed == one.uuids


def test_a_fence_that_failed_is_tried_again_though_the_clock_was_set_back_by_a_year():
    one = world()
    one.fault("GPU-1")
    memory = reconcile.begin(reconcile.empty("n1"), MesosStep("deactivate", "fatal", agent_id="S0"), one.now)
    memory = reconcile.end(memory, "refused", one.now, refused=True)
    now = one.now - YEAR
    memory = reconcile.observe(memory, one.node(), ACT, now)
    step = decide(memory, one.node(), "", now + 2).step
    assert step is not None
    assert step.kind == "deactivate"


def test_a_call_that_was_cut_is_given_up_though_the_clock_was_set_back_by_a_year():
    one = world()
    memory = reconcile.begin(reconcile.empty("n1"), MesosStep("deactivate", "fatal", agent_id="S0"), one.now)
    now = one.now - YEAR
    for later in (0.0, 20.0):
        memory = reconcile.observe(memory, one.node(), ACT, now + later)
    assert memory["intent"] is None


def test_the_breaker_lets_go_though_the_clock_was_set_back_by_a_year():
    fleet = {**reconcile_fleet.empty(), "fences": [[1e9, f"n{number}"] for number in range(9)]}
    now = 1e9 - YEAR
    fleet = reconcile_fleet.set_back(fleet, now)
    assert reconcile_fleet.held(fleet, [], 20, ACT, now)
    assert not reconcile_fleet.held(fleet, [], 20, ACT, now + ACT.breaker_window_s)
