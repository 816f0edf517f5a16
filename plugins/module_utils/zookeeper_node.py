# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host already has of ZooKeeper, and how its server is started and restarted without losing the quorum."""

from __future__ import annotations

import glob
import hashlib
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import zookeeper, zookeeper_conf
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph_run import Run

# Seconds in which a server that runs may be between two leaders. After that it counts as serving nobody.
ELECTION = 15.0
LISTEN = "0A"

Seen = dict[str, Any]
Wait = Callable[[Callable[[Seen], bool], list[Seen], float], Seen]


class Refused(Exception):
    """A start or restart that must not be done, or did not succeed; its text says why and what to do."""


# --- what a host has -------------------------------------------------------------------------------------------------


def read(path: str) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def kept_id(data_dir: str) -> int | None:
    """The id in a data directory; None where there is none, or the text of a package's example."""
    text = read(os.path.join(data_dir, "myid")).strip()
    return int(text) if text.isdigit() else None


def has_data(*directories: str) -> bool:
    """Whether a server has ever run in these directories, ``dataDir`` and ``dataLogDir``."""
    return any(
        glob.glob(os.path.join(glob.escape(one), "version-2", pattern))
        for one in directories
        if one
        for pattern in ("snapshot.*", "log.*", "currentEpoch")
    )


def resolve(name: str) -> list[str]:
    """The IP addresses of a name; none if it is not known."""
    try:
        return sorted({str(row[4][0]) for row in socket.getaddrinfo(name, None)})
    except OSError:
        return []


def listeners(ports: Iterable[int], root: str = "/") -> dict[int, str]:
    """The inode of the socket that listens on each port, of those on which something does."""
    wanted, found = set(ports), {}
    for table in ("tcp", "tcp6"):
        for line in read(os.path.join(root, "proc/net", table)).splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if words[3] == LISTEN and port in wanted:
                found[port] = words[9]
    return found


def held_ports(ports: Iterable[int], unit: str, root: str = "/") -> dict[int, str]:
    """Who else than a unit listens on ports: port -> name and pid of the process."""
    sockets = listeners(ports, root)
    holders = dict.fromkeys(sockets, "a process that cannot be seen")
    by_inode = {f"socket:[{inode}]": port for port, inode in sockets.items()}
    for link in glob.glob(os.path.join(root, "proc/[0-9]*/fd/*")) if sockets else ():
        try:
            port = by_inode.get(os.readlink(link))
        except OSError:
            # It ended meanwhile.
            continue
        if port is None:
            continue
        process = os.path.dirname(os.path.dirname(link))
        if f"/{unit}" in read(os.path.join(process, "cgroup")):
            holders.pop(port, None)
        elif port in holders:
            holders[port] = f"{read(os.path.join(process, 'comm')).strip()} (pid {os.path.basename(process)})"
    return holders


def memory_mib(root: str = "/") -> int:
    """Memory of the host in MiB."""
    found = re.search(r"^MemTotal:\s+(\d+) kB", read(os.path.join(root, "proc/meminfo")), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


def current(paths: Iterable[str]) -> dict[str, Any]:
    """The configuration that the server has now, from the first file that is there; empty without one."""
    for path in paths:
        text = read(path)
        if text:
            return {**zookeeper_conf.parse(text), "path": path}
    return {}


# --- starting and restarting -----------------------------------------------------------------------------------------


def fingerprint(files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file; empty text for one that is not there."""
    return {path: _sha256(path) for path in files}


def _sha256(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def parse_stamp(text: str) -> dict[str, str]:
    """What `sha256sum` wrote when the server was started."""
    return {path: checksum for checksum, path in re.findall(r"^([0-9a-f]{64})[ *]{2}(.+)$", text, re.MULTILINE)}


def is_due(files: Sequence[str], stamp: str) -> bool:
    """Whether files are others than those that the server was started with."""
    return parse_stamp(read(stamp)) != {path: checksum for path, checksum in fingerprint(files).items() if checksum}


def _told(seen: Mapping[str, Any]) -> str:
    return "; ".join(seen["problems"])


class Server:
    """The server of this host, in its ensemble.

    :param unit: its unit of systemd.
    :param servers: all servers, with ``id``, ``host`` and ``port``.
    :param own_id: its own id among them.
    :param wait: seconds in which a server has to come back.
    """

    def __init__(
        self,
        unit: str,
        servers: list[Seen],
        own_id: int,
        wait: float,
        run: Run,
        wait_until: Wait = zookeeper.wait_until,
    ) -> None:
        self.unit, self.servers, self.own_id, self.wait = unit, servers, own_id, wait
        self.run, self.wait_until = run, wait_until

    def own(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        return dict(next(row for row in seen["servers"] if row["id"] == self.own_id))

    def is_running(self) -> bool:
        return self.run(["systemctl", "is-active", "--quiet", self.unit], None, 30)[0] == 0

    def serves(self, seen: Mapping[str, Any]) -> bool:
        """Whether it serves as a member; one that is standalone where others are wanted is none."""
        row = self.own(seen)
        return bool(row["state"] == zookeeper.SERVING and (row["mode"] != "standalone" or len(self.servers) == 1))

    def look(self) -> dict[str, Any]:
        """The ensemble, after an election that may be going on."""
        return self.wait_until(
            lambda seen: self.serves(seen) or self.own(seen)["mode"] == "standalone", self.servers, ELECTION
        )

    def stand_by(self, seen: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until the ensemble is complete, so that it stands the loss of this server.

        :raises Refused: if it does not get there.
        """
        if len(self.servers) == 1:
            return dict(seen)
        seen = self.wait_until(lambda found: bool(found["complete"]), self.servers, self.wait)
        if not seen["complete"]:
            raise Refused(
                f"a restart is due and was not done, since the ensemble is not complete: {_told(seen)}. Bring that "
                "server back, then run again"
            )
        return dict(seen)

    def systemctl(self, verb: str) -> None:
        """:raises Refused: if systemd cannot do it."""
        code, _out, error = self.run(["systemctl", verb, self.unit], None, 120)
        if code:
            raise Refused(f"systemctl {verb} {self.unit} ended with {code}: {error.strip()} {self.journal()}")

    def journal(self) -> str:
        argv = ["journalctl", "--no-pager", "--quiet", "--lines=15", "--output=cat", "--unit", self.unit]
        return " | ".join(self.run(argv, None, 30)[1].split("\n"))[-2000:]

    def come_back(self, whole: bool) -> dict[str, Any]:
        """Wait until this server serves, and with `whole` until the ensemble is complete.

        :raises Refused: if that takes too long.
        """
        done = (lambda seen: bool(seen["complete"])) if whole else self.serves
        seen = self.wait_until(done, self.servers, self.wait)
        if not done(seen):
            raise Refused(
                f"after {self.wait:.0f} s it has not joined: {_told(seen)}. No other server was touched after it. Its "
                f"log ends with: {self.journal()}"
            )
        return dict(seen)


def step(
    server: Server, only: str, join: bool, files: Sequence[str], stamp: str, check: bool
) -> tuple[str, bool, dict[str, Any] | None]:
    """Start or restart the server if that is to be done, and may be done now.

    :param only: ``idle`` for a server that serves nobody, ``follower`` for one that does not lead, ``any``.
    :param join: whether it is empty and joins an ensemble that has data, and so must have joined before the next one.
    :returns: what was done (``start``, ``restart`` or nothing), whether a restart is still due, and the ensemble as it
        was last seen, None if nobody had to look.
    :raises Refused: see there.
    """
    if not server.is_running():
        if not check:
            server.systemctl("start")
        return "start", False, server.come_back(whole=False) if join and not check else None
    if join and not check:
        # An earlier run was cut before it had.
        server.come_back(whole=False)
    if not is_due(files, stamp):
        return "", False, None
    seen = server.look()
    if server.own(seen)["state"] == "not_allowed":
        raise Refused(
            "a restart is due and was not done, since srvr is not in its 4lw.commands.whitelist and nobody can tell "
            "whether it serves. Restart it by hand, once, while the other servers serve; then run again"
        )
    idle = not server.serves(seen)
    leads = server.own(seen)["mode"] in ("leader", "standalone")
    if not idle and (only == "idle" or (only == "follower" and leads)):
        return "", True, seen
    if check:
        return "restart", False, seen
    if not idle:
        server.stand_by(seen)
    server.systemctl("restart")
    return "restart", False, server.come_back(whole=True) if not idle else None
