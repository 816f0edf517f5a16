# SPDX-License-Identifier: GPL-3.0-or-later
"""What the node publishes for the reconciler, and what its agent does with what it hears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils import agent_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent_orders import Inbox, describe
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos_replace import Place

ORDER = {"id": "n1-1", "kind": "replace", "agent_id": "S0", "gpus": []}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "agent").mkdir()
    return tmp_path


def inbox(place: Path) -> Inbox:
    return Inbox(str(place / "agent"), str(place / "answer.json"))


def laid(place: Path) -> Any:
    file = place / "agent/order.json"
    return json.loads(file.read_text()) if file.exists() else None


def answer(place: Path, **told: Any) -> None:
    (place / "answer.json").write_text(json.dumps({"id": ORDER["id"], **told}))


def test_an_order_is_laid_down_for_root_alone(place):
    inbox(place).take({"order": ORDER, "clear": None})
    assert laid(place) == ORDER
    assert (place / "agent/order.json").stat().st_mode & 0o777 == 0o600


def test_an_order_that_has_its_answer_is_not_laid_down_again(place):
    answer(place, state="done")
    one = inbox(place)
    one.take({"order": ORDER})
    one.remind()
    assert laid(place) is None


def test_an_order_that_was_cut_is_laid_down_again_when_the_agent_starts(place):
    answer(place, state="running")
    inbox(place).take({"order": ORDER})
    assert laid(place) == ORDER


def test_an_order_without_an_answer_is_laid_down_again_after_a_while(place, monkeypatch):
    one = inbox(place)
    one.take({"order": ORDER})
    (place / "agent/order.json").unlink()
    one.remind()
    assert laid(place) is None
    monkeypatch.setattr(agent_orders, "REMIND_S", 0.0)
    one.remind()
    assert laid(place) == ORDER


def test_an_order_that_is_withdrawn_is_laid_down_as_such(place):
    one = inbox(place)
    one.take({"order": ORDER})
    one.take({"order": {**ORDER, "withdrawn": True}})
    assert laid(place)["withdrawn"]


def test_what_is_mended_is_told_once_over_restarts_too(place):
    clear = {"clear": {"id": "r-1", "device": "GPU-0"}, "order": None}
    assert inbox(place).take(clear) == {"device": "GPU-0"}
    assert inbox(place).take(clear) is None
    assert inbox(place).take({"clear": {"id": "r-2", "device": None}}) == {"device": None}


@pytest.mark.parametrize("told", [{}, {"order": "x"}, {"clear": 3}, {"order": None, "clear": None}])
def test_what_is_no_order_changes_nothing(place, told):
    assert inbox(place).take(told) is None
    assert laid(place) is None


def test_what_is_published_names_cards_reasons_list_and_answer(place):
    environment = place / "agent.env"
    environment.write_text("BAREMETAL_GPU_UUIDS=GPU-0,GPU-1\nBAREMETAL_GPU_HELD_BACK=GPU-2\n")
    answer(place, state="failed", error="it has tasks", boot_id="a", end_boot_id="b")
    reason = {"code": "gpu_lost", "verdict": "fatal", "action": "reboot", "text": "gone", "evidence": {}, "remedy": "x"}
    card = {"uuid": "GPU-0", "index": 0, "pci_address": "0000:01:00.0", "verdict": "fatal", "reasons": [reason]}
    result = {
        "boot_id": "b",
        "time": 9.0,
        "health": {"verdict": "fatal", "since": 5.0, "reasons": [], "devices": [{**card, "checks": {}}]},
    }
    where = Place(environment=str(environment), work_dir=str(place / "mesos"))

    def systemctl(argv: object) -> tuple[int, str]:
        return 0, "ActiveState=activating\nResult=exit-code\n"

    assert describe("n1", where, result, str(place / "answer.json"), systemctl) == {
        "schema": 1,
        "host": "n1",
        "boot_id": "b",
        "time": 5.0,
        "verdict": "fatal",
        "reasons": [],
        "devices": [{**card, "reasons": [{key: reason[key] for key in ("code", "verdict", "action", "text")}]}],
        "listed": ["GPU-0", "GPU-1"],
        "held_back": ["GPU-2"],
        "order": {"id": "n1-1", "state": "failed", "error": "it has tasks", "end_boot_id": "b"},
        "mesos": {"agent_id": None, "unit": "activating", "executors": 0},
    }
    # From before the clock was set back, it would be a time that nobody can use.
    assert describe("n1", where, {**result, "time": 4.0}, str(place / "answer.json"), systemctl)["time"] is None


def test_before_the_first_look_the_verdict_is_unknown(place):
    where = Place(environment=str(place / "none"))
    told = describe("n1", where, {"boot_id": "b", "health": None}, str(place / "none"))
    assert told["mesos"] is None
    assert (told["verdict"], told["devices"], told["listed"], told["order"]) == ("unknown", [], None, None)
