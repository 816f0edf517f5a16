# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the state an agent is in to the one that is wanted, without undoing what somebody else has done.

Mesos does not tell who drained or deactivated an agent. So who acts keeps a ledger of the agents that it took out, and
brings back only those.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed, Operator

WANTED = ("active", "deactivated", "drained", "gone")


class Ledger:
    """A file of agent id -> {state, hostname} that was taken out from here. Missing is empty.

    Several may write it at once, such as two playbooks: each changes what is in the file then, and waits for the other.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.rows = self._read()

    def put(self, agent_id: str, row: dict[str, str]) -> None:
        self._change(lambda rows: rows.update({agent_id: row}))

    def drop(self, agent_id: str) -> None:
        if agent_id in self._read():
            self._change(lambda rows: rows.pop(agent_id, None))
        self.rows.pop(agent_id, None)

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            with open(self.path, encoding="utf-8") as file:
                told: Any = json.load(file)
            if not isinstance(told, dict) or not all(isinstance(row, dict) for row in told.values()):
                raise ValueError("it is not an object of agents")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise Failed(f"ledger {self.path} cannot be read: {error}", "restore it, or move it away") from error
        return told

    def _change(self, change: Callable[[dict[str, dict[str, str]]], Any]) -> None:
        folder = os.path.dirname(self.path) or "."
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            # Beside it: the ledger itself is another file after each change.
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                rows = self._read()
                change(rows)
                self._write(folder, rows)
                self.rows = rows
            finally:
                os.close(lock)
        except OSError as error:
            raise Failed(f"ledger {self.path} cannot be written: {error}", "give one in a writable folder") from error

    def _write(self, folder: str, rows: Mapping[str, Any]) -> None:
        """Whole or not at all: a half ledger would forget drains."""
        number, part = tempfile.mkstemp(dir=folder, prefix=".ledger-")
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                json.dump(rows, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part)
            raise
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def decide(agent: Mapping[str, Any] | None, wanted: str, ours: bool, takeover: bool = False) -> str | None:
    """What to do: drain, deactivate, reactivate, gone, or None. `ours`: the ledger has this agent. Raises Failed."""
    if agent is None:
        if wanted == "gone":
            return None
        raise Failed("no agent of this name is registered", "check the name and that the agent runs")
    name, state = f"{agent['hostname']} ({agent['id']})", agent["state"]
    if wanted == "gone":
        return "gone"
    if wanted == "drained":
        return None if state in ("draining", "drained") else "drain"
    if wanted == "deactivated":
        return "deactivate" if state in ("active", "disconnected") else None
    if state in ("active", "disconnected"):
        # Nobody took it out, and that it is not connected is no matter of the masters.
        return None
    if not ours and not takeover:
        raise Failed(
            f"{name} is {state}, and not by us", "ask who did it; if it may be undone, run again with takeover"
        )
    # A drain cannot be called off while it goes on; what is DRAINED can be.
    return "reactivate"


def change(
    operator: Operator,
    hostname: str | None,
    agent_id: str | None,
    wanted: str,
    ledger: Ledger,
    grace_s: int,
    takeover: bool,
    timeout_s: float,
    check_mode: bool,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> dict[str, Any]:
    """Brings the agent into the state: {changed, action, before, after, ours}. A drain is waited for if `timeout_s` is
    not 0. `ours`: the agent is out afterwards, or was before in check mode, and the ledger has it.

    Raises Failed; where the time is over, with the tasks that are waited for.
    """
    before = mesos_operator.pick(operator.agents(), hostname, agent_id)
    ours = before is not None and before["id"] in ledger.rows
    action = decide(before, wanted, ours, takeover)
    if action == "drain" and before is not None:
        _not_in_schedule(operator, before)
    result = {"changed": action is not None, "action": action, "before": before, "after": before, "ours": ours}
    if before is None or check_mode:
        return result
    if before["state"] in ("active", "disconnected"):
        # Whoever brought it back: what happens to it from now on is not of the old entry's making.
        ledger.drop(before["id"])
    end = clock() + timeout_s
    if action == "reactivate" and before["state"] == "draining":
        _wait(operator, before["id"], ("drained",), end, timeout_s, clock, sleep, grace_s if ours else None)
    if action in ("drain", "deactivate"):
        _take_out(operator, before, action, wanted, grace_s, ledger)
    elif action is not None:
        getattr(operator, action)(before["id"])
    if action in ("reactivate", "gone"):
        ledger.drop(before["id"])
    if timeout_s > 0 and wanted == "drained":
        ours = before["id"] in ledger.rows
        _wait(operator, before["id"], ("drained",), end, timeout_s, clock, sleep, grace_s if ours else None)
    result["after"] = mesos_operator.pick(operator.agents(), None, before["id"])
    result["ours"] = before["id"] in ledger.rows
    return result


def _take_out(
    operator: Operator, agent: Mapping[str, Any], action: str, wanted: str, grace_s: int, ledger: Ledger
) -> None:
    """Drains or deactivates, and writes that down first: cut between the two, the next run finds an active agent."""
    known = ledger.rows.get(agent["id"])
    ledger.put(agent["id"], {"state": wanted, "hostname": agent["hostname"]})
    try:
        if action == "drain":
            operator.drain(agent["id"], grace_s)
        else:
            operator.deactivate(agent["id"])
    except Failed:
        # Refused, or no answer. If nothing came of it, what somebody else does later must not count as ours.
        now = mesos_operator.pick(operator.agents(), None, agent["id"])
        if known is None and now is not None and now["state"] == agent["state"]:
            ledger.drop(agent["id"])
        raise


def _not_in_schedule(operator: Operator, agent: Mapping[str, Any]) -> None:
    for window in operator.schedule().get("windows", []):
        for machine in window["machine_ids"]:
            key = mesos_operator.machine_key(machine.get("hostname", ""), machine.get("ip", ""))
            if key == mesos_operator.machine_key(agent["hostname"], agent["ip"]):
                raise Failed(
                    f"{agent['hostname']} is in the maintenance schedule, and Mesos refuses to drain it as well",
                    "take it out of the schedule, or use the schedule alone",
                )


def _wait(
    operator: Operator,
    agent_id: str,
    states: tuple[str, ...],
    end: float,
    timeout_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    again_grace_s: int | None,
) -> None:
    """Until the agent is in one of the states. `again_grace_s`: the drain is ours and may be posted again."""
    empty_looks = 0
    while True:
        agent = mesos_operator.pick(operator.agents(), None, agent_id)
        if agent is None:
            raise Failed(f"agent {agent_id} went away while it was waited for", "look at the agent's log")
        if agent["state"] in states:
            return
        tasks = operator.tasks(agent_id)
        # A framework that leaves before it acknowledged keeps the agent DRAINING for ever; a second post ends that.
        empty_looks = 0 if tasks else empty_looks + 1
        if empty_looks == 5 and again_grace_s is not None:
            operator.drain(agent_id, again_grace_s)
        if clock() >= end:
            raise Failed(
                f"{agent['hostname']} ({agent_id}) is {agent['state']} and not {states[0]} after {timeout_s:g} s; "
                f"waited for: {mesos_operator.blockers(tasks)}",
                "end these tasks, or wait longer",
            )
        sleep(min(1.0, max(end - clock(), 0.05)))
