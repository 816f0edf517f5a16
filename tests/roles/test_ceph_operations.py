# SPDX-License-Identifier: GPL-3.0-or-later
"""What operators do to a storage cluster that is in use: OSDs and monitors come and go, disks fail, daemons restart.

A client writes all the time and keeps a journal of hashes of what was acknowledged to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.roles.ceph_site import (
    BY_ID,
    CLIENT,
    EVERYBODY,
    HOME,
    STORAGE,
    Journal,
    Site,
    as_user,
    ceph,
    changed,
    of_host,
    said,
    within,
)
from tests.site.plays import INVENTORY, ROOT, Play, lab, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NEXT_VERSION = Path(__file__).parent / "ceph" / "next_version.sh"
SNAPSHOTS = {"schedules": ["1m"], "retention": {"m": 5}}
# The second one is removed by runs that are killed.
SPARE = ("st1b", "st1c")


def run(site: Site, **more: Any) -> Play:
    play = site.run(**more)
    assert play.rc == 0, play.tail()
    return play


@pytest.fixture(scope="module")
def writer(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Journal]:
    """The cluster with two more OSDs, a fourth monitor and a schedule of snapshots; and the writer at work."""
    lab("disk", "st1", *SPARE)
    site.devices["st1"] = [f"{BY_ID}st1a", *(f"{BY_ID}{disk}" for disk in SPARE)]
    ssh("st1", "sudo ceph config set mgr mgr/snap_schedule/allow_m_granularity true")
    more = tmp_path_factory.mktemp("inventory") / "more.yml"
    more.write_text(yaml.safe_dump({"ceph_mons": {"hosts": {CLIENT: None}}}))
    run(site, options=f"-i {more}", cephfs_homes_snapshots=SNAPSHOTS)
    journal = Journal()
    journal.begin()
    yield journal
    journal.end()


def osds() -> dict[int, dict[str, Any]]:
    return {row["osd"]: row for row in ceph("osd dump")["osds"]}


def osd_on(machine: str, disk: str) -> int:
    """The OSD that a machine has on a disk, as Ceph's own tool reads it from there."""
    said = ssh(machine, f"sudo ceph-bluestore-tool show-label --dev {BY_ID}{disk} | grep whoami")
    return int(said.strip().strip(",").rpartition(":")[2].strip().strip('"'))


def members() -> Any:
    """Monitors, and OSDs with what they are in the map for."""
    return ceph("mon dump")["mons"], {number: (row["up"], row["in"], row["weight"]) for number, row in osds().items()}


def settles(site: Site, playbook: str, **variables: Any) -> None:
    """Check mode announces a change and makes none; the run makes it; a second run makes none."""
    before = members()
    announced = site.run(playbook, options="--check", **variables)
    assert announced.rc == 0, announced.tail()
    assert changed(announced)
    assert members() == before
    done = site.run(playbook, **variables)
    assert done.rc == 0, done.tail()
    again = site.run(playbook, **variables)
    assert again.rc == 0, again.tail()
    assert changed(again) == {}


def test_what_was_added_is_there(site: Site, writer: Journal) -> None:
    assert set(ceph("quorum_status")["quorum_names"]) == {*STORAGE, CLIENT}
    assert [row["up"] for row in osds().values()] == [1] * 5


def test_a_user_finds_a_deleted_file_in_a_snapshot(site: Site, writer: Journal) -> None:
    path = f"{HOME}/alice/precious"
    assert as_user(CLIENT, "alice", f"echo gold >{path} && sync {path}") == "rc=0\n"
    snapshots = f"cat {HOME}/alice/.snap/*/precious"
    within(900, "no snapshot was taken", lambda: "gold" in as_user(CLIENT, "alice", snapshots))
    assert as_user(CLIENT, "alice", f"rm {path}") == "rc=0\n"
    assert "gold" in as_user(CLIENT, "alice", snapshots)


# OSDs


def test_an_osd_whose_copies_have_no_other_place_stays(site: Site, writer: Journal) -> None:
    number = osd_on("st3", "st3a")
    nowhere = of_host({**site.devices, "st3": []})
    play = site.run("storage_remove_osd.yml", storage_osds=[number], ceph_osd_devices=nowhere)
    assert "there would be 2 with OSDs" in said(play)
    assert osds()[number]["in"] == 1
    assert ssh("st3", f"systemctl is-active ceph-osd@{number}") == "active\n"


def test_an_osd_is_removed_with_its_data_elsewhere(site: Site, writer: Journal) -> None:
    number = osd_on("st1", "st1b")
    still_listed = site.run("storage_remove_osd.yml", storage_osds=[number])
    assert "take it out of the list first" in said(still_listed)
    site.devices["st1"].remove(f"{BY_ID}st1b")
    foreign = site.run("storage_remove_osd.yml", storage_osds=[number], storage_wipe=[f"{BY_ID}st1a"])
    assert "which stays" in said(foreign)
    assert osds()[number]["in"] == 1

    settles(site, "storage_remove_osd.yml", storage_osds=[number])
    assert number not in osds()
    assert ssh("st1", f"systemctl is-enabled ceph-osd@{number}", check=False) == "disabled\n"
    assert f"ceph-{number}" not in ssh("st1", "sudo ls /var/lib/ceph/osd").split()
    # The disk still is what it was.
    assert osd_on("st1", "st1b") == number
    writer.goes_on()
    writer.is_whole()

    wiped = site.run("storage_remove_osd.yml", storage_osds=[number], storage_wipe=[f"{BY_ID}st1b"])
    assert wiped.rc == 0, wiped.tail()
    assert is_wiped("st1", "st1b")


def is_wiped(machine: str, disk: str) -> bool:
    """Whether nothing tells any more what was on a disk."""
    asked = f"sudo wipefs --no-act {BY_ID}{disk}; sudo head -c 4096 {BY_ID}{disk} | tr -d '\\0' | wc -c"
    return ssh(machine, asked) == "0\n"


def test_a_removal_that_is_killed_is_gone_on_with(site: Site, writer: Journal) -> None:
    number = osd_on("st1", "st1c")
    site.devices["st1"].remove(f"{BY_ID}st1c")
    given = {"storage_osds": [number], "storage_wipe": [f"{BY_ID}st1c"]}
    for task in ("Move the data", "Stop the OSDs", "Remove the files of the OSDs"):
        killed_at(site, "storage_remove_osd.yml", task, seconds=0.5, **given)
    done = site.run("storage_remove_osd.yml", **given)
    assert done.rc == 0, done.tail()
    assert number not in osds()
    assert is_wiped("st1", "st1c")
    writer.is_whole()


def killed_at(
    site: Site,
    playbook: str,
    task: str,
    seconds: float = 1,
    has_done: Callable[[], bool] = lambda: True,
    **variables: Any,
) -> None:
    """Run a playbook and kill it some seconds into a task, and not before the task has done what it is killed after."""
    given = ROOT / ".cache" / "given.json"
    given.write_text(yaml.safe_dump(site.variables(**variables)))
    words = ["-i", INVENTORY, "-l", ",".join((*EVERYBODY, "localhost")), "-e", f"@{given}", f"playbooks/{playbook}"]
    process = subprocess.Popen(
        [Path(sys.executable).with_name("ansible-playbook"), *words],
        cwd=ROOT,
        # As the project has it, a task is named only when a host is through it without having skipped it.
        env={
            **os.environ,
            "ANSIBLE_DISPLAY_SKIPPED_HOSTS": "true",
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONUNBUFFERED": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(line)
        if line.startswith("TASK [") and task in line:
            time.sleep(seconds)
            try:
                within(120, f"'{task}' does nothing", has_done)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
            break
    process.wait()
    given.unlink()
    assert process.returncode == -signal.SIGKILL, f"it ended before it came to '{task}':\n{''.join(told[-60:])}"


def test_a_broken_disk_is_replaced_and_the_osd_keeps_its_number(site: Site, writer: Journal) -> None:
    number = osd_on("st2", "st2a")
    lab("disk", "st2", "st2b")
    # The disk is gone, and its OSD with it.
    ssh("st2", f"sudo systemctl kill -s KILL ceph-osd@{number}; sudo rm {BY_ID}st2a")
    within(600, "the OSD still counts as up", lambda: osds()[number]["up"] == 0)
    site.devices["st2"] = [f"{BY_ID}st2b"]
    given = {"storage_host": "st2", "storage_osd": number, "storage_device": f"{BY_ID}st2b"}
    careful = site.run("storage_replace_osd.yml", **given)
    assert "where the disk is broken for good" in said(careful)
    assert "destroyed" not in osds()[number]["state"]

    killed_at(site, "storage_replace_osd.yml", "Create the OSD on the new disk", storage_lost=True, **given)
    settled = site.run("storage_replace_osd.yml", storage_lost=True, **given)
    assert settled.rc == 0, settled.tail()
    again = site.run("storage_replace_osd.yml", storage_lost=True, **given)
    assert (again.rc, changed(again)) == (0, {}), again.tail()
    assert osd_on("st2", "st2b") == number
    assert osds()[number]["up"] == osds()[number]["in"] == 1
    writer.goes_on()
    writer.is_whole()


# Monitors


def test_a_monitor_is_removed(site: Site, writer: Journal) -> None:
    wanted = site.run("storage_remove_mon.yml", storage_mons=["st3"])
    assert "not in ceph_mons any more" in said(wanted)
    settles(site, "storage_remove_mon.yml", storage_mons=[CLIENT])
    assert set(ceph("quorum_status")["quorum_names"]) == set(STORAGE)
    left = "sudo ls /var/lib/ceph/mon; pgrep ceph-mon; ls -d /etc/ceph/ceph.*"
    assert ssh(CLIENT, left, check=False) == ""


def test_a_run_after_all_that_finds_the_cluster_well(site: Site, writer: Journal) -> None:
    """It ends the snapshots, and has all hosts know the three monitors that are left."""
    run(site, cephfs_homes_snapshots={"schedules": []})
    # Ceph 18.2 tells no schedules as an empty object.
    assert ceph("fs snap-schedule list / --recursive") == {}
    again = run(site)
    assert changed(again) == {}
    writer.is_whole()


# Restarts


def started() -> dict[str, str]:
    """The number of every daemon's process, by machine and command line."""
    found = {}
    for name in STORAGE:
        for line in ssh(name, "pgrep -a '^ceph-(mon|mgr|osd|mds)$'").splitlines():
            number, _space, command = line.partition(" ")
            found[f"{name} {command}"] = number
    return found


def test_daemons_restart_one_host_after_another_and_noout_never_stays(site: Site, writer: Journal) -> None:
    # Somebody has tried for so long that systemd would refuse the next start of this one.
    unit = "ceph-mgr@st2"
    allowed = int(ssh("st2", f"sudo systemctl reset-failed {unit}; systemctl show --value -p StartLimitBurst {unit}"))
    assert allowed > 0
    for _start in range(allowed):
        ssh("st2", f"sudo systemctl restart {unit}")
    site.heals()

    before = started()
    idle = site.run("storage_restart.yml")
    assert (idle.rc, changed(idle)) == (0, {}), idle.tail()
    assert started() == before

    due = {"storage_restart_before": time.time()}
    killed_at(site, "storage_restart.yml", "Restart the daemons", storage_lease=30, **due)
    done = site.run("storage_restart.yml", **due)
    assert done.rc == 0, done.tail()
    after = started()
    assert set(after) == set(before)
    assert not [unit for unit in after if after[unit] == before[unit]]
    again = site.run("storage_restart.yml", **due)
    assert (again.rc, changed(again)) == (0, {}), again.tail()
    assert started() == after
    assert not [number for number, row in osds().items() if "noout" in row["state"]]
    site.heals()
    writer.is_whole()


def test_noout_of_a_run_that_was_killed_goes_by_itself(site: Site, writer: Journal) -> None:
    def is_set() -> bool:
        return any("noout" in row["state"] for row in osds().values())

    due = {"storage_restart_before": time.time(), "storage_lease": 60}
    killed_at(site, "storage_restart.yml", "Set noout, so that the data stay in place", 0, is_set, **due)
    within(300, "noout is still set", lambda: not is_set())
    within(
        300, "the lease is still there", lambda: ssh("st1", "ls /etc/systemd/system | grep noout", check=False) == ""
    )


def kinds_in_turn(machines: Sequence[str]) -> list[str]:
    """The kinds of all daemons in the order in which they were started; machines of the lab have one clock."""
    asked = "for pid in $(pgrep '^ceph-(mon|mgr|osd|mds)$'); do awk '{print $22, $2}' /proc/$pid/stat; done"
    found = [line.split() for name in machines for line in ssh(name, asked).splitlines()]
    return [kind.strip("()") for _ticks, kind in sorted(found, key=lambda row: int(row[0]))]


def version_of(machine: str) -> set[str]:
    """The versions of what a machine has of Ceph's packages, which is one unless something was left behind."""
    asked = "dpkg-query -Wf '${db:Status-Abbrev}|${source:Package}|${Version}\\n' | sed -n 's/^ii |ceph|//p'"
    return set(ssh(machine, asked).split())


def test_an_upgrade_that_is_killed_is_gone_on_with_in_the_order_of_ceph(site: Site, writer: Journal) -> None:
    (old,) = set.union(*map(version_of, STORAGE))
    before = started()
    for name in STORAGE:
        script = f"cat >/tmp/next.sh <<'END_OF_SCRIPT'\n{NEXT_VERSION.read_text()}END_OF_SCRIPT\n"
        ssh(name, f"{script}sudo sh /tmp/next.sh /var/tmp/next-version")

    def first_is_new() -> bool:
        return version_of("st1") == {f"{old}+next1"}

    task = "Upgrade the packages (apt)"
    killed_at(site, "storage_restart.yml", task, has_done=first_is_new, storage_upgrade=True)
    killed_at(site, "storage_restart.yml", "Restart the daemons", storage_upgrade=True)
    assert first_is_new()
    # No package has restarted a daemon; the run has come to the first.
    now = started()
    assert not [
        unit for unit in before if now.get(unit) != before[unit] and not unit.startswith("st1 /usr/bin/ceph-mon ")
    ]
    done = site.run("storage_restart.yml", storage_upgrade=True)
    assert done.rc == 0, done.tail()
    assert [version_of(name) for name in STORAGE] == [{f"{old}+next1"}] * len(STORAGE)
    after = started()
    assert set(after) == set(before)
    assert not [unit for unit in after if after[unit] == before[unit]]
    kinds = kinds_in_turn(STORAGE)
    assert kinds == sorted(kinds, key=["ceph-mon", "ceph-mgr", "ceph-osd", "ceph-mds"].index)

    again = site.run("storage_restart.yml", storage_upgrade=True)
    assert (again.rc, changed(again)) == (0, {}), again.tail()
    assert started() == after
    assert not [number for number, row in osds().items() if "noout" in row["state"]]
    site.heals()
    writer.goes_on()
    writer.is_whole()
    # The modules of the managers are there as before.
    converged = site.run()
    assert (converged.rc, changed(converged)) == (0, {}), converged.tail()
    assert started() == after


# Encryption

# Of Linux' asm-generic/socket.h; Python has no name for it.
SO_RCVBUFFORCE = 33


def is_overheard(text: bytes, done: Callable[[], Any]) -> bool:
    """Whether a text can be read in the network of the machines while something is done."""
    heard, over = False, math.inf
    every_protocol = socket.htons(3)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, every_protocol) as ear, ThreadPoolExecutor(1) as beside:
        ear.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
        ear.settimeout(1)
        doing = beside.submit(done)
        # What was sent until then may still have to be read here.
        while time.monotonic() < over:
            if math.isinf(over) and doing.done():
                over = time.monotonic() + 10
            with contextlib.suppress(TimeoutError):
                heard = text in ear.recv(1 << 17) or heard
        doing.result()
    return heard


def test_nothing_can_be_read_in_the_network_once_that_is_asked_for(site: Site, writer: Journal) -> None:
    def write(word: str) -> None:
        path = f"{HOME}/alice/told"
        assert as_user(CLIENT, "alice", f"yes {word} | head -c 1M >{path} && sync {path}") == "rc=0\n"

    assert is_overheard(b"inclear\n" * 20, lambda: write("inclear"))
    done = run(site, ceph_common_secure=True)
    assert changed(done)
    due = site.run("storage_restart.yml", ceph_common_secure=True, storage_restart_before=time.time())
    assert due.rc == 0, due.tail()
    assert not is_overheard(b"secretly\n" * 20, lambda: write("secretly"))
    writer.goes_on()
    writer.is_whole()
    again = run(site, ceph_common_secure=True)
    assert changed(again) == {}


# The end


def test_another_clusters_uuid_purges_nothing(site: Site, writer: Journal) -> None:
    play = site.run("storage_purge.yml", storage_purge_fsid="11111111-2222-4333-8444-555555555555")
    assert f"belongs to the cluster {ceph('fsid')['fsid']}" in said(play)
    assert changed(play) == {}
    site.heals()
    writer.is_whole()


def test_a_purge_takes_the_cluster_off_and_leaves_other_disks_alone(site: Site, writer: Journal) -> None:
    fsid = ceph("fsid")["fsid"]
    writer.end()
    lab("disk", "st1", "other", "--size", "2")
    ssh("st1", f"sudo mkfs.ext4 -q {BY_ID}other")
    before = ssh("st1", f"sudo sha256sum {BY_ID}other")
    own = "/etc/systemd/system/ceph-osd@.service.d/50-site.conf"
    ssh("st1", f"printf '[Service]\\nNice=1\\n' | sudo tee {own}")
    listed = of_host({**site.devices, "st1": [*site.devices["st1"], f"{BY_ID}other"]})
    given = {"storage_purge_fsid": fsid, "ceph_osd_devices": listed}
    daemons = started()
    announced = site.run("storage_purge.yml", options="--check", **given)
    assert announced.rc == 0, announced.tail()
    assert set(changed(announced)) == set(EVERYBODY)
    assert started() == daemons
    site.heals()
    killed_at(site, "storage_purge.yml", "Stop the daemons, wipe the OSDs", **given)
    done = site.run("storage_purge.yml", **given)
    assert done.rc == 0, done.tail()
    again = site.run("storage_purge.yml", **given)
    assert (again.rc, changed(again)) == (0, {}), again.tail()
    assert ssh("st1", f"sudo sha256sum {BY_ID}other") == before
    for name in STORAGE:
        # ceph-crash and rbdmap are the packages', which stay.
        told = "sudo grep -rl --exclude=rbdmap -e fsid -e key /etc/ceph /var/lib/ceph"
        assert ssh(name, f"pgrep '^ceph-(mon|mgr|osd|mds|fuse)$'; {told}", check=False) == ""
        # Not in the options of a mount: the machine's own root may lie in a directory of that name.
        assert ssh(name, "findmnt -rno TARGET,FSTYPE | grep -c ceph", check=False) == "0\n"
        written = "sudo grep -rl baremetal.gpu.ceph_ /etc/systemd/system; ls /usr/libexec/baremetal-gpu | grep ceph"
        assert ssh(name, written, check=False) == ""
        # systemd has heard of it, too.
        assert "Written by Ansible" not in ssh(name, "systemctl cat ceph-osd@0 ceph-mds@any", check=False)
    left = "ls /etc/systemd/system | grep ceph-.*@; systemctl show -P DropInPaths ceph-osd@0"
    assert ssh("st1", f"{left}; sudo rm {own}").split() == ["ceph-osd@.service.d", own]
    disks = [(name, path.removeprefix(BY_ID)) for name, paths in site.devices.items() for path in paths]
    assert [disk for disk in disks if not is_wiped(*disk)] == []
    assert ssh(CLIENT, "findmnt -rno TARGET,FSTYPE | grep -c ceph; ls --ignore=rbdmap /etc/ceph", check=False) == "0\n"
    site.down()
