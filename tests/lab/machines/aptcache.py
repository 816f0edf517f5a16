# SPDX-License-Identifier: GPL-3.0-or-later
"""One apt-cacher-ng for all labs of this host: started by the first that needs it, stopped by the last.

It is not the service of Debian's package: configuration, cache and log are the lab's own. It listens on all
addresses, because each lab's bridge has another one, and a firewall chain lets only those bridges in.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

from . import state
from .mirrors import Mirrors
from .network import iptables
from .system import LabError, environment, locked, run, say, write_atomically

CHAIN = "BGL-APT"
JUMP = ("-p", "tcp", "-m", "comment", "--comment", "baremetal-gpu-lab:apt-cache", "-j", CHAIN)
FIRST_PORT = 31420


class AptCache:
    """The cache's files, its process and its users."""

    def __init__(self, root: Path = state.CACHE_ROOT) -> None:
        self.directory = root / "apt"
        self.configuration = self.directory / "conf"
        self.users = self.directory / "users"
        self.port_file = self.directory / "port"
        self.pid_file = self.directory / "pid"
        self.lock = root / "locks" / "apt-cache.lock"

    def acquire(self, user: str, mirrors: Mirrors) -> int:
        """Note a user, start the cache if it does not run, and return its port."""
        with locked(self.lock, "the apt cache"):
            self.users.mkdir(parents=True, exist_ok=True)
            (self.users / user).touch()
            if self.pid() is None:
                self._start(mirrors)
            self._firewall()
            return self.port()

    def release(self, user: str) -> None:
        """Forget a user; stop the cache when nobody is left."""
        with locked(self.lock, "the apt cache"):
            (self.users / user).unlink(missing_ok=True)
            if not self._living_users():
                self._stop()

    def port(self) -> int:
        """The port it listens on, or used last."""
        return int(self.port_file.read_text(encoding="utf-8")) if self.port_file.exists() else FIRST_PORT

    def pid(self) -> int | None:
        """The running cache's process, looked for by its command line: a pid file outlives a crash."""
        wanted = str(self.configuration).encode()
        for directory in Path("/proc").iterdir():
            if directory.name.isdigit():
                try:
                    words = (directory / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words and words[0].endswith(b"apt-cacher-ng") and wanted in words:
                    return int(directory.name)
        return None

    def _living_users(self) -> list[str]:
        """Users whose lab still exists, or whose process (a build of an image) still runs."""
        living = []
        for entry in self.users.glob("*") if self.users.is_dir() else []:
            kind, _, name = entry.name.partition("-")
            if (state.STATE_ROOT / name).exists() if kind == "lab" else Path("/proc", name).exists():
                living.append(entry.name)
            else:
                entry.unlink(missing_ok=True)
        return living

    def _start(self, mirrors: Mirrors) -> None:
        port = self._free_port()
        for name in ("cache", "log"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        lines = [
            f"CacheDir: {self.directory}/cache",
            f"LogDir: {self.directory}/log",
            "SupportDir: /usr/lib/apt-cacher-ng",
            f"PidFile: {self.pid_file}",
            f"Port: {port}",
            "BindAddress: 0.0.0.0",
            # https mirrors cannot be cached, but must be reachable through the proxy.
            "PassThroughPattern: .*",
            "ForeGround: 0",
            # Without a web page for administration there is nothing to protect.
            "ReportPage:",
        ]
        if mirrors.proxy and mirrors.proxy.upper() != "DIRECT":
            lines.append(f"Proxy: {mirrors.proxy}")
        write_atomically(self.configuration / "acng.conf", "\n".join(lines) + "\n", 0o600)
        # In a directory and session of its own: it outlives the command that started it.
        run("setsid", "apt-cacher-ng", "-c", self.configuration, env=environment())
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    write_atomically(self.port_file, f"{port}\n")
                    say(f"apt cache: listening on port {port}")
                    return
            time.sleep(0.2)
        raise LabError(f"apt-cacher-ng does not answer on port {port}; see {self.directory}/log")

    def _free_port(self) -> int:
        """The port used last, so that machines keep their setting, or the next free one."""
        for port in [self.port(), *range(FIRST_PORT, FIRST_PORT + 100)]:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("0.0.0.0", port))
                except OSError:
                    continue
                return int(port)
        raise LabError(f"no free port for the apt cache from {FIRST_PORT} to {FIRST_PORT + 99}")

    def _stop(self) -> None:
        pid = self.pid()
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 10
            while self.pid() == pid:
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.1)
            say("apt cache: stopped")
        self.pid_file.unlink(missing_ok=True)
        while iptables("-D", "INPUT", *JUMP, check=False) == 0:
            pass
        iptables("-F", CHAIN, check=False)
        iptables("-X", CHAIN, check=False)

    def _firewall(self) -> None:
        """Only this host and the bridges of labs may use the cache."""
        iptables("-N", CHAIN, check=False)
        if iptables("-C", "INPUT", *JUMP, check=False) != 0:
            iptables("-I", "INPUT", *JUMP)
        iptables("-F", CHAIN)
        iptables("-A", CHAIN, "-i", "lo", "-j", "RETURN")
        iptables("-A", CHAIN, "-i", "bgl+", "-j", "RETURN")
        iptables("-A", CHAIN, "-p", "tcp", "--dport", str(self.port()), "-j", "REJECT")
