# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems as data, and the exception that carries one.

A program reads the fields of a problem; its text is for people alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

# Between cause and remedy in the text that people read.
TO_DO = "To do: "


@dataclass(frozen=True)
class Problem:
    """Why something was not done or is not as it should be, and what to do about it.

    :ivar code: what kind of problem it is: lower case, words joined by underscores. It does not change between
        releases.
    :ivar subject: what has the problem: a host, a role, a path, a daemon.
    :ivar cause: one or more sentences without the remedy.
    :ivar evidence: what was read, such as the value or the output of a command; may be empty.
    :ivar remedy: what the reader is to do, as an imperative; empty where nothing is known.
    """

    code: str
    subject: str
    cause: str
    evidence: str = ""
    remedy: str = ""

    def __str__(self) -> str:
        if not self.remedy:
            return self.cause
        stop = "" if self.cause.endswith((".", "!", "?", ":")) else "."
        return f"{self.cause}{stop} {TO_DO}{self.remedy}"

    def as_dict(self) -> dict[str, str]:
        """The problem as modules and filters return it."""
        return asdict(self)


class Refused(Exception):
    """What was requested must not be done, cannot be done, or did not succeed."""

    def __init__(self, cause: str, remedy: str = "", *, code: str = "refused", subject: str = "", evidence: str = ""):
        self.problem = Problem(code, subject, cause, evidence, remedy)
        super().__init__(str(self.problem))


def failure(subject: str, problems: Iterable[Problem]) -> dict[str, object]:
    """What a module or an action that fails with problems returns: `msg` for people, `problems` for programs."""
    listed = list(problems)
    return {
        "msg": f"{subject}: " + "; ".join(str(problem) for problem in listed),
        "problems": [problem.as_dict() for problem in listed],
    }
