# SPDX-License-Identifier: GPL-3.0-or-later
"""The continuous integration runs the commands of the repository, and nothing that only it knows."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from tests.unit.project.tree import ROOT, load_yaml, tracked

TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def steps() -> list[dict[str, Any]]:
    workflows = tracked(".github/workflows", ".yml")
    assert workflows
    return [step for path in workflows for job in load_yaml(path)["jobs"].values() for step in job["steps"]]


def test_every_command_is_one_of_the_repository():
    commands = [shlex.split(step["run"]) for step in steps() if "run" in step]
    assert commands
    for command in commands:
        words = command[1:] if command[0] == "sudo" else command
        if words[0] == "make":
            assert set(words[1:]) <= TARGETS, f"Makefile has not all of {words[1:]}"
        else:
            assert os.access(ROOT / words[0], os.X_OK), f"{words[0]} is not there, or cannot be run"


def test_the_script_of_the_integration_runs_a_target_of_the_makefile():
    (target,) = re.findall(r"^exec make ([a-z-]+)$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert target in TARGETS


def test_every_action_is_pinned_to_a_full_version():
    actions = [step["uses"] for step in steps() if "uses" in step]
    assert actions
    assert not [action for action in actions if not re.search(r"@v\d+\.\d+\.\d+$", action)]
