# SPDX-License-Identifier: GPL-3.0-or-later
"""Alerts of Ceph, homes and disks, on three machines of a storage cluster and one that mounts and watches them.

Each fault is made, its alert comes to the webhook, and is over after the repair; the table at the end says how long
that took. The disks are small, so that a cluster that is nearly full takes few gigabytes. The tests run in order.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.ceph_site import BY_ID, CLIENT, EVERYBODY, HOME, STORAGE, told_by
from tests.roles.ceph_site import Site as Storage
from tests.roles.ceph_site import ceph as ask_ceph
from tests.site import alert_faults
from tests.site.alert_faults import HOUR_S, VARIABLES, Fault, Round, Watch, of_one_cause, prove
from tests.site.plays import lab, ssh

# Alerts wait for an hour.
pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.timeout(3 * 3600)]

DISK_GB = 4
# For file systems: machine -> the disk's name.
MORE_DISKS = {"st1": ("st1full", "st1fills"), "st2": ("st2files",), "st3": ("st3ro",)}
WATCH = Watch(CLIENT)
show = alert_faults.show


class Site(Storage):
    """The storage cluster, and what watches it."""

    def __init__(self, base: Path) -> None:
        super().__init__()
        self.base = base

    def bare(self) -> None:
        self.down()
        lab("up", *(word for name in EVERYBODY for word in ("--machine", f"{name}:trixie:no-gpu")))
        for name in STORAGE:
            lab("disk", name, f"{name}a", "--size", str(DISK_GB))

    def variables(self, **more: Any) -> dict[str, Any]:
        return super().variables(ceph_mgr_modules={"prometheus": True}, **more)

    def watch(self) -> None:
        groups = {
            "prometheus_servers": {"hosts": {CLIENT: {}}},
            "node_exporters": {"hosts": {host: {} for host in EVERYBODY}},
        }
        inventory = self.base / "monitoring.yml"
        inventory.write_text(json.dumps(groups))
        homes = f"{{{{ '{HOME}' if inventory_hostname == '{CLIENT}' else '' }}}}"
        play = self.run(
            "monitoring.yml",
            f"-i {inventory}",
            node_exporter_tls_path=str(self.base / "tls"),
            node_exporter_homes=homes,
            **VARIABLES,
        )
        assert play.rc == 0, play.tail()


def everywhere(command: str) -> Callable[[], None]:
    def on_all() -> None:
        for name in STORAGE:
            ssh(name, command)

    return on_all


def stopped(alert: str, target: str, machine: str) -> Fault:
    """Daemons of a machine that are stopped, and started again."""
    return Fault(alert, machine, f"sudo systemctl stop {target}", f"sudo systemctl start {target}")


def standbys() -> list[str]:
    """The machines whose metadata servers are on standby."""
    return [row["name"] for row in ask_ceph("fs dump")["standbys"]]


def no_standby() -> None:
    for name in standbys():
        ssh(name, "sudo systemctl stop ceph-mds.target")


def used() -> float:
    stats = ask_ceph("df")["stats"]
    return float(stats["total_used_raw_bytes"] / stats["total_bytes"])


def fill(share: float) -> None:
    """Write into the pool of the data until so much of the cluster is used."""
    pool = ask_ceph("fs ls")[0]["data_pools"][0]
    ssh(STORAGE[0], "test -e /var/tmp/filling || dd if=/dev/urandom of=/var/tmp/filling bs=1M count=32 2>/dev/null")
    for number in range(1000):
        ssh(STORAGE[0], f"sudo timeout 300 rados -p {pool} put filling-{number} /var/tmp/filling")
        if number % 4 == 0:
            # The OSDs tell what they hold every few seconds.
            time.sleep(6)
            if used() > share:
                return
    raise AssertionError(f"only {used():.0%} are used")


def empty() -> None:
    pool = ask_ceph("fs ls")[0]["data_pools"][0]
    ssh(
        STORAGE[0],
        f"for name in $(sudo rados -p {pool} ls | grep ^filling-); do sudo rados -p {pool} rm $name; done",
    )


def file_system(disk: str, mount: str, options: str = "") -> str:
    """A command that makes a file system on a disk, and mounts it."""
    return (
        f"sudo mkfs.ext4 -q -F -m 0 {options} {BY_ID}{disk} && sudo mkdir -p {mount} && "
        f"sudo mount {BY_ID}{disk} {mount}"
    )


DAEMONS = Round(
    (
        stopped("CephOsdDown", "ceph-osd.target", "st3"),
        stopped("CephMonDown", "ceph-mon.target", "st3"),
        Fault("CephMonQuorumAtRisk"),
        Fault("CephHealthWarning"),
    )
)
MGRS = Round(
    (
        Fault(
            "CephSilent",
            "",
            everywhere("sudo systemctl stop ceph-mgr.target"),
            everywhere("sudo systemctl start ceph-mgr.target"),
        ),
    )
)
NO_MDS = Round(
    (
        *of_one_cause(
            ("CephFilesystemWithoutMds", "CephHealthError"),
            "",
            everywhere("sudo systemctl stop ceph-mds.target"),
            everywhere("sudo systemctl start ceph-mds.target"),
        ),
        # Every access to a home waits, also that of the program that writes the metrics of homes.
        Fault("HostMetricsFailing", CLIENT),
    ),
    also=frozenset({"CephHealthWarning"}),
)
NO_STANDBY = Round(
    (Fault("CephNoMdsOnStandby", "", no_standby, everywhere("sudo systemctl start ceph-mds.target")),),
    also=frozenset({"CephHealthWarning"}),
)
DISKS = Round(
    (
        Fault(
            "HostDiskFull",
            "st1",
            f"{file_system('st1full', '/mnt/full')}; sudo dd if=/dev/zero of=/mnt/full/file bs=1M 2>/dev/null; true",
            "sudo umount /mnt/full",
        ),
        Fault(
            "HostInodesLow",
            "st2",
            f"{file_system('st2files', '/mnt/files', '-N 256')}; "
            "for n in $(seq 5000); do sudo touch /mnt/files/$n 2>/dev/null || break; done",
            "sudo umount /mnt/files",
        ),
        # Whoever logs in has a home there.
        Fault(
            "HostFilesystemReadOnly",
            "st3",
            f"{file_system('st3ro', '/mnt/ro')} && sudo cp -ax /home/. /mnt/ro/ && sudo umount /mnt/ro && "
            f"sudo mount -o ro {BY_ID}st3ro /home",
            # A login is in its directory.
            "cd /; sudo umount -l /home",
        ),
    )
)
NEARLY_FULL = Round(
    (Fault("CephCapacityCritical", "", lambda: fill(0.87), empty),), also=frozenset({"CephHealthWarning"})
)
HOURS = Round(
    (
        Fault("CephCapacityLow", "", lambda: fill(0.78), empty),
        Fault(
            "HomeNearQuota",
            "",
            told_by("bob", f"dd if=/dev/zero of={HOME}/bob/more bs=1M count=38 conv=fsync"),
            told_by("bob", f"rm {HOME}/bob/more"),
            on=CLIENT,
        ),
        # A step of 50 MB every 20 seconds, until three quarters of a gigabyte are used.
        Fault(
            "HostDiskFillsUp",
            "st1",
            f"{file_system('st1fills', '/mnt/fills')} && "
            "(sudo sh -c 'for n in $(seq 15); do sleep 20; fallocate -l 50M /mnt/fills/$n; done' "
            ">/dev/null 2>&1 </dev/null &)",
            "sudo umount -l /mnt/fills",
        ),
    ),
    also=frozenset({"CephHealthWarning"}),
    patience_s=2 * HOUR_S,
)
ROUNDS = (DAEMONS, MGRS, NO_MDS, NO_STANDBY, DISKS, NEARLY_FULL, HOURS)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("alerts-storage"))
    is_kept = bool(os.environ.get("GPUOPS_KEEP_LAB"))
    if not is_kept or not site.secrets.exists():
        site.bare()
        for name, disks in MORE_DISKS.items():
            lab("disk", name, *disks, "--size", "1")
    site.make()
    WATCH.prepare(EVERYBODY)
    site.watch()
    # What is wrong on machines that share the disk of their host.
    ssh(STORAGE[0], "sudo ceph health mute MON_DISK_LOW 1d --sticky")
    WATCH.is_quiet()
    yield site
    if not is_kept:
        site.down()


def test_daemons_of_one_machine_do_not_run(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, DAEMONS, show)
    watched.heals()


def test_no_mgr_tells_how_the_cluster_is(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, MGRS, show)
    watched.heals()


def test_nobody_serves_the_file_system(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, NO_MDS, show)
    watched.heals()


def test_no_metadata_server_is_on_standby(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, NO_STANDBY, show)
    watched.heals()


def test_disks_of_hosts(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, DISKS, show)


def test_a_cluster_that_is_nearly_full(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, NEARLY_FULL, show)


def test_what_fills_up_slowly(watched: Site, show: Callable[[str], object]) -> None:
    prove(WATCH, HOURS, show)
