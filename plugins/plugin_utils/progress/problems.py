# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The problems in the result of a task. A result comes from a host, so it may have any shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import rows, text

MOST = 100
TEXT_AT_MOST = 2000


def problems_of(result: Mapping[str, Any]) -> tuple[Problem, ...]:
    """The problems that a result lists; for a loop, those of the items that failed. A plain text is a cause."""
    found = [problem for problem in map(_problem, _listed(result)) if problem.cause]
    for item in rows(result.get("results")):
        if item.get("failed"):
            found += problems_of({key: part for key, part in item.items() if key != "results"})
    return tuple(dict.fromkeys(found))[:MOST]


def _listed(result: Mapping[str, Any]) -> list[Any]:
    listed = result.get("problems")
    return listed if isinstance(listed, list) else []


def _problem(row: Any) -> Problem:
    if not isinstance(row, dict):
        return Problem("", "", text(row, TEXT_AT_MOST))
    code, subject, cause, evidence, remedy = (
        text(row.get(key), TEXT_AT_MOST) for key in ("code", "subject", "cause", "evidence", "remedy")
    )
    return Problem(code, subject, cause, evidence, remedy)
