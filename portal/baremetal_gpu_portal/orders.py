# SPDX-License-Identifier: GPL-3.0-or-later
"""Orders to the program that works as root, and who may have a place of it: it takes so many orders at a time.

Of each user there is one order of a kind at a time, and of each kind only so many of all users, so that there is always
room to submit and to end sessions. Questions that are the same share one answer.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from baremetal_gpu_portal.shared import Shared

# Kind -> places, together fewer than MaxConnections of the socket.
SUBMIT, CANCEL, ASK, SAVE = "submit", "cancel", "ask", "save"
PLACES = {SUBMIT: 16, CANCEL: 8, ASK: 8, SAVE: 8}
QUESTIONS = ("output", "keys", "home", "hours")
ORDER_S, ANSWER_AT_MOST = 60, 1 << 20
UNIT = "baremetal-gpu-portal-session.socket"

Answer = dict[str, Any]
# do, user and more of an order -> its answer. Raises Refused.
Order = Callable[..., Awaitable[Answer]]


class RootProgram:
    """The program that works as root, which systemd starts for each order."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    async def order(
        self, do: str, user: str, tell: Callable[[str], None] | None = None, limit_s: float = ORDER_S, **more: Any
    ) -> Answer:
        """What it does for a user; `tell` is told of its progress. Raises Refused."""
        answer: Answer | None = None
        try:
            async with asyncio.timeout(limit_s):
                reader, writer = await asyncio.open_unix_connection(self._socket, limit=ANSWER_AT_MOST)
                writer.write(json.dumps({"do": do, "user": user, **more}).encode())
                writer.write_eof()
                async for line in reader:
                    answer = json.loads(line)
                    if "progress" not in answer:
                        break
                    if tell:
                        tell(answer["progress"])
                writer.close()
            if answer is None or "progress" in answer:
                raise ValueError("it ended before")
        except (OSError, TimeoutError, ValueError, RecursionError) as why:
            remedy = f"the operators see it in `sudo journalctl -u {UNIT} -u 'baremetal-gpu-portal-session@*'`"
            cause = f"the program that submits gives no answer: {type(why).__name__} {why}"
            raise CallFailed(cause, remedy) from None
        if "problem" in answer:
            row = answer["problem"]
            raise Refused(row["cause"], row["remedy"], code=row["code"], subject=row["subject"])
        return answer


class Places(Shared):
    """All orders of the hub."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._kinds = {kind: asyncio.Semaphore(count) for kind, count in PLACES.items()}
        self._users: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._asked: dict[tuple[str, str, str], asyncio.Future[Answer]] = {}

    async def order(self, do: str, user: str, **more: Any) -> Answer:
        if do not in QUESTIONS:
            return await self._placed(do, user, more)
        # The server's name is what questions of a user differ in.
        key = (do, user, more.get("server", ""))
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.ensure_future(self._placed(do, user, more))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key: tuple[str, str, str], task: asyncio.Future[Answer]) -> None:
        del self._asked[key]
        if not task.cancelled():
            # Whoever has asked may have gone meanwhile.
            task.exception()

    async def _placed(self, do: str, user: str, more: dict[str, Any]) -> Answer:
        kind = do if do in PLACES else ASK
        async with self._users[user, do], self._kinds[kind]:
            return await self._order(do, user, **more)
