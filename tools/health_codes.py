#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print docs/health-codes.md from the tables that the health rules work with.

.venv/bin/python tools/health_codes.py > docs/health-codes.md
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import (
    ACTIONS,
    BY_BOOT,
    DEVICE_CODES,
    EVENT_CODES,
    NODE_CODES,
    Code,
    remedy,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.health.policy import DEFAULTS
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid_table

INTRODUCTION = """\
# Health codes

Each code names one check of the [health rules](health.md). Codes are stable, so alerts, policies and runbooks can be
built on them. *Looks* are those of the agent, every 15 seconds by default; a single look by `gpuops probe` or
`baremetal.gpu.gpu_health_info` counts at once. All numbers here are the defaults, and a site can change them with its
[policy](health.md#the-policy).

This page is printed by `tools/health_codes.py` from the tables that the rules use.
"""


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def counts(row: Code) -> str:
    thresholds, settings = DEFAULTS["thresholds"], DEFAULTS["checks"][row.code]
    if row.code in EVENT_CODES:
        return "at once, with the line in the log"
    if row.share:
        minutes = [thresholds[key] // 60 for key in ("share_bad_s", "share_window_s")]
        return f"after {minutes[0]} of {minutes[1]} minutes"
    if settings["looks"] == 1:
        return "at the first look"
    unit = "minutes" if row.code in ("pcie_replays", "nvlink_errors") else "looks"
    return f"after {settings['looks']} {unit} in a row"


def ends(row: Code) -> str:
    clear = DEFAULTS["checks"][row.code]["clear_looks"]
    if row.ends == BY_BOOT:
        return f"after the next boot, with {clear} good looks in a row; or by `gpu-agent clear`"
    return f"with {clear} good looks in a row; or by `gpu-agent clear`"


def sections(rows: dict[str, Code]) -> Iterator[str]:
    for row in rows.values():
        yield f"### {row.code}\n"
        yield f"{capital(row.meaning)}.\n"
        for name, text in (
            ("Threshold", row.threshold),
            ("Verdict", f"{row.verdict}, {counts(row)}"),
            ("Action", f"`{row.action}`"),
            ("What to do", remedy(row.code, row.action)),
            ("Ends", ends(row)),
        ):
            yield textwrap.fill(f"- {name}: {text}", 120, subsequent_indent="  ", break_on_hyphens=False)
        yield ""


def xids() -> Iterator[str]:
    yield "| Xid | meaning | GPUs | verdict | action | if it returns |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for number, row in xid_table.XIDS.items():
        action = "" if row.verdict == "none" else f"`{row.action}`"
        then = f"`{row.escalation}`" if row.escalation and row.verdict != "none" else ""
        cells = [str(number), row.name, row.gpus or "all", row.verdict, action, then]
        yield f"| {' | '.join(cells)} |"


def actions() -> Iterator[str]:
    yield "| action | what to do |"
    yield "| --- | --- |"
    for action in ACTIONS:
        yield f"| `{action}` | {remedy('', action)} |"


def page() -> str:
    lines = [
        INTRODUCTION,
        "## Codes of a host\n",
        *sections(NODE_CODES),
        "## Codes of a GPU\n",
        *sections(DEVICE_CODES),
        "## Actions\n",
        "An Xid, the driver's recommendation, the policy or a fault that has returned may need another action than the",
        "code's own. What to do is then:\n",
        *actions(),
        "",
        "## Xids\n",
        "What the driver's Xid numbers mean here. *Application* Xids are caused by the program that ran, and those",
        "with *none* say nothing about the GPU. Both are counted and change no verdict. A number that is not listed",
        "is only counted.\n",
        f"The log line of Xids {xid_table.SAYS_FATAL[0]} to {xid_table.SAYS_FATAL[-1]} says whether they are fatal, "
        f"and that of Xid {xid_table.RECOVERY_XID}",
        "says what the driver recommends. What the line says overrides the table. Xids "
        f"{', '.join(map(str, xid_table.TOLD_BY_NVML))} count only",
        "if NVML has no flag for the same fault, because such a flag also shows when the fault is over.\n",
        *xids(),
        "",
        f"Sources: {xid_table.CATALOGUE};",
        f"{xid_table.HEADERS}.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    print(page())
