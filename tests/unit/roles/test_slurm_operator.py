# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is drained through Slurm before a reboot, and what happens to a host where Slurm is yet to come."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
GROUPS = {"slurm_nodes": {"hosts": {"n1": HERE}}, "slurm_controllers": {"hosts": {"c1": HERE}}}


def enter(base: Path, role: str, entry: str, *words: str) -> str:
    """What Ansible prints of an entry point of a role on n1, a node of Slurm, and on n2, which is none."""
    (base / "hosts.json").write_text(json.dumps({"all": {"hosts": {"n2": HERE}, "children": GROUPS}}))
    task = {
        "ansible.builtin.include_role": {"name": f"baremetal.gpu.{role}", "tasks_from": entry},
        "vars": {"converge_drain_reason": "a reboot"},
    }
    (base / "play.yml").write_text(yaml.safe_dump([{"hosts": "n1,n2", "gather_facts": False, "tasks": [task]}]))
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    command = [BIN / "ansible-playbook", "-i", base / "hosts.json", base / "play.yml", *words]
    done = try_run(command, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.skipif(Path("/usr/bin/scontrol").exists(), reason="this host has Slurm, and its nodes are others")
def test_nodes_of_slurm_are_drained_there_and_one_that_is_none_yet_keeps_no_run(tmp_path: Path) -> None:
    told = enter(tmp_path, "converge", "drain", "--check")
    assert "included: baremetal.gpu.slurm_operator for n1 =>" in told
    assert "slurm_operator for n2" not in told
    assert "n1 is not a node of Slurm" in told
    told = enter(tmp_path, "slurm_operator", "restore", "--limit", "n1")
    assert "changed=0" in told


@pytest.mark.skipif(Path("/usr/bin/scontrol").exists(), reason="this host has Slurm, and its nodes are others")
def test_the_second_controller_is_asked_where_the_first_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing listens there.
    lost = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}
    monkeypatch.setitem(GROUPS, "slurm_controllers", {"hosts": {"c1": lost, "c2": HERE}})
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    told = enter(tmp_path, "slurm_operator", "drain", "--check", "--limit", "n1")
    assert "n1 -> c2" in told
    assert "n1 is not a node of Slurm" in told
