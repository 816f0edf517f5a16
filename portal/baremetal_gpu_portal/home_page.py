# SPDX-License-Identifier: GPL-3.0-or-later
"""What people have, for their pages: how full the home is, GPU hours, sessions and jobs.

The program that works as root is asked about each user at most once a minute. A home may hang: a page waits for a
moment only, and is there without the answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from baremetal_gpu_portal import summary
from baremetal_gpu_portal.orders import Order
from baremetal_gpu_portal.shared import Shared
from baremetal_gpu_portal.summary import Told
from baremetal_gpu_portal.who import Look

OLD_S = 60
# So old a look at the scheduler may be.
OLD_LOOK_S = 1.1
PATIENCE_S = 2
# The program takes so many orders at a time, and others must get through.
AT_A_TIME = 8
# As long its order may count among those after a home has not answered: until systemd has given up what hangs there.
HANGS_S = 200


class _Asked:
    """:ivar told: None until there is an answer."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.task: asyncio.Future[None] | None = None
        self.told: Told | None = None


class Question:
    """One question about each user, whose last answer stays for a minute."""

    def __init__(self, ask: Callable[[str], Awaitable[Told]], unknown: Told) -> None:
        """
        :param ask: a user's name -> what is told.
        :param unknown: what is told until then.
        """
        self._ask, self._unknown = ask, unknown
        self._asked: dict[str, _Asked] = {}
        self._slots = asyncio.Semaphore(AT_A_TIME)

    async def of(self, user: str) -> Told:
        one, now = self._asked.setdefault(user, _Asked()), time.monotonic()
        if one.task is None or (one.task.done() and now >= one.begun + OLD_S):
            one.begun, one.told, one.task = now, None, asyncio.ensure_future(self._fill(one, user))
        if one.told is None:
            await asyncio.wait([one.task], timeout=PATIENCE_S)
        return one.told or self._unknown

    async def _fill(self, one: _Asked, user: str) -> None:
        async with self._slots:
            one.told = await self._ask(user)
            if one.told == summary.NO_ANSWER:
                await asyncio.sleep(HANGS_S)


class HomePage(Shared):
    """What whoever looks has."""

    def __init__(
        self,
        order: Order,
        look: Callable[[], Awaitable[Look]],
        most_hours: Callable[[str], Awaitable[int]] | None,
        told: Callable[[Any], Awaitable[Mapping[str, Any]]],
        again: Callable[[str, Mapping[str, Any]], Awaitable[Request]],
    ) -> None:
        """
        :param order: what the program that works as root does.
        :param look: one look at the scheduler.
        :param most_hours: a user's name -> the hours that a session may have; None where the scheduler counts no GPU
            hours, and gives no session more time.
        :param told: a server -> what its user is told of it.
        :param again: a user and what was asked for -> that, as far as it may still be asked for.
        """
        self._order, self._look, self._told, self._again = order, look, told, again
        self._home = Question(self._ask_home, summary.NO_ANSWER)
        self._hours = Question(self._ask_hours, summary.NO_HOURS) if most_hours else None
        self._most_hours = most_hours

    async def more(self, spawner: Any) -> None:
        """Give a session more time. Raises Refused."""
        user = spawner.user.name
        await self._order("extend", user, job=spawner.job, more_hours=summary.MORE_HOURS)
        # The page that follows is to have the new end.
        await asyncio.sleep(OLD_LOOK_S)

    async def _ask_home(self, user: str) -> Told:
        try:
            return summary.told_of_home(await self._order("home", user))
        except Refused:
            return summary.NO_ANSWER

    async def _ask_hours(self, user: str) -> Told:
        try:
            return summary.told_of_hours(await self._order("hours", user))
        except Refused as why:
            return summary.Told(f"Your GPU hours are not known: {why.problem.cause}.")

    async def home(self, user: str) -> Told:
        """How full the home of a user is."""
        return await self._home.of(user)

    def page(self, user: Any) -> Callable[[], Awaitable[dict[str, Any]]]:
        """What a template calls that shows it."""

        async def page() -> dict[str, Any]:
            asked = [self._home.of(user.name), *([self._hours.of(user.name)] if self._hours else [])]
            jobs, told = await asyncio.gather(self._jobs(user.name), asyncio.gather(*asked))
            lines, others, more = jobs or ({}, None, {})
            known = dict(user.spawners)
            active = {name: spawner for name, spawner in sorted(known.items()) if spawner.active}
            rest = {name: row for name, row in user.orm_user.orm_spawners.items() if name not in active}
            return {
                "told": [one for one in told if one.text],
                "jobs": others,
                "has_first": "" in active,
                "sessions": await asyncio.gather(*(self._session(user, one, lines, more) for one in active.values())),
                "again": await asyncio.gather(*(self._ended(user, row) for row in _latest_first(rest.values()))),
            }

        return page

    async def _session(
        self, user: Any, spawner: Any, lines: Mapping[str, str], more: Mapping[str, int]
    ) -> dict[str, Any]:
        """One that runs, or starts, or stops."""
        told = await self._told(spawner) if spawner.ready else {}
        return {
            "server": spawner.name,
            "state": "runs" if spawner.ready else "stops" if spawner.pending == "stop" else "starts",
            "url": user.server_url(spawner.name),
            "line": lines.get(spawner.name, ""),
            "now": told.get("now", ""),
            "stops": told.get("stops", False),
            "more": more.get(spawner.name, 0),
        }

    async def _ended(self, user: Any, row: Any) -> dict[str, Any]:
        """One that does not run, which can be started as it was."""
        asked = await self._again(user.name, row.user_options) if row.user_options else None
        return {"server": row.name, "what": asked and form.what(asked), "fields": asked.as_dict() if asked else {}}

    async def _jobs(self, user: str) -> tuple[dict[str, str], list[str], dict[str, int]] | None:
        """None where the scheduler does not answer."""
        try:
            look = await asyncio.wait_for(self._look(), PATIENCE_S)
        except TimeoutError:
            return None
        if look.failure:
            return None
        more = summary.more_hours(look, user, await self._most_hours(user)) if self._most_hours else {}
        return (*summary.told_of_jobs(look, user), more)


def _latest_first(rows: Iterable[Any]) -> list[Any]:
    return sorted(rows, key=lambda row: row.last_activity.timestamp() if row.last_activity else 0.0, reverse=True)
