# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an Xid means for the GPU, by xid_table.py and the site's policy."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import (
    RECOVERY_ACTIONS,
    RECOVERY_UNKNOWN,
    RECOVERY_XID,
    SAYS_FATAL,
    TOLD_BY_NVML,
    XIDS,
    Row,
)

UNKNOWN = Row("not documented", "none", "none", None, "")


def row(number: int) -> Row:
    return XIDS.get(number, UNKNOWN)


def is_known(number: int) -> bool:
    return number in XIDS


def judge(number: int, detail: dict[str, Any], overrides: dict[str, dict[str, str]]) -> tuple[str, str]:
    """Verdict (fatal, degraded, application or none) and action of one Xid.

    `detail` is an event's, `overrides` the policy's part `xids`. What the line itself says of its severity counts more
    than the table, and what the site says counts most.
    """
    verdict, action = row(number).verdict, row(number).action
    if number == RECOVERY_XID and detail.get("recovery_to") is not None:
        verdict, action = RECOVERY_ACTIONS.get(detail["recovery_to"], RECOVERY_UNKNOWN)
    elif number in SAYS_FATAL and "fatal" in detail:
        verdict, action = ("none", "none") if detail["fatal"] is False else ("fatal", "reset_gpu")
    override = overrides.get(str(number), {})
    return override.get("verdict", verdict), override.get("action", action)


def says_more(number: int) -> bool:
    """Whether the kernel's line says how bad it is, which NVML's event of the same Xid does not."""
    return number == RECOVERY_XID or number in SAYS_FATAL


def is_all_clear(number: int, detail: dict[str, Any]) -> bool:
    """Whether the line says that what the driver recommended is done, or not needed any more."""
    return number == RECOVERY_XID and detail.get("recovery_to") == 0


def is_told_by_nvml(number: int, checks: dict[str, str]) -> bool:
    """Whether NVML tells the same of this GPU, so that a check follows it. `checks` are the last look's states."""
    return any(checks.get(code) in ("ok", "fail") for code in TOLD_BY_NVML.get(number, ()))


def text(number: int) -> str:
    return f"Xid {number}: {row(number).name}"
