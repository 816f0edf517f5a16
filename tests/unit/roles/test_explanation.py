# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role converge says of a stage that failed. The failures are hand-made; the words are the role's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

BUILD = (
    "build DKMS module nvidia for kernel 6.1.0-amd64 (version 570.1 is not installed; its build ends with: "
    "nvidia.c:7: error: too few arguments | make: *** Error 2)"
)
LEFT = ["finish what was interrupted in dpkg", *(f"hold package {name}" for name in "abcd")]


@pytest.fixture
def said(tmp_path: Path) -> Any:
    """The message for what a task returned and what the host still differs in."""
    task = yaml.safe_load((ROOT / "roles/converge/tasks/explain.yml").read_text())[-1]

    def tell(result: dict[str, Any], plan: list[str] | None) -> str:
        given = {
            "converge_stage": "nvidia_driver",
            "ansible_failed_result": result,
            "ansible_failed_task": {"name": "Install packages"},
            "__converge_journal": {"results": []},
            "__converge_left": {} if plan is None else {"plan": plan},
        }
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "vars": given, "tasks": [task]}
        (tmp_path / "play.yml").write_text(json.dumps([play]))
        environment = {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
        }
        done = try_run([BIN / "ansible-playbook", tmp_path / "play.yml"], **environment)
        assert done.returncode == 2, done.stdout + done.stderr
        return str(json.loads(done.stdout[done.stdout.index("=> {") + 3 :].partition("\n\n")[0])["msg"])

    return tell


def test_the_end_of_a_build_is_a_cause_wherever_it_stands_in_what_is_left(said: Any) -> None:
    text = said({"failed": True, "msg": "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"}, [*LEFT, BUILD])
    cause, _dot, left = text.partition(" Correct the cause and run again; what is done stays. Still to be done: ")
    assert cause.startswith("localhost: nvidia_driver failed at 'Install packages': E: Sub-process /usr/bin/dpkg ")
    assert "nvidia.c:7: error: too few arguments" in cause
    assert left == "finish what was interrupted in dpkg; hold package a; hold package b and 2 more."


def test_of_a_host_that_cannot_be_reached_nothing_is_claimed(said: Any) -> None:
    assert said({"msg": "Connection timed out"}, None).endswith("unknown, the host cannot be reached.")
