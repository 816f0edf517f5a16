# SPDX-License-Identifier: GPL-3.0-or-later
"""OSDs and monitors that leave, leases of noout, and snapshots: what is planned and refused.

What the cluster says was recorded (three-hosts-18.2.7.json) and is changed here where a test says so.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import noout as ceph_noout
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import processes as ceph_processes
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import snapshots as ceph_snapshots
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.mon import removal as ceph_mon_removal
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import leaving as ceph_osd_leaving
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import removal as ceph_osd_removal
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.modules import ceph_osd_state
from tests.unit.plugins.ceph_answers import Answers

GIVEN_UP = {"state": "destroyed", "lost": True, "wait": 0}
FSID = "2f7c1d3e-2a64-4b6f-9d53-6f1f9f0c1a11"


@pytest.fixture
def three():
    """Three hosts with an OSD each, and pools that keep three copies."""
    found = ceph_osd_removal.read(Ceph(Answers("three-hosts-18.2.7")))
    return copy.deepcopy(found)


def with_a_second_osd(found):
    """The recorded cluster with osd.9 beside osd.0 on its host; made up."""
    host = next(node for node in found["nodes"].values() if 0 in node.get("children", ()))
    host["children"].append(9)
    found["nodes"][9] = {**found["nodes"][0], "id": 9, "name": "osd.9"}
    found["osds"][9] = copy.deepcopy(found["osds"][0])
    return found


def words(steps):
    return [" ".join(step.words) for step in steps]


def test_a_host_cannot_lose_its_last_osd_where_each_host_has_a_copy(three):
    with pytest.raises(Refused, match=r"cephfs_data keep 3 copies, each on another host, and there would be 2"):
        ceph_osd_removal.refuse(three, [0], "drained", lost=False)


def test_one_of_two_osds_of_a_host_can_go(three):
    found = with_a_second_osd(three)
    ceph_osd_removal.refuse(found, [9], "drained", lost=False)
    assert words(ceph_osd_removal.draining(found, [9], "drained")) == ["osd out 9", "osd crush reweight osd.9 0"]
    with pytest.raises(Refused):
        ceph_osd_removal.refuse(found, [0, 9], "drained", lost=False)


def test_what_is_half_out_is_judged_as_it_was_before_and_gone_on_with(three):
    found = with_a_second_osd(three)
    found["osds"][9].update({"in": False, "weight": 0})
    ceph_osd_removal.refuse(found, [9], "absent", lost=False)
    assert ceph_osd_removal.draining(found, [9], "absent") == []
    found = with_a_second_osd(three)
    found["osds"][0].update({"in": False})
    with pytest.raises(Refused):
        ceph_osd_removal.refuse(found, [0, 9], "absent", lost=False)


def test_a_device_class_that_has_no_other_place_counts(three):
    found = with_a_second_osd(three)
    found["osds"][9]["device_class"] = "nvme"
    rule = found["rules"][found["pools"][0]["rule"]]
    rule["steps"][0]["item_name"] = "default~hdd"
    # The other OSD of the host is of another class.
    with pytest.raises(Refused, match=found["pools"][0]["name"]):
        ceph_osd_removal.refuse(found, [0], "drained", lost=False)


def test_data_must_fit_below_the_warning_of_full_disks(three):
    found = with_a_second_osd(three)
    for osd in found["osds"].values():
        osd["used"] = osd["kib"] * 7 // 10
    with pytest.raises(Refused, match="would fill"):
        ceph_osd_removal.refuse(found, [9], "drained", lost=False)


def test_an_osd_that_is_replaced_keeps_its_weight(three):
    found = with_a_second_osd(three)
    assert words(ceph_osd_removal.draining(found, [9], "out")) == ["osd out 9"]
    assert words(ceph_osd_removal.ending(found, [9], "destroyed")) == ["osd destroy 9 --yes-i-really-mean-it"]
    found["osds"][9]["destroyed"] = True
    assert ceph_osd_removal.ending(found, [9], "destroyed") == []
    assert words(ceph_osd_removal.ending(found, [9, 77], "absent")) == ["osd purge 9 --yes-i-really-mean-it"]


def test_an_osd_nobody_knows_cannot_be_replaced_and_need_not_be_removed(three):
    with pytest.raises(Refused, match=r"osd\.77 is not in the cluster"):
        ceph_osd_removal.refuse(three, [77], "destroyed", lost=True)
    ceph_osd_removal.refuse(three, [77], "absent", lost=False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"up": True}, "osd.0 runs"),
        ({"pgs": {"down": 3, "active+clean": 5}}, "3 placement groups are down"),
        ({"pgs": {"incomplete": 1}}, "may be their only copy"),
        ({"unfound": 4}, "4 objects are nowhere else"),
        ({}, ""),
    ],
    ids=["it runs", "groups are down", "groups are incomplete", "objects are missing", "nothing"],
)
def test_a_disk_is_given_up_only_where_all_it_had_is_elsewhere(three, change, said):
    found = {**three, "pgs": {"active+undersized+degraded": 161}}
    found["osds"][0]["up"] = change.pop("up", False)
    found.update(change)
    if said:
        with pytest.raises(Refused, match=said):
            ceph_osd_removal.refuse(found, [0], "out", lost=True)
    else:
        ceph_osd_removal.refuse(found, [0], "out", lost=True)


@pytest.mark.parametrize(
    ("states", "passes"),
    [
        (("active+clean", "peering"), True),
        (("remapped+peering", "unknown"), True),
        (("peering", "incomplete"), False),
        (("down+peering",), False),
        (("active+undersized+degraded",), False),
    ],
    ids=["peering", "remapped and unknown", "incomplete beside it", "down", "active"],
)
def test_only_groups_that_come_back_by_themselves_are_waited_for(states, passes):
    assert ceph_osd_removal.is_passing({"pgs": dict.fromkeys(states, 1)}) is passes


def test_a_disk_is_given_up_once_the_groups_have_peered(three, monkeypatch):
    failed = {**three, "osds": {**three["osds"], 0: {**three["osds"][0], "up": False}}}
    peering, peered = ({**failed, "pgs": {state: 161}} for state in ("peering", "active+undersized+degraded"))
    cluster = iter([peering, peering, peered])
    monkeypatch.setattr(ceph_osd_removal, "read", lambda _ceph: next(cluster))
    monkeypatch.setattr(ceph_osd_state, "INTERVAL_S", 0)
    lost = ceph_osd_state.Removal(Ceph(Answers("three-hosts-18.2.7")), {**GIVEN_UP, "osds": [0]})
    assert lost.run(pretend=True)["plan"] == ["keep of osd.0 its number and place alone"]

    cluster = iter([peering, peering])
    monkeypatch.setattr(ceph_osd_state, "PASSING_S", 0)
    with pytest.raises(Refused, match="161 placement groups are peering"):
        lost.run(pretend=True)


def test_the_way_back_is_told(three):
    found = with_a_second_osd(three)
    steps = ceph_osd_removal.draining(found, [9], "drained")
    back = ceph_osd_removal.way_back(steps, ceph_osd_removal.show(found, [9]))
    assert back == f"ceph osd in 9; ceph osd crush reweight osd.9 {found['osds'][9]['weight']:.5g}"


# Monitors


def quorum(names, serving):
    """In the words of 'quorum_status'; made up after the recorded one."""
    return {"monmap": {"mons": [{"name": name} for name in names]}, "quorum_names": serving}


def test_the_recorded_quorum_is_read():
    found = Answers("three-hosts-18.2.7").record["quorum_status"]["answer"]
    assert ceph_mon_removal.known(found) == ["st1", "st2", "st3"]
    with pytest.raises(Refused, match="2 monitors would be left"):
        ceph_mon_removal.plan(found, ["st3"], fewer=False)
    assert words(ceph_mon_removal.plan(found, ["st3"], fewer=True)) == ["mon remove st3"]
    assert ceph_mon_removal.plan(found, ["st9"], fewer=False) == []


@pytest.mark.parametrize(
    ("serving", "leaving", "fine"),
    [
        ("abcd", "d", True),
        ("abc", "d", True),
        ("abc", "a", True),
        ("ab", "a", False),
        ("abcd", "abcd", False),
    ],
)
def test_the_monitors_that_are_left_must_have_a_majority(serving, leaving, fine):
    found = quorum(list("abcd"), list(serving))
    if fine:
        assert ceph_mon_removal.plan(found, list(leaving), fewer=True)
    else:
        with pytest.raises(Refused, match="not a majority"):
            ceph_mon_removal.plan(found, list(leaving), fewer=True)


# Leases


class Systemd:
    """Takes down what it is asked, and says that every unit is in one state."""

    def __init__(self, says=""):
        self.asked = []
        self.says = says

    def __call__(self, argv, stdin, timeout):
        self.asked.append(" ".join(argv))
        return 0, self.says, ""


def test_a_lease_remembers_its_osds_and_leaves_nothing(tmp_path):
    systemd = Systemd()
    lease = ceph_noout.Lease(systemd, str(tmp_path))
    assert lease.held() == []
    lease.begin([3, 14], 600)
    assert lease.held() == [3, 14]
    assert "OnActiveSec=600" in Path(lease.timer).read_text()
    assert systemd.asked[-1] == "systemctl restart baremetal-gpu-ceph-noout.timer"
    lease.end()
    assert list(tmp_path.iterdir()) == []


def test_noout_is_set_and_taken_off_only_where_it_differs(three):
    assert words(ceph_noout.setting([1], [1, 2])) == ["osd set-group noout osd.2"]
    assert ceph_noout.setting([1, 2], [1, 2]) == []
    assert words(ceph_noout.taking_off([1, 2], [2, 3])) == ["osd unset-group noout osd.2"]
    assert ceph_noout.read(Ceph(Answers("three-hosts-18.2.7"))) == []
    assert ceph_noout.flagged({"osds": [{"osd": 4, "state": ["exists", "up", "noout"]}]}) == [4]


# What is left on hosts


def leaving(tmp_path, known=None):
    records = tmp_path / "records"
    records.mkdir(exist_ok=True)
    row = {"fsid": FSID, "id": 7, "osd_uuid": "a", "device": "/dev/disk/by-id/x", "method": "raw", "cluster": "ceph"}
    (records / "ceph-7.json").write_text(json.dumps(row))
    (records / "ceph-8.json").write_text(json.dumps({**row, "id": 8, "fsid": "another"}))
    systemd = Systemd("active\n")
    return ceph_osd_leaving.Leaving(FSID, [7, 8], known or {}, run=systemd, records=str(records)), systemd


def test_osds_of_this_cluster_alone_are_stopped_and_a_look_stops_none(tmp_path):
    going, systemd = leaving(tmp_path)
    assert [row["id"] for row in going.found()] == [7]
    assert ceph_osd_leaving.work(going, "stopped", [], [], pretend=True) == ["stop osd.7"]
    assert not [line for line in systemd.asked if "disable" in line]
    ceph_osd_leaving.work(going, "stopped", [], [], pretend=False)
    assert "systemctl disable --now ceph-osd@7.service" in systemd.asked


def test_a_record_that_another_run_takes_away_meanwhile_is_passed_over(tmp_path):
    going, _systemd = leaving(tmp_path)
    # It is in the listing, and opening it ends as with a file that has just gone.
    (tmp_path / "records" / "ceph-6.json").symlink_to("gone")
    assert [row["id"] for row in going.found()] == [7]


def test_an_osd_that_the_inventory_still_wants_is_refused(tmp_path):
    going, _systemd = leaving(tmp_path)
    with pytest.raises(Refused, match="take it out of the list first"):
        ceph_osd_leaving.work(going, "absent", ["/dev/disk/by-id/x"], [], pretend=True)


def test_an_osd_that_the_cluster_has_stays(tmp_path):
    going, _systemd = leaving(tmp_path, known={7: "a"})
    assert ceph_osd_leaving.work(going, "absent", [], [], pretend=False) == []
    assert (tmp_path / "records" / "ceph-7.json").exists()


# Restarts


def test_daemons_are_due_by_what_they_run_or_by_when_they_began():
    rows = [
        {"kind": "osd", "id": "1", "started": 100.0, "outdated": False},
        {"kind": "osd", "id": "2", "started": 200.0, "outdated": True},
        {"kind": "mon", "id": "a", "started": 100.0, "outdated": True},
    ]
    assert [row["id"] for row in ceph_processes.due(rows, "osd", None)] == ["2"]
    assert [row["id"] for row in ceph_processes.due(rows, "osd", 150)] == ["1"]


def process(proc, number, unit, comm, exe, maps):
    directory = proc / str(number)
    directory.mkdir(parents=True)
    (directory / "cgroup").write_text(f"1:name=systemd:/system.slice/system-ceph.slice/{unit}\n0::/\n")
    (directory / "comm").write_text(f"{comm}\n")
    (directory / "stat").write_text(f"{number} ({comm}) S " + " ".join(["0"] * 18) + " 12300 0 0\n")
    (directory / "maps").write_text(maps)
    (directory / "exe").symlink_to(exe)


def test_daemons_are_found_in_proc_with_what_was_exchanged_under_them(tmp_path):
    (tmp_path / "stat").write_text("cpu 0\nbtime 1000\n")
    gone = "7f00-7f01 r-xp 0 fe:00 12 /usr/lib/ceph/libceph-common.so.2 (deleted)\n"
    shared = "7f00-7f01 rw-s 0 00:01 12 /dev/zero (deleted)\n"
    process(tmp_path, 11, "ceph-osd@3.service", "ceph-osd", "/usr/bin/ceph-osd", shared)
    process(tmp_path, 12, "ceph-mon@a.service", "ceph-mon", "/usr/bin/ceph-mon", gone)
    process(tmp_path, 13, "ceph-mgr@a.service", "ceph-mgr", "/usr/bin/ceph-mgr (deleted)", "")
    process(tmp_path, 14, "ceph-mgr@a.service", "sh", "/usr/bin/dash", "")
    process(tmp_path, 15, "ssh.service", "sshd", "/usr/sbin/sshd (deleted)", "")
    rows = ceph_processes.daemons(str(tmp_path))
    assert [(row["unit"], row["outdated"]) for row in rows] == [
        ("ceph-mon@a", True),
        ("ceph-mgr@a", True),
        ("ceph-osd@3", False),
    ]
    assert all(row["started"] > 1000 for row in rows)


def test_a_daemon_that_started_before_its_settings_were_changed_is_due(tmp_path):
    (tmp_path / "stat").write_text("cpu 0\nbtime 1000\n")
    process(tmp_path, 11, "ceph-osd@3.service", "ceph-osd", "/usr/bin/ceph-osd", "")
    process(tmp_path, 12, "ceph-mon@a.service", "ceph-mon", "/usr/bin/ceph-mon", "")
    settings = tmp_path / "settings"
    settings.mkdir()

    def due(changed, **more):
        (settings / "osd.conf").touch()
        os.utime(settings / "osd.conf", (changed, changed))
        rows = ceph_processes.daemons(str(tmp_path), str(settings))
        return [row["unit"] for row in ceph_processes.due(rows, None, None, **more)]

    # It started at 1123; the time of boot is rounded down to a second.
    assert due(1500) == ["ceph-osd@3"]
    assert due(1123.5) == []
    assert due(1100) == []
    assert due(1500, because=["program"]) == []
    # Announced by check mode.
    assert due(1100, changing=["mon"]) == ["ceph-mon@a"]


# Snapshots


def test_schedules_and_what_is_kept_are_compared():
    nothing = {"schedules": [], "retention": {}}
    steps = ceph_snapshots.plan(nothing, "cephfs", "/volumes/homes", ["1h"], {"h": 24})
    assert words(steps) == [
        "fs snap-schedule add /volumes/homes 1h --fs cephfs",
        "fs snap-schedule retention add /volumes/homes h 24 --fs cephfs",
    ]
    there = {"schedules": ["1h"], "retention": {"h": 24}}
    assert ceph_snapshots.plan(there, "cephfs", "/volumes/homes", ["1h"], {"h": 24}) == []
    assert words(ceph_snapshots.plan(there, "cephfs", "/volumes/homes", ["1h"], {"h": 12})) == [
        "fs snap-schedule retention remove /volumes/homes h 24 --fs cephfs",
        "fs snap-schedule retention add /volumes/homes h 12 --fs cephfs",
    ]
    assert words(ceph_snapshots.plan(there, "cephfs", "/volumes/homes", [], {})) == [
        "fs snap-schedule remove /volumes/homes 1h --fs cephfs"
    ]


@pytest.mark.parametrize(
    ("schedules", "retention", "said"),
    [(["daily"], {"d": 1}, "not a period"), (["1d"], {}, "are all kept"), (["1d"], {"x": 1}, "not a unit")],
)
def test_schedules_that_make_no_sense_are_refused(schedules, retention, said):
    with pytest.raises(Refused, match=said):
        ceph_snapshots.check(schedules, retention)
