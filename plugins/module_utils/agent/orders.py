# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the node says to the reconciler, and what the agent does with what it hears.

The agent may write nothing but its own files. So it only lays an order down; systemd sees the file and starts the
program that carries it out (node_orders.py), which leaves its answer where the agent reads it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes
from ansible_collections.baremetal.gpu.plugins.module_utils.health import described
from ansible_collections.baremetal.gpu.plugins.module_utils.health.described import ANSWER
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import (
    HELD_BACK,
    Place,
    listed,
    standing,
)

ORDER = "order.json"
CLEARED = "cleared.json"
REMIND_S = 30.0
SIZE_AT_MOST = 64 << 10
COMMAND_S = 3.0


class Unreadable(ValueError):
    """A file is there, and what it says cannot be told."""


def read_strictly(path: str) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none. Raises Unreadable."""
    try:
        return bounded_json.parse_object(host_files.read(path, SIZE_AT_MOST))
    except FileNotFoundError:
        return {}
    except OSError as failure:
        raise Unreadable(f"{path} cannot be read: {failure.strerror}") from failure
    except bounded_json.Malformed as failure:
        raise Unreadable(f"{path} cannot be used: {failure}") from failure


def read(path: str) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none, or no whole one."""
    try:
        return read_strictly(path)
    except Unreadable:
        return {}


def describe(
    host: str,
    place: Place,
    result: Mapping[str, Any],
    answer: str = ANSWER,
    run: host_run.Call | None = None,
    root: str = "/",
) -> dict[str, Any]:
    """What is published of the agent's result; see reconciler/core/gpus.py. `place` is that of the host's Mesos agent,
    `answer` the file with the answer to the last order."""
    told = described.describe(host, result, answer)
    gpus = listed(place.environment)
    # The driver tells it of a GPU that answers no more, too.
    minors = device_nodes.gpu_minors(root)
    return {
        **told,
        "devices": [{**row, "minor": minors.get(row["pci_address"] or "")} for row in told["devices"]],
        "listed": gpus,
        "held_back": listed(place.environment, HELD_BACK) or [],
        # With such a list the Mesos agent may not come up any more, and then it is the host that has to tell.
        "mesos": standing(place, run or _run) if gpus and _does_not_answer(gpus, told["devices"]) else None,
    }


def _does_not_answer(gpus: list[str], devices: list[Mapping[str, Any]]) -> bool:
    """Whether a GPU of the list is fatal, or is not told of at all."""
    return bool(devices) and not set(gpus) <= {row["uuid"] for row in devices if row["verdict"] != FATAL}


def _run(argv: Sequence[str]) -> tuple[int, str]:
    """A program of the host's, which is not to keep the agent from its work."""
    try:
        status, out, _error = host_run.execute(argv, COMMAND_S)
    except (OSError, host_run.TimedOut) as why:
        return host_run.NOT_FOUND, str(why)
    return status, host_run.text(out)


def is_order(told: Any) -> bool:
    """Whether it has the form of an order; see reconciler/core/memory.py."""
    if not isinstance(told, dict) or not all(isinstance(told.get(key), str) for key in ("id", "kind")):
        return False
    gpus = told.get("gpus") or []
    return isinstance(gpus, list) and all(isinstance(one, str) for one in gpus) and _is_small(told)


def is_clear(told: Any) -> bool:
    return (
        isinstance(told, dict)
        and isinstance(told.get("id"), str)
        and isinstance(told.get("device"), (str, type(None)))
        and _is_small(told)
    )


def _is_small(told: dict[str, Any]) -> bool:
    try:
        text = json.dumps(told)
        bounded_json.parse(text)
    except (ValueError, RecursionError):
        return False
    return len(text) <= SIZE_AT_MOST


class Inbox:
    """What was heard from the reconciler, each once, over restarts of the agent too. It raises no OSError.

    `problem` is what keeps it from noting down what it heard. Nothing is cleared that cannot be noted down: the next
    agent would hear it again, and clear what has failed since then.
    """

    def __init__(self, directory: str, answer: str = ANSWER) -> None:
        self.order, self.cleared, self.answer = os.path.join(directory, ORDER), os.path.join(directory, CLEARED), answer
        self.problem: str | None = None
        self._laid: Mapping[str, Any] | None = None
        # What is to be cleared as soon as it can be noted down.
        self._waiting: dict[str, Any] | None = None
        self._laid_at = 0.0

    def take(self, told: Mapping[str, Any]) -> dict[str, Any] | None:
        """Lays an order down that is new. Gives what an operator says is mended, {device}, where that is new."""
        order, clear = told.get("order"), told.get("clear")
        self.problem = None
        if order is not None and not is_order(order):
            self.problem = f"an order of the reconciler is not valid: {one_line(order, 100)}"
        elif order is not None and order != self._laid:
            # After a restart too: what was cut then is taken up again.
            self._laid = order
            self._lay(order)
        if clear is None:
            return None
        if not is_clear(clear):
            self.problem = f"a request of the reconciler to clear faults is not valid: {one_line(clear, 100)}"
            return None
        self._waiting = clear
        return self.again()

    def again(self) -> dict[str, Any] | None:
        """What an operator says is mended and could not be noted down before, as `take` gives it."""
        clear = self._waiting
        return {"device": clear.get("device")} if clear and self._is_new(clear["id"]) else None

    def _is_new(self, number: str) -> bool:
        """Whether something is to be cleared that was not heard before; it is noted down."""
        try:
            known = read_strictly(self.cleared)
        except Unreadable as why:
            # It may have been heard before. Who means it can say it again.
            host_files.put_aside(self.cleared)
            known = {"id": number}
            self._write(self.cleared, known)
            self._waiting = None
            self.problem = (
                f"{why}. What the operator said is repaired is not cleared. To do: run `gpu-agent clear` on the host"
            )
            return False
        if known.get("id") == number or self._write(self.cleared, {"id": number}):
            self._waiting = None
            return known.get("id") != number
        return False

    def _lay(self, order: Mapping[str, Any]) -> None:
        answer = read(self.answer)
        if answer.get("id") == order.get("id") and answer.get("state") != "running":
            self._laid_at = float("inf")
            return
        self._laid_at = time.monotonic()
        self._write(self.order, order)

    def _write(self, path: str, content: Mapping[str, Any]) -> bool:
        try:
            host_files.write(path, json.dumps(dict(content)) + "\n", mode=0o600)
        except OSError as why:
            self.problem = f"{path} cannot be written ({why.strerror}), so orders of the reconciler wait"
            return False
        return True

    def remind(self) -> None:
        """Lay an order down again that got no answer: systemd may have missed it while it was at another one."""
        if self._laid is not None and time.monotonic() - self._laid_at >= REMIND_S:
            self.problem = None
            self._lay(self._laid)
