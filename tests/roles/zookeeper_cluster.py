# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines with ZooKeeper, seen from outside: by the words of four letters, its own command, and systemd."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

from tests.site.plays import INVENTORY, Play, lab, run_playbook, ssh

MACHINES = ("zk1", "zk2", "zk3")
CLI = "/usr/share/zookeeper/bin/zkCli.sh"
WRITER = f"""
rm -f /tmp/stop-writing
(while ! test -e /tmp/stop-writing; do echo 'create -s /written/n x'; sleep 0.2; done; echo quit) |
  timeout 600 {CLI} -timeout 20000 -server SERVERS >/tmp/written 2>&1
touch /tmp/writing-ended
"""


def group(base: Path, *names: str) -> str:
    """Options that put these machines, in this order, into the group zookeeper."""
    file = base / "zookeeper.yml"
    file.write_text(json.dumps({"zookeeper": {"hosts": {name: {} for name in names}}}))
    return f"-i {INVENTORY} -i {file}"


def scheduler(base: Path, *names: str, options: str = "", **variables: Any) -> Play:
    return run_playbook(
        "scheduler.yml",
        limit=",".join(MACHINES),
        extra_vars={"zookeeper_ready_timeout": 60, **variables},
        options=f"{group(base, *names)} {options}",
    )


def address(machine: str) -> str:
    return str(json.loads(ssh(machine, "ip -json -4 address show host0"))[0]["addr_info"][0]["local"])


def srvr(where: str) -> str:
    """What a server answers to `srvr`; empty if nothing listens."""
    try:
        with socket.create_connection((where, 2181), 5) as connection:
            connection.sendall(b"srvr")
            return b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    except OSError:
        return ""


def mode(where: str) -> str:
    found = re.search(r"^Mode: (\w+)$", srvr(where), re.MULTILINE)
    return found[1] if found else ""


def cli(machine: str, *commands: str) -> str:
    """What ZooKeeper's own command says to these lines, given to the server of the same machine."""
    lines = "\\n".join([*commands, "quit"])
    return ssh(machine, f"printf '{lines}\\n' | sudo {CLI} -server 127.0.0.1:2181 2>&1 || true")


def started() -> dict[str, str]:
    """Process and start of each server."""
    return {
        name: ssh(name, "systemctl show -P MainPID -P ExecMainStartTimestampMonotonic zookeeper") for name in MACHINES
    }


def moments(name: str) -> tuple[int, int]:
    """When a server was last stopped and started again, in µs of the clock that all machines of a host share."""
    shown = ssh(name, "systemctl show -P ActiveExitTimestampMonotonic -P ActiveEnterTimestampMonotonic zookeeper")
    left, entered = sorted(int(line) for line in shown.split())
    return left, entered


__all__ = [
    "CLI",
    "MACHINES",
    "WRITER",
    "address",
    "cli",
    "lab",
    "mode",
    "moments",
    "scheduler",
    "srvr",
    "ssh",
    "started",
]
