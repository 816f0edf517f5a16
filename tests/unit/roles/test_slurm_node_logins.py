# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes demand a job of who logs in: never one that is there to submit jobs from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.project.tree import BIN, ROOT, try_run

ROLE = ROOT / "roles/slurm_node"


def adopting(directory: Path, groups: dict[str, list[str]], adopt: bool = True, **variables: str) -> dict[str, str]:
    """What the role makes of slurm_ssh on each node: present or absent."""
    steps = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    (state,) = {step["baremetal.gpu.slurm_ssh"]["state"] for step in steps if "baremetal.gpu.slurm_ssh" in step}
    play = {
        "hosts": "slurm_nodes",
        "gather_facts": False,
        "vars": {"slurm_node_adopt": adopt},
        "vars_files": [str(ROLE / "vars/main.yml")],
        "tasks": [{"ansible.builtin.debug": {"msg": f"{{{{ inventory_hostname }}}} is <{state}>"}}],
    }
    hosts = {name: {"hosts": dict.fromkeys(members)} for name, members in groups.items()}
    (directory / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": hosts, "vars": variables}}))
    (directory / "play.yml").write_text(yaml.safe_dump([play]))
    done = try_run(
        [BIN / "ansible-playbook", "-i", directory / "hosts.yml", directory / "play.yml"],
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_STDOUT_CALLBACK="ansible.builtin.default",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"([\w-]+) is <(\w+)>", done.stdout))


@pytest.mark.parametrize(
    ("groups", "variables", "found"),
    [
        (
            {"slurm_nodes": ["gpu1", "gpu2"], "slurm_logins": ["gpu1", "head1"]},
            {},
            {"gpu1": "absent", "gpu2": "present"},
        ),
        (
            {"slurm_nodes": ["gpu1", "gpu2"], "doors": ["gpu2"], "slurm_logins": ["gpu1"]},
            {"slurm_common_logins_group": "doors"},
            {"gpu1": "present", "gpu2": "absent"},
        ),
        ({"slurm_nodes": ["gpu1"]}, {"adopt": False}, {"gpu1": "absent"}),
    ],
)
def test_users_without_a_job_get_to_where_they_submit_one(
    groups: dict[str, list[str]], variables: dict[str, Any], found: dict[str, str], tmp_path: Path
) -> None:
    assert adopting(tmp_path, groups, **variables) == found
