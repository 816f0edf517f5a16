# SPDX-License-Identifier: GPL-3.0-or-later
"""Homes on NFS with quotas, by a real kernel: that of the virtual machine.

The machines of the lab share a kernel that has neither NFS nor quotas. The inventory has the virtual machine twice, as
the server and as a host with homes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.lab.machines.state import Lab
from tests.lab.machines.vm import NAME, Vm, lan_address
from tests.site.plays import Play, lab, run_playbook

pytestmark = [pytest.mark.lab, pytest.mark.slow]

DOOR = "door1"
SERVER, NODE = "nfs1", "node1"
DISK = "/dev/disk/by-id/virtio-lab-homes"
EXPORT = "/srv/homes"
HOME = "/home"
UIDS = {"alice": 2001, "bob": 2002}


def run(command: str) -> str:
    return lab("vm", "ssh", "--", command, timeout=900)


def as_user(user: str, command: str) -> str:
    """What a command of a user says, and its exit status behind it."""
    who = f"--reuid {UIDS[user]} --regid {UIDS[user]} --clear-groups"
    return run(f"sudo timeout -s KILL 200 setpriv {who} sh -c {shlex.quote(command)} 2>&1; echo rc=$?")


def users(**more: dict[str, Any]) -> list[dict[str, Any]]:
    sizes = {"alice": "100M", "bob": "20M"}
    return [
        {"name": name, "uid": uid, "gid": uid, "size": sizes[name], **more.get(name, {})} for name, uid in UIDS.items()
    ]


class Site:
    """The virtual machine as a server and a node."""

    def __init__(self, inventory: str) -> None:
        self.inventory = inventory

    def homes(self, options: str = "", **more: dict[str, Any]) -> Play:
        given = {"cluster_homes": "nfs", "nfs_homes_users": users(**more)}
        hosts = f"{SERVER},{NODE}"
        return run_playbook("homes.yml", limit=hosts, extra_vars=given, options=f"-i {self.inventory} {options}")

    def converge(self, **more: dict[str, Any]) -> Play:
        play = self.homes(**more)
        assert play.rc == 0, play.tail()
        return play

    def refused(self, host: str = SERVER, **more: dict[str, Any]) -> str:
        """Why a run was refused, which changed nothing on the host."""
        play = self.homes(**more)
        assert play.rc != 0
        assert not play.changed_tasks.get(host), play.changed_tasks
        (said,) = play.failures[host]
        return said


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    # Whose network the virtual machine joins.
    lab("up", "--machine", f"{DOOR}:trixie:no-gpu")
    lab("vm", "up", "--disk", "homes:1", "--join", timeout=1800)
    variables = {**Vm().inventory()["_meta"]["hostvars"][NAME], "nfs_homes_address": lan_address(Lab())}
    groups = {"nfs_servers": SERVER, "home_hosts": NODE}
    inventory = tmp_path_factory.mktemp("vm") / "inventory.json"
    inventory.write_text(json.dumps({group: {"hosts": {host: variables}} for group, host in groups.items()}))
    yield Site(str(inventory))
    if not os.environ.get("GPUOPS_KEEP_LAB"):
        lab("vm", "down")
        lab("down", "--machine", DOOR)


def test_a_file_system_without_quotas_is_refused_with_what_to_do(site: Site) -> None:
    said = site.refused()
    assert "does not enforce quotas" in said
    assert "quotacheck -cum /" in said
    assert "nfs_homes_quota: false" in said


def test_homes_are_exported_and_mounted(site: Site) -> None:
    fstab = f"{DISK} {EXPORT} ext4 usrquota,nofail 0 2"
    run(f"sudo mke2fs -q -t ext4 -O quota {DISK} && sudo mkdir -p {EXPORT} && echo '{fstab}' | sudo tee -a /etc/fstab")
    run(f"sudo systemctl daemon-reload && sudo mount {EXPORT}")
    site.converge()
    assert as_user("alice", f"echo mine >{HOME}/alice/file && cat {HOME}/alice/file") == "mine\nrc=0\n"
    assert run(f"findmnt --noheadings --output FSTYPE {HOME}/alice").split()[-1] == "nfs4"
    assert run(f"sudo cat {EXPORT}/alice/file") == "mine\n"


def test_a_second_run_changes_nothing(site: Site) -> None:
    assert not site.converge().changed_tasks


def test_nobody_reaches_the_home_of_another_and_root_of_a_node_none(site: Site) -> None:
    assert "Permission denied" in as_user("bob", f"ls {HOME}/alice")
    assert "Permission denied" in run(f"sudo ls {HOME}/alice 2>&1 || true")


def test_a_quota_refuses_more_and_no_smaller_one_is_set(site: Site) -> None:
    assert "quota exceeded" in as_user("bob", f"dd if=/dev/zero of={HOME}/bob/big bs=1M count=30 oflag=sync 2>&1")
    assert "are used" in site.refused(bob={"size": "10M"})
    site.converge(bob={"size": "60M"})
    assert as_user("bob", f"dd if=/dev/zero of={HOME}/bob/big bs=1M count=30 oflag=sync status=none") == "rc=0\n"


def test_while_a_home_is_not_mounted_nobody_writes_below(site: Site) -> None:
    run("sudo systemctl stop home-bob.automount home-bob.mount")
    assert "Permission denied" in as_user("bob", f"echo lost >{HOME}/bob/lost")
    site.converge(bob={"size": "60M"})
    assert as_user("bob", f"ls {HOME}/bob") == "big\nrc=0\n"


def test_an_archived_home_is_closed_and_comes_back(site: Site) -> None:
    site.converge(alice={"state": "archived"})
    assert "rc=0" not in as_user("alice", f"cat {HOME}/alice/file")
    assert run(f"sudo cat {EXPORT}/alice/file") == "mine\n"
    site.converge()
    assert as_user("alice", f"cat {HOME}/alice/file") == "mine\nrc=0\n"


def test_a_removed_home_needs_its_name_twice_and_stays_aside_for_days(site: Site) -> None:
    assert "`confirm: bob`" in site.refused(bob={"state": "absent"})
    site.converge(bob={"state": "absent", "confirm": "bob"})
    assert "rc=0" not in as_user("bob", f"ls {HOME}/bob/big")
    purge = "sudo systemctl start baremetal-gpu-homes-purge.service"
    aside = f"sudo ls {EXPORT}/.removed"
    assert run(f"{purge} && {aside}").startswith("bob.")
    run(f"sudo sh -c 'touch -d \"40 days ago\" {EXPORT}/.removed/bob.*'")
    assert run(f"{purge} && {aside}") == ""


def test_a_home_on_the_nodes_own_disk_is_not_hidden(site: Site) -> None:
    run(f"sudo install -d -o 2002 {HOME}/bob && sudo touch {HOME}/bob/work")
    assert f"{HOME}/bob is there already" in site.refused(NODE)
    run(f"sudo rm -r {HOME}/bob")


def test_after_a_power_cut_the_homes_are_there(site: Site) -> None:
    site.converge()
    lab("vm", "power-cut", timeout=1800)
    assert as_user("alice", f"cat {HOME}/alice/file") == "mine\nrc=0\n"
