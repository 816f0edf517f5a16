# SPDX-License-Identifier: GPL-3.0-or-later
"""From events to what is known of a run."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events

FAIL_ACTIONS = ("fail", "ansible.builtin.fail", "ansible.legacy.fail", "refuse")
INCLUDE_ACTIONS = ("include_role", "ansible.builtin.include_role", "ansible.legacy.include_role")


class Reducer:
    """Takes events one by one into a progress.Run. Pure: the time is given, nothing is printed."""

    def __init__(self, run: progress.Run) -> None:
        self.run = run
        self._stages: dict[str, str] = {}

    def take(self, event: events.Event, now: float) -> events.Event:
        """The event, with the stage of its task where it is a result."""
        if isinstance(event, events.TaskStarted):
            task = event.task
            self._stages[task.uuid] = self.run.task_started(task.name, task.role, task.action, now)
        elif isinstance(event, events.PlayStarted):
            self._stages.clear()
            self.run.play_started(event.name, now)
        elif isinstance(event, events.HostStarted):
            if not _is_include(event.task):
                stage, task = self._stage(event.task), event.task
                self.run.host_started(event.host, task.name, stage, task.action, now)
        elif isinstance(event, events.HostResult):
            event = replace(event, stage=self._stage(event.task))
            self._result(event, now)
        elif isinstance(event, events.Counted):
            self.run.counted(event.failed, event.changed)
        return event

    def _stage(self, task: events.Task) -> str:
        return self._stages.get(task.uuid, self.run.stage)

    def _result(self, event: events.HostResult, now: float) -> None:
        host, task, stage = event.host, event.task, event.stage
        if event.outcome in (progress.FAILED, progress.UNREACHABLE):
            if event.ignored:
                self.run.host_done(host, progress.OK, stage, now)
                return
            # Events do not have whether there is a rescue for a task. The role converge has one for all that it
            # does, and explains there.
            rescued = (
                event.outcome == progress.FAILED
                and progress.short(task.role) == progress.EXPLAINING_ROLE
                and task.action not in FAIL_ACTIONS
            )
            result = dict(event.result)
            if event.delegated_to:
                result[progress.DELEGATED] = event.delegated_to
            self.run.host_failed(host, event.outcome, task.name, stage, result, now, rescued)
        elif not _is_include(task):
            self.run.host_done(host, event.outcome, stage, now)
            if event.succeeded:
                self.run.host_finished(host, event.result.get(progress.FINISHED))


def _is_include(task: events.Task) -> bool:
    """Events do not have which role is included: the stage is that of the tasks of that role."""
    return task.action in INCLUDE_ACTIONS and not task.role
