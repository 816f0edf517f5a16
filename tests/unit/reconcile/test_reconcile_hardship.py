# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler as a process whose disk is full and whose clock jumps, beside a host that publishes nonsense."""

from __future__ import annotations

import contextlib
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.unit.plugins.service_account import needs_root
from tests.unit.reconcile.site import ISOLATION, Site
from tests.unit.reconcile.test_reconcile_command import WAY, publishes
from tests.unit.simulators.mesos_cluster import until

Make = Callable[..., Site]
# The wall clock is as a file says, which can be changed.
PROGRAM = """
import os, sys, time
clock = sys.argv.pop(1)
def now(real=time.time):
    return real() + (float(open(clock).read() or 0) if os.path.exists(clock) else 0)
time.time = now
sys.argv[0] = "gpuops"
from gpuops.cli import app
app()
"""


class Hardship:
    def __init__(self, site: Site) -> None:
        self.site, self.clock = site, site.base / "clock"

    def leads(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(self.clock), "reconcile"]
        before = len(self.site.entries("lead"))
        process = self.site.reconciler(program=command)
        until(lambda: len(self.site.entries("lead")) > before)
        return process

    def jumps(self, seconds: float) -> None:
        part = self.clock.with_name("clock.part")
        part.write_text(str(seconds))
        part.replace(self.clock)


@contextlib.contextmanager
def neighbour(one: Site) -> Iterator[None]:
    client = publishes(one, "bad", b'{"schema": 1, "host": "bad", "devices": [{"pci_address": [1]}]}')
    one.cluster.agent("bad", ISOLATION, "--resources=gpus:1", "--nvidia_gpu_devices=0", gpus="ok")
    one.cluster.registered("bad")
    yield
    assert one.cluster.slave("bad")["deactivated"] is False
    client.stop()
    client.close()


@pytest.mark.parametrize("jump", [400 * 86400.0, -400 * 86400.0])
def test_a_clock_that_jumps_stops_nobody_and_makes_nobody_well(site: Make, jump: float) -> None:
    one = site()
    node, other = one.node("n1"), one.node("n2")
    hardship = Hardship(one)
    with neighbour(one):
        process = hardship.leads()
        node.fault(0)
        until(lambda: one.way("n1") == WAY)
        hardship.jumps(jump)
        time.sleep(1)
        # What was taken out stays so, and what is well stays in.
        other.publish()
        node.publish()
        time.sleep(1)
        assert node.listed == node.uuids[1:]
        assert other.state == "active"
        hardship.jumps(0)
        other.fault(1)
        until(lambda: one.way("n2") == WAY)
        assert other.listed == other.uuids[:1]
        assert node.listed == node.uuids[1:]
        assert process.poll() is None


def nothing_more_fits(disk: Path) -> bool:
    """Fills the disk; false where the reconciler has begun a new journal in between, whose block has room."""
    # Not even the rest of a block is left for it.
    journal = disk / "journal.jsonl"
    journal.unlink(missing_ok=True)
    with contextlib.suppress(OSError), open(disk / "filler", "ab", buffering=0) as file:
        while True:
            file.write(bytes(256))
    return not journal.exists() or not journal.stat().st_size


@needs_root
def test_a_full_disk_stops_no_reconciler_and_it_tells_what_was_lost(site: Make, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        one = site(journal=str(disk / "journal.jsonl"))
        one.journal = disk / "journal.jsonl"
        node = one.node("n1")
        with neighbour(one):
            process = one.leading()
            until(lambda: nothing_more_fits(disk))
            node.fault(0)
            until(lambda: node.listed == node.uuids[1:] and node.state == "active")
            assert process.poll() is None
            (disk / "filler").unlink()
            node.mend(0)
            until(lambda: node.listed == node.uuids and node.state == "active")
            until(lambda: one.way("n1")[-1:] == ["close"])
            # All of it was told where it could be.
            log = (one.base / "reconciler.log").read_text()
            assert "No space left" in log
            assert log.count(": drain: no job is left on it") >= 2
    finally:
        subprocess.run(["umount", "-l", disk], check=False)


class NoMaster(socketserver.BaseRequestHandler):
    """Ends every connection, and counts them."""

    calls: ClassVar[list[float]] = []

    def handle(self) -> None:
        self.calls.append(time.monotonic())


def test_without_a_scheduler_it_asks_now_and_then(site: Make) -> None:
    """Since its start, when nothing is known of the nodes yet."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), NoMaster) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        one = site(masters=[f"http://127.0.0.1:{server.server_address[1]}"])
        one.leading()
        until(lambda: len(NoMaster.calls) >= 6)
        server.shutdown()
    calls = NoMaster.calls[:6]
    # With no pause it is hundreds a second. A look that fails is one call, and the pause here is 0.3 s.
    assert calls[-1] - calls[0] > 0.3 * 4, calls
