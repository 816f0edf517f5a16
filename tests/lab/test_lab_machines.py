# SPDX-License-Identifier: GPL-3.0-or-later
"""The life of machines: made once, bare again, cut off, rebooted, crashed, removed without a trace.

These tests make labs of their own with one machine each, so that they disturb nobody.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.lab.machines import cgroups, images
from tests.lab.machines.machine import Machine
from tests.lab.machines.state import Lab

ROOT = Path(__file__).resolve().parents[2]
NAME = "bare1"

pytestmark = [
    pytest.mark.lab,
    # All other tests that have machines show that the lab works.
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab's machines need root"),
]


class Bench:
    """A lab with one machine."""

    def __init__(self, suffix: str) -> None:
        self.id = f"{os.environ['GPUOPS_LAB_ID'][:16]}-{suffix}"
        self.suite = "trixie"

    def run_lab(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "tests.lab.machines", *words],
            cwd=ROOT,
            env={**os.environ, "GPUOPS_LAB_ID": self.id},
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def up(self) -> subprocess.CompletedProcess[str]:
        """Made by its whole description, later by name alone."""
        if NAME in Lab(self.id).machines:
            return self.run_lab("up", "--machine", NAME)
        return self.run_lab("up", "--machine", f"{NAME}:{self.suite}:no-gpu")

    def ssh(self, command: str, check: bool = True) -> str:
        return self.machine.ssh(command, check=check).stdout.strip()

    def boot_id(self) -> str:
        return self.ssh("cat /proc/sys/kernel/random/boot_id")

    def changes(self) -> list[str]:
        return self.run_lab("changes", NAME).stdout.splitlines()

    def traffic(self, *words: str) -> dict[str, dict[str, int]]:
        counted: dict[str, dict[str, int]] = json.loads(self.run_lab("traffic", NAME, *words).stdout)
        return counted

    @property
    def machine(self) -> Machine:
        lab = Lab(self.id)
        return Machine(lab, lab.get(NAME))

    def traces(self) -> list[str]:
        """What on this host bears the lab's name or its machine's; the cache stays, with its locks."""
        lab = Lab(self.id)
        found = []
        for what, argv in {
            "interface": ("ip", "-oneline", "link"),
            "filter": ("iptables-save",),
            "loop device": ("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"),
            "process": ("ps", "-eo", "pid,args"),
        }.items():
            lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
            marks = (lab.tag, lab.comment, f"machines/{NAME}", f"vb-{NAME}-{lab.tag[:2]}", "traces-of-the-lab.img")
            found += [f"{what}: {line}" for line in lines if any(mark in line for mark in marks)]
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
        found += [f"mount: {line}" for line in mounts if f"{lab.directory}/" in line or lab.tag in line]
        found += [f"control group: {path}" for path in cgroups.find(f"{NAME}-{lab.tag}")]
        found += [f"mount point: {path}" for path in Path("/run/systemd").glob(f"nspawn/*/{NAME}-{lab.tag}")]
        found += [f"file: {path}" for path in lab.directory.parent.glob(f"{self.id}*")]
        return found


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    bench = Bench("m")
    bench.run_lab("clean")
    assert bench.traces() == []
    bench.up()
    yield bench
    bench.run_lab("down")
    assert bench.traces() == []


def test_up_twice_is_as_good_as_once(bench: Bench) -> None:
    before = bench.boot_id()
    done = bench.up()
    assert f"{NAME} up already" in done.stderr
    assert bench.boot_id() == before


def test_machine_is_a_bare_server(bench: Bench) -> None:
    assert bench.ssh("systemctl is-system-running") == "running"
    assert bench.ssh("sudo -n id -u") == "0"
    assert bench.ssh("ls /lib/modules").count("\n") == 0
    assert bench.ssh("hostname") == NAME
    assert bench.ssh("sudo find /var/lib/apt/lists -type f ! -name lock") == ""


def test_each_machine_has_control_groups_of_its_own(bench: Bench) -> None:
    groups = {path.name for path in cgroups.find(bench.machine.unit_name)}
    assert groups == {bench.machine.unit_name}
    # A service of the machine lies below them, not beside another machine's.
    pid = int(bench.ssh("systemctl show --property MainPID --value ssh"))
    assert pid > 0
    shown = {Path(f"/proc/{pid}/cgroup").read_text() for pid in cgroups.processes(bench.machine.unit_name)}
    assert any("ssh.service" in text and bench.machine.unit_name in text for text in shown)


def test_changes_and_reset(bench: Bench) -> None:
    bench.run_lab("reset", NAME)
    assert bench.changes() == []
    bench.ssh("echo 1 | sudo tee /etc/new; sudo rm /etc/debian_version; sudo chmod 0700 /etc/apt")
    bench.ssh("echo 1 | sudo tee /var/lib/docker/kept /var/log/volatile")
    assert bench.changes() == ["M /etc/apt", "D /etc/debian_version", "A /etc/new"]
    started = time.monotonic()
    bench.run_lab("reset", NAME)
    assert time.monotonic() - started < 30
    assert bench.changes() == []
    assert bench.ssh("ls /etc/debian_version /etc/new /var/lib/docker/kept 2>/dev/null", check=False) == (
        "/etc/debian_version"
    )


def test_a_new_machine_may_get_the_disks_of_the_old_one(bench: Bench) -> None:
    bench.run_lab("disk", NAME, "moved", "--size", "1")
    bench.ssh("echo data | sudo tee /dev/disk/by-id/lab-moved; echo 1 | sudo tee /etc/new")
    bench.run_lab("reset", NAME, "--keep-disks")
    assert bench.changes() == []
    assert bench.ssh("sudo head -n 1 /dev/disk/by-id/lab-moved") == "data"
    bench.run_lab("reset", NAME)
    assert bench.ssh("ls /dev/disk/by-id/lab-moved", check=False) == ""


def wait_for_new_boot(bench: Bench, before: str) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if bench.ssh("cat /proc/sys/kernel/random/boot_id", check=False) not in ("", before):
            return
        time.sleep(0.5)
    pytest.fail("the machine did not come back")


def test_reboot_from_inside(bench: Bench) -> None:
    before, address = bench.boot_id(), bench.machine.spec.address
    bench.ssh("echo 1 | sudo tee /etc/kept /var/lib/docker/kept")
    bench.ssh("sudo systemctl reboot", check=False)
    wait_for_new_boot(bench, before)
    assert bench.ssh("systemctl is-system-running --wait") == "running"
    assert bench.ssh("cat /etc/kept /var/lib/docker/kept") == "1\n1"
    assert address in bench.ssh("ip -brief address show dev host0")


def test_power_cut(bench: Bench) -> None:
    before = bench.boot_id()
    bench.ssh("echo 1 | sudo tee /etc/survivor")
    cable = ["ip", "link", "show", f"vb-{NAME}-{Lab(bench.id).tag}"]
    assert subprocess.run(cable, capture_output=True, check=False).returncode == 0
    bench.run_lab("power-cut", NAME)
    # Where it is left, the next boot fails on a busy host.
    assert subprocess.run(cable, capture_output=True, check=False).returncode != 0
    assert "stopped" in bench.run_lab("status").stdout
    assert bench.run_lab("ssh", NAME, "--", "true", check=False).returncode != 0
    bench.up()
    assert bench.boot_id() != before
    assert bench.ssh("cat /etc/survivor") == "1"


# Whether a TCP connection can be made, by what a bare machine has.
CONNECT = (
    "import socket, sys; s = socket.socket(); s.settimeout(5); "
    "print('refused' if s.connect_ex((sys.argv[1], int(sys.argv[2]))) else 'connected')"
)


def test_egress_and_traffic(bench: Bench) -> None:
    lab = Lab(bench.id)

    def connect(address: str, port: int) -> str:
        return bench.ssh(f"python3 -c '{CONNECT.replace(chr(39), chr(34))}' {address} {port}")

    # An address that the machine must not reach when it is cut off, but that this host has.
    routes = json.loads(subprocess.run(["ip", "-json", "route", "get", "192.0.2.1"], capture_output=True).stdout)
    own = routes[0]["prefsrc"]
    bench.traffic("--reset")
    assert bench.ssh("true") == ""
    # Answering by SSH is no traffic of the machine's own.
    assert bench.traffic() == {name: {"packets": 0, "bytes": 0} for name in ("apt", "host", "forwarded")}

    try:
        assert connect(lab.gateway, lab.apt_port) == "connected"
        counted = bench.traffic("--reset")
        assert counted["apt"]["packets"] > 0
        assert counted["host"]["packets"] == counted["forwarded"]["packets"] == 0

        bench.run_lab("egress", NAME, "closed")
        assert connect(lab.gateway, lab.apt_port) == "connected"
        assert connect("198.51.100.1", 80) == "refused"
        assert connect(own, 22) == "refused"
        counted = bench.traffic("--reset")
        assert counted["forwarded"]["packets"] > 0
        assert counted["host"]["packets"] > 0

        bench.run_lab("egress", NAME, "isolated")
        assert connect(lab.gateway, lab.apt_port) == "refused"
        assert "isolated" in bench.run_lab("status").stdout
    finally:
        bench.run_lab("egress", NAME, "open")
    assert connect(lab.gateway, lab.apt_port) == "connected"


def test_packages_come_through_the_cache(bench: Bench) -> None:
    bench.traffic("--reset")
    bench.ssh("sudo apt-get update --quiet --option Acquire::Retries=0 --error-on=any")
    counted = bench.traffic()
    assert counted["apt"]["bytes"] > 0
    assert counted["forwarded"]["packets"] == 0


def test_what_compilers_made_outlives_the_machine(bench: Bench) -> None:
    """Scripts of packages find compilers by way of a cache, which is the host's and so every machine's."""
    path = bench.ssh("apt-config dump --format %v%n DPkg::Path")
    assert path.startswith(f"{images.PROBE_CACHE}:/usr/lib/ccache:")
    assert bench.ssh("sudo ccache --show-config | grep 'cache_dir ='").endswith("/var/cache/ccache")
    name = f"written-by-{bench.id}"
    bench.ssh(f"sudo touch /var/cache/ccache/{name}")
    (images.compiler_cache() / name).unlink()


COMPILER = "x86_64-linux-gnu-gcc-14"
# Made by hand: what a compiler does with a program, told by the program's only line.
COUNTED_COMPILER = """#!/bin/sh
for word; do case $word in *.c) source=$word ;; esac; done
echo "$source" >>/tmp/compiled
case $(cat "$source") in
*wrong*) echo "$source:1:1: error: unknown type name" >&2; exit 1 ;;
*killed*) echo "gcc: fatal error: Killed signal terminated program cc1" >&2; exit 1 ;;
esac
echo object of $(cat "$source") >"${source%.c}.o"
"""


@pytest.mark.parametrize(("program", "compiled", "becomes"), [("right", 1, 0), ("wrong", 1, 1), ("killed", 2, 1)])
def test_a_probe_of_a_drivers_build_is_compiled_once(bench: Bench, program: str, compiled: int, becomes: int) -> None:
    """Whatever number its name has; but for one of which nothing was learnt.

    The compiler has been unpacked only now: ccache has no link of its name yet.
    """
    # What was kept outlives the machine, and this test.
    unknown = uuid.uuid4()
    program = f"{program} {unknown}"
    real, build = f"/usr/bin/{COMPILER}", "/tmp/build"
    # Without what ccache itself asks a compiler.
    compiler = f"sudo CCACHE_DISABLE=1 {images.PROBE_CACHE}/{COMPILER} -include {build}/generated/autoconf.h -c"
    bench.ssh(
        f"echo '{COUNTED_COMPILER}' | sudo tee {real} && sudo chmod +x {real} && test ! -e /usr/lib/ccache/{COMPILER}"
    )
    bench.ssh(f"sudo rm -rf /tmp/compiled {build}; mkdir -p {build}/generated; touch {build}/generated/autoconf.h")
    for number in (11, 22):
        ended = bench.ssh(
            f"cd {build} && echo '{program}' >conftest{number}.c && "
            f"{compiler} -DNAME=conftest{number} conftest{number}.c; echo $?; "
            f"test ! -e conftest{number}.o || cat conftest{number}.o"
        )
        assert ended == (f"0\nobject of {program}" if becomes == 0 else str(becomes))
    assert len(bench.ssh("cat /tmp/compiled").splitlines()) == compiled
    bench.ssh(f"cd {build} && echo 'right, another {unknown}' >conftest33.c && {compiler} conftest33.c")
    assert bench.ssh("tail -n 1 /tmp/compiled") == "conftest33.c"


def test_up_after_a_crash(bench: Bench) -> None:
    """Everything killed, the bridge and a mount gone: what a power failure of the host or a stray kill leaves."""
    bench.ssh("echo 1 | sudo tee /etc/survivor")
    machine = bench.machine
    for pid in set(machine.processes()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    subprocess.run(["ip", "link", "delete", machine.lab.bridge], check=True)
    time.sleep(1)
    subprocess.run(["umount", machine.root], check=True)
    bench.up()
    assert bench.ssh("cat /etc/survivor") == "1"


def test_machine_without_its_supervisor_is_booted_anew(bench: Bench) -> None:
    machine, before = bench.machine, bench.boot_id()
    listed = subprocess.run(["pgrep", "-f", f"supervisor {machine.directory}$"], capture_output=True, text=True)
    os.kill(int(listed.stdout), signal.SIGKILL)
    old = set(machine.processes())
    assert "stopped" in bench.run_lab("status").stdout
    bench.up()
    assert bench.boot_id() != before
    assert not old & set(machine.processes())


def test_clean_removes_what_nobody_wrote_down(bench: Bench) -> None:
    """The lab's own notes are lost; its machine still runs."""
    crashed = Bench("c")
    crashed.up()
    lab = Lab(crashed.id)
    lab.file.write_text("not JSON")
    refused = crashed.run_lab("status", check=False)
    assert refused.returncode == 1
    assert "tools/lab clean" in refused.stderr
    crashed.run_lab("clean")
    assert crashed.traces() == []
    assert bench.ssh("true") == ""


def test_down_gives_loop_devices_back(bench: Bench) -> None:
    other = Bench("l")
    other.up()
    image = "/root/traces-of-the-lab.img"
    # The host gives the next free one, whoever has the others.
    attach = f"sudo truncate -s 1M {image}; for n in $(seq 0 63); do sudo mknod /dev/loop$n b 7 $n; done 2>/dev/null"
    other.ssh(attach, check=False)
    assert other.ssh(f"sudo losetup --find --show {image}").startswith("/dev/loop")
    assert any(line.startswith("loop device") for line in other.traces())
    other.run_lab("down")
    assert other.traces() == []


def test_two_labs_side_by_side(bench: Bench) -> None:
    others = [Bench("s1"), Bench("s2")]
    others[1].suite = "bookworm"
    try:
        with ThreadPoolExecutor() as pool:
            list(pool.map(Bench.up, others))
        subnets = {Lab(each.id).subnet for each in (bench, *others)}
        assert len(subnets) == 3
        assert [each.ssh("sed -n s/^VERSION_CODENAME=//p /etc/os-release") for each in others] == ["trixie", "bookworm"]
        before = others[1].boot_id()
        others[0].run_lab("down")
        assert others[0].traces() == []
        assert others[1].boot_id() == before
        assert bench.ssh("true") == ""
    finally:
        for each in others:
            each.run_lab("clean")
    assert [each.traces() for each in others] == [[], []]
