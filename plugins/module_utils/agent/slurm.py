# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's verdict, told to the hosts of slurmctld; see slurm/verdict_channel.py.

Each of them is told at once what is new, again until it has answered, and the same every `heartbeat_s`. A child process
(courier.py) does that, with a thread for each host, so that one that is away keeps no other one waiting.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.courier import Courier
from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import orders
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import munge, verdict_channel

RETRY_S, RETRY_AT_MOST_S = 0.5, 3.0
CONNECT_S = 2.0
# How long the agent's end waits for the hosts to be told of it.
GOODBYE_S = 1.5


@dataclass
class Settings:
    """`controllers` are host:port; `host` is the name that Slurm has for this node. Times are in seconds; after
    `silent_s` without a word of the agent nothing is told any more. `munge` is the socket of munged, None for that of
    the host."""

    controllers: list[str]
    host: str
    heartbeat_s: float = 30.0
    silent_s: float = 90.0
    munge: str | None = None


class Child:
    """The process that tells the hosts of slurmctld: `serve` until the agent is gone."""

    def __init__(self, settings: Settings, pipe: socket.socket) -> None:
        self.settings, self.pipe = settings, pipe
        self.parent = os.getppid()
        self.news = threading.Condition()
        # What is to be told, how often that was another one, and whether it is the end.
        self.wanted: Mapping[str, Any] | None = None
        self.number = 0
        self.is_over = False
        self.heard_at = time.monotonic()
        # Host of slurmctld -> the number of what it has answered, and why it has not answered what came after.
        self.answered = dict.fromkeys(settings.controllers, 0)
        self.problems: dict[str, str] = {}
        self.said: dict[str, Any] = {}

    def serve(self) -> int:
        threads = [threading.Thread(target=self._follow, args=(one,), daemon=True) for one in self.settings.controllers]
        for thread in threads:
            thread.start()
        self._listen()
        with self.news:
            had_told = self.wanted is not None
            self.wanted, self.is_over, self.number = None, True, self.number + 1
            self.news.notify_all()
        end = time.monotonic() + (GOODBYE_S if had_told else 0.0)
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return 0

    def _listen(self) -> None:
        """Take in what the agent says, until it is gone."""
        buffer = b""
        self.pipe.settimeout(1.0)
        while os.getppid() == self.parent:
            try:
                chunk = self.pipe.recv(1 << 16)
            except socket.timeout:
                continue
            except OSError:
                return
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            if lines:
                self._take(json.loads(lines[-1]))

    def _take(self, verdict: Mapping[str, Any]) -> None:
        with self.news:
            self.heard_at = time.monotonic()
            if verdict != self.wanted:
                self.wanted, self.number = verdict, self.number + 1
                self.news.notify_all()

    # One host of slurmctld.

    def _follow(self, controller: str) -> None:
        retry_s, due, tried = RETRY_S, 0.0, 0
        while True:
            with self.news:
                while True:
                    now = time.monotonic()
                    is_silent = now - self.heard_at > self.settings.silent_s
                    if (self.number != tried or now >= due) and (
                        self.is_over or (self.wanted is not None and not is_silent)
                    ):
                        break
                    self.news.wait(max(0.05, min(due - now, 1.0)) if due > now else 1.0)
                wanted, tried, is_over = self.wanted, self.number, self.is_over
            why = ""
            try:
                told = self._tell(controller, wanted)
            except (OSError, Malformed, CallFailed) as failure:
                why = f"{controller}: {_in_words(failure)}"
            with self.news:
                if why:
                    self.problems[controller] = why
                    due = time.monotonic() + retry_s * random.uniform(0.5, 1.0)
                    retry_s = min(2 * retry_s, RETRY_AT_MOST_S)
                else:
                    self.problems.pop(controller, None)
                    self.answered[controller], retry_s = tried, RETRY_S
                    due = time.monotonic() + self._patience() * random.uniform(0.9, 1.0)
                    self._hear(told)
                self._report()
            if is_over and not why:
                return

    def _patience(self) -> float:
        """Until the next heartbeat. Who has faults may be told that they are mended, which comes with an answer."""
        is_well = self.wanted is None or self.wanted.get("verdict") == "ok"
        return self.settings.heartbeat_s if is_well else self.settings.heartbeat_s / 6

    def _tell(self, controller: str, verdict: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer of a host of slurmctld. Raises OSError, Malformed and CallFailed."""
        host, _colon, port = controller.rpartition(":")
        end, key = time.monotonic() + verdict_channel.TIMEOUT_S, os.urandom(32).hex()
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S) as connection:
            line = verdict_channel.read_line(connection, verdict_channel.GREETING_AT_MOST, end)
            payload = verdict_channel.message(self.settings.host, verdict, verdict_channel.nonce_of(line), key)
            connection.sendall(munge.encode(payload, socket=self.settings.munge).encode() + b"\n")
            line = verdict_channel.read_line(connection, verdict_channel.ANSWER_AT_MOST, end)
        return verdict_channel.read_answer(line, key)

    def _hear(self, told: Mapping[str, Any]) -> None:
        """What the reconciler says to this host; from one that waits to lead, nothing."""
        found = told.get("orders")
        try:
            said = orders(json.dumps(found).encode()) if isinstance(found, dict) else {}
        except Malformed:
            # Of another version. The verdict is told all the same.
            return
        if said.get("order") or said.get("clear"):
            self._say(orders=said)

    def _report(self) -> None:
        """One host that knows is enough: it is for gpuops status to name the other one."""
        is_known = any(number == self.number for number in self.answered.values())
        why = "; ".join(self.problems[one] for one in sorted(self.problems))
        if is_known or why:
            self._say(problem=None if is_known else f"no host of slurmctld has the verdict: {why}")

    def _say(self, **what: Any) -> None:
        """Once; the agent needs no word of it twice."""
        if all(self.said.get(key, self) == value for key, value in what.items()):
            return
        self.said.update(what)
        try:
            self.pipe.sendall(json.dumps(what).encode() + b"\n")
        except OSError:
            # It is gone, which _listen finds.
            return


def _in_words(failure: Exception) -> str:
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return one_line(failure, 300) or type(failure).__name__


class SlurmController(Courier):
    """A publisher of agent.py. `describe` makes what is published of a result; see reconciler/core/gpus.py."""

    def __init__(self, settings: Settings, describe: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        super().__init__(describe, lambda pipe: Child(settings, pipe).serve(), "slurmctld's hosts")
        self.settings = settings
