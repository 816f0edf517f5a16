# SPDX-License-Identifier: GPL-3.0-or-later
"""A file with a secret that is not as it has to be, such as the credential of a Mesos agent: a run says that it changes
it, and so does check mode, and neither says what is in it."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

SECRET = "s3cret-of-the-agent"
# However the lines are broken.
PLAN = r"write\s+\S+/credential\.json\s+\(content\s+differs"


def test_a_changed_credential_is_a_changed_task_and_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "credential.json"
    path.write_text("somebody else's\n")
    entry = {"path": str(path), "content": f"{SECRET}\n", "mode": "0600", "sensitive": True}
    role = {"name": "baremetal.gpu.converge", "tasks_from": "converge"}
    variables = {"converge_desired": {"files": [entry]}, "converge_stage": "mesos_agent"}
    task = {"ansible.builtin.import_role": role, "vars": variables}
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": [task]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))

    def run(*words: str) -> str:
        done = try_run(
            [BIN / "ansible-playbook", "--diff", "-v", *words, tmp_path / "play.yml"],
            ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
            ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
            ANSIBLE_DISPLAY_SKIPPED_HOSTS="false",
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        assert SECRET not in said
        assert "somebody else's" not in said
        return said

    foretold = run("--check")
    assert "changed=1" in foretold
    assert re.search(PLAN, foretold), foretold
    assert path.read_text() == "somebody else's\n"
    done = run()
    assert "changed=1" in done
    assert re.search(PLAN, done), done
    assert path.read_text() == f"{SECRET}\n"
    assert "changed=0" in run()
