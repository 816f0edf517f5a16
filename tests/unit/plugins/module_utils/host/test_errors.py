# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people read and what programs read are one problem."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure


def test_the_text_has_cause_and_remedy_and_one_full_stop_between_them() -> None:
    assert str(Refused("the disk is in use", "unmount /srv")) == "the disk is in use. To do: unmount /srv"
    assert str(Refused("The disk is in use.", "unmount /srv")) == "The disk is in use. To do: unmount /srv"
    assert str(Refused("the disk is in use")) == "the disk is in use"


def test_short_evidence_that_the_cause_does_not_name_is_shown() -> None:
    assert str(Problem("variable", "gpu1", "no driver branch", "latest", "set 550")) == (
        "no driver branch [latest]. To do: set 550"
    )
    assert str(Problem("variable", "gpu1", "latest is no driver branch", "latest")) == "latest is no driver branch"
    assert "output" not in str(Problem("failed", "gpu1", "the command failed", "output " * 100))


def test_a_note_is_told_once_for_all_problems() -> None:
    one, two = Problem("a", "gpu1", "one", "", "mend it"), Problem("b", "gpu1", "two")
    assert failure("gpu1", [one], "Nothing was changed.")["msg"] == "gpu1: one. To do: mend it. Nothing was changed."
    assert str(failure("gpu1", [one, two], "Nothing was changed.")["msg"]).startswith(
        "gpu1: 2 problems. Nothing was changed.\n1. one."
    )


def test_an_exception_carries_the_problem() -> None:
    error = Refused("no such pool", "name one that is there", code="no_pool", subject="homes", evidence="rc 2")
    assert error.problem == Problem("no_pool", "homes", "no such pool", "rc 2", "name one that is there")


def test_a_failure_has_every_problem_twice_as_text_and_as_data() -> None:
    problems = [Problem("a", "gpu1", "one"), Problem("b", "gpu1", "two", "", "mend it")]
    result = failure("gpu1", problems)
    assert result["msg"] == "gpu1: 2 problems.\n1. one.\n2. two.\n   To do: mend it"
    assert result["problems"] == [problem.as_dict() for problem in problems]
