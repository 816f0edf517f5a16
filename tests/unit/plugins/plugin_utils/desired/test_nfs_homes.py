# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes without Ceph: what a server exports, what hosts mount, and which sites are refused."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.module_utils.homes import mounts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import nfs_homes

PARAMS: dict[str, Any] = {
    "kind": "nfs",
    "users": [
        {"name": "alice", "uid": 2001, "gid": 2001},
        {"name": "bob", "uid": 2002, "gid": 2002, "size": "1T"},
        {"name": "carol", "state": "archived"},
    ],
    "groups": [],
    "size": "50G",
    "quota": True,
    "root": "/home",
    "export": "/srv/homes",
    "server": "",
    "clients": [],
    "options": "vers=4.2,hard",
    "only_v4": True,
    "removed_days": 30,
}
HOST = {"automount": True, "nfs_client": True, "nfs_server": True, "written": []}
FACTS: dict[str, Any] = {"os_family": "Debian", "group": [], "passwd": [], "mount": "/srv", "host": HOST}
PEERS: dict[str, Any] = {
    "host": "gpu1",
    "servers": ["head1"],
    "clients": [],
    "address": "10.0.0.1",
    "cephfs_root": "",
}
CLIENTS = [["head1", "10.0.0.1", ""], ["gpu1", "10.0.0.11", ""], ["gpu2", "192.0.2.12", "10.0.0.12"], ["gpu3", "", ""]]
ON_SERVER = {**PEERS, "host": "head1", "clients": CLIENTS}


def plan(params: Any = (), facts: Any = (), peers: Any = ()) -> dict[str, Any]:
    return desired({**PARAMS, **dict(params)}, "nfs_homes", {**FACTS, **dict(facts)}, {**PEERS, **dict(peers)})


def files(document: dict[str, Any]) -> dict[str, Any]:
    return {row["path"]: row.get("content", row.get("state")) for row in document["files"]}


def codes(*given: Any) -> list[str]:
    made = plan(*given)
    assert made["desired"] == {} or not made["problems"]
    return [problem["code"] for problem in made["problems"]]


def test_a_client_mounts_each_home_that_is_open_at_the_first_look() -> None:
    made = plan()
    assert made["problems"] == []
    document = made["desired"]
    assert document["packages"] == [{"name": "nfs-common"}]
    assert [(unit["name"], unit["state"]) for unit in document["units"]] == [
        ("home-alice.automount", "started"),
        ("home-bob.automount", "started"),
    ]
    unit = files(document)["/etc/systemd/system/home-alice.mount"].splitlines()
    assert "What=10.0.0.1:/srv/homes/alice" in unit
    assert "Options=vers=4.2,hard,nosuid,nodev,_netdev" in unit
    assert "DirectoryMode=0755" in unit
    assert unit[0] == mounts.MARK
    assert not any("carol" in path for path in files(document))
    assert made["server"] == {}
    assert made["root"] == ""
    assert made["paths"] == ["/home/alice", "/home/bob"]
    assert made["checked"][1] == {"path": "/home/bob", "uid": 2002, "gid": 2002, "kinds": ["nfs4", "nfs"]}


def test_a_host_without_automounts_mounts_at_the_boot() -> None:
    document = plan(facts={"host": {**HOST, "automount": False}})["desired"]
    assert document["units"][0]["name"] == "home-alice.mount"
    assert "WantedBy=remote-fs.target" in files(document)["/etc/systemd/system/home-alice.mount"]


def test_what_is_no_longer_listed_goes_the_automount_first() -> None:
    written = [f"/etc/systemd/system/home-dave.{kind}" for kind in ("automount", "mount")]
    document = plan({"users": []}, {"host": {**HOST, "written": written}})["desired"]
    assert document["units"] == [
        {"name": f"home-dave.{kind}", "enabled": False, "state": "stopped"} for kind in ("automount", "mount")
    ]
    assert files(document) == dict.fromkeys(written, "absent")


def test_a_server_exports_to_the_sites_hosts_alone() -> None:
    made = plan({"clients": ["10.1.0.0/24", "fd00::7"]}, peers=ON_SERVER)
    assert made["problems"] == []
    assert made["root"] == "/srv/homes"
    document = made["server"]
    (line,) = [line for line in files(document)[nfs_homes.EXPORTS].splitlines() if line.startswith("/")]
    path, *clients = line.split()
    rights = "(rw,sync,root_squash,sec=sys,no_subtree_check,mountpoint=/srv)"
    assert path == "/srv/homes"
    assert clients == [f"{host}{rights}" for host in ("10.0.0.11", "10.0.0.12", "gpu3", "10.1.0.0/24", "[fd00::7]")]
    assert "vers3=n" in files(document)[nfs_homes.CONF]
    assert [row["name"] for row in document["packages"]] == ["nfs-kernel-server", "quota"]
    assert {"path": "/srv/homes", "state": "directory", "mode": "0711", "owner": "root", "group": "root"} in document[
        "files"
    ]


def test_a_server_has_its_homes_where_others_mount_them() -> None:
    document = plan(peers=ON_SERVER)["desired"]
    unit = files(document)["/etc/systemd/system/home-alice.mount"]
    assert "What=/srv/homes/alice\n" in unit
    assert "Options=bind,nosuid,nodev\n" in unit
    assert "RequiresMountsFor=/srv/homes/alice\n" in unit
    assert document["units"][0]["name"] == "home-alice.mount"
    assert document["packages"] == []


def test_a_root_file_system_is_no_mount_to_wait_for() -> None:
    made = plan(facts={"mount": "/"}, peers=ON_SERVER)["server"]
    assert "mountpoint" not in files(made)[nfs_homes.EXPORTS]
    assert "AssertPathIsMountPoint" not in files(made)["/etc/systemd/system/baremetal-gpu-homes-purge.service"]


def test_removed_homes_are_deleted_after_the_days_and_nothing_else() -> None:
    unit = files(plan({"removed_days": 2}, peers=ON_SERVER)["server"])[
        "/etc/systemd/system/baremetal-gpu-homes-purge.service"
    ]
    assert "find /srv/homes/.removed -mindepth 1 -maxdepth 1 -type d -mmin +2880 -exec rm" in unit
    assert "AssertPathIsMountPoint=/srv\n" in unit


def test_local_homes_are_kept_on_every_host() -> None:
    made = plan({"kind": "local"}, peers={"servers": [], "address": ""})
    assert made["problems"] == []
    assert made["root"] == "/home"
    assert made["paths"] == []
    assert made["desired"] == {"packages": [], "files": [], "units": []}
    assert [row["name"] for row in made["server"]["packages"]] == ["quota"]
    assert nfs_homes.EXPORTS not in files(made["server"])
    assert plan({"kind": "local", "quota": False}, peers={"servers": []})["server"]["packages"] == []


def test_a_filer_is_mounted_and_keeps_what_is_removed() -> None:
    filer = {"server": "filer.example.org", "export": "/vol/homes"}
    unit = files(plan(filer, peers={"servers": []})["desired"])["/etc/systemd/system/home-alice.mount"]
    assert "What=filer.example.org:/vol/homes/alice\n" in unit
    gone = [{"name": "dave", "state": "absent", "confirm": "dave"}]
    assert codes({**filer, "users": gone}, (), {"servers": []}) == ["not_on_a_filer"]


@pytest.mark.parametrize(
    ("params", "facts", "peers", "code"),
    [
        ({}, {}, {"servers": []}, "not_one_server"),
        ({}, {}, {"servers": ["a", "b"]}, "not_one_server"),
        ({"server": "filer"}, {}, {}, "not_one_server"),
        ({}, {}, {"cephfs_root": "/home"}, "two_kinds_of_homes"),
        ({"kind": "local"}, {}, {}, "two_kinds_of_homes"),
        ({"kind": "cephfs"}, {}, {}, "two_kinds_of_homes"),
        ({"kind": "local", "server": "filer"}, {}, {"servers": []}, "two_kinds_of_homes"),
        ({"export": "/home/homes"}, {}, {}, "wrong_setting"),
        ({"export": "/srv"}, {}, {}, "wrong_setting"),
        ({"export": "/srv/../etc"}, {}, {}, "wrong_setting"),
        ({"root": "/home of all"}, {}, {}, "wrong_setting"),
        ({"options": "hard soft"}, {}, {}, "wrong_setting"),
        ({"options": "hard\nWhat=/etc"}, {}, {}, "wrong_setting"),
        ({"removed_days": 0}, {}, {}, "wrong_setting"),
        ({"clients": ["*(rw,no_root_squash)"]}, {}, {}, "bad_address"),
        ({"groups": ["staff"]}, {}, {}, "unknown_group"),
        ({"users": [{"name": "dave"}]}, {}, {}, "unknown_user"),
        ({}, {"host": {**HOST, "nfs_client": False}}, {}, "no_nfs_client"),
        ({}, {"host": {**HOST, "nfs_server": False}}, ON_SERVER, "no_nfs_server"),
    ],
)
def test_what_does_not_go_together_is_refused(params: Any, facts: Any, peers: Any, code: str) -> None:
    assert codes(params, facts, peers) == [code]


def test_homes_of_cephfs_elsewhere_are_no_hindrance() -> None:
    """On the way from one to the other a host has both."""
    assert codes({}, {}, {"cephfs_root": "/mnt/cephfs-homes"}) == []
