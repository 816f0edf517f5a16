# SPDX-License-Identifier: GPL-3.0-or-later
"""A storage cluster of three machines of the lab by storage.yml, for tests that do something to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.site.plays import Play, lab, run_playbook, ssh

SHOWN_IN_THE_LAB = {"MON_DISK_LOW"}


class Site:
    """Machines of Debian 13 with a disk each, and clients without."""

    def __init__(self, secrets: Path, storage: tuple[str, ...], clients: tuple[str, ...] = ()) -> None:
        self.secrets = secrets
        self.storage = storage
        self.everybody = storage + clients

    def up(self) -> None:
        lab("up", *(word for name in self.everybody for word in ("--machine", f"{name}:trixie:no-gpu")))
        for name in self.storage:
            lab("disk", name, f"{name}a")

    def down(self) -> None:
        lab("down", *(word for name in self.everybody for word in ("--machine", name)))

    def variables(self, size: str) -> dict[str, Any]:
        """What a run is given: where the secrets are, and a home for alice."""
        users = [{"name": "alice", "uid": 2001, "gid": 2001, "size": size}]
        return {"ceph_common_secrets_path": str(self.secrets), "cephfs_homes_users": users}

    def run(self, size: str) -> Play:
        return run_playbook("storage.yml", limit=",".join(self.everybody), extra_vars=self.variables(size))

    def ceph(self, words: str) -> Any:
        return json.loads(ssh(self.storage[0], f"sudo timeout -s KILL 60 ceph {words} --format json 2>/dev/null"))

    def is_well(self) -> bool:
        """Whether all daemons are there and nothing is left to be mended."""
        answer = ssh(
            self.storage[0], "sudo timeout -s KILL 30 ceph status --format json 2>/dev/null || true", check=False
        )
        status = json.loads(answer or "null")
        return bool(
            status
            and len(status["quorum_names"]) == status["osdmap"]["num_up_osds"] == len(self.storage)
            and {row["state_name"] for row in status["pgmap"]["pgs_by_state"]} == {"active+clean"}
            and set(status["health"]["checks"]) <= SHOWN_IN_THE_LAB
        )


def within(seconds: float, what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds; the time is no measure, only the end of the patience."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(2)
