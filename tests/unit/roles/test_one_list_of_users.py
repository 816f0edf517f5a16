# SPDX-License-Identifier: GPL-3.0-or-later
"""The roles take their users from cluster_users by default; a site without that list goes on as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpuops.conftest import HERE
from tests.unit.project.tree import BIN, ROOT, load_yaml, try_run

ROLES = ("cephfs_homes", "nfs_homes", "slurm_accounts", "portal", "registry", "users")
SHOWN = (
    "cephfs_homes_users",
    "nfs_homes_users",
    "slurm_accounts_homes_users",
    "slurm_accounts_homes_accounts",
    "portal_homes_users",
    "registry_homes_users",
    "registry_users",
)
LISTS = {
    "cluster_groups": [{"name": "physics", "limits": {"MaxJobs": 4}}],
    "cluster_users": [{"name": "alice", "groups": ["physics"]}, {"name": "bob", "state": "closed"}],
}
HOMES = [
    {"name": "alice", "uid": 10002, "gid": 10002, "state": "present"},
    {"name": "bob", "uid": 10003, "gid": 10003, "state": "archived"},
]


def defaults(directory: Path, **variables: Any) -> dict[str, Any]:
    """The defaults of the roles on a host with these variables."""
    (directory / "hosts.json").write_text(json.dumps({"all": {"hosts": {"n1": HERE}, "vars": variables}}))
    copies = directory / "roles"
    for role in ROLES:
        (copies / role / "tasks").mkdir(parents=True, exist_ok=True)
        (copies / role / "defaults").mkdir(exist_ok=True)
        (copies / role / "defaults" / "main.yml").write_text((ROOT / f"roles/{role}/defaults/main.yml").read_text())
    show = {name: f"{{{{ {name} }}}}" for name in SHOWN}
    copy = {"content": "{{ shown | to_json }}", "dest": str(directory / "shown.json")}
    task = {"ansible.builtin.copy": copy, "vars": {"shown": show}}
    play = {"hosts": "n1", "gather_facts": False, "roles": list(ROLES), "tasks": [task]}
    (directory / "play.yml").write_text(json.dumps([play]))
    done = try_run([BIN / "ansible-playbook", "-i", directory / "hosts.json", directory / "play.yml"], cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((directory / "shown.json").read_text())
    return found


@pytest.mark.parametrize("homes", ["cephfs", "nfs"])
def test_one_list_suffices(tmp_path: Path, homes: str) -> None:
    found = defaults(tmp_path, cluster_homes=homes, **LISTS)
    assert found.pop("cephfs_homes_users") == (HOMES if homes == "cephfs" else [])
    assert found.pop("nfs_homes_users") == (HOMES if homes == "nfs" else [])
    assert found == {
        "slurm_accounts_homes_users": [
            {"name": "alice", "state": "present", "accounts": ["physics"]},
            {"name": "bob", "state": "archived"},
        ],
        "slurm_accounts_homes_accounts": [{"name": "physics", "limits": {"MaxJobs": 4}}],
        "portal_homes_users": HOMES,
        "registry_homes_users": HOMES,
        "registry_users": [{"name": "alice"}],
    }


def test_a_site_that_lists_homes_alone_goes_on_as_before(tmp_path: Path) -> None:
    users = [{"name": "alice", "size": "50G"}]
    found = defaults(tmp_path, cephfs_homes_users=users)
    same = {"cephfs_homes_users", "slurm_accounts_homes_users", "portal_homes_users", "registry_homes_users"}
    assert found == {name: users if name in same else [] for name in SHOWN}


def test_a_home_that_is_refused_keeps_no_way_in_open():
    plays = load_yaml(ROOT / "playbooks" / "user_changes.yml")
    text = [json.dumps(play) for play in plays]
    homes = {number for number, play in enumerate(text) if "homes.yml" in play or "cephfs_homes" in play}
    ways_in = {
        number
        for number, play in enumerate(text)
        for name in ("users.yml", "gpu.slurm_accounts", "gpu.registry", "gpu.portal")
        if name in play
    }
    assert len(homes) == 2
    assert len(ways_in) == 4
    assert max(ways_in) < min(homes)
