# SPDX-License-Identifier: GPL-3.0-or-later
"""Machines with Mesos and Marathon, seen from outside: over HTTP, by systemd, and by the files that they have."""

from __future__ import annotations

import base64
import json
import secrets
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.roles.zookeeper_cluster import address
from tests.site.plays import INVENTORY, ROOT, Play, run_playbook, ssh

# The first has two GPUs, the second has one and no driver, the third has none.
GPUS, SILENT, BARE = "gpu1", "gpu2", "cpu1"
MACHINES = (GPUS, SILENT, BARE)
MARATHONS = (GPUS, BARE)
UNITS = {"mesos-master": MACHINES, "mesos-agent": MACHINES, "marathon": MARATHONS}
CONFIG = "/etc/baremetal-gpu/mesos"
MARATHON_PORT = 8080


class Site:
    """The three machines as one cluster. `settings` are the variables that all runs have in common.

    `hosts` are variables of single machines.
    """

    def __init__(self, base: Path, hosts: dict[str, dict[str, Any]] | None = None) -> None:
        self.base = base
        self.hosts = {SILENT: {"mesos_agent_gpus": "none"}} if hosts is None else hosts
        self.secrets = base / ".secrets" / "mesos.json"
        self.certificates = base / ".secrets" / "mesos-tls"
        # Whether masters and agents are asked over TLS.
        self.is_encrypted = False
        packed = subprocess.run(
            [sys.executable, ROOT / "tests/simulators/mesos/pack", base / "pack"],
            check=True,
            capture_output=True,
            text=True,
        )
        archives = json.loads(packed.stdout)
        self.addresses = {name: address(name) for name in MACHINES}
        # The machines have the cgroups of their host.
        kind = ssh(BARE, "stat -f -c %T /sys/fs/cgroup").strip()
        self.passwords = {name: secrets.token_hex(12) for name in ("mesos", "marathon")}
        self.settings: dict[str, Any] = {
            "mesos_common_flavour": "clusterd" if kind == "cgroup2fs" else "apache",
            "mesos_common_path": archives["mesos"]["path"],
            "mesos_common_sha256": archives["mesos"]["sha256"],
            "marathon_path": archives["marathon"]["path"],
            "marathon_sha256": archives["marathon"]["sha256"],
            "mesos_common_secrets_path": str(self.secrets),
            "mesos_common_tls_path": str(self.certificates),
            "mesos_agent_rack": "r1",
            "mesos_agent_reserve": {"cpus": 0.5, "mem": 256, "disk": 1024},
            "zookeeper_ready_timeout": 90,
            "zookeeper_chroots": [
                {"path": "/mesos", "user": "mesos", "password": self.passwords["mesos"], "everyone": "read"},
                {"path": "/marathon", "user": "marathon", "password": self.passwords["marathon"]},
            ],
            "mesos_common_zookeeper_user": "mesos",
            "mesos_common_zookeeper_password": self.passwords["mesos"],
            "marathon_zookeeper_user": "marathon",
            "marathon_zookeeper_password": self.passwords["marathon"],
            "mesos_master_ready_timeout": 90,
            "mesos_agent_ready_timeout": 60,
            "marathon_ready_timeout": 90,
        }

    def groups(self, **members: tuple[str, ...]) -> str:
        """Options that put the machines into the groups of the scheduler."""
        given = {
            "zookeeper": MACHINES,
            "mesos_masters": MACHINES,
            "mesos_agents": MACHINES,
            "marathon": MARATHONS,
            **members,
        }
        content: dict[str, Any] = {group: {"hosts": {name: {} for name in names}} for group, names in given.items()}
        content["all"] = {"hosts": {name: self.hosts.get(name, {}) for name in MACHINES}}
        file = self.base / "scheduler.yml"
        file.write_text(json.dumps(content))
        return f"-i {INVENTORY} -i {file}"

    def words(self) -> list[str]:
        """What an operator gives to ansible-playbook, for a test that kills it."""
        extra = self.base / "extra.json"
        extra.write_text(json.dumps(self.settings))
        return [*self.groups().split(), "-e", f"@{extra}", "playbooks/scheduler.yml"]

    def run(
        self,
        options: str = "",
        members: dict[str, tuple[str, ...]] | None = None,
        limit: str = ",".join(MACHINES),
        whole: bool = False,
        **variables: Any,
    ) -> Play:
        """Run the playbook; without `whole` it leaves out ZooKeeper, which has tests of its own and takes long."""
        more = "" if whole else "--skip-tags zookeeper"
        return run_playbook(
            "scheduler.yml",
            limit=limit,
            extra_vars={**self.settings, **variables},
            options=f"{self.groups(**(members or {}))} {options} {more}",
        )

    def converge(self, **variables: Any) -> None:
        play = self.run(**variables)
        assert play.rc == 0, play.tail()

    # What is seen of it.

    def secret(self, principal: str) -> str:
        return str(json.loads(self.secrets.read_text())[principal])

    def ask(self, machine: str, port: int, path: str, login: str = "", body: Any = None) -> Any:
        """JSON of the answer, None without one. `login` is a principal among the secrets."""
        data = None if body is None else json.dumps(body).encode()
        encrypted = self.is_encrypted and port != MARATHON_PORT
        request = urllib.request.Request(
            f"http{'s' if encrypted else ''}://{self.addresses[machine]}:{port}{path}",
            data,
            {"Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=self.certificates / "ca.pem") if encrypted else None
        if login:
            pair = f"{login.removeprefix('http:')}:{self.secret(login)}"
            request.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return {"status": error.code}
        except (urllib.error.URLError, ConnectionError):
            return None

    def leaders(self) -> list[str]:
        """The masters that say that they lead."""
        numbers = {name: self.ask(name, 5050, "/metrics/snapshot") or {} for name in MACHINES}
        return [name for name, told in numbers.items() if told.get("master/elected") == 1]

    def agents(self) -> dict[str, dict[str, Any]]:
        """The registered agents by hostname, as the leading master tells them; of two ids the active one."""
        rows = self.ask(self.leaders()[0], 5050, "/slaves")["slaves"]
        return {row["hostname"]: row for row in sorted(rows, key=lambda row: bool(row["active"]))}


def debian_package(archive: Path, base: Path) -> Path:
    """The programs of an archive as a package, with the units that a package brings for them."""
    root = base / "package"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr").mkdir()
    subprocess.run(["tar", "-xzf", archive, "--strip-components=1", "-C", root / "usr"], check=True)
    (root / "DEBIAN/control").write_text(
        "Package: mesos-stand-in\nVersion: 1.11.0-2\nArchitecture: all\nMaintainer: Nobody <nobody@example.com>\n"
        "Description: the stand-ins of Mesos\n"
    )
    units = root / "lib/systemd/system"
    units.mkdir(parents=True)
    for name in ("master", "agent"):
        (units / f"mesos-{name}.service").write_text(f"[Service]\nExecStart=/usr/sbin/mesos-{name} --no-such-flag\n")
    package = base / "mesos-stand-in.deb"
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", root, package], check=True, capture_output=True)
    return package


def processes() -> dict[tuple[str, str], str]:
    """Process and start of every daemon."""
    return {
        (unit, name): ssh(name, f"systemctl show -P MainPID -P ExecMainStartTimestampMonotonic {unit}")
        for unit, names in UNITS.items()
        for name in names
    }


def moments(unit: str, name: str) -> tuple[int, int]:
    """When a daemon was last stopped and started again, in µs of the clock that all machines of a host share."""
    shown = ssh(name, f"systemctl show -P ActiveExitTimestampMonotonic -P ActiveEnterTimestampMonotonic {unit}")
    left, entered = sorted(int(line) for line in shown.split())
    return left, entered


def files() -> dict[str, str]:
    """Checksums of everything that the roles have written."""
    listing = f"sudo sh -c 'cd / && sha256sum {CONFIG}/* /etc/systemd/system/mesos-* /etc/systemd/system/marathon*'"
    return {name: ssh(name, f"{listing} 2>/dev/null || true") for name in MACHINES}


__all__ = [
    "BARE",
    "CONFIG",
    "GPUS",
    "MACHINES",
    "MARATHONS",
    "SILENT",
    "UNITS",
    "Site",
    "debian_package",
    "files",
    "moments",
    "processes",
    "ssh",
]
