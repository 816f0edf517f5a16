# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node says of its GPUs to the reconciler, whatever the scheduler; published.py reads it again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import SCHEMA
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json, files

# Where the program that carries orders out leaves its answer.
ANSWER = "/var/lib/baremetal-gpu/orders/answer.json"
ANSWER_AT_MOST = 64 << 10
_OF_REASON = ("code", "verdict", "action", "text")


def describe(host: str, result: Mapping[str, Any], answer: str = ANSWER) -> dict[str, Any]:
    """What is published of the agent's result. `answer` is the file with the answer to the last order."""
    health = result["health"] or {"verdict": UNKNOWN, "since": None, "reasons": [], "devices": []}
    since = health.get("since")
    if since is not None and since > result.get("time", time.time()):
        # From before the clock was set back. Nobody could make anything of it.
        since = None
    return {
        "schema": SCHEMA,
        "host": host,
        "boot_id": result["boot_id"],
        # When the verdict came about; the time of each look would make each a new content.
        "time": since,
        "verdict": health["verdict"],
        "reasons": [_reason(row) for row in health["reasons"]],
        "devices": [
            {
                **{key: row.get(key) for key in ("uuid", "index", "pci_address", "verdict")},
                "reasons": [_reason(reason) for reason in row["reasons"]],
            }
            for row in health["devices"]
        ],
        "order": _answer(answer),
    }


def _reason(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row.get(key) for key in _OF_REASON}


def _answer(path: str) -> dict[str, Any] | None:
    """The answer; None where there is none, or no whole one."""
    try:
        told = bounded_json.parse_object(files.read(path, ANSWER_AT_MOST))
    except (OSError, bounded_json.Malformed):
        return None
    return {key: told[key] for key in ("id", "state", "error", "end_boot_id") if key in told} or None
