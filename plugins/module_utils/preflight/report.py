# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight found, and how it is told."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.compatibility import problem


class Judgement:
    """Collects what is found; nothing stops at the first problem."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        self.cautions: list[dict[str, Any]] = []

    def problem(self, code: str, message: str, value: Any, remedy: str) -> None:
        self.problems.append(problem(code, message, value, remedy))

    def caution(self, code: str, message: str, value: Any, remedy: str) -> None:
        self.cautions.append(problem(code, message, value, remedy))


def words(row: dict[str, Any]) -> str:
    value = f" [{row['value']}]" if row["value"] not in ("", None) else ""
    return f"{row['message']}{value}. Remedy: {row['remedy']}."


def report(name: str, problems: list[dict[str, Any]]) -> str:
    """All problems of a host in words; empty without any."""
    if not problems:
        return ""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{name}: {count} in the way, nothing was changed."]
    for number, row in enumerate(problems, 1):
        message, remedy = words(row).rsplit(" Remedy: ", 1)
        lines += [f"{number}. {message}", f"   Remedy: {remedy}"]
    return "\n".join(lines)
