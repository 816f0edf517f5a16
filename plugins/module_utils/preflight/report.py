# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a preflight found."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.compatibility import problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure


class Judgement:
    """Collects what is found; nothing stops at the first problem."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        self.cautions: list[dict[str, Any]] = []

    def problem(self, code: str, cause: str, value: Any, remedy: str) -> None:
        self.problems.append(problem(code, cause, value, remedy))

    def caution(self, code: str, cause: str, value: Any, remedy: str) -> None:
        self.cautions.append(problem(code, cause, value, remedy))


def report(name: str, rows: list[dict[str, Any]]) -> str:
    """All problems of a host for people; empty without any."""
    return str(failure(name, [Problem(**row) for row in rows], "Nothing was changed.")["msg"]) if rows else ""
