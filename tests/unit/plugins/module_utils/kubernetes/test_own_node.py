# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node and the reconciler tell each other by the node's object, with the rights of a kubelet."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import own_node
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.api import Answered
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.gpus import Gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.names import (
    CORDONED_BY,
    HEARD,
    HELD,
    NODES,
    ORDERS,
    TAINT,
    VERDICT,
)
from tests.simulators.kube_api import NODE_USER, KubeApi
from tests.unit.plugins.module_utils.kubernetes.agent_report import UUIDS, certificate, until
from tests.unit.plugins.module_utils.kubernetes.kube_node import Node

PATH = f"{NODES}/n1"
ORDER = {"order": {"kind": "reset", "agent_id": "", "gpus": [UUIDS[1]], "id": "n1-1-1", "at": 1.0}, "clear": None}


@pytest.fixture
def node() -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="own-") as base:
        place = Path(base)
        api = KubeApi(*certificate(place), rights={}, clients=[certificate(place, f"{NODE_USER}n1")[0]])
        api.put(f"{NODES}/n2", {"spec": {}, "status": {}})
        made = Node(place, api, place)
        yield made
        made.close()
        api.close()


def test_the_verdict_is_told_at_once_when_it_changes_and_seldom_where_it_does_not(node: Node) -> None:
    node.say()
    assert {row["verdict"] for row in node.told()["devices"]} == {"ok"}
    writes = len(node.api.writes)
    node.say()
    assert len(node.api.writes) == writes
    node.fatal[UUIDS[1]] = "xid_79"
    node.say()
    assert [row["reasons"][0]["code"] for row in node.told()["devices"] if row["reasons"]] == ["xid_79"]


def test_a_heartbeat_tells_that_the_agent_still_reports(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(own_node.time, "monotonic", lambda: now[0])
    node.say()
    writes = len(node.api.writes)
    assert node.notes()[HEARD]
    now[0] += own_node.HEARTBEAT_S
    node.say()
    assert len(node.api.writes) == writes + 1
    # The agent is gone: the node says nothing any more, and the reconciler finds it silent.
    monkeypatch.setattr(agent_result, "uptime", lambda: 10.0**9)
    now[0] += own_node.HEARTBEAT_S
    node.gpus.refresh()
    node.own.tell()
    assert len(node.api.writes) == writes + 1
    assert "a new one is due" in node.gpus.problem


def test_each_gpu_has_the_number_of_its_device_file(node: Node) -> None:
    node.say()
    assert {row["uuid"]: row["minor"] for row in node.told()["devices"]} == dict(zip(UUIDS, (3, 2, 1, 0), strict=True))


def test_the_answer_to_an_order_is_told_with_it(node: Node) -> None:
    node.answer.write_text(json.dumps({"id": "n1-1-1", "state": "done", "boot_id": "b", "end_boot_id": "b"}))
    node.say()
    assert node.told()["order"] == {"id": "n1-1-1", "state": "done", "end_boot_id": "b"}
    node.answer.write_text("{half")
    node.say()
    assert node.told()["order"] is None


def test_a_report_with_long_words_is_told_without_them(node: Node) -> None:
    reasons = [{"code": f"c{n}", "verdict": "degraded", "action": "none", "text": "x" * 400} for n in range(200)]
    node.says()
    result = json.loads(node.report.read_text())
    result["health"]["reasons"] = reasons
    node.write(json.dumps(result))
    node.gpus.refresh()
    node.own.tell()
    assert len(node.notes()[VERDICT]) < own_node.VERDICT_AT_MOST
    assert [row["code"] for row in node.told()["reasons"]] == [row["code"] for row in reasons]


def test_an_api_server_that_is_away_is_a_problem_until_it_is_back(node: Node) -> None:
    node.api.down = True
    node.say()
    assert "503" in node.own.problem
    node.api.down = False
    until(lambda: (node.own.tell(), node.notes().get(VERDICT))[1])
    until(lambda: node.own.problem == "")


def test_no_gpu_is_given_out_before_it_is_known_what_is_held_back(node: Node) -> None:
    node.ended.set()
    fresh = Gpus(str(node.root), held=None)
    node.says()
    fresh.refresh()
    assert {gpu.code for gpu in fresh.found.values()} == {"not_asked"}


def test_what_the_reconciler_holds_back_is_withheld_though_it_is_well(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(UUIDS))
    node.note(**{HELD: json.dumps({UUIDS[2]: "quarantine"})})
    until(lambda: node.free() == set(UUIDS) - {UUIDS[2]})
    assert node.gpus.found[UUIDS[2]].code == "quarantine"
    node.note(**{HELD: None})
    until(lambda: node.free() == set(UUIDS))


@pytest.mark.parametrize("garbage", ["{", "[]", '{"GPU-1": 5}', '{"GPU-1": "two words"}', "x" * 200000])
def test_garbage_in_the_place_of_what_is_held_changes_nothing(node: Node, garbage: str) -> None:
    node.note(**{HELD: json.dumps({UUIDS[2]: "quarantine"})})
    node.says()
    until(lambda: node.free() == set(UUIDS) - {UUIDS[2]})
    node.note(**{HELD: garbage})
    until(lambda: "is ignored" in node.own.problem)
    assert node.free() == set(UUIDS) - {UUIDS[2]}


def test_a_watch_that_was_cut_is_taken_up_again(node: Node) -> None:
    node.says()
    until(lambda: node.free() == set(UUIDS))
    node.api.down = True
    until(lambda: "cannot be read" in node.own.problem)
    node.note(**{HELD: json.dumps({UUIDS[0]: "xid_79"})})
    # What was changed meanwhile is told to no watch.
    node.api.forget()
    assert UUIDS[0] in node.free()
    node.api.down = False
    until(lambda: UUIDS[0] not in node.free())


def test_the_agent_hears_its_orders_and_hears_them_again_after_a_while(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(own_node.time, "monotonic", lambda: now[0])
    node.note(**{ORDERS: json.dumps(ORDER)})
    until(lambda: (node.own.hand_on(), node.heard)[1])
    node.own.hand_on()
    assert node.heard == [{"do": "hear", "orders": ORDER}]
    # It may have been restarted since.
    now[0] += own_node.AGAIN_S
    node.own.hand_on()
    assert node.heard == 2 * [{"do": "hear", "orders": ORDER}]


def test_an_agent_that_does_not_hear_is_a_problem(node: Node) -> None:
    node.refuses = "not understood"
    node.note(**{ORDERS: json.dumps(ORDER)})
    until(lambda: (node.own.hand_on(), node.heard)[1])
    assert "the agent does not hear the reconciler: not understood" in node.own.problem
    node.note(**{ORDERS: "{garbage"})
    until(lambda: (node.own.hand_on(), "JSON" in node.own.problem or "Expecting" in node.own.problem)[1])


@pytest.mark.parametrize(
    ("path", "change", "why"),
    [
        (f"{NODES}/n2", {"metadata": {"annotations": {VERDICT: "{}"}}}, "not allowed to modify node"),
        (PATH, {"spec": {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}}, "not allowed to modify taints"),
        (PATH, {"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}}, "not allowed to modify labels"),
    ],
)
def test_a_node_can_write_nothing_else(node: Node, path: str, change: dict[str, Any], why: str) -> None:
    with pytest.raises(Answered, match=why) as failure:
        node.caller.patch(path, change)
    assert failure.value.status == 403
    assert CORDONED_BY not in node.notes()


def test_a_node_cannot_read_the_others(node: Node) -> None:
    for path in (NODES, f"{NODES}/n2"):
        with pytest.raises(Answered, match="only its own Node object"):
            node.caller.get(path)
