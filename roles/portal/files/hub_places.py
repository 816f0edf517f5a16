# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may have a place of the program that works as root, which takes so many orders at a time.

Of each user there is one order of a kind at a time, and of each kind only so many of all users, so that there is always
room to submit and to end sessions. Questions that are the same share one answer.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict

# Kind -> places, together fewer than MaxConnections of the socket.
SUBMIT, CANCEL, ASK, SAVE = "submit", "cancel", "ask", "save"
PLACES = {SUBMIT: 16, CANCEL: 8, ASK: 8, SAVE: 8}
QUESTIONS = ("output", "keys", "home", "hours")


class Places:
    """All orders of the hub."""

    def __init__(self, order):
        """
        :param order: do, user and more of an order -> its answer. Raises Refused.
        """
        self._order = order
        self._kinds = {kind: asyncio.Semaphore(count) for kind, count in PLACES.items()}
        self._users = defaultdict(asyncio.Lock)
        self._asked = {}

    def __deepcopy__(self, memo):
        """A configuration is copied with all that it has, and this is one."""
        return self

    async def order(self, do, user, **more):
        if do not in QUESTIONS:
            return await self._placed(do, user, more)
        # The server's name is what questions of a user differ in.
        key = (do, user, more.get("server", ""))
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(self._placed(do, user, more))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key, task):
        del self._asked[key]
        if not task.cancelled():
            # Whoever has asked may have gone meanwhile.
            task.exception()

    async def _placed(self, do, user, more):
        kind = do if do in PLACES else ASK
        async with self._users[user, do], self._kinds[kind]:
            return await self._order(do, user, **more)
