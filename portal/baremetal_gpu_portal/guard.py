# SPDX-License-Identifier: GPL-3.0-or-later
"""Passwords and codes, at which anybody may guess."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tornado import web

from ansible_collections.baremetal.gpu.plugins.module_utils.host.attempts import Attempts
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import backend

# One that is refused takes so long, whatever is wrong with it; so many are checked at a time.
REFUSED_S, CHECKS_AT_ONCE = 2.0, 8


def refusal(status: int, text: str) -> web.HTTPError:
    """An error whose page says why; what is in the text is no format."""
    made = web.HTTPError(status, "%s", text)
    made.jupyterhub_message = text
    return made


class Guard:
    """All refusals of an attempt are alike; only those of a wrong password, code or name count."""

    def __init__(self) -> None:
        self._attempts = Attempts()
        self._checks = ThreadPoolExecutor(CHECKS_AT_ONCE)
        # Of one name the next password is checked after the one before, and those that wait for that keep no others
        # waiting.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @contextlib.asynccontextmanager
    async def attempt(self, handler: Any, name: str, wrong: str) -> AsyncIterator[None]:
        """
        :param wrong: what whoever is refused is told. What is wrong is in the log alone: who guesses learns neither
            names nor passwords.
        """
        # What the proxy says of it is believed, and nothing of whoever asks: see tls.py.
        address, begun = handler.request.remote_ip or "", time.monotonic()
        wait = self._attempts.take(address, name)
        if wait:
            raise refusal(429, f"there were too many wrong logins. To do: try again in {int(wait) + 1} s")
        try:
            yield
        except CallFailed as why:
            self._attempts.give_back(address, name)
            raise refusal(503, str(why)) from None
        except Refused as why:
            handler.log.warning("Login refused, from %s: %s", one_line(address, 60), why)
            await asyncio.sleep(begun + REFUSED_S - time.monotonic())
            raise refusal(403, wrong) from None
        except BaseException:
            self._attempts.give_back(address, name)
            raise
        self._attempts.give_back(address, name)

    async def ask(self, socket: str, name: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the program behind a socket answers about a name. Raises Refused."""
        async with self._turns[name]:
            return await asyncio.get_running_loop().run_in_executor(self._checks, backend.ask, socket, question)
