# SPDX-License-Identifier: GPL-3.0-or-later
"""From the events of ansible-runner to what is known of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress

# Events do not say either to whom a task was delegated; the line that is printed does.
ARROW = re.compile(r"^fatal: \[\S+ -> ([^\](]+)", re.MULTILINE)
FAIL_ACTIONS = ("fail", "ansible.builtin.fail", "ansible.legacy.fail")
INCLUDE_ACTIONS = ("include_role", "ansible.builtin.include_role", "ansible.legacy.include_role")


class Feed:
    """Takes events one by one. Pure: the time is given, nothing is printed."""

    def __init__(self, run: progress.Run) -> None:
        self.run = run
        self._stages: dict[str, str] = {}

    def take(self, event: Mapping[str, Any], now: float) -> None:
        data = event.get("event_data") or {}
        kind = event.get("event")
        task = data.get("task_uuid", "")
        if kind == "playbook_on_task_start":
            self._stages[task] = self.run.task_started(data.get("task", ""), data.get("role", ""), now)
            return
        if kind == "playbook_on_play_start":
            self._stages.clear()
            self.run.play_started(data.get("name", ""), now)
            return
        host = data.get("host")
        if not host or not str(kind).startswith("runner_on_"):
            return
        # Events do not say which role is included: of what stage it is, its own tasks tell.
        of_no_stage = data.get("task_action") in INCLUDE_ACTIONS and not data.get("role")
        if of_no_stage and kind in ("runner_on_start", "runner_on_ok", "runner_on_skipped"):
            return
        stage = self._stages.get(task, self.run.stage)
        if kind == "runner_on_start":
            self.run.host_started(host, data.get("task", ""), stage, data.get("task_action", ""), now)
        elif kind == "runner_on_ok":
            result = untrusted_document.mapping(data.get("res"))
            self.run.host_done(host, progress.CHANGED if result.get("changed") else progress.OK, stage, now)
            self.run.host_finished(host, result.get(progress.FINISHED))
        elif kind == "runner_on_skipped":
            self.run.host_done(host, progress.SKIPPED, stage, now)
        elif kind in ("runner_on_failed", "runner_on_unreachable"):
            if data.get("ignore_errors") or data.get("ignore_unreachable"):
                self.run.host_done(host, progress.OK, stage, now)
                return
            word = progress.FAILED if kind == "runner_on_failed" else progress.UNREACHABLE
            # Events do not say of a task whether there is a rescue for it. The role converge has one for all that it
            # does, and explains there.
            rescued = (
                word == progress.FAILED
                and progress.short(data.get("role", "")) == progress.EXPLAINING_ROLE
                and data.get("task_action") not in FAIL_ACTIONS
            )
            failed: Any = data.get("res")
            elsewhere = ARROW.search(str(event.get("stdout") or ""))
            if elsewhere and isinstance(failed, dict):
                failed = {**failed, progress.DELEGATED: elsewhere[1]}
            self.run.host_failed(host, word, data.get("task", ""), stage, failed, now, rescued)
