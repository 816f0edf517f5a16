# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent published last, as its second memory: the result is in memory, and outlives an agent and a full disk.

An agent whose state is lost, or could not be saved, would begin with a good word for GPUs of which it had told in this
boot that they are broken. So it takes over what its last result says, and goes on from there.
"""

from __future__ import annotations

import copy
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import history as health_history
from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FAULTS


def has_unsaved(result: dict[str, Any]) -> bool:
    """Whether a result tells what is not in the state."""
    agent = result.get("agent")
    return isinstance(agent, dict) and agent.get("state_saved") is False


def recalled(history: dict[str, Any], result: dict[str, Any], boot_id: str | None) -> tuple[dict[str, Any], int]:
    """The history with every GPU and every fault that a result of this boot has and it has not, and how many faults.

    What is not as agents write it is passed over.
    """
    report = result.get("health")
    if not boot_id or result.get("boot_id") != boot_id or not isinstance(report, dict):
        return history, 0
    history = copy.deepcopy(history) if history else health_history.empty()
    health_history.begin_boot(history, boot_id)
    found = _take_over(history["node"], report, history["boot"])
    rows = report.get("devices")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict):
            one = _record_of(row, history)
            if one is not None:
                found += _take_over(one, row, history["boot"])
    return history, found


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _record_of(row: dict[str, Any], history: dict[str, Any]) -> dict[str, Any] | None:
    uuid, address, index = _text(row.get("uuid")), _text(row.get("pci_address")), row.get("index")
    key = uuid or address
    if key is None:
        return None
    devices: dict[str, dict[str, Any]] = history["devices"]
    if key not in devices:
        same = [name for name, one in devices.items() if address and one["identity"]["pci_address"] == address]
        if same:
            return devices[same[0]]
        number = index if isinstance(index, int) and not isinstance(index, bool) else None
        # It was there: should it not be any more, that is a fault.
        devices[key] = {**health_history.record(uuid, number, address), "answered": True, "present": True}
        devices[key]["boot"] = history["boot"]
    return devices[key]


def _take_over(one: dict[str, Any], part: dict[str, Any], boot: int) -> int:
    reasons, found = part.get("reasons"), 0
    for row in reasons if isinstance(reasons, list) else ():
        code = _text(row.get("code")) if isinstance(row, dict) else None
        if code is None or row.get("verdict") not in FAULTS or code in one["faults"]:
            continue
        one["faults"][code] = _fault(code, row, boot)
        found += 1
    return found


def _fault(code: str, row: dict[str, Any], boot: int) -> dict[str, Any]:
    evidence = row.get("evidence")
    evidence = evidence if isinstance(evidence, dict) else {}
    since, action = evidence.get("since"), row.get("action")
    action = action if isinstance(action, str) and action in ACTIONS else "inspect"
    fault = {
        "since": since if isinstance(since, (int, float)) and not isinstance(since, bool) else 0.0,
        "boot": boot,
        "good": 0,
        "verdict": row["verdict"],
        "action": action,
        "value": _plain(evidence.get("value")),
        "threshold": _plain(evidence.get("threshold")),
        "text": _text(row.get("text")) or code,
    }
    if code.startswith("xid_"):
        counts = evidence.get("xids")
        counts = counts if isinstance(counts, dict) else {}
        numbers = {key: count for key, count in counts.items() if key.isascii() and key.isdigit() and len(key) < 10}
        fault["xids"] = {
            key: {"count": count if isinstance(count, int) and count > 0 else 1, "action": action, "boot": boot}
            for key, count in (numbers or {"0": 1}).items()
        }
    if code.startswith("sxid_"):
        fault["sxids"] = {}
    return fault


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) else None
