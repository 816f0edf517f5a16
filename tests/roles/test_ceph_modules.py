# SPDX-License-Identifier: GPL-3.0-or-later
"""The Ceph modules against real daemons: Ceph 16.2 on Debian 12 and 18.2 on Debian 13.

Each step is announced in check mode, done, and done again, which must change nothing. What the cluster says afterwards
is asked of the cluster itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.roles.ceph_cluster import QUESTIONS, both_ways, ceph, run_module, start
from tests.roles.conftest import DEBIAN_12, DEBIAN_13, Role, lab, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FS = "homefs"
HOMES = "/home"
USERS = {"alice": 2001, "bob": 2002}
MIB = 1 << 20


@pytest.fixture(scope="module", params=[DEBIAN_12, DEBIAN_13])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    lab("reset", request.param)
    start(request.param)
    for name, uid in USERS.items():
        ssh(request.param, f"sudo useradd --uid {uid} --no-create-home {name}")
    yield Cluster(request.param)
    lab("reset", request.param)


class Cluster:
    """A cluster of one machine."""

    def __init__(self, machine: str) -> None:
        self.machine = machine

    def ask(self, *words: str) -> Any:
        return ceph(self.machine, *words)

    def run(self, module: str, **options: Any) -> dict[str, Any]:
        result = run_module(self.machine, module, options)
        assert not result.get("failed"), result["msg"]
        return result

    def refused(self, module: str, **options: Any) -> str:
        """The reason for which a module refuses, in check mode as for real."""
        for check in (True, False):
            result = run_module(self.machine, module, options, check=check)
            assert result.get("failed"), result
        return str(result["msg"])

    def settles(self, module: str, **options: Any) -> list[str]:
        """The plan that check mode announced, and a run then carried out; a second run does nothing."""
        announced = run_module(self.machine, module, options, check=True)
        assert announced.get("changed"), announced
        done = self.run(module, **options)
        assert done["plan"] == announced["plan"]
        assert done["diff"] == announced["diff"]
        again = self.run(module, **options)
        assert (again["changed"], again["plan"]) == (False, [])
        return list(done["plan"])

    def sh(self, command: str) -> str:
        """What a command says, and its exit status behind it."""
        return ssh(self.machine, f"{{ timeout -s KILL 90 {command}; }} 2>&1; echo rc=$?")


def test_the_library_answers_what_the_program_answers(cluster: Cluster) -> None:
    asked = [({}, words) for words in QUESTIONS]
    for _attempt in range(10):
        answers = dict(zip(QUESTIONS, both_ways(cluster.machine, asked), strict=True))
        differing = {question: ways for question, ways in answers.items() if ways[0] != ways[1]}
        if not differing:
            return
        # A cluster that has just begun makes a pool of its own, and may do so between the two.
        time.sleep(5)
    assert differing == {}


def test_configuration(cluster: Cluster) -> None:
    cluster.settles("ceph_config", settings={"osd/class:ssd": {"osd_memory_target": "5G"}})
    dump = {(e["section"], e["mask"], e["name"]): e["value"] for e in cluster.ask("config dump")}
    assert dump["osd", "class:ssd", "osd_memory_target"] == str(5 << 30)
    assert not cluster.run("ceph_config", settings={"osd/class:ssd": {"osd_memory_target": 5 << 30}})["changed"]
    found = cluster.run("ceph_info", gather_subset=["settings"])["settings"]["osd/class:ssd"]
    assert found == {"osd_memory_target": str(5 << 30)}
    cluster.settles("ceph_config", settings={"osd/class:ssd": {"osd_memory_target": None}})
    assert "no option" in cluster.refused("ceph_config", settings={"osd": {"osd_memory_targte": "5G"}})


def test_key(cluster: Cluster) -> None:
    path = "/etc/ceph/ceph.client.probe.keyring"
    options = {"name": "client.probe", "caps": {"mon": "allow r"}, "path": path}
    cluster.settles("ceph_key", **options)
    entry = cluster.ask("auth get client.probe")[0]
    assert entry["caps"] == {"mon": "allow r"}
    assert cluster.sh(f"sudo stat -c %a:%U {path}").startswith("600:root")
    assert entry["key"] in cluster.sh(f"sudo cat {path}")
    options["caps"] = {"mon": "allow r", "osd": "allow r pool=x"}
    assert cluster.settles("ceph_key", **options) == ["change what client.probe may do"]
    after = cluster.ask("auth get client.probe")[0]
    assert after["caps"] == options["caps"]
    assert after["key"] == entry["key"]
    ssh(cluster.machine, f"sudo chmod 644 {path}")
    assert cluster.settles("ceph_key", **options) == [f"set the mode of {path} from 0644 to 0600"]
    assert entry["key"] not in json.dumps(cluster.run("ceph_key", **options))
    assert cluster.run("ceph_info", gather_subset=["keys"])["caps"]["client.probe"] == options["caps"]
    cluster.settles("ceph_key", name="client.probe", state="absent", path=path)
    assert cluster.sh(f"sudo test -e {path}") == "rc=1\n"


def test_key_with_a_given_secret(cluster: Cluster) -> None:
    secret = ssh(cluster.machine, "ceph-authtool --gen-print-key").strip()
    cluster.settles("ceph_key", name="client.given", caps={"mon": "allow r"}, secret=secret)
    assert cluster.ask("auth get client.given")[0]["key"] == secret
    other = ssh(cluster.machine, "ceph-authtool --gen-print-key").strip()
    assert "lose access" in cluster.refused("ceph_key", name="client.given", caps={"mon": "allow r"}, secret=other)
    assert cluster.ask("auth get client.given")[0]["key"] == secret


def test_pool(cluster: Cluster) -> None:
    cluster.settles("ceph_pool", name="scratch", size=1, min_size=1, application="rbd", quota_bytes="10M")
    cluster.settles("ceph_pool", name="scratch", size=2, min_size=1, quota_bytes="0", autoscale="off")
    pool = cluster.run("ceph_info", gather_subset=["pools"])["pools"]["scratch"]
    assert (pool["size"], pool["quota_bytes"], pool["autoscale"], pool["application"]) == (2, 0, "off", ["rbd"])
    assert "confirm: scratch" in cluster.refused("ceph_pool", name="scratch", state="absent")
    gone = {"name": "scratch", "state": "absent", "confirm": "scratch"}
    assert "mon_allow_pool_delete" in cluster.refused("ceph_pool", **gone)
    cluster.run("ceph_config", settings={"mon": {"mon_allow_pool_delete": True}})
    cluster.settles("ceph_pool", **gone)
    cluster.run("ceph_config", settings={"mon": {"mon_allow_pool_delete": None}})
    assert "scratch" not in cluster.ask("osd pool ls")


def test_manager_module(cluster: Cluster) -> None:
    first = cluster.run("ceph_mgr_module", names=["iostat"], state="disabled")
    assert cluster.run("ceph_mgr_module", names=["iostat"], state="disabled")["changed"] is False
    cluster.settles("ceph_mgr_module", names=["iostat"])
    assert first["plan"] in ([], ["switch the module iostat off"])
    assert "no module nothing" in cluster.refused("ceph_mgr_module", names=["nothing"])


def test_file_system(cluster: Cluster) -> None:
    options = {"name": FS, "metadata_pool": "home_meta", "data_pools": ["home_data"]}
    assert run_module(cluster.machine, "ceph_fs", options)["msg"].count("make it with ceph_pool")
    cluster.settles("ceph_pool", name="home_meta", size=1, min_size=1)
    cluster.settles("ceph_pool", name="home_data", size=1, min_size=1, bulk=True)
    mds = "ceph-mds@$(hostname -s)"
    ssh(cluster.machine, f"sudo systemctl stop {mds}; sudo ceph mds fail $(hostname -s) || true")
    message = run_module(cluster.machine, "ceph_fs", options)["msg"]
    assert "no MDS stands by" in message
    ssh(cluster.machine, f"sudo systemctl start {mds}")
    ssh(cluster.machine, "for i in $(seq 60); do sudo ceph mds stat | grep -q standby && break; sleep 1; done")
    cluster.settles("ceph_fs", **options)
    cluster.settles("ceph_fs", name=FS, allow_standby_replay=True)
    assert cluster.run("ceph_info", gather_subset=["filesystems"])["filesystems"][FS]["data_pools"] == ["home_data"]
    assert f"confirm: {FS}" in cluster.refused("ceph_fs", name=FS, state="absent")
    ssh(cluster.machine, "for i in $(seq 60); do sudo ceph mds stat | grep -q up:active && break; sleep 1; done")


def test_subvolume(cluster: Cluster) -> None:
    place = {"filesystem": FS, "group": "projects", "name": "vision"}
    cluster.settles("ceph_subvolume", **place, size="50M", uid=2001, gid=2001, mode="2770", namespace_isolated=True)
    cluster.settles("ceph_subvolume", **place, size="80M", gid=2002, snapshot="monday")
    found = cluster.run("ceph_info", filesystem=FS, group="projects")["subvolumes"]["vision"]
    assert (found["size"], found["uid"], found["gid"], found["mode"]) == (80 * MIB, 2001, 2002, "2770")
    assert found["snapshots"] == ["monday"]
    assert "settled when it is made" in cluster.refused("ceph_subvolume", **place, namespace_isolated=False)
    assert "confirm: vision" in cluster.refused("ceph_subvolume", **place, state="absent")
    cluster.settles("ceph_subvolume", **place, state="absent", confirm="vision")
    assert cluster.run("ceph_info", filesystem=FS, group="projects")["subvolumes"] == {}


def test_homes_are_promised_only_what_is_there(cluster: Cluster) -> None:
    homes = [{"name": "alice", "uid": 2001, "gid": 2001, "size": "5G"}]
    assert "add up to 5 GiB" in cluster.refused("ceph_homes", filesystem=FS, homes=homes)
    assert cluster.run("ceph_info", filesystem=FS, group="homes")["subvolumes"] == {}


@pytest.fixture(scope="module")
def homes(cluster: Cluster) -> dict[str, Any]:
    """Variables of homes for two users, and the homes made."""
    address = ssh(cluster.machine, "hostname -I").split()[0]
    variables = {
        "cephfs_homes_admin_host": cluster.machine,
        "cephfs_homes_filesystem": FS,
        "cephfs_client_monitors": [address],
        "cephfs_homes_users": [{"name": "alice", "size": "100M"}, {"name": "bob", "size": "40M"}],
        "cephfs_homes_shares": [{"name": "datasets", "path": "/datasets", "size": "20M"}],
    }
    role = Role("cephfs_homes", (cluster.machine,))
    role.converge(variables)
    role.is_converged(variables)
    return variables


def test_users_write_their_own_homes_and_read_the_data(cluster: Cluster, homes: dict[str, Any]) -> None:
    assert cluster.sh(f"sudo -u alice sh -c 'echo hello > {HOMES}/alice/x && cat {HOMES}/alice/x'") == "hello\nrc=0\n"
    assert "Permission denied" in cluster.sh("sudo -u bob ls /home/alice")
    assert "Read-only file system" in cluster.sh("sudo touch /datasets/x")


def test_another_users_home_and_objects_are_out_of_reach(cluster: Cluster, homes: dict[str, Any]) -> None:
    key = "--id home.alice --keyring /etc/ceph/cephfs/homes/client.home.alice.keyring"
    (bob,) = cluster.ask("fs subvolume info", FS, "bob", "--group_name homes")["path"].split()
    denied = "Operation not permitted"
    for path in (bob, "/volumes", "/"):
        said = cluster.sh(f"sudo ceph-fuse {key} --client_mountpoint={path} --client_fs={FS} /mnt")
        assert denied in said
        assert "rc=0" not in said
    for where in ("-p home_data", "-p home_data --namespace fsvolumens_bob", "-p home_meta"):
        assert denied in cluster.sh(f"sudo rados {key} {where} ls")
    # Its own it can list, so what is refused above is not the key as such.
    assert cluster.sh(f"sudo rados {key} -p home_data --namespace fsvolumens_alice ls").endswith("rc=0\n")


def test_a_full_home_stops_its_user_alone(cluster: Cluster, homes: dict[str, Any]) -> None:
    assert "quota exceeded" in cluster.sh(f"sudo -u bob dd if=/dev/zero of={HOMES}/bob/fill bs=1M count=80 oflag=sync")
    assert cluster.sh(f"sudo -u alice dd if=/dev/zero of={HOMES}/alice/y bs=1M count=5 conv=fsync").endswith("rc=0\n")
    assert cluster.sh(f"sudo -u bob rm {HOMES}/bob/fill") == "rc=0\n"


def test_resize_archive_return_and_removal(cluster: Cluster, homes: dict[str, Any]) -> None:
    role = Role("cephfs_homes", (cluster.machine,))

    def users(**bob: Any) -> dict[str, Any]:
        return {**homes, "cephfs_homes_users": [{"name": "alice", "size": "100M"}, {"name": "bob", **bob}]}

    # The MDS learns some seconds late that the home is no longer full.
    kept = f"{HOMES}/bob/kept"
    assert cluster.sh(f"sudo -u bob sh -c 'until echo kept > {kept} && sync {kept}; do sleep 1; done'").endswith(
        "rc=0\n"
    )
    assert cluster.sh(f"sudo -u bob cat {kept}") == "kept\nrc=0\n"
    role.converge(users(size="60M"))
    assert cluster.ask("fs subvolume info", FS, "bob", "--group_name homes")["bytes_quota"] == 60 * MIB
    role.converge(users(state="archived"))
    assert "rc=0" not in cluster.sh("sudo test -e /etc/ceph/cephfs/homes/client.home.bob.keyring")
    assert "kept" not in cluster.sh("sudo ls /home/bob")
    assert cluster.sh(f"sudo -u alice cat {HOMES}/alice/x") == "hello\nrc=0\n"
    role.converge(users(size="60M"))
    assert cluster.sh(f"sudo -u bob cat {HOMES}/bob/kept") == "kept\nrc=0\n"
    unnamed = role.run(users(state="absent"))
    assert unnamed.rc != 0
    assert "confirm: bob" in json.dumps(unnamed.failures)
    assert cluster.sh(f"sudo -u bob cat {HOMES}/bob/kept") == "kept\nrc=0\n"
    role.converge(users(state="absent", confirm="bob"))
    role.is_converged(users(state="absent", confirm="bob"))
    # Kept aside, out of reach, and brought back.
    (since,) = cluster.ask("fs subvolume snapshot ls", FS, "bob", "--group_name homes")
    assert since["name"].startswith("removed-")
    assert "kept" not in cluster.sh("sudo ls /home/bob")
    role.converge(users(size="60M"))
    assert cluster.sh(f"sudo -u bob cat {HOMES}/bob/kept") == "kept\nrc=0\n"
    role.converge(users(state="absent", confirm="bob"))
    # As if it had been removed long ago.
    for snapshot in cluster.ask("fs subvolume snapshot ls", FS, "bob", "--group_name homes"):
        cluster.sh(f"sudo ceph fs subvolume snapshot rm {FS} bob {snapshot['name']} --group_name homes")
    cluster.sh(f"sudo ceph fs subvolume snapshot create {FS} bob removed-1 --group_name homes")
    role.converge(users(state="absent", confirm="bob"))
    role.is_converged(users(state="absent", confirm="bob"))
    assert {entry["name"] for entry in cluster.ask("fs subvolume ls", FS, "--group_name homes")} == {"alice"}


def test_of_the_clients_proof_nothing_is_left(cluster: Cluster, homes: dict[str, Any]) -> None:
    assert "baremetal-gpu-scratch" not in json.dumps(cluster.ask("fs subvolume ls", FS))
    assert "baremetal-gpu-scratch" not in json.dumps(cluster.ask("auth ls"))
    for path in ("/run/baremetal-gpu-cephfs-scratch", "/var/lib/baremetal-gpu/ceph/scratch"):
        assert cluster.sh(f"sudo test -e {path}") == "rc=1\n"
