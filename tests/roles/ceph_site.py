# SPDX-License-Identifier: GPL-3.0-or-later
"""A storage cluster of three machines with loop devices for disks, and a fourth that only mounts it.

The files of tests share it, one after another, since it takes minutes to make. With GPUOPS_KEEP_LAB=1 it stays for the
next run of pytest.
"""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.site.plays import ROOT, Play, lab, run_playbook, ssh

STORAGE = ("st1", "st2", "st3")
CLIENT = "cl1"
EVERYBODY = (*STORAGE, CLIENT)
# Numbers are listed, so the machines need not know the names.
USERS = {"alice": 2001, "bob": 2002}
HOME = "/home"
BY_ID = "/dev/disk/by-id/lab-"
SHOWN_IN_THE_LAB = {"MON_DISK_LOW"}


def homes(**sizes: str) -> list[dict[str, Any]]:
    """The users with the sizes of their homes."""
    return [{"name": name, "uid": uid, "gid": uid, "size": sizes[name]} for name, uid in USERS.items()]


HOMES: dict[str, Any] = {
    "cephfs_homes_users": homes(alice="1G", bob="40M"),
    "cephfs_homes_shares": [{"name": "datasets", "path": "/datasets", "size": "20M"}],
}


def of_host(devices: dict[str, list[Any]]) -> str:
    """A variable with the devices of the machine for which it is read."""
    return f"{{{{ {devices!r}[inventory_hostname] | default([]) }}}}"


class Site:
    """The machines, bare or with a cluster on them, and the disks that are its OSDs'."""

    def __init__(self) -> None:
        self.secrets = ROOT / ".cache" / f"ceph-{os.environ['GPUOPS_LAB_ID']}.json"
        self.secrets.parent.mkdir(exist_ok=True)
        self.devices: dict[str, list[Any]] = {name: [f"{BY_ID}{name}a"] for name in STORAGE}

    def bare(self) -> None:
        """Machines of Debian 13 with nothing on them but a blank disk each on three of them."""
        self.down()
        lab("up", *(word for name in EVERYBODY for word in ("--machine", f"{name}:trixie:no-gpu")))
        for name in STORAGE:
            lab("disk", name, f"{name}a")

    def is_bare(self) -> bool:
        """Whether the machines run and have their disks and nothing of Ceph."""
        asked = {name: f"test -b {BY_ID}{name}a" if name in STORAGE else "true" for name in EVERYBODY}
        return not self.secrets.exists() and all(
            ssh(name, f"{asked[name]} && test ! -e /etc/ceph && echo bare", check=False) == "bare\n"
            for name in EVERYBODY
        )

    def down(self) -> None:
        lab("down", *(word for name in EVERYBODY for word in ("--machine", name)), check=False)
        self.secrets.unlink(missing_ok=True)

    def make(self) -> float:
        """Bring up the cluster; how many seconds that took, 0 if the machines had it."""
        is_there = self.secrets.exists() and self.is_well()
        if not is_there and not self.is_bare():
            self.bare()
        begun = time.monotonic()
        # The tests before may have left one that is there with other homes.
        play = self.run()
        assert play.rc == 0, play.tail()
        return 0 if is_there else time.monotonic() - begun

    def variables(self, **more: Any) -> dict[str, Any]:
        """What runs are given: the homes, where the secrets are, and which disks are whose."""
        given = {"ceph_common_secrets_path": str(self.secrets), **HOMES, "ceph_osd_devices": of_host(self.devices)}
        return {**given, **more}

    def run(self, playbook: str = "storage.yml", options: str = "", limit: str = "", **more: Any) -> Play:
        # Whoever has disks may have come later.
        limit = limit or ",".join(dict.fromkeys((*EVERYBODY, *self.devices, "localhost")))
        return run_playbook(playbook, limit=limit, extra_vars=self.variables(**more), options=options)

    def is_well(self) -> bool:
        """Whether all daemons are there and nothing is left to be mended."""
        asked = "sudo timeout -s KILL 60 ceph status --format json 2>/dev/null || true"
        status = json.loads(ssh(STORAGE[0], asked, check=False) or "null")
        return bool(
            status
            and len(status["quorum_names"]) == len(STORAGE)
            and status["osdmap"]["num_up_osds"] == sum(map(len, self.devices.values()))
            and {row["state_name"].partition("+scrub")[0] for row in status["pgmap"]["pgs_by_state"]}
            == {"active+clean"}
            and set(status["health"]["checks"]) <= SHOWN_IN_THE_LAB
        )

    def heals(self, seconds: float = 900) -> None:
        within(seconds, "the cluster is not well", self.is_well)


def boot(*machines: str) -> None:
    """Boot machines whose power was cut. For some seconds afterwards the host may still have their network."""

    def is_up() -> bool:
        try:
            lab("up", *(word for name in machines for word in ("--machine", name)))
        except AssertionError as wrong:
            if "File exists" not in str(wrong):
                raise
            return False
        return True

    within(300, "the machines do not boot", is_up)


def ceph(words: str, machine: str = STORAGE[0]) -> Any:
    """What the cluster itself says."""
    return json.loads(ssh(machine, f"sudo timeout -s KILL 120 ceph {words} --format json 2>/dev/null") or "null")


def told_by(user: str, command: str, seconds: int = 300) -> str:
    """A command that runs another as a user and tells its exit status at the end."""
    who = f"--reuid {USERS[user]} --regid {USERS[user]} --clear-groups"
    return f"sudo timeout -s KILL {seconds} setpriv {who} sh -c {shlex.quote(command)} 2>&1; echo rc=$?"


def as_user(machine: str, user: str, command: str, seconds: int = 300) -> str:
    """What a command of a user says, and its exit status behind it."""
    return ssh(machine, told_by(user, command, seconds))


def memory(machines: Sequence[str]) -> str:
    """What the daemons of all machines hold in memory, by kind."""
    found: dict[str, list[int]] = {}
    # ps ends with 1 on a machine that has none of them.
    asked = "ps -C ceph-mon,ceph-mgr,ceph-osd,ceph-mds,ceph-fuse -o comm=,rss= || true"
    for name in machines:
        for line in ssh(name, asked).splitlines():
            kind, kibibytes = line.split()
            found.setdefault(kind, []).append(int(kibibytes) >> 10)
    rows = (f"{len(sizes)} {kind} {min(sizes)} to {max(sizes)} MiB" for kind, sizes in sorted(found.items()))
    return ", ".join(rows)


def processes(machines: Sequence[str] = EVERYBODY) -> dict[str, str]:
    """The daemons and mounts of every machine with their numbers, by which a restart is seen."""
    return {name: ssh(name, "pgrep -a ceph- | sort") for name in machines}


def changed(play: Play) -> dict[str, list[str]]:
    """The tasks that changed something, by machine; nothing if none did."""
    return {name: tasks for name, tasks in play.changed_tasks.items() if tasks}


def said(play: Play) -> str:
    """What the hosts that failed say, all in one."""
    return " ".join(message for messages in play.failures.values() for message in messages)


def within(seconds: float, what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds; the time is no measure, only the end of the patience."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"{what}\n{ssh(STORAGE[0], 'sudo timeout -s KILL 60 ceph -s', check=False)}"
        time.sleep(3)


JOURNAL = "/var/tmp/journal"
WRITER = Path(__file__).parent / "ceph" / "journal_writer.py"


class Journal:
    """A program on the client that writes into alice's home, and keeps hashes of what was acknowledged to it."""

    place = f"{HOME}/alice/journal"

    def begin(self) -> None:
        ssh(CLIENT, f"cat >/tmp/writer.py <<'END_OF_SCRIPT'\n{WRITER.read_text()}END_OF_SCRIPT")
        self.end()
        ssh(CLIENT, f"sudo systemd-run --collect --unit=journal-writer python3 /tmp/writer.py {self.place} {JOURNAL}")

    def end(self) -> None:
        ssh(CLIENT, "sudo systemctl stop journal-writer; sudo systemctl reset-failed journal-writer", check=False)
        ssh(CLIENT, f"sudo rm -rf {JOURNAL} {self.place}", check=False)

    def written(self) -> int:
        """How many files were acknowledged."""
        return int(ssh(CLIENT, f"cat {JOURNAL} 2>/dev/null | wc -l"))

    def goes_on(self, seconds: float = 600) -> None:
        """Something new is acknowledged, so what was begun before has been waited for."""
        before = self.written()
        within(seconds, f"nothing more was written after {before} files", lambda: self.written() > before + 10)

    def is_whole(self) -> None:
        """Every file of the journal is there and is what was written, as another client reads it."""
        journal = ssh(CLIENT, f"cat {JOURNAL}")
        assert journal.count("\n") > 10
        found = ssh(STORAGE[0], f"sudo sh -c 'cd {self.place} && sha256sum *'")
        missing = set(journal.splitlines()) - set(found.splitlines())
        assert not missing, f"{len(missing)} of {journal.count(chr(10))} are lost or differ: {sorted(missing)[:5]}"
