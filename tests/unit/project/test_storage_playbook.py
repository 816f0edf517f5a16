# SPDX-License-Identifier: GPL-3.0-or-later
"""storage.yml on a site that has no storage: nothing runs, and nothing looks like a fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, ROOT, try_run


@pytest.mark.parametrize("playbook", ["storage.yml", "storage_preflight.yml", "storage_restart.yml"])
@pytest.mark.parametrize("groups", ["", "[ceph_mons]\n[ceph_clients]\n"], ids=["no groups", "empty groups"])
def test_a_site_without_ceph_is_left_alone(tmp_path: Path, playbook: str, groups: str) -> None:
    inventory = tmp_path / "hosts"
    # A task on this host would fail, since nothing is there.
    inventory.write_text(f"gpu1 ansible_connection=ssh ansible_host=192.0.2.1\n{groups}")
    command = (BIN / "ansible-playbook", "-i", inventory, ROOT / "playbooks" / playbook)
    done = try_run(command, ANSIBLE_HOST_PATTERN_MISMATCH="error")
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    assert "TASK" not in said
    assert done.stderr == ""
    assert "gpu1" not in said.partition("PLAY RECAP")[2]
    assert said.count("skipping: no hosts matched") == said.count("PLAY [")
