# SPDX-License-Identifier: GPL-3.0-or-later
"""The events of ansible-runner as types. What hosts return enters gpuops here.

It is cleaned once (see untrusted_document), so that it may be printed and stored. A host whose results cannot be read
is named, and does not keep the results of the others from being read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.problems import problems_of

# What is raised where a document has another shape than its reader expects.
UNEXPECTED_SHAPE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)

# Events have no field for the host to which a task was delegated; the label that Ansible prints for the result has it.
_DELEGATED_LABEL = re.compile(r"^fatal: \[\S+ -> ([^\](]+)", re.MULTILINE)
# A result with no_log does not have whether something was changed. Ansible prints it, except of a loop.
_CHANGED_LABEL = re.compile(r"^(?:\x1b\[[0-9;]*m)?changed: \[", re.MULTILINE)
_COLLECTION = "baremetal.gpu."
COMMAND_ACTIONS = ("command", "ansible.builtin.command", "ansible.legacy.command")


@dataclass(frozen=True)
class Task:
    """A task of a playbook.

    :ivar action: the module or action, without the name of this collection.
    :ivar role: the role that the task belongs to; empty for a task of a play.
    """

    uuid: str = ""
    name: str = ""
    role: str = ""
    action: str = ""


@dataclass(frozen=True)
class Event:
    """Anything that happens.

    :ivar output: what ansible-playbook prints with it.
    """

    output: str = ""


@dataclass(frozen=True)
class PlayStarted(Event):
    """:ivar uuid: the same for all batches of a play with `serial`."""

    name: str = ""
    uuid: str = ""


@dataclass(frozen=True)
class TaskStarted(Event):
    task: Task = Task()


@dataclass(frozen=True)
class HostStarted(Event):
    """A host begins a task."""

    host: str = ""
    task: Task = Task()


@dataclass(frozen=True)
class HostResult(Event):
    """The result of a task on a host.

    :ivar outcome: ok, changed, skipped, failed or unreachable, as in progress.
    :ivar result: what the module returned.
    :ivar problems: those that the result lists.
    :ivar ignored: the playbook goes on after the failure as if there were none.
    :ivar delegated_to: where the task ran instead; empty for the host itself, and where Ansible does not print it.
    :ivar stage: in which stage of the run the task is; empty before a reducer has had the event.
    """

    host: str = ""
    task: Task = Task()
    outcome: str = progress.OK
    result: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()
    ignored: bool = False
    delegated_to: str = ""
    stage: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether the module has returned without a failure. What a task skips returns nothing."""
        return self.outcome in (progress.OK, progress.CHANGED)

    @property
    def changed(self) -> bool:
        return self.outcome == progress.CHANGED

    def ran(self, *words: str) -> bool:
        """Whether the task ran a command that begins with these words; of a loop, whether its items did."""
        commands = [self.result.get("cmd"), *(row.get("cmd") for row in self.items)]
        return self.task.action in COMMAND_ACTIONS and any(
            isinstance(command, list) and command[: len(words)] == list(words) for command in commands
        )

    @property
    def items(self) -> list[dict[str, Any]]:
        """The results of the items of a loop."""
        return untrusted_document.rows(self.result.get("results"))


@dataclass(frozen=True)
class Counted(Event):
    """Ansible's count at its end.

    :ivar failed: the hosts that failed for good.
    :ivar changed: how many tasks changed each host.
    """

    failed: frozenset[str] = frozenset()
    changed: Mapping[str, int] = field(default_factory=dict)


_OUTCOMES = {
    "runner_on_skipped": progress.SKIPPED,
    "runner_on_failed": progress.FAILED,
    "runner_on_unreachable": progress.UNREACHABLE,
}


def typed(document: Mapping[str, Any]) -> Event:
    """An event of ansible-runner as its type; one of no interest is an Event with its output alone."""
    kind = document.get("event")
    output = str(document.get("stdout") or "").replace("\r", "")
    data = untrusted_document.mapping(document.get("event_data"))
    if kind == "playbook_on_play_start":
        return PlayStarted(output, _text(data, "name"), _text(data, "play_uuid"))
    if kind == "playbook_on_task_start":
        return TaskStarted(output, _task(data))
    if kind == "playbook_on_stats":
        changed = {str(name): int(count) for name, count in untrusted_document.mapping(data.get("changed")).items()}
        return Counted(output, frozenset(map(str, untrusted_document.mapping(data.get("failures")))), changed)
    host = _text(data, "host")
    if not host:
        return Event(output)
    if kind == "runner_on_start":
        return HostStarted(output, host, _task(data))
    if kind != "runner_on_ok" and kind not in _OUTCOMES:
        return Event(output)
    result = untrusted_document.mapping(data.get("res"))
    if not result and data.get("res"):
        result = {"msg": str(data["res"])}
    delegated = _DELEGATED_LABEL.search(output)
    has_changed = result.get("changed") or ("censored" in result and _CHANGED_LABEL.search(output))
    return HostResult(
        output,
        host,
        _task(data),
        _OUTCOMES.get(str(kind)) or (progress.CHANGED if has_changed else progress.OK),
        result,
        problems_of(result),
        bool(data.get("ignore_errors") or data.get("ignore_unreachable")),
        delegated[1] if delegated else "",
    )


def _task(data: Mapping[str, Any]) -> Task:
    # What a short name stands for is in resolved_action.
    action = _text(data, "resolved_action") or _text(data, "task_action")
    return Task(_text(data, "task_uuid"), _text(data, "task"), _text(data, "role"), action.removeprefix(_COLLECTION))


def _text(data: Mapping[str, Any], key: str) -> str:
    value = data.get(key)
    return value if isinstance(value, str) else ""


Take = Callable[[Event], None]


class Entry:
    """Hands on the events of ansible-runner: cleaned, without secrets, typed.

    :param take: takes them.
    :param redact: takes secrets out of a document.
    """

    def __init__(self, take: Take, redact: Callable[[Any], Any] | None = None) -> None:
        self._take = take
        self._redact = redact
        self._unreadable: set[str] = set()

    def __call__(self, raw: Mapping[str, Any]) -> None:
        document = untrusted_document.cleaned(raw)
        data = document.get("event_data")
        host = str(data.get("host") or "") if isinstance(data, dict) else ""
        if self._redact:
            document = self._redact(document)
            data = document.get("event_data")
            if host:
                # Its name is the inventory's, and goes back to Ansible.
                document["event_data"] = data = {**data, "host": host}
        try:
            self._take(typed(document))
        except UNEXPECTED_SHAPE as error:
            if not host:
                raise
            if host not in self._unreadable:
                self._unreadable.add(host)
                print(
                    f"{host}: the result of '{data.get('task')}' cannot be read "
                    f"({type(error).__name__}: {untrusted_text.one_line(error, 200)}), so it is left out. "
                    "See `gpuops doctor` for the host, and compare the versions that are installed there",
                    file=sys.stderr,
                )
