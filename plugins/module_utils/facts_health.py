# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts as facts: the agent's where one watches the host, else those of a single look.

The agent knows what a look cannot: what has lasted, what was there before a reboot, and what an operator has cleared.
A second opinion without that would contradict it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import health_probe, snapshot
from ansible_collections.baremetal.gpu.plugins.module_utils.health import judge_once

AGENT_CONFIG = "/etc/baremetal-gpu/agent.json"
AGENT_RESULT = "/run/baremetal-gpu/gpu.json"
# A result that is older than this many of the agent's intervals is not relied on.
STALE_AFTER = 4
KERNEL_LOG = "dev/kmsg"
# Of a card's part in a report. The rest says how the verdict came about, and is only told with the details.
_OF_CARD = ("uuid", "index", "pci_address", "verdict", "reasons")


def _read(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def of_agent(root: str = "/") -> dict[str, Any] | None:
    """The report of an agent that is at work, with `since`, as health.judge() makes it; None where there is none."""
    path = _read(os.path.join(root, AGENT_CONFIG.lstrip("/"))).get("result", AGENT_RESULT)
    if not isinstance(path, str):
        return None
    result = _read(os.path.join(root, path.lstrip("/")))
    report, at, interval = result.get("health"), result.get("time"), result.get("interval_s")
    if not (isinstance(at, (int, float)) and isinstance(interval, (int, float)) and isinstance(report, dict)):
        return None
    if result.get("boot_id") != snapshot.boot_id(root) or abs(time.time() - at) > STALE_AFTER * interval:
        return None
    return report if isinstance(report.get("devices"), list) and "verdict" in report else None


def of_look(look: dict[str, Any], root: str = "/") -> tuple[dict[str, Any], str | None]:
    """The report on a snapshot and on what the kernel has logged, and why its log could not be read, else None."""
    logged, log_error = health_probe.events(os.path.join(root, KERNEL_LOG), look["boot_id"])
    return judge_once(look, logged), log_error


def told(report: dict[str, Any], details: bool, **more: Any) -> dict[str, Any]:
    """The report as facts tell it, with `more` at its head."""
    if details:
        return {**more, **report}
    node = {key: row for key, row in report.items() if key not in ("checks", "suspected")}
    return {**more, **node, "devices": [{key: row.get(key) for key in _OF_CARD} for row in report["devices"]]}
