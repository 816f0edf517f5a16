# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub keeps of what people have: how often it asks, and how long a page waits. Without JupyterHub."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from baremetal_gpu_portal import home_page, summary
from baremetal_gpu_portal.who import Look

GIB = 1 << 30


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home_page, "PATIENCE_S", 0.05)


class Helper:
    """In the place of the program that works as root."""

    def __init__(self, hangs: str = "", refuses: str = "") -> None:
        self.hangs, self.refuses = hangs, refuses
        self.asked: list[tuple[str, str]] = []

    async def order(self, do: str, user: str) -> dict[str, Any]:
        self.asked.append((do, user))
        if do == self.hangs:
            await asyncio.Event().wait()
        if do == self.refuses:
            raise Refused("Slurm has no accounting, so it is unknown who had which GPUs")
        return {"answers": True, "used": 42 * GIB, "quota": 50 * GIB, "gpu_seconds": 7200, "jobs": 2}


async def look(failure: str = "") -> Look:
    return Look(0.0, {"jobs": []}, {}, failure)


class Server:
    """A server of the hub: one that runs, or a row of its database."""

    def __init__(self, name: str, age_s: float = 0.0, **options: Any) -> None:
        self.name, self.active, self.ready, self.pending, self.user_options = name, True, True, None, options
        self.last_activity = datetime.datetime.fromtimestamp(1e9 - age_s)


class User:
    name = "alice"

    def __init__(self, running: Sequence[Server] = (), rest: Sequence[Server] = ()) -> None:
        self.spawners = {one.name: one for one in running}
        self.orm_user = SimpleNamespace(orm_spawners={one.name: one for one in (*running, *rest)})

    def server_url(self, name: str) -> str:
        return f"/user/alice/{name}"


async def most_hours(_user: str) -> int:
    return 8


async def told(server: Server) -> dict[str, Any]:
    return {"now": f"{server.name or 'first'}: GPU 87 %", "stops": True}


async def again(_user: str, last: dict[str, Any]) -> Request:
    return Request(**last)


def test_sessions_come_with_what_they_do_and_the_rest_with_what_it_was() -> None:
    user = User(
        [Server(""), Server("train")], [Server("old", 60.0, gpus=2), Server("new", 5.0, gpus=1), Server("never")]
    )
    found = asyncio.run(home_page.HomePage(Helper().order, look, None, told, again).page(user)())
    assert [(one["server"], one["state"], one["now"]) for one in found["sessions"]] == [
        ("", "runs", "first: GPU 87 %"),
        ("train", "runs", "train: GPU 87 %"),
    ]
    assert [(one["server"], one["fields"].get("gpus")) for one in found["again"]] == [
        ("never", None),
        ("new", 1),
        ("old", 2),
    ]


def test_many_pages_at_once_are_one_question() -> None:
    helper = Helper()

    async def pages() -> list[summary.Told]:
        made = home_page.HomePage(helper.order, look, most_hours, told, again)
        return [*await asyncio.gather(*(made.home("alice") for _number in range(20))), await made.home("bob")]

    found = asyncio.run(pages())
    assert {one.text for one in found} == {"Your home: 42.0 of 50.0 GiB used."}
    assert helper.asked == [("home", "alice"), ("home", "bob")]


def test_it_is_asked_again_after_a_minute_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    helper, now = Helper(), [1000.0]
    monkeypatch.setattr(home_page.time, "monotonic", lambda: now[0])

    async def pages() -> list[int]:
        made, counts = home_page.HomePage(helper.order, look, None, told, again), []
        for now[0] in (1000.0, 1059.0, 1061.0):
            await made.home("alice")
            counts.append(len(helper.asked))
        return counts

    # What asyncio itself waits for is not over.
    monkeypatch.setattr(home_page, "PATIENCE_S", None)
    assert asyncio.run(pages()) == [1, 1, 2]


def test_the_page_is_there_without_a_home_that_hangs_and_does_not_ask_again() -> None:
    helper = Helper(hangs="home")

    async def pages() -> dict[str, Any]:
        made = home_page.HomePage(helper.order, look, most_hours, told, again)
        await made.home("alice")
        found: dict[str, Any] = await made.page(User())()
        return found

    found = asyncio.run(pages())
    assert [one.text for one in found["told"]] == [
        summary.NO_ANSWER.text,
        "Your GPU hours of the last 30 days: 2.0, in 2 jobs.",
    ]
    assert helper.asked == [("home", "alice"), ("hours", "alice")]


def test_homes_that_hang_leave_room_for_other_orders() -> None:
    """An order that a home keeps counts among those that the program takes, for a while after it was given up."""
    helper = Helper(refuses="home")

    async def pages() -> None:
        made = home_page.HomePage(helper.order, look, None, told, again)
        for number in range(2 * home_page.AT_A_TIME):
            assert await made.home(f"user{number}") == summary.NO_ANSWER

    asyncio.run(pages())
    assert len(helper.asked) == home_page.AT_A_TIME


def test_why_hours_are_not_known_is_told() -> None:
    page = home_page.HomePage(Helper(refuses="hours").order, look, most_hours, told, again).page(User())
    found = asyncio.run(page())["told"]
    assert found[1].text.startswith("Your GPU hours are not known: Slurm has no accounting")


def test_a_scheduler_that_does_not_answer_is_told() -> None:
    page = home_page.HomePage(Helper().order, lambda: look("connect failure"), None, told, again).page(User())
    assert asyncio.run(page())["jobs"] is None
