# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with a kernel of its own joins the cluster: an encrypted OSD in logical volumes, and the kernel's client.

The virtual machine is emulated, in the network of the other machines. It is what shows the order of a boot: volumes,
keys from the monitors, OSD, mounts.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.lab.machines.state import Lab
from tests.lab.machines.vm import NAME, Vm, lan_interface
from tests.roles.ceph_site import HOME, STORAGE, Site, as_user, ceph, changed, told_by, within
from tests.site.plays import Play, lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DATA, DB = "/dev/disk/by-id/virtio-lab-data", "/dev/disk/by-id/virtio-lab-fast"
DISKS = ("--disk", "data:4", "--disk", "fast:2")


def run(command: str) -> str:
    return lab("vm", "ssh", "--", command, timeout=900)


def as_user_here(user: str, command: str) -> str:
    """What a command of a user of the machine says, and its exit status behind it."""
    return run(told_by(user, command))


def own_osd() -> dict[str, object]:
    """What the cluster says of the machine's OSD."""
    (row,) = [row for row in ceph("osd metadata") if row.get("hostname") == NAME]
    return row


def is_up() -> bool:
    number = own_osd()["id"]
    return any(row["osd"] == number and row["up"] == 1 for row in ceph("osd dump")["osds"])


def is_mounted() -> bool:
    """Whether the home is mounted when somebody looks at it, by the kernel."""
    # findmnt ends with 1 where nothing is mounted, which is an answer here.
    said = run(
        f"sudo timeout 60 ls {HOME}/alice >/dev/null 2>&1; findmnt --noheadings --output FSTYPE {HOME}/alice || true"
    )
    return "ceph" in said.split()


class Joined:
    """The cluster with the machine in it, as an inventory tells of both."""

    def __init__(self, site: Site, inventory: str) -> None:
        self.site = site
        self.inventory = inventory

    def run(self, options: str = "") -> Play:
        return self.site.run(options=f"-i {self.inventory} {options}")


@pytest.fixture(scope="module")
def joined(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Joined]:
    lab("vm", "up", "--memory", "2560", *DISKS, "--join", timeout=1800)
    variables = {
        **Vm().inventory()["_meta"]["hostvars"][NAME],
        "ceph_common_public_network": Lab().subnet,
        "ceph_common_options": {"osd": {"osd_memory_target": 939524096}},
    }
    hosts = {"hosts": {NAME: variables}}
    inventory = tmp_path_factory.mktemp("vm") / "inventory.json"
    inventory.write_text(json.dumps({"ceph_osds": hosts, "ceph_clients": hosts}))
    site.devices[NAME] = [{"path": DATA, "method": "lvm", "db": DB, "dmcrypt": True}]
    yield Joined(site, str(inventory))
    if not os.environ.get("GPUOPS_KEEP_LAB"):
        lab("vm", "down")
        # The cluster misses an OSD now.
        site.down()


def test_a_db_that_holds_something_is_refused_and_stays_as_it_is(joined: Joined) -> None:
    run(f"sudo mke2fs -q -t ext4 {DB}")
    before = run(f"sudo sha256sum {DB} {DATA}")
    play = joined.run()
    assert play.rc != 0
    (said,) = [text for text in play.failures[NAME] if "No device was touched" in text]
    assert f"its db is {DB}: it holds ext4" in said
    assert run(f"sudo sha256sum {DB} {DATA}") == before
    run(f"sudo wipefs --all --quiet {DB} && sudo dd if=/dev/zero of={DB} bs=1M count=4 conv=fsync status=none")


def test_a_power_cut_while_ceph_volume_is_at_work(joined: Joined) -> None:
    """The run after it is the next test."""
    # Asked in one login: each costs the emulated machine seconds.
    made = "ls /dev/mapper | grep -q -- -osd--db--"
    with ThreadPoolExecutor(1) as beside:
        cut = beside.submit(joined.run)
        lab("vm", "ssh", "--", f"timeout 1500 sh -c 'until {made}; do sleep 1; done'", timeout=1800)
        lab("vm", "power-cut", timeout=1800)
        assert cut.result().rc != 0
    assert "osd-db-" in run("sudo lvs --noheadings --options lv_name")
    assert "begun-" in run("sudo ls /var/lib/baremetal-gpu/ceph-osd")


def test_a_host_joins_with_an_encrypted_osd_and_mounts_by_the_kernel(joined: Joined) -> None:
    play = joined.run()
    assert play.rc == 0, play.tail()
    assert len(ceph("osd ls")) == len(STORAGE) + 1
    assert "begun-" not in run("sudo ls /var/lib/baremetal-gpu/ceph-osd")
    assert own_osd()["bluefs_dedicated_db"] == "1"
    assert is_up()
    for device in (DATA, DB):
        assert "crypt" in run(f"lsblk --noheadings --output TYPE {device}").split()
    assert is_mounted()
    assert "fuse.ceph-fuse" not in run("findmnt --noheadings --output FSTYPE")
    written = as_user_here("alice", f"echo by the kernel >{HOME}/alice/kernel && sync {HOME}/alice/kernel")
    assert written == "rc=0\n"
    assert as_user(STORAGE[0], "alice", f"cat {HOME}/alice/kernel") == "by the kernel\nrc=0\n"
    # Another user's home, and a quota that is full.
    assert "Permission denied" in as_user_here("alice", f"ls {HOME}/bob")
    assert "quota exceeded" in as_user_here("bob", f"dd if=/dev/zero of={HOME}/bob/big bs=1M count=60 oflag=sync")
    assert as_user_here("bob", f"rm {HOME}/bob/big") == "rc=0\n"


def test_a_second_run_changes_nothing(joined: Joined) -> None:
    play = joined.run()
    assert play.rc == 0, play.tail()
    assert changed(play) == {}


def test_what_was_acknowledged_to_the_kernels_client_outlives_a_power_cut(joined: Joined) -> None:
    one = "head -c 65536 /dev/urandom >cut$i && sync cut$i && sha256sum cut$i"
    journal = as_user_here("alice", f"cd {HOME}/alice && for i in $(seq 40); do {one}; done").replace("rc=0\n", "")
    assert journal.count("\n") == 40
    lab("vm", "power-cut", timeout=1800)
    found = as_user(STORAGE[0], "alice", f"cd {HOME}/alice && sha256sum cut*")
    assert set(journal.splitlines()) <= set(found.splitlines())
    within(900, "the OSD does not come back after a power cut", is_up)
    within(300, "the home does not come back after a power cut", is_mounted)


def test_a_boot_without_the_network_ends_and_osd_and_home_come_with_it(joined: Joined) -> None:
    cable = ["ip", "link", "set", lan_interface(Lab())]
    boot = run("cat /proc/sys/kernel/random/boot_id")
    subprocess.run([*cable, "down"], check=True)
    try:
        run("sudo systemd-run --on-active=2 systemctl reboot 2>/dev/null")
        deadline = time.monotonic() + 1200
        # A machine that goes down or comes up refuses the login.
        while lab("vm", "ssh", "--", "cat /proc/sys/kernel/random/boot_id", check=False) in (boot, ""):
            assert time.monotonic() < deadline, "the machine does not boot without the network"
            time.sleep(10)
        # Whoever looks at a home is told, and does not wait for ever.
        assert "rc=0" not in run(f"sudo timeout -s KILL 400 ls {HOME}/alice >/dev/null 2>&1; echo rc=$?")
        assert run("systemctl is-active ssh").strip() == "active"
    finally:
        subprocess.run([*cable, "up"], check=True)
    within(1200, "the OSD does not come with the network", is_up)
    within(300, "the home does not come with the network", is_mounted)
    joined.site.heals()
