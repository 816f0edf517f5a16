# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual machine itself, and the Molecule scenario that runs on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.machines.vm import Vm
from tests.molecule_scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def lab_vm(*words: str) -> subprocess.CompletedProcess[str]:
    """`tools/lab vm ...`; a failure shows its output."""
    argv = [sys.executable, "-m", "tests.lab.machines", "vm", *words]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def machine() -> Iterator[Vm]:
    lab_vm("up")
    yield Vm()
    if not os.environ.get("GPUOPS_KEEP_LAB"):
        lab_vm("down")


def run(command: str) -> str:
    return lab_vm("ssh", "--", command).stdout.strip()


def test_up_twice_is_as_good_as_once(machine: Vm):
    process, boot = machine.pid(), run("cat /proc/sys/kernel/random/boot_id")
    lab_vm("up")
    assert machine.pid() == process
    assert run("cat /proc/sys/kernel/random/boot_id") == boot


def test_machine_is_as_a_server_with_a_gpu(machine: Vm):
    assert run("cat /sys/module/nouveau/initstate") == "live"
    # Loaded by udev's rule in the initramfs, before the root file system was mounted.
    order = [line.split()[0] for line in run("cat /proc/modules").splitlines()]
    assert order.index("nouveau") > order.index("ext4")
    assert run("systemctl is-system-running") == "running"


def test_machine_reaches_nothing(machine: Vm):
    with pytest.raises(AssertionError, match=r"timed out|unreachable|refused"):
        run("python3 -c \"import socket; socket.create_connection(('10.0.2.2', 22), 10)\"")


def test_power_cut_loses_what_was_not_flushed_and_keeps_the_rest(machine: Vm):
    port, boot = machine.spec().port, run("cat /proc/sys/kernel/random/boot_id")
    run("echo kept | sudo dd of=/var/kept conv=fsync status=none; echo lost | sudo tee /run/lost")
    lab_vm("power-cut")
    assert machine.spec().port == port
    assert run("cat /proc/sys/kernel/random/boot_id") != boot
    assert run("cat /var/kept; ls /run | grep -c lost || true") == "kept\n0"


def test_down_leaves_nothing(machine: Vm):
    process = machine.pid()
    lab_vm("down")
    assert not machine.directory.exists()
    assert not Path(f"/proc/{process}/exe").exists()
    assert machine.pid() is None
    lab_vm("down")


def test_scenario():
    """nouveau in use is blacklisted, the machine rebooted by the role, and nouveau stays away."""
    status, output = Scenario("metal").run("test")
    assert status == 0, output[-8000:]
    # Not only 'nothing failed': what proves something ran, in this order.
    steps = [
        "Check that everything but the reboot is done",
        "Reboot and wait for the host",
        "idempotence] Executed: Successful",
        "Check that nouveau stays away",
        "Check that the unit ran at boot and made the nodes",
        "Check that nouveau is back and nothing is left of the roles",
        "Check that the cut came before the end",
        "Check that it was unloaded without a reboot",
    ]
    places = [output.find(step) for step in steps]
    assert -1 not in places, dict(zip(steps, places, strict=True))
    assert places == sorted(places)
    assert Vm().pid() is None
