# SPDX-License-Identifier: GPL-3.0-or-later
"""How long an MDS waits for clients: what an operator has set in Ceph is theirs until the inventory says another."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

ROLE = ROOT / "roles/ceph_mds"
# What is asked for in the inventory, what Ceph has, and what the role sets.
CASES = (
    (None, {}, "20"),
    (None, {"osd": {"osd_memory_target": "1"}}, "20"),
    (None, {"mds": {"mds_reconnect_timeout": "90"}}, ""),
    (None, {"global": {"mds_reconnect_timeout": "90"}}, ""),
    (30, {"mds": {"mds_reconnect_timeout": "90"}}, "30"),
)


def test_a_timeout_that_an_operator_has_set_in_ceph_stays(tmp_path: Path) -> None:
    steps = yaml.safe_load((ROLE / "tasks/filesystem.yml").read_text())
    (step,) = [step for step in steps if "baremetal.gpu.ceph_config" in step]
    default = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["ceph_mds_reconnect_timeout"]
    value = step["baremetal.gpu.ceph_config"]["settings"]["mds"]["mds_reconnect_timeout"]
    tasks = [
        {
            "ansible.builtin.debug": {"msg": f"case {number} sets <{value}>"},
            "when": step.get("when", True),
            "vars": {
                "ceph_mds_reconnect_timeout": default if asked is None else asked,
                "__ceph_mds_configuration": {"settings": found},
            },
        }
        for number, (asked, found, _sets) in enumerate(CASES)
    ]
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "tasks": tasks}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    environment = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    }
    done = try_run([BIN / "ansible-playbook", tmp_path / "play.yml"], **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for number, (_asked, _found, sets) in enumerate(CASES):
        assert re.findall(rf"case {number} sets <(.*?)>", done.stdout) == ([sets] if sets else []), (
            number,
            done.stdout,
        )
