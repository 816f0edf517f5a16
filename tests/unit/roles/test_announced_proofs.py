# SPDX-License-Identifier: GPL-3.0-or-later
"""In check mode a proof that follows a change is announced, not made: the host is not yet what is to be proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

QUERY = "Query CUDA, on the host and in containers"


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    """What Ansible says of a play that changes files of a directory and verifies the GPUs, in check mode."""
    (tmp_path / "there").write_text("as wanted\n")

    def check(name: str, *, through: str = "converge") -> str:
        entry = {
            "path": str(tmp_path / name),
            "content": "as wanted\n",
            "owner": "root",
            "group": "root",
            "mode": "0644",
        }
        (tmp_path / "there").chmod(0o644)
        stages = {
            "converge": {"converge_desired": {"files": [entry]}, "converge_stage": "stage"},
            "announce_change": {"converge_stage": "stage"},
        }
        tasks = [
            {
                "ansible.builtin.import_role": {"name": "baremetal.gpu.converge", "tasks_from": through},
                "vars": stages[through],
            },
            {"ansible.builtin.import_role": {"name": "baremetal.gpu.gpu_verify"}},
        ]
        play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
        (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
        environment = {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
            "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "false",
        }
        done = try_run([BIN / "ansible-playbook", "--check", "-v", tmp_path / "play.yml"], **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return check


def test_a_change_before_it_has_the_verification_announced(checked: Any) -> None:
    said = checked("missing")
    assert "every GPU is verified after the changes of stage" in said
    assert QUERY not in said


def test_a_change_of_a_modules_own_does_too(checked: Any) -> None:
    said = checked("there", through="announce_change")
    assert "every GPU is verified after the changes of stage" in said
    assert QUERY not in said


def test_without_a_change_the_host_is_verified(checked: Any) -> None:
    said = checked("there")
    assert "is verified after" not in said
    assert QUERY in said
