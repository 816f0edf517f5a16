# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A health report for people: a line for the node and for every GPU, and below it each reason with its remedy."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Iterable
from typing import Any

WIDTH = 110


def table(report: dict[str, Any]) -> str:
    """The report of health.judge as text of several lines, without a newline at the end."""
    rows = [("GPU", "ADDRESS", "UUID", "VERDICT", "SINCE")]
    for device in report["devices"]:
        index = "-" if device["index"] is None else str(device["index"])
        rows.append(
            (
                index,
                device["pci_address"] or "-",
                device["uuid"] or "-",
                device["verdict"],
                _moment(device["since"]),
            )
        )
    lines = [f"The host is {report['verdict']} since {_moment(report['since'])}."]
    if report["devices"]:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    else:
        lines.append("It has no GPUs to judge.")
    lines += _reasons("the host", report)
    for device in report["devices"]:
        lines += _reasons(f"GPU {device['uuid'] or device['pci_address'] or device['index']}", device)
    return "\n".join(lines)


def _reasons(who: str, part: dict[str, Any]) -> Iterable[str]:
    for reason in part["reasons"]:
        evidence = reason["evidence"]
        yield ""
        yield f"{reason['verdict']}: {who}: {reason['code']}"
        yield from _wrapped("what", reason["text"])
        numbers = [f"value {evidence['value']}"]
        if evidence["threshold"] is not None:
            numbers.append(f"threshold {evidence['threshold']}")
        yield from _wrapped("evidence", ", ".join([*numbers, f"since {_moment(evidence['since'])}"]))
        yield from _wrapped("remedy", f"{reason['remedy']} (action: {reason['action']})")
    for suspect in part["suspected"]:
        yield ""
        yield f"suspected: {who}: {suspect['code']}"
        yield from _wrapped("what", f"{suspect['text']}; not for long enough to count")


def _wrapped(name: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=f"  {name + ':':10}", subsequent_indent=" " * 12, break_on_hyphens=False
    )


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seconds))
