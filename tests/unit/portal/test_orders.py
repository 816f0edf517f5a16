# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has a place of the program that works as root: nobody has all of them. Without JupyterHub."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from baremetal_gpu_portal import orders
from tests.unit.project.tree import ROOT

ROLE = ROOT / "roles" / "portal"


class Program:
    """In the place of the program that works as root: some orders hang until they are let go."""

    def __init__(self, *hang: str) -> None:
        self.hang, self.begun = hang, Counter[tuple[str, str]]()
        self.go = asyncio.Event()

    async def order(self, do: str, user: str, **more: Any) -> dict[str, Any]:
        self.begun[do, user] += 1
        if do in self.hang:
            await self.go.wait()
        if user == "refused":
            raise Refused("no")
        return {"done": do, **more}


async def settle() -> None:
    for _number in range(50):
        await asyncio.sleep(0)


def test_forty_requests_of_one_user_are_one_order_with_one_answer() -> None:
    async def scene() -> None:
        program = Program("keys")
        places = orders.Places(program.order)
        asked = [asyncio.ensure_future(places.order("keys", "mallory")) for _number in range(40)]
        await settle()
        assert program.begun == {("keys", "mallory"): 1}
        # Nobody waits for that.
        assert await places.order("submit", "alice", request=1) == {"done": "submit", "request": 1}
        program.go.set()
        assert await asyncio.gather(*asked) == [{"done": "keys"}] * 40
        # The next one is a new question.
        await places.order("keys", "mallory")
        assert program.begun["keys", "mallory"] == 2

    asyncio.run(scene())


def test_a_user_has_one_order_of_a_kind_at_a_time() -> None:
    async def scene() -> None:
        program = Program("submit", "save")
        places = orders.Places(program.order)
        asked = [
            asyncio.ensure_future(places.order(do, "mallory", server=f"s{number}"))
            for number in range(5)
            for do in ("submit", "save")
        ]
        await settle()
        assert program.begun == {("submit", "mallory"): 1, ("save", "mallory"): 1}
        assert await places.order("cancel", "mallory", job=7) == {"done": "cancel", "job": 7}
        program.go.set()
        await asyncio.gather(*asked)
        assert program.begun["submit", "mallory"] == 5

    asyncio.run(scene())


@pytest.mark.parametrize("hangs", ["keys", "home", "hours", "output", "save", "something new"])
def test_many_users_whose_homes_hang_leave_room_to_submit_and_to_end(hangs: str) -> None:
    async def scene() -> None:
        program = Program(hangs)
        places = orders.Places(program.order)
        asked = [asyncio.ensure_future(places.order(hangs, f"u{number}")) for number in range(100)]
        await settle()
        assert program.begun.total() <= 8
        for do in ("submit", "cancel"):
            assert await places.order(do, "alice") == {"done": do}
        program.go.set()
        assert len(await asyncio.gather(*asked)) == 100

    asyncio.run(scene())


def test_sessions_that_are_slow_to_submit_leave_room_to_end_others() -> None:
    async def scene() -> None:
        program = Program("submit")
        places = orders.Places(program.order)
        asked = [asyncio.ensure_future(places.order("submit", f"u{number}")) for number in range(100)]
        await settle()
        assert await places.order("cancel", "alice") == {"done": "cancel"}
        program.go.set()
        await asyncio.gather(*asked)

    asyncio.run(scene())


def test_a_refusal_is_told_to_all_who_asked_and_one_who_goes_takes_nothing_from_others() -> None:
    async def scene() -> None:
        program = Program("keys")
        places = orders.Places(program.order)
        asked = [asyncio.ensure_future(places.order("keys", user)) for user in ("refused", "refused", "bob", "bob")]
        await settle()
        asked[2].cancel()
        program.go.set()
        told = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(one) for one in told] == [Refused, Refused, asyncio.CancelledError, dict]

    asyncio.run(scene())


def test_the_socket_takes_more_than_all_places_together() -> None:
    text = (ROLE / "templates" / "baremetal-gpu-portal-session.socket.j2").read_text()
    found = re.search(r"^MaxConnections=(\d+)$", text, re.MULTILINE)
    assert found
    # One more asks the scheduler.
    assert sum(orders.PLACES.values()) + 1 < int(found[1])
