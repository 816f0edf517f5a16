# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run told of its hosts that a report needs later: the plan of preflight and the proof of every card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from gpuops import outside

FILE = "hosts.json"


class Told:
    """Takes the events of ansible-runner, one by one; ``hosts`` has what is worth keeping, by host."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, Any]] = {}

    def take(self, event: Mapping[str, Any]) -> None:
        if event.get("event") not in ("runner_on_ok", "runner_on_failed"):
            return
        data = event.get("event_data") or {}
        action, result = data.get("task_action"), untrusted_document.mapping(data.get("res"))
        if action == "baremetal.gpu.gpu_preflight_info" and isinstance(result.get("plan"), dict):
            self._of(data)["plan"] = result["plan"]
        elif action == "baremetal.gpu.gpu_verify_report":
            verdict = result.get("report") or _file(result.get("file"))
            if isinstance(verdict, dict) and verdict:
                self._of(data)["verify"] = verdict

    def _of(self, data: Mapping[str, Any]) -> dict[str, Any]:
        return self.hosts.setdefault(str(data.get("host")), {})


def _file(path: Any) -> Any:
    """The report that the role has written; a host that does not pass has it in its file alone."""
    return outside.load(Path(path)) if isinstance(path, str) else None


def load(path: Path) -> dict[str, dict[str, Any]]:
    """What an earlier run told of its hosts, or a host's report; empty where there is nothing of the kind."""
    return {key: row for key, row in untrusted_document.mapping(outside.load(path)).items() if isinstance(row, dict)}
