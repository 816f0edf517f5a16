# SPDX-License-Identifier: GPL-3.0-or-later
"""users.yml on this machine, on a copy of /etc that only the playbook sees."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gpuops.conftest import HERE
from tests.unit.project.tree import BIN, ROOT, try_run

pytestmark = pytest.mark.slow


class Site:
    """One host, and its /etc."""

    def __init__(self, base: Path) -> None:
        self.base, self.ledger = base, base / ".users-ledger.json"
        for name in ("upper", "work"):
            (base / name).mkdir()

    def inside(self, *words: object) -> Any:
        mounted = f"mount -t overlay overlay -o lowerdir=/etc,upperdir={self.base}/upper,workdir={self.base}/work /etc"
        return try_run(["unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh", *words])

    def run(self, users: list[Any], *options: str, **variables: Any) -> tuple[int, dict[str, int], str]:
        """Exit status, numbers of the recap, and the output."""
        group = {"hosts": {"n1": HERE}}
        content = {"all": {"vars": {"cluster_users": users, **variables}, "children": {"gpu_cluster": group}}}
        (self.base / "hosts.json").write_text(json.dumps(content))
        playbook = ROOT / "playbooks" / "users.yml"
        done = self.inside(BIN / "ansible-playbook", "-i", self.base / "hosts.json", playbook, *options)
        recap = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", done.stdout.rpartition("RECAP")[2])}
        return done.returncode, recap, done.stdout + done.stderr


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    if os.geteuid() or made.inside("true").returncode:
        pytest.skip("no overlay can be mounted here")
    return made


def test_accounts_are_announced_made_once_and_stay_known(site: Site) -> None:
    users = [{"name": "alice"}, {"name": "bob"}]
    status, recap, said = site.run(users, "--check", "--diff")
    assert (status, recap["failed"], site.ledger.exists()) == (0, 0, False), said
    assert "+alice:10001:10001::" in said
    assert site.run(users)[0] == 0
    assert json.loads(site.ledger.read_text())["users"] == {"alice": 10001, "bob": 10002}
    status, recap, said = site.run(users)
    assert (status, recap["changed"]) == (0, 0), said
    # Without the ledger nobody knows whose numbers these were.
    text = site.ledger.read_text()
    site.ledger.unlink()
    status, recap, said = site.run([{"name": "carol"}, *users])
    assert (status, recap["changed"], site.ledger.exists()) == (2, 0, False)
    assert "git checkout" in said
    site.ledger.write_text(text)
    assert site.run([{"name": "carol"}, *users])[0] == 0
    assert "carol" in site.inside("cat", "/etc/passwd").stdout
    assert json.loads(site.ledger.read_text())["users"]["carol"] == 10003


def test_two_lists_are_refused(site: Site) -> None:
    status, recap, said = site.run([{"name": "alice"}], cephfs_homes_users=[{"name": "alice"}])
    assert (status, recap["changed"]) == (2, 0)
    assert "only one list can say who the users are" in said
