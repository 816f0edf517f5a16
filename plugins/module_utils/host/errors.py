# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Problems as data, and the exception that carries one.

A program reads the fields of a problem; its text is for people alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

# Between cause and remedy in the text that people read.
TO_DO = "To do: "
# Longer evidence, such as the output of a command, is left to programs and reports.
EVIDENCE_IN_TEXT = 120


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
        return f"{self.sentence()} {TO_DO}{self.remedy}" if self.remedy else self.sentence(stop="")

    def sentence(self, stop: str = ".") -> str:
        """The cause, with the evidence in brackets where it is short and not named anyway."""
        named = self.evidence in f"{self.cause} {self.remedy}"
        shown = self.evidence and len(self.evidence) <= EVIDENCE_IN_TEXT and not named
        text = f"{self.cause.rstrip('.')} [{self.evidence}]" if shown else self.cause
        return text if text.endswith((".", "!", "?", ":")) else f"{text}{stop}"

    def as_dict(self) -> dict[str, str]:
        """The problem as modules and filters return it."""
        return asdict(self)


class Refused(Exception):
    """What was requested must not be done, cannot be done, or did not succeed."""

    def __init__(self, cause: str, remedy: str = "", *, code: str = "refused", subject: str = "", evidence: str = ""):
        self.problem = Problem(code, subject, cause, evidence, remedy)
        super().__init__(str(self.problem))

    @classmethod
    def of(cls, problem: Problem) -> Refused:
        return cls(problem.cause, problem.remedy, code=problem.code, subject=problem.subject, evidence=problem.evidence)


class CallFailed(Refused):
    """A call to a daemon that did not do what it was for."""


def failure(subject: str, problems: Iterable[Problem], note: str = "") -> dict[str, object]:
    """What a module or an action that fails with problems returns: `msg` for people, `problems` for programs.

    :param note: a sentence that is true of all of them, such as "Nothing was changed."
    """
    listed = list(problems)
    return {"msg": f"{subject}: {text(listed, note)}", "problems": [problem.as_dict() for problem in listed]}


def text(problems: Sequence[Problem], note: str = "") -> str:
    """Problems for people: one in a sentence, several as a numbered list."""
    if len(problems) == 1:
        one = str(problems[0])
        stop = "" if one.endswith(".") else "."
        return f"{one}{stop} {note}" if note else one
    lines = [f"{len(problems)} problems. {note}".rstrip()]
    for number, problem in enumerate(problems, 1):
        lines.append(f"{number}. {problem.sentence()}")
        if problem.remedy:
            lines.append(f"   {TO_DO}{problem.remedy}")
    return "\n".join(lines)
