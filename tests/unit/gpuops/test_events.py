# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of ansible-runner as types. They are made up after recorded ones."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events
from gpuops.run.reducer import Reducer

TASK = {
    "task": "Compare",
    "task_uuid": "1-2",
    "task_action": "host_drift_info",
    "resolved_action": "baremetal.gpu.host_drift_info",
    "role": "converge",
}
COMPARE = events.Task("1-2", "Compare", "converge", "host_drift_info")


def event(kind, output="", **data):
    return events.typed({"event": kind, "stdout": output, "event_data": data})


def test_plays_tasks_and_hosts():
    assert event("playbook_on_play_start", "\r\nPLAY [a]", name="a") == events.PlayStarted("\nPLAY [a]", "a")
    assert event("playbook_on_task_start", **TASK) == events.TaskStarted("", COMPARE)
    assert event("runner_on_start", host="g1", **TASK) == events.HostStarted("", "g1", COMPARE)
    assert event("playbook_on_stats", "PLAY RECAP", ok={"g1": 1}) == events.Counted("PLAY RECAP")
    assert event("playbook_on_stats", failures={"g1": 1}) == events.Counted("", frozenset({"g1"}))
    assert event("playbook_on_stats", changed={"g1": 2}) == events.Counted("", frozenset(), {"g1": 2})
    assert event("runner_item_on_ok", host="g1", **TASK) == events.Event()


@pytest.mark.parametrize(
    ("kind", "result", "outcome", "succeeded"),
    [
        ("runner_on_ok", {}, progress.OK, True),
        ("runner_on_ok", {"changed": True}, progress.CHANGED, True),
        ("runner_on_skipped", {"changed": False}, progress.SKIPPED, False),
        ("runner_on_failed", {"changed": True}, progress.FAILED, False),
        ("runner_on_unreachable", {"msg": "no route"}, progress.UNREACHABLE, False),
    ],
)
def test_a_result_has_an_outcome(kind, result, outcome, succeeded):
    found = event(kind, host="g1", res=result, **TASK)
    assert (found.host, found.task, found.outcome, found.succeeded) == ("g1", COMPARE, outcome, succeeded)
    assert not found.ignored
    assert event(kind, host="g1", res=result, ignore_errors=True, **TASK).ignored


@pytest.mark.parametrize(
    ("output", "outcome"),
    [
        ("changed: [g1]", progress.CHANGED),
        ("\x1b[0;33mchanged: [g1 -> g2]\x1b[0m", progress.CHANGED),
        ("ok: [g1]", progress.OK),
        ("", progress.OK),
    ],
)
def test_a_secret_result_has_its_outcome_from_what_ansible_prints(output, outcome):
    assert event("runner_on_ok", output, host="g1", res={"censored": "hidden"}, **TASK).outcome == outcome


def test_a_result_has_its_problems():
    row = {"code": "disk_full", "subject": "/usr", "cause": "no room", "evidence": "2 MiB", "remedy": "free some"}
    found = event("runner_on_failed", host="g1", res={"msg": "g1: any words", "problems": [row, "a text"]}, **TASK)
    assert found.problems == (Problem(**row), Problem("", "", "a text"))
    items = [{"failed": True, "problems": [row]}, {"problems": [{"cause": "of an item that went well"}]}]
    assert event("runner_on_failed", host="g1", res={"results": items}, **TASK).problems == (Problem(**row),)


@pytest.mark.parametrize("result", [None, "text", [1], {"problems": 5}, {"problems": [{}, None, []]}, {"results": "x"}])
def test_a_result_of_any_shape_has_no_problems(result):
    assert event("runner_on_failed", host="g1", res=result, **TASK).problems == ()


def test_a_failure_that_is_no_mapping_keeps_its_text():
    assert event("runner_on_failed", host="g1", res="the module broke", **TASK).result == {"msg": "the module broke"}


def test_where_a_task_was_delegated_to():
    label = "fatal: [g1 -> master1(192.0.2.7)]: UNREACHABLE! => {}"
    assert event("runner_on_unreachable", label, host="g1", res={"msg": "x"}, **TASK).delegated_to == "master1"
    assert event("runner_on_unreachable", "fatal: [g1]: UNREACHABLE!", host="g1", **TASK).delegated_to == ""


def test_a_command_is_known_by_its_words():
    command = {"task_action": "ansible.builtin.command"}
    one = event("runner_on_ok", host="g1", res={"cmd": ["systemctl", "show", "x"]}, **command)
    assert one.ran("systemctl")
    assert one.ran("systemctl", "show")
    assert not one.ran("systemctl", "list-units")
    assert not one.ran("show")
    assert event("runner_on_ok", host="g1", res={"results": [{"cmd": ["journalctl"]}]}, **command).ran("journalctl")
    # A module that failed may have run one, too.
    assert not event("runner_on_ok", host="g1", res={"cmd": ["systemctl"]}, **TASK).ran("systemctl")


def test_a_result_has_the_stage_of_its_task():
    run = progress.Run(0.0)
    reducer = Reducer(run)
    role = {"task_uuid": "7", "task": "Install", "task_action": "command", "role": "baremetal.gpu.cuda"}
    for one in (event("playbook_on_play_start", name="any"), event("playbook_on_task_start", **role)):
        reducer.take(one, 1.0)
    result = event("runner_on_ok", host="g1", res={"changed": True}, **role)
    assert result.stage == ""
    assert reducer.take(result, 2.0).stage == "cuda"
    assert run.hosts["g1"].cells == {"cuda": progress.CHANGED}


def test_a_host_that_always_does_something_at_the_end_has_failed_all_the_same():
    run = progress.Run(0.0)
    reducer = Reducer(run)
    for one in (
        event("playbook_on_play_start", name="any"),
        event("playbook_on_task_start", **TASK),
        event("runner_on_start", host="g1", **TASK),
        event("runner_on_failed", host="g1", res={"msg": "no"}, **TASK),
        event("runner_on_start", host="g1", **TASK),
        event("runner_on_ok", host="g1", res={}, **TASK),
        event("playbook_on_stats", failures={"g1": 1}),
    ):
        reducer.take(one, 1.0)
    assert run.counts()["failed"] == 1
