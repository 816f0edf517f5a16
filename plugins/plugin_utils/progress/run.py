# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a run of Ansible: which host is at which stage, what failed, and how long each stage took.

Fed with events, one call each, by the callback plugin progress and by gpuops; both show it with progress_text. Times
are seconds of any clock that only goes forward; the caller reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import stages

# This one rescues what fails in it, and explains it afterwards.
EXPLAINING_ROLE = "converge"

# Outside a role, these only choose the hosts of the tasks that follow. They begin no stage.
CHOOSING_ACTIONS = ("gpu_facts", "host_drift_info", "group_by", "meta")

# What became of a host at a stage. The later in this list, the more it counts: a stage with one change is changed.
SKIPPED, OK, CHANGED, RUNNING, FAILED, UNREACHABLE = "skipped", "ok", "changed", "running", "failed", "unreachable"
_RANK = {name: rank for rank, name in enumerate((SKIPPED, OK, CHANGED, FAILED, UNREACHABLE))}
# What became of a host of which stages were not begun.
UNFINISHED = "unfinished"
# In a failure's result: the host that a task was delegated to. Ansible takes it out of results.
DELEGATED = "delegated_to"
REBOOT_ACTIONS = ("reboot", "ansible.builtin.reboot", "ansible.legacy.reboot")
# In a result: roles that have nothing to do on the host, and of which no task will be run for it.
FINISHED = "finished_roles"
# What is worth a word where nobody sees a picture: a host is not heard of for minutes, or its failure is explained only
# when the others have come through the same task.
REBOOTING, FAILING = "rebooting", "failing"


class Failure:
    """A host that did not get through a task.

    :ivar result: what the task returned, for progress_text.explain.
    :ivar recovered: the host went on afterwards, because the playbook provides for the failure.
    :ivar settled: Ansible has ended meanwhile, so what the host does later is no rescue of this.
    """

    def __init__(self, host: str, stage: str, task: str, kind: str, result: Any, after: float) -> None:
        self.host = host
        self.stage = stage
        self.task = task
        self.kind = kind
        self.result = result
        self.after = after
        self.recovered = False
        self.settled = False


class Host:
    """What is known of a host.

    :ivar task: what it is doing, empty between tasks.
    :ivar since: when it began that.
    :ivar cells: what became of it, by stage.
    :ivar seconds: how long it has worked, by stage.
    :ivar spans: when it began a stage and when it was last heard of there, by stage.
    """

    __slots__ = ("cells", "changed", "failure", "rebooting", "seconds", "since", "spans", "stage", "task")

    def __init__(self) -> None:
        self.task = ""
        self.since = 0.0
        self.stage = ""
        self.rebooting = False
        self.changed = 0
        self.failure: Failure | None = None
        self.cells: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.spans: dict[str, list[float]] = {}

    @property
    def out(self) -> bool:
        """Whether Ansible has left it out of the rest of the run."""
        return self.failure is not None and not self.failure.recovered


class Run:
    """A run, by the events so far.

    :param expected: how long each stage took in earlier runs, in seconds; for what remains.
    :param on_failure: called once for each failure, when it is certain to be worth telling.
    :param on_note: called with REBOOTING or FAILING, the host, the stage and the task.
    :ivar unfinished: hosts that Ansible did not bring to all of their stages, though nothing failed on them.
    :ivar only_stage: what the stage is called that plays without roles are, whichever play it is.
    """

    def __init__(
        self,
        now: float,
        expected: dict[str, float] | None = None,
        on_failure: Callable[[Failure], None] | None = None,
        on_note: Callable[[str, str, str, str], None] | None = None,
    ) -> None:
        self.started = now
        self.ended: float | None = None
        self.cut = False
        self.expected = dict(expected or {})
        self.hosts: dict[str, Host] = {}
        self.failures: list[Failure] = []
        self.unfinished: set[str] = set()
        self.stage_seconds: dict[str, float] = {}
        self.play = ""
        self.stage = ""
        self.only_stage = ""
        self.task = ""
        self._on_failure = on_failure
        self._on_note = on_note
        self._role = ""
        self._mark = now
        self._last_known = ""
        self._in_play: set[str] = set()
        self._waiting: dict[str, Failure] = {}

    # What happens

    def play_started(self, name: str, now: float) -> None:
        self._flush()
        self._charge(now)
        for host in self.hosts.values():
            host.task = ""
        self._in_play.clear()
        self.play = name
        self.stage = ""
        self.task = ""

    def task_started(self, name: str, role: str, action: str, now: float) -> str:
        """Returns the task's stage."""
        self._charge(now)
        self.stage = self._stage_of(role, action)
        self.task = name
        self._role = short(role)
        return self.stage

    def host_started(self, name: str, task: str, stage: str, action: str, now: float) -> None:
        host = self.hosts.get(name)
        if host is None:
            host = self._met(name)
        elif host.failure is not None and not host.failure.recovered and not host.failure.settled:
            # A rescue or a handler: it was not left out.
            host.failure.recovered = True
            host.cells[host.failure.stage] = OK
        self._in_play.add(name)
        host.task = task
        host.stage = stage
        host.since = now
        if stage not in host.spans:
            host.spans[stage] = [now, now]
        host.rebooting = action in REBOOT_ACTIONS
        if host.rebooting and self._on_note:
            self._on_note(REBOOTING, name, stage, task)

    def host_done(self, name: str, kind: str, stage: str, now: float) -> None:
        """A task went well on a host: ``kind`` is ok, changed or skipped."""
        host = self.hosts.get(name)
        if host is None:
            host = self._met(name)
        if host.task:
            host.seconds[stage] = host.seconds.get(stage, 0.0) + now - host.since
            host.spans[host.stage][1] = now
            host.task = ""
            host.rebooting = False
        if kind is CHANGED:
            host.changed += 1
        if stage:
            before = host.cells.get(stage)
            if before is not kind and (before is None or _RANK[kind] > _RANK[before]):
                host.cells[stage] = kind

    def host_finished(self, name: str, roles: Any) -> None:
        """Roles have nothing to do on a host, so it will not be heard of in them.

        :param roles: as a module's result has them; what is none of ours is passed over.
        """
        if not isinstance(roles, (list, tuple)) or not roles:
            return
        cells = (self.hosts.get(name) or self._met(name)).cells
        for role in roles:
            stage = stages.NAME_OF_ROLE.get(role) if isinstance(role, str) else None
            if stage is None:
                continue
            cells.setdefault(stage, OK)
            self.stage_seconds.setdefault(stage, 0.0)

    def host_failed(
        self, name: str, kind: str, task: str, stage: str, result: Any, now: float, rescued: bool = False
    ) -> None:
        """A task failed on a host, or the host could not be reached: ``kind`` is failed or unreachable.

        Where the playbook has a rescue for it, nothing is reported before it is clear that the rescue did not come.
        """
        host = self.hosts.get(name) or self._met(name)
        if host.task:
            host.seconds[stage] = host.seconds.get(stage, 0.0) + now - host.since
            host.spans[host.stage][1] = now
        host.task = ""
        host.rebooting = False
        failure = Failure(name, stage, task, kind, result, now - self.started)
        host.failure = failure
        if stage:
            host.cells[stage] = kind
        if rescued:
            self._waiting[name] = failure
            if self._role == EXPLAINING_ROLE and self._on_note:
                self._on_note(FAILING, name, stage, task)
            return
        self._waiting.pop(name, None)
        self._report(failure)

    def counted(self, failed: Iterable[str], changed: Mapping[str, int]) -> None:
        """Ansible's count at its end: the hosts that failed for good, and how many tasks changed each host.

        What a block does always looks like a rescue before, and a loop whose results are secret like one that changed
        nothing.
        """
        for name, count in changed.items():
            if name in self.hosts:
                self.hosts[name].changed = max(self.hosts[name].changed, count)
        for name in failed:
            host = self.hosts.get(name)
            if host is not None and host.failure is not None:
                host.failure.recovered = False
                if host.failure.stage:
                    host.cells[host.failure.stage] = host.failure.kind
        for host in self.hosts.values():
            if host.failure is not None and host.out:
                host.failure.settled = True

    def finished(self, now: float, cut: bool = False) -> None:
        """The run is over; ``cut`` if somebody stopped it."""
        self.cut = cut
        self._flush()
        self._charge(now)
        self.stage = ""
        self.ended = now
        for host in self.hosts.values():
            host.task = ""

    # What it amounts to

    def stages(self) -> list[str]:
        """The stages that are known of, in the order in which a host goes through them."""
        seen = dict.fromkeys(self.expected)
        seen.update(dict.fromkeys(self.stage_seconds))
        for host in self.hosts.values():
            seen.update(dict.fromkeys(host.cells))
        if self.stage:
            seen[self.stage] = None
        known = [name for name in stages.NAMES if name in seen]
        return known + [name for name in seen if name and name not in stages.NAMES]

    def cell(self, name: str, stage: str) -> str:
        """What became of a host at a stage, or running; empty if it has not come to it."""
        host = self.hosts[name]
        if host.task and host.stage == stage:
            return RUNNING
        return host.cells.get(stage, "")

    def elapsed(self, now: float) -> float:
        return (self.ended if self.ended is not None else now) - self.started

    def remaining(self, now: float) -> float | None:
        """Seconds until the end if each stage takes as long as it did in earlier runs. None where nothing is known."""
        if not self.expected or self.ended is not None:
            return None
        left = 0.0
        for stage, seconds in self.expected.items():
            spent = self.stage_seconds.get(stage, 0.0)
            if stage == self.stage:
                spent += now - self._mark
            elif stage in self.stage_seconds and self._is_before(stage):
                continue
            left += max(0.0, seconds - spent)
        return left

    def broke_off(self) -> str | None:
        """The stage in which all hosts of the last play are out, at which Ansible ends a run; None where some are not.

        Hosts that have stages left are then neither out nor done.
        """
        last = [self.hosts[name] for name in self._in_play]
        if not last or not all(host.out for host in last):
            return None
        return next((host.failure.stage for host in last if host.failure is not None), None)

    def lasting_failures(self) -> list[Failure]:
        """The failures for which hosts were left out, one for each host."""
        return [host.failure for host in self.hosts.values() if host.failure is not None and host.out]

    def counts(self) -> dict[str, int]:
        """How many hosts are done, failed, unreachable and unfinished, and how many of those done were changed."""
        kinds = {
            name: host.failure.kind if host.failure is not None and host.out else OK
            for name, host in self.hosts.items()
        }
        kinds |= {name: UNFINISHED for name in self.unfinished if kinds.get(name, OK) is OK}
        changed = sum(1 for name, host in self.hosts.items() if host.changed and kinds[name] is OK)
        found = list(kinds.values())
        return {
            "hosts": len(found),
            "ok": found.count(OK),
            "changed": changed,
            "failed": found.count(FAILED),
            "unreachable": found.count(UNREACHABLE),
            "unfinished": found.count(UNFINISHED),
        }

    # Inside

    def _met(self, name: str) -> Host:
        """A host that is heard of for the first time. Whoever draws a picture meanwhile goes on with the old hosts."""
        host = Host()
        self.hosts = {**self.hosts, name: host}
        return host

    def _is_before(self, stage: str) -> bool:
        order = self.stages()
        return self.stage in order and order.index(stage) < order.index(self.stage)

    def _stage_of(self, role: str, action: str) -> str:
        name = short(role)
        if name and name not in stages.SHARED_ROLES:
            stage = stages.NAME_OF_ROLE.get(name, name)
            if stage in stages.NAMES:
                self._last_known = stage
            return stage
        if self.stage or short(action) in CHOOSING_ACTIONS:
            return self.stage
        # Tasks between roles belong to the stage before; a play that has no roles is a stage.
        return self._last_known or self.only_stage or self.play

    def _charge(self, now: float) -> None:
        """Time that has passed goes to the stage that was under way."""
        if self.stage:
            self.stage_seconds[self.stage] = self.stage_seconds.get(self.stage, 0.0) + now - self._mark
        self._mark = now

    def _report(self, failure: Failure) -> None:
        self.failures.append(failure)
        if self._on_failure:
            self._on_failure(failure)

    def _flush(self) -> None:
        """What no explanation followed is reported as it was."""
        waiting, self._waiting = self._waiting, {}
        for name, failure in waiting.items():
            host = self.hosts[name]
            if host.failure is failure and not failure.recovered:
                self._report(failure)


def short(name: str) -> str:
    """The name of a role or an action without that of its collection."""
    return name.rpartition(".")[2]
