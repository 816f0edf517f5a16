# SPDX-License-Identifier: GPL-3.0-or-later
"""Daemons are killed, machines lose their power and space runs out while a client writes: nothing acknowledged is lost.

The writer keeps a journal of hashes on its own disk. After each fault another client compares every file with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.roles.ceph_site import (
    CLIENT,
    EVERYBODY,
    HOME,
    STORAGE,
    Journal,
    Site,
    as_user,
    boot,
    ceph,
    changed,
    within,
)
from tests.site.plays import lab, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def writer(site: Site) -> Iterator[Journal]:
    """The writer at work."""
    journal = Journal()
    journal.begin()
    yield journal
    journal.end()


def heals(site: Site, writer: Journal) -> None:
    writer.goes_on()
    site.heals()
    writer.is_whole()


def test_an_osd_is_killed(site: Site, writer: Journal) -> None:
    writer.goes_on()
    ssh("st2", "sudo kill -9 $(pgrep -x ceph-osd)")
    heals(site, writer)


def mounts(mds: str) -> set[str]:
    """The addresses of the mounts, as an active MDS knows them. Managers are clients of it too, but mount nothing."""
    sessions = ceph(f"tell mds.{mds} session ls")
    mounted = [row["entity"]["addr"] for row in sessions if row["client_metadata"].get("mount_point")]
    # As the list of what is blocked has them.
    return {f"{address['addr']}/{address['nonce']}" for address in mounted}


def test_the_active_mds_is_killed(site: Site, writer: Journal) -> None:
    (filesystem,) = ceph("fs dump")["filesystems"]
    (active,) = (row["name"] for row in filesystem["mdsmap"]["info"].values() if row["state"] == "up:active")
    clients = mounts(active)
    assert len(clients) >= len(EVERYBODY), "every machine has mounted homes"
    # A client that comes to a new process of the MDS before the monitors have told of it forgets its session. Here they
    # are late, as those with slow disks are.
    for name in STORAGE[1:]:
        ssh(name, "sudo systemd-run --collect sh -c 'pkill -STOP -x ceph-mon; sleep 4; pkill -CONT -x ceph-mon'")
    ssh(active, "sudo kill -9 $(pgrep -x ceph-mds)")
    heals(site, writer)
    # A line is an address and until when it is blocked.
    blocked = {line.split()[0] for line in ssh(STORAGE[0], "sudo ceph osd blocklist ls 2>/dev/null").splitlines()}
    assert blocked, "the monitors block an MDS that they have replaced"
    assert blocked & clients == set(), "these mounts are dead"
    for name in EVERYBODY:
        ssh(name, f"sudo ls {HOME}/alice {HOME}/bob")


def test_two_of_three_osds_are_lost_and_writing_waits_for_them(site: Site, writer: Journal) -> None:
    for name in ("st2", "st3"):
        ssh(name, "sudo systemctl stop 'ceph-osd@*'")
    within(600, "the OSDs are still up", lambda: ceph("osd stat")["num_up_osds"] == 1)
    waits = writer.written()
    time.sleep(20)
    # What was under way when the second one went may still be acknowledged.
    assert writer.written() <= waits + 1
    for name in ("st2", "st3"):
        ssh(name, "sudo systemctl start $(systemctl list-units --all --plain --no-legend 'ceph-osd@*' | cut -d' ' -f1)")
    heals(site, writer)


def test_one_monitor_of_three_is_lost(site: Site, writer: Journal) -> None:
    ssh("st3", "sudo systemctl stop ceph-mon@st3")
    writer.goes_on()
    within(600, "st3 is still in the quorum", lambda: ceph("quorum_status")["quorum_names"] == ["st1", "st2"])
    ssh("st3", "sudo systemctl start ceph-mon@st3")
    heals(site, writer)


def test_two_monitors_of_three_are_lost(site: Site, writer: Journal) -> None:
    for name in ("st2", "st3"):
        ssh(name, f"sudo systemctl stop ceph-mon@{name}")
    # For some seconds the one that is left goes by the quorum that was.
    asked = "sudo timeout -s KILL 20 ceph quorum_status >/dev/null 2>&1; echo rc=$?"
    within(300, "st1 decides without a quorum", lambda: ssh("st1", asked) == "rc=137\n")
    for name in ("st2", "st3"):
        ssh(name, f"sudo systemctl start ceph-mon@{name}")
    heals(site, writer)


def test_a_user_fills_his_home_and_nobody_else_is_touched(site: Site, writer: Journal) -> None:
    filled = as_user(CLIENT, "bob", f"dd if=/dev/zero of={HOME}/bob/fill bs=1M count=80 oflag=sync")
    assert "quota exceeded" in filled
    writer.goes_on()
    assert as_user(CLIENT, "bob", f"rm {HOME}/bob/fill") == "rc=0\n"
    heals(site, writer)


def test_a_full_cluster_refuses_to_write_and_still_reads_and_deletes(site: Site, writer: Journal) -> None:
    """Full is where the operator says it is: the ratios are brought down to what is used."""
    used = max(row["utilization"] for row in ceph("osd df")["nodes"]) / 100
    ratios = {"nearfull": used * 0.2, "backfillfull": used * 0.4, "full": used * 0.6}
    before = {name: ceph("osd dump")[f"{name}_ratio"] for name in ratios}
    try:
        for name, ratio in ratios.items():
            ssh("st1", f"sudo ceph osd set-{name}-ratio {ratio:.6f}")
        within(600, "no OSD counts as full", lambda: "OSD_FULL" in ceph("status")["health"]["checks"])
        refused = as_user(CLIENT, "bob", f"dd if=/dev/zero of={HOME}/bob/more bs=1M count=4 conv=fsync")
        # Where not even the file can be made, Ceph 18.2 says so by another error.
        assert refused.endswith("rc=1\n")
        assert "No space left on device" in refused or "Permission denied" in refused
        writer.is_whole()
        assert as_user(CLIENT, "bob", f"rm -f {HOME}/bob/more") == "rc=0\n"
    finally:
        for name in reversed(list(ratios)):
            ssh("st1", f"sudo ceph osd set-{name}-ratio {before[name]:.2f}")
    within(600, "bob cannot write again", lambda: "rc=0" in as_user(CLIENT, "bob", f"echo x >{HOME}/bob/x && sync"))
    heals(site, writer)


def test_a_machine_loses_its_power(site: Site, writer: Journal) -> None:
    lab("power-cut", "st3")
    writer.goes_on()
    boot("st3")
    heals(site, writer)


def test_all_machines_of_the_cluster_lose_their_power_at_once(site: Site, writer: Journal) -> None:
    lab("power-cut", *STORAGE)
    boot(*STORAGE)
    heals(site, writer)


def test_a_run_after_all_that_changes_nothing(site: Site, writer: Journal) -> None:
    play = site.run(options="--diff")
    assert play.rc == 0, play.tail()
    assert {name: play.stats["ok"].get(name, 0) > 0 for name in EVERYBODY} == dict.fromkeys(EVERYBODY, True)
    assert changed(play) == {}, play.tail(30000)
    writer.is_whole()
