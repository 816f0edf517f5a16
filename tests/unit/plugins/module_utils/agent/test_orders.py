# SPDX-License-Identifier: GPL-3.0-or-later
"""What the node publishes for the reconciler, and what its agent does with what it hears."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import node_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import orders as agent_orders
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.orders import Inbox, describe
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import Place

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


def test_what_is_published_names_gpus_reasons_list_and_answer(place):
    environment = place / "agent.env"
    environment.write_text("BAREMETAL_GPU_UUIDS=GPU-0,GPU-1\nBAREMETAL_GPU_HELD_BACK=GPU-2\n")
    answer(place, state="failed", error="it has tasks", boot_id="a", end_boot_id="b")
    reason = {"code": "gpu_lost", "verdict": "fatal", "action": "reboot", "text": "gone", "evidence": {}, "remedy": "x"}
    gpu = {"uuid": "GPU-0", "index": 0, "pci_address": "0000:01:00.0", "verdict": "fatal", "reasons": [reason]}
    result = {
        "boot_id": "b",
        "time": 9.0,
        "health": {"verdict": "fatal", "since": 5.0, "reasons": [], "devices": [{**gpu, "checks": {}}]},
    }
    where = Place(environment=str(environment), work_dir=str(place / "mesos"))

    def systemctl(argv: object) -> tuple[int, str]:
        return 0, "ActiveState=activating\nResult=exit-code\n"

    assert describe("n1", where, result, str(place / "answer.json"), systemctl, str(place)) == {
        "schema": 1,
        "host": "n1",
        "boot_id": "b",
        "time": 5.0,
        "verdict": "fatal",
        "reasons": [],
        "devices": [
            {**gpu, "minor": None, "reasons": [{key: reason[key] for key in ("code", "verdict", "action", "text")}]}
        ],
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


# --- disks that take nothing, and files that were changed -------------------------------------------------------------


def full(*_arguments: object, **_more: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_on_a_full_disk_nothing_is_cleared_before_it_can_be_noted_down(place, monkeypatch):
    """The next agent would hear it again, and clear what has failed since then."""
    one = inbox(place)
    monkeypatch.setattr(agent_orders.host_files, "write", full)
    assert one.take({"order": ORDER, "clear": {"id": "r-1", "device": None}}) is None
    assert "No space left on device" in one.problem
    assert one.again() is None
    monkeypatch.undo()
    assert one.again() == {"device": None}
    assert one.again() is None
    assert inbox(place).take({"clear": {"id": "r-1", "device": None}}) is None
    monkeypatch.setattr(agent_orders, "REMIND_S", 0.0)
    one.remind()
    assert laid(place) == ORDER
    assert one.problem is None


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'{"id": NaN}', b"[" * 100000])
def test_what_may_have_been_heard_before_is_not_cleared_and_said(place, text):
    (place / "agent/cleared.json").write_bytes(text)
    one = inbox(place)
    assert one.take({"clear": {"id": "r-1", "device": None}}) is None
    assert "is not cleared. To do: run `gpu-agent clear` on the host" in one.problem
    assert (place / "agent/cleared.json.unreadable").read_bytes() == text
    assert inbox(place).take({"clear": {"id": "r-2", "device": None}}) == {"device": None}


@pytest.mark.parametrize(
    "told",
    [
        {"clear": {"id": 3, "device": None}},
        {"clear": {"id": "r-1", "device": ["GPU-0"]}},
        {"clear": {"device": "GPU-0"}},
        {"order": {"id": ["n"], "kind": "reset"}},
        {"order": {"id": "n1-1", "kind": "reset", "gpus": [{"x": 1}]}},
        {"order": {**ORDER, "more": "x" * 100000}},
        {"order": ["reset"]},
    ],
)
def test_what_has_not_the_form_of_an_order_is_said_and_not_laid_down(place, told):
    one = inbox(place)
    assert one.take(told) is None
    assert "is not valid: " in one.problem
    assert laid(place) is None


def obeying(place: Path, **more: Any) -> node_orders.Settings:
    return node_orders.Settings(
        order=str(place / "agent/order.json"),
        answer=str(place / "answer.json"),
        allowed=("reset",),
        place=Place(work_dir=str(place)),
        **more,
    )


RESET = {"id": "n1-2", "kind": "reset", "gpus": ["GPU-0"]}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100000])
def test_an_order_whose_answer_cannot_be_read_is_not_carried_out_again(place, text):
    inbox(place).take({"order": RESET})
    (place / "answer.json").write_bytes(text)
    done: list[Any] = []
    answer = node_orders.obey(obeying(place), [], lambda argv: (0, str(done.append(argv))))
    assert done == []
    assert (answer["id"], answer["state"]) == ("n1-2", "failed")
    assert "To do: look at the host, and decide again" in answer["error"]
    assert json.loads((place / "answer.json").read_text()) == answer
    assert (place / "answer.json.unreadable").read_bytes() == text


def test_an_order_that_cannot_be_noted_down_is_not_begun(place, monkeypatch):
    inbox(place).take({"order": RESET})
    monkeypatch.setattr(node_orders.host_files, "write", full)
    done: list[Any] = []

    def run(argv: Any) -> tuple[int, str]:
        done.append(list(argv))
        return 0, ""

    with pytest.raises(OSError, match="No space left"):
        node_orders.obey(obeying(place), [], run)
    assert done == []
    monkeypatch.undo()
    assert node_orders.obey(obeying(place), [], run)["state"] == "done"
    assert done == [["nvidia-smi", "--gpu-reset", "-i", "GPU-0"]]


def test_a_byte_that_is_no_utf8_keeps_nothing_from_being_published(place):
    (place / "agent.env").write_bytes(b"# caf\xe9\nMESOS_ATTRIBUTES=rack:caf\xe9\nBAREMETAL_GPU_UUIDS=GPU-0\n")
    where = Place(work_dir=str(place), environment=str(place / "agent.env"))
    told = describe("n1", where, {"boot_id": "b", "health": None}, str(place / "none"))
    assert told["listed"] == ["GPU-0"]


def test_a_program_that_prints_what_is_no_utf8_has_ended_all_the_same():
    status, said = node_orders.run(["printf", r"GPU \351 reset\n"])
    assert status == 0
    assert said.endswith("reset\n")
