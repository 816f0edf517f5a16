# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what a run of ansible-playbook did as lines of JSON into the file that PLAY_EVENTS names.

The events have the names and fields of ansible-runner's, which cannot be had of a run that Molecule starts.
"""

from __future__ import annotations

import json
import os
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: record
type: aggregate
short_description: Record the events of a run
description: For tests of playbooks that Molecule runs.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"
    CALLBACK_NEEDS_ENABLED = True

    def _write(self, event: str, **data: Any) -> None:
        with open(os.environ["PLAY_EVENTS"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "event_data": data}, default=str) + "\n")

    def _write_result(self, event: str, result: Any, ignore_errors: bool = False) -> None:
        self._write(
            event,
            host=result.host.get_name(),
            task=result.task.get_name(),
            res=dict(result.result),
            ignore_errors=ignore_errors,
        )

    def v2_runner_on_ok(self, result: Any) -> None:
        self._write_result("runner_on_ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._write_result("runner_on_failed", result, ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._write_result("runner_on_unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        self._write("playbook_on_stats", changed=dict(stats.changed), ok=dict(stats.ok))
