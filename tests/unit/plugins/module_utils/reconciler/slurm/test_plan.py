# SPDX-License-Identifier: GPL-3.0-or-later
"""One GPU goes out of a node of Slurm, and no job with it."""

from __future__ import annotations

import json
import random

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.rows import node as read_row
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import FATAL_JOBS, Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.maintenance import reason_before
from tests.unit.plugins.module_utils.reconciler.slurm.slurm_world import NODE, Killed, SlurmWorld

ACT = Policy(mode="act", settle_s=60.0)


def world(**more: int) -> SlurmWorld:
    return SlurmWorld(policy=ACT, **more)


def test_a_well_node_is_left_alone() -> None:
    one = world()
    assert one.turn() == ["()"]
    assert one.calls == []


def test_a_free_gpu_is_held_and_the_node_goes_on_with_the_others() -> None:
    one = world()
    running = one.submit(1)
    one.schedule()
    one.fault(2)
    assert one.turn(8)[:2] == ["guard", "hold"]
    one.settle()
    assert one.held() == {2}
    assert one.guards() == {}
    assert [job.positions for job in one.users()] == [(0,)]
    late = [one.submit(1) for _number in range(3)]
    one.schedule()
    assert {job.id: job.positions for job in one.users()} == {
        running: (0,),
        late[0]: (1,),
        late[1]: (3,),
        late[2]: None,
    }


def test_holders_over_a_limit_are_told_with_it_and_made_anew_until_they_start() -> None:
    one = world()
    one.limit = "QOSMaxWallDurationPerJobLimit"
    one.fault(2)
    assert one.turn()[-1] == "(fatal: GPU-2 (xid_79); holders do not start: QOSMaxWallDurationPerJobLimit)"
    waiting = [job.id for job in one.queue]
    one.now += 30.0
    assert len(one.turn()) == 1
    assert [job.id for job in one.queue] == waiting
    # Closed, and not given to anybody.
    assert one.guards()
    one.limit = ""
    one.settle()
    assert (one.held(), one.guards()) == ({2}, {})
    assert not {job.id for job in one.queue} & set(waiting)


def test_a_gpu_that_its_job_leaves_is_not_open_because_its_holders_are_over_a_limit() -> None:
    one = world(gpus=2)
    running = one.submit(1)
    one.schedule()
    one.fault(0)
    one.limit = "AssocGrpGRES"
    assert one.turn()[-1].endswith(f"taken when job {running} of alice ends)")
    one.end(running)
    one.now += 5.0
    assert "guard" in one.turn()
    late = one.submit(1)
    one.schedule()
    assert {job.id: job.positions for job in one.users()} == {late: None}
    one.limit = ""
    one.settle()
    assert one.held() == {0}


def test_a_gpu_in_use_is_taken_when_its_job_ends_and_the_node_is_open_until_then() -> None:
    one = world(gpus=2)
    running = one.submit(1)
    one.schedule()
    one.fault(0)
    assert one.turn()[:4] == ["guard", "hold", "unguard", f"(GPU-0 (xid_79): taken when job {running} of alice ends)"]
    other = one.submit(1)
    one.schedule()
    assert {job.id: job.positions for job in one.users()} == {running: (0,), other: (1,)}
    waiting = one.submit(1)
    one.end(running)
    one.schedule()
    assert one.held() == {0}
    assert next(job for job in one.users() if job.id == waiting).positions is None
    one.settle()
    assert (one.held(), one.guards(), one.wrong) == ({0}, {}, [])


def test_a_job_that_got_the_gpu_after_all_is_waited_for_anew() -> None:
    """As after a requeue of the job that was waited for."""
    one = world(gpus=1)
    first = one.submit(1)
    one.schedule()
    one.fault(0)
    one.turn()
    one.queue = [job for job in one.queue if job.id != first or job.holder]
    second = one.submit(1)
    one.queue[-1].positions = (0,)
    assert one.turn()[:4] == ["guard", "cancel", "hold", "unguard"]
    one.end(second)
    one.schedule()
    assert one.held() == {0}


def test_a_node_without_a_free_core_is_open_and_holders_get_the_next_one() -> None:
    one = world(gpus=2, cores=1)
    busy = one.submit(0)
    one.schedule()
    one.fault(1)
    assert one.turn()[:3] == ["guard", "hold", "unguard"]
    one.submit(1)
    one.end(busy)
    one.schedule()
    assert one.held()
    one.settle()
    assert one.wrong == []


@pytest.mark.parametrize("in_use", [False, True], ids=["held", "waited for"])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_a_reconciler_that_remembers_nothing_opens_no_fence_of_the_one_before_it(steps: int, in_use: bool) -> None:
    one = world(gpus=2)
    job = one.submit(2 if in_use else 0)
    one.schedule()
    one.fault(1)
    for _number in range(steps):
        one.step()
        one.now += 1.0
    one.memory = plan.empty(NODE)
    one.session = False
    before = len(one.calls)
    for _minute in range(60):
        one.turn()
        one.now += 60.0
    assert set(one.calls[before:]) <= {"guard"}
    one.session = True
    one.turn()
    one.end(job)
    one.settle()
    assert (one.held(), one.guards(), one.wrong) == ({1}, {}, [])


def test_a_gpu_that_is_well_for_long_enough_is_given_out_again() -> None:
    one = world(gpus=2)
    one.fault(1)
    one.settle()
    assert one.held() == {1}
    one.mend(1)
    one.step()
    one.now += ACT.settle_s / 2
    one.step()
    assert one.held() == {1}
    one.now += ACT.settle_s
    assert one.turn()[:2] == ["cancel", "close"]
    assert (one.held(), one.memory["fenced"]) == (set(), None)


def test_a_gpu_that_a_job_has_of_which_nothing_is_told_yet_is_waited_for() -> None:
    """slurmctld tells of nodes and of jobs one after the other, and a holder may start in between."""
    one = world(gpus=2)
    one.fault(1)
    one.step()
    nodes = one.nodes()[NODE]
    one.nodes = lambda: {NODE: {**nodes, "used": [1], "free_cpus": 0}}  # type: ignore[method-assign]
    assert one.step() == "(fatal: GPU-1 (xid_79); the GPU passes to another job)"
    assert one.calls == ["guard"]


def test_the_job_on_a_fatal_gpu_is_signalled_once_where_the_policy_says_so() -> None:
    one = SlurmWorld(gpus=2, policy=Policy(mode="act", fatal_job="signal"))
    on_bad, on_well = one.submit(1), one.submit(1)
    one.schedule()
    one.fault(0)
    one.settle()
    assert one.calls.count("signal") == 1
    assert {job.id: job.note for job in one.users()} == {
        on_bad: "gpuops: SIGTERM: fatal: GPU-0 (xid_79)",
        on_well: "",
    }
    one.end(on_bad)
    one.schedule()
    assert one.held() == {0}


def test_the_job_on_a_fatal_gpu_is_queued_again_where_the_policy_says_so_and_gets_another() -> None:
    one = SlurmWorld(gpus=2, policy=Policy(mode="act", fatal_job="requeue"))
    on_bad = one.submit(1)
    one.schedule()
    one.fault(0)
    one.settle()
    assert (one.held(), one.guards(), one.wrong) == ({0}, {}, [])
    assert {job.id: job.positions for job in one.users()} == {on_bad: (1,)}


def test_a_job_that_cannot_be_queued_again_is_left() -> None:
    one = SlurmWorld(gpus=2, policy=Policy(mode="act", fatal_job="requeue"))
    on_bad = one.submit(1)
    one.users()[0].batch = False
    one.schedule()
    one.fault(0)
    one.settle()
    assert "requeue" not in one.calls
    assert {job.id: job.positions for job in one.users()} == {on_bad: (0,)}
    one.end(on_bad)
    one.settle()
    assert (one.held(), one.guards()) == ({0}, {})


def test_a_requeue_that_slurm_refuses_leaves_the_job_and_closes_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    one = SlurmWorld(gpus=2, policy=Policy(mode="act", fatal_job="requeue"))
    on_bad = one.submit(1)
    one.schedule()

    def refuse(jobs: object) -> None:
        raise CallFailed("Requested operation is presently disabled")

    monkeypatch.setattr(one, "requeue", refuse)
    one.fault(0)
    one.settle()
    assert one.guards() == {}
    assert {job.id: job.positions for job in one.users()} == {on_bad: (0,)}


def test_a_second_gpu_that_fails_is_held_as_well() -> None:
    one = world(gpus=4)
    one.fault(1)
    one.settle()
    one.fault(3)
    one.settle()
    assert (one.held(), one.guards()) == ({1, 3}, {})


def test_a_fault_of_the_whole_host_drains_the_node_with_the_reason_and_it_comes_back() -> None:
    one = world()
    one.node_codes = ["driver_mismatch"]
    assert one.turn()[0] == "drain_node"
    assert one.drain_reason == "gpuops: driver_mismatch"
    one.node_codes = []
    assert one.turn()[:2] == ["resume", "close"]


def test_a_node_that_others_drained_stays_theirs() -> None:
    one = world()
    one.drain_reason = "new power supply"
    one.node_codes = ["driver_mismatch"]
    assert one.turn() == ["(it was drained by another client: driver_mismatch)"]
    one.node_codes = []
    assert one.settle() == "()"
    assert one.drain_reason == "new power supply"


def test_a_drain_is_what_the_policy_may_have_instead() -> None:
    one = SlurmWorld(policy=Policy(mode="act", gpu_fence="drain"))
    one.fault(1)
    assert one.turn()[0] == "drain_node"
    assert one.drain_reason == "gpuops: GPU-1 (xid_79)"
    assert one.held() == set()


def test_a_fatal_gpu_whose_device_file_nobody_knows_drains_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    told = one.verdict
    monkeypatch.setattr(
        one, "verdict", lambda: {**told(), "devices": [{**row, "minor": None} for row in told()["devices"]]}
    )
    one.fault(1)
    assert one.turn()[0] == "drain_node"
    assert "GPU-1 (xid_79), whose device file is not known" in one.drain_reason


UNCLEAR = ("", f"NodeName={NODE} Name=gpu Count=4", f"NodeName={NODE} Name=gpu File=/dev/nvidia[0-1]")


@pytest.mark.parametrize("gres_conf", UNCLEAR)
def test_a_fatal_gpu_whose_place_gres_conf_does_not_tell_drains_the_node(gres_conf: str) -> None:
    one = world()
    clear, one.gres_conf = one.gres_conf, gres_conf
    one.fault(3)
    assert one.turn()[0] == "drain_node"
    assert "GPU-3 (xid_79), whose place in gres.conf is not known" in one.drain_reason
    one.gres_conf = clear
    one.settle()
    assert (one.drain_reason, one.held()) == (None, {3})


@pytest.mark.parametrize("gres_conf", UNCLEAR)
def test_a_fence_stays_while_gres_conf_does_not_tell_the_places(gres_conf: str) -> None:
    one = world()
    one.fault(3)
    one.settle()
    clear, one.gres_conf = one.gres_conf, gres_conf
    one.settle()
    assert one.held() == {3}
    one.mend(3)
    one.settle()
    assert one.held() == {3}
    one.gres_conf = clear
    one.settle()
    assert (one.drain_reason, one.held()) == (None, set())


def test_a_node_that_boots_is_closed_until_its_bad_gpu_is_held_again() -> None:
    one = world(gpus=2)
    one.fault(1)
    one.settle()
    one.session = False
    assert one.turn()[0] == "guard"
    one.reboot()
    job = one.submit(1)
    other = one.submit(1)
    one.schedule()
    assert [row.positions for row in one.users()] == [None, None]
    one.session = True
    one.settle()
    assert one.held() == {1}
    assert {row.id: row.positions for row in one.users()} == {job: (0,), other: None}
    assert one.wrong == []


def test_a_silent_agent_without_a_bad_gpu_closes_nothing() -> None:
    one = world()
    one.settle()
    one.session = False
    assert one.settle() == "()"
    assert one.calls == []


def test_a_guard_is_renewed_before_it_ends() -> None:
    one = world(gpus=2)
    one.fault(1)
    one.settle()
    one.session = False
    one.turn()
    ends = one.guard_ends
    one.now += 400
    assert one.turn()[0] == "guard"
    assert one.guard_ends > ends


def test_the_breaker_holds_back_what_was_not_begun() -> None:
    one = world()
    one.fault(1)
    assert one.step(held="5 of 8 nodes fail") == "(guard is held back: 5 of 8 nodes fail)"
    assert plan.decide(one.memory, one.node(), ACT, one.now).fails


def test_a_gpu_that_the_operator_has_in_quarantine_is_held_though_it_is_well() -> None:
    one = world(gpus=2)
    one.memory["gpus"]["GPU-1"] = {"resets": 1, "reboots": 2, "at": one.now, "quarantine": True}
    one.settle()
    assert one.held() == {1}


def test_what_is_written_down_is_read_again() -> None:
    one = world(gpus=2)
    one.fault(1)
    one.turn()
    row = read_row(plan, "n1", json.dumps({"memory": one.memory, "last": []}).encode())
    assert row["memory"]["slurm"]["bad"]["GPU-1"] == {"codes": ["xid_79"], "minor": 1}


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_no_job_gets_a_fenced_gpu_and_none_is_ended(seed: int) -> None:
    chance = random.Random(seed)
    gpus = chance.choice([1, 2, 4, 8])
    policy = Policy(mode="act", settle_s=60.0, fatal_job=chance.choice(FATAL_JOBS))
    one = SlurmWorld(gpus=gpus, cores=gpus * chance.choice([1, 2]), policy=policy)
    submitted: set[int] = set()
    for _number in range(60):
        event = chance.random()
        if event < 0.25:
            submitted.add(one.submit(chance.choice([0, 1, 1, 2])))
        elif event < 0.4 and one.users():
            one.end(chance.choice(one.users()).id)
        elif event < 0.5:
            one.fault(chance.randrange(one.gpus))
        elif event < 0.55 and one.fatal:
            one.mend(chance.choice(sorted(one.fatal)))
        elif event < 0.6:
            one.session = not one.session
        elif event < 0.65:
            one.cut = chance.randrange(4)
        one.now += chance.choice([0.1, 1.0, 30.0])
        try:
            one.step()
        except Killed:
            # The next one goes on from what was written.
            one.memory = {**one.memory, "well": {}, "silent": None, "absent": None}
        if chance.random() < 0.8:
            one.schedule()
    one.session, one.cut = True, None
    one.settle()
    for job in list(one.users()):
        one.end(job.id)
        one.schedule()
    one.settle()
    assert one.wrong == []
    assert one.held() == one.fatal
    assert one.guards() == {}
    for position in sorted(one.fatal):
        one.mend(position)
    one.settle()
    assert (one.held(), one.guards(), one.memory["fenced"]) == (set(), {}, None)


def test_a_node_that_an_operator_drained_is_neither_resumed_nor_given_another_reason() -> None:
    one = world(gpus=2)
    one.drain_reason = "gpuops drain: upgrade of the driver"
    one.node_codes = ["gpu_agent_lost"]
    one.turn(3)
    one.node_codes = []
    one.turn(3)
    assert one.drain_reason == "gpuops drain: upgrade of the driver"
    assert "drain" not in one.calls
    assert "resume" not in one.calls


def test_a_drain_that_an_operator_took_over_and_gave_back_ends_when_the_fault_is_over() -> None:
    one = world(gpus=2)
    one.node_codes = ["gpu_agent_lost"]
    one.turn(3)
    ours = one.drain_reason
    assert ours is not None
    one.drain_reason = f"gpuops drain: another fan; before: {ours}"
    one.node_codes = []
    one.turn(5)
    assert one.drain_reason == f"gpuops drain: another fan; before: {ours}"
    one.drain_reason = reason_before(one.drain_reason)
    one.turn(5)
    assert one.drain_reason is None


HEALTH_CHECK = "gpuops: health check: fatal and not fenced: GPU-1 (xid_79) for 320 s"


def test_a_node_that_its_health_check_drained_is_opened_when_the_gpu_is_held() -> None:
    one = world()
    one.fault(1)
    one.drain_reason = HEALTH_CHECK
    one.settle()
    assert one.drain_reason is None
    assert one.held() == {1}
    assert one.guards() == {}
    late = [one.submit(1) for _number in range(4)]
    one.schedule()
    assert {job.id: job.positions for job in one.users()} == {
        late[0]: (0,),
        late[1]: (2,),
        late[2]: (3,),
        late[3]: None,
    }


def test_a_node_that_its_health_check_drained_is_resumed_when_the_fault_is_over() -> None:
    one = world()
    one.drain_reason = HEALTH_CHECK
    one.settle()
    assert (one.drain_reason, one.calls) == (None, ["resume"])
