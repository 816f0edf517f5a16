# SPDX-License-Identifier: GPL-3.0-or-later
"""What a report needs later of the hosts of a run: the plan of preflight, and the verification of every GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from gpuops.run import events, records

FILE = "hosts.json"


class HostReports:
    """Takes results, one by one; ``hosts`` has what is worth keeping, by host."""

    def __init__(self) -> None:
        self.hosts: dict[str, dict[str, Any]] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult):
            return
        action, result = event.task.action, event.result
        if action == "gpu_preflight_info" and isinstance(result.get("plan"), dict):
            self._of(event.host)["plan"] = result["plan"]
        elif action == "gpu_verify_report":
            verification = result.get("report") or _file(result.get("file"))
            if isinstance(verification, dict) and verification:
                self._of(event.host)["verify"] = verification

    def _of(self, host: str) -> dict[str, Any]:
        return self.hosts.setdefault(host, {})


def _file(path: Any) -> Any:
    """The report that the role has written; a host that does not pass has it in its file alone."""
    return records.document(Path(path)) if isinstance(path, str) else None


def load(path: Path) -> dict[str, dict[str, Any]]:
    """What an earlier run has kept of its hosts, or a host's report; empty where there is nothing of the kind."""
    content = untrusted_document.mapping(records.document(path))
    return {key: row for key, row in content.items() if isinstance(row, dict)}
