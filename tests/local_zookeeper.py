# SPDX-License-Identifier: GPL-3.0-or-later
"""A real ZooKeeper server as a process on loopback: Debian's packages, unpacked and not installed.

The packages come through apt once and stay in .cache. It needs Java, which `make test` installs (tests/needs.py); where
there is none, it says so.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "zookeeper"
PACKAGES = ("libzookeeper-java", "libslf4j-java", "libnetty-java", "libsnappy-java", "libdropwizard-metrics-java")
JARS = ("zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-nop", "snappy-java", "metrics-core", "netty-*")


class NotHere(Exception):
    """There is no ZooKeeper to be had on this machine; the text says why."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def classpath() -> str:
    """The jars, fetched where they are not. Raises NotHere."""
    if not shutil.which("java"):
        raise NotHere("there is no java; run make test as root, or apt-get install default-jre-headless")
    if not shutil.which("apt-get"):
        raise NotHere("there is no apt-get to fetch Debian's packages of ZooKeeper with")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (CACHE / "done").exists():
            done = subprocess.run(
                ["apt-get", "download", *PACKAGES], cwd=CACHE, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise NotHere(f"apt-get download of {', '.join(PACKAGES)} failed: {done.stderr[-300:]}")
            for package in CACHE.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, CACHE / "unpacked"], check=True)
            (CACHE / "done").touch()
    java = CACHE / "unpacked/usr/share/java"
    return ":".join(str(path) for name in JARS for path in sorted(java.glob(f"{name}.jar")))


class LocalZooKeeper:
    """One server, which stands alone; `stop` and `start` keep its data. `more` is added to its configuration."""

    def __init__(self, base: Path, more: str = "", wait: bool = True) -> None:
        self.base, self.port = base, free_port()
        self.classpath = classpath()
        self.process: subprocess.Popen[bytes] | None = None
        base.mkdir(parents=True, exist_ok=True)
        (base / "zoo.cfg").write_text(
            f"dataDir={base}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\ntickTime=500\n"
            "minSessionTimeout=1000\nmaxSessionTimeout=60000\nadmin.enableServer=false\nmaxClientCnxns=0\n"
            f"4lw.commands.whitelist=srvr\n{more}",
            encoding="utf-8",
        )
        self.start(wait)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, wait: bool = True) -> None:
        with (self.base / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    "java",
                    "-Xmx128m",
                    "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    self.classpath,
                    "org.apache.zookeeper.server.quorum.QuorumPeerMain",
                    str(self.base / "zoo.cfg"),
                ],
                stdout=log,
                stderr=log,
                env={"PATH": os.environ["PATH"]},
            )
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until it serves, alone or as a member of a quorum."""
        assert self.process is not None
        end = time.monotonic() + 60
        while not self.mode():
            told = (self.base / "log").read_text(errors="replace")[-500:]
            assert self.process.poll() is None, f"ZooKeeper ended: {told}"
            assert time.monotonic() < end, f"ZooKeeper does not answer: {told}"
            time.sleep(0.1)

    def mode(self) -> str:
        """standalone, leader or follower; empty while it does not serve."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as one:
                one.sendall(b"srvr")
                with one.makefile(encoding="utf-8", errors="replace") as lines:
                    return next((line.split(": ")[1].strip() for line in lines if line.startswith("Mode: ")), "")
        except OSError:
            return ""

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(20)


class LocalEnsemble:
    """Three servers with a quorum."""

    def __init__(self, base: Path) -> None:
        ports = [(free_port(), free_port()) for _server in range(3)]
        rows = [f"server.{number}=127.0.0.1:{peer}:{vote}\n" for number, (peer, vote) in enumerate(ports, 1)]
        more = "initLimit=20\nsyncLimit=10\n" + "".join(rows)
        self.servers = []
        for number in range(1, 4):
            (base / f"{number}/data").mkdir(parents=True)
            (base / f"{number}/data/myid").write_text(f"{number}\n", encoding="utf-8")
            self.servers.append(LocalZooKeeper(base / str(number), more, wait=False))
        for server in self.servers:
            server.wait()

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers)

    def leader(self) -> LocalZooKeeper:
        return next(server for server in self.servers if server.mode() == "leader")

    def stop(self) -> None:
        for server in self.servers:
            server.stop(signal.SIGKILL)
