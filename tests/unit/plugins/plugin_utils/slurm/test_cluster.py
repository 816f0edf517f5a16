# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm cluster from the facts of its hosts: what goes into its configuration, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_common, slurm_controller, slurm_node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import cluster, conf

PARAMS = {
    "cluster_name": "slurm",
    "controllers_group": "slurm_controllers",
    "databases_group": "slurm_databases",
    "nodes_group": "slurm_nodes",
    "logins_group": "slurm_logins",
    "rests_group": "slurm_rests",
    "partitions": [{"name": "all", "groups": ["slurm_nodes"], "default": True}],
    "options": {},
    "switches": [],
    "prolog": True,
    "health_check": False,
    "containers": False,
    "enforce": [],
    "state_directory": "/var/lib/slurm/slurmctld",
}


# Of the site of these tests, to the byte.
SLURM_CONF = (Path(__file__).parent / "slurm.conf").read_text()


def look(name: str, **more: Any) -> dict[str, Any]:
    """A host with two sockets of two cores with two threads."""
    return {
        "hostname": name,
        "processors": {
            "sockets": 2,
            "cores_per_socket": 2,
            "threads_per_core": 2,
            "cores": [[0, 4], [1, 5], [2, 6], [3, 7]],
        },
        "memory_mib": 66048,
        "installed": "",
        "candidate": "24.11.5-4+deb13u1",
        "distribution": "debian 13",
        "users": {"slurm": None, "munge": None},
        "clock_ahead_s": 0.4,
        "node_lines": {},
        **more,
    }


def host(name: str, address: str, gpu: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "address": address,
        "look": look(name, **more),
        "gpu": gpu or {},
        "memory_reserve_mib": 2048,
        "features": [],
    }


def device(minor: int, cpus: str, **more: Any) -> dict[str, Any]:
    return {
        "index": minor,
        "minor": minor,
        "slug": "a100-sxm4-40gb",
        "architecture": "ampere",
        "memory_mib": 40960,
        "nvlinks": 12,
        "cpus": cpus,
        "mig": {"enabled": False},
        **more,
    }


TWO_GPUS = {
    "devices": [device(0, "0-1,4-5"), device(1, "2-3,6-7")],
    "topology": {"scores": [[None, 1210], [1210, None]], "kinds": {"1210": {"nvlinks": 12, "pcie": "sys"}}},
}


def site(**changes: Any) -> tuple[dict[str, list[str]], dict[str, Any]]:
    groups = {"slurm_controllers": ["ctl"], "slurm_databases": ["ctl"], "slurm_nodes": ["n1", "n2"]}
    hosts = {"ctl": host("ctl", "10.0.0.1"), "n1": host("n1", "10.0.0.2", TWO_GPUS), "n2": host("n2", "10.0.0.3")}
    return groups, {**hosts, **changes}


def plan(params: dict[str, Any] | None = None, **changes: Any) -> Any:
    groups, hosts = site(**changes)
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    return slurm_common.desired({**PARAMS, **(params or {})}, {}, {"groups": groups, "hostvars": hostvars})


def codes(**changes: Any) -> set[str]:
    return {problem.code for problem in plan(**changes).problems}


def test_a_node_has_what_it_really_has_less_what_the_system_keeps() -> None:
    lines = plan().parts["slurm_conf"].splitlines()
    assert (
        "NodeName=n1 NodeHostname=n1 NodeAddr=10.0.0.2 Sockets=2 CoresPerSocket=2 ThreadsPerCore=2 RealMemory=64000"
        " Gres=gpu:a100:2 Feature=a100-sxm4-40gb,ampere,gpu40g,nvlink State=UNKNOWN" in lines
    )
    assert "SlurmctldHost=ctl(10.0.0.1)" in lines
    assert plan().parts["controllers"] == ["ctl"]
    assert "AccountingStorageHost=10.0.0.1" in lines
    # 64,000 MiB of 8 CPUs; 8 CPUs for two GPUs.
    assert "DefMemPerCPU=8000" in lines
    assert "PartitionName=all Nodes=n1,n2 Default=YES State=UP DefCpuPerGPU=4" in lines


def test_each_gpu_has_its_device_file_the_cores_near_it_and_its_links() -> None:
    assert plan().parts["gres_conf"].splitlines()[1:] == [
        "AutoDetect=off",
        "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia0 Cores=0-1 Links=-1,12",
        "NodeName=n1 Name=gpu Type=a100 File=/dev/nvidia1 Cores=2-3 Links=12,-1",
    ]


def test_cores_that_the_host_does_not_have_are_left_out() -> None:
    elsewhere = {**TWO_GPUS, "devices": [device(0, "0-15"), device(1, "16-31")]}
    assert "Cores=" not in plan(n1=host("n1", "10.0.0.2", elsewhere)).parts["gres_conf"]


def test_gpus_in_mig_mode_and_those_that_nvml_does_not_reach_are_left_out() -> None:
    devices = [device(0, "0-7", mig={"enabled": True}), device(1, "0-7"), {"pci_address": "0000:af:00.0"}]
    lines = plan(n1=host("n1", "10.0.0.2", {"devices": devices})).parts["gres_conf"]
    assert "/dev/nvidia1" in lines
    assert "/dev/nvidia0" not in lines


@pytest.mark.parametrize(
    ("model", "name"),
    [("a100-sxm4-40gb", "a100"), ("h100-80gb-hbm3", "h100"), ("h100-nvl", "h100"), ("k20c", "k20c"), ("l40s", "l40s")],
)
def test_a_type_is_a_model_without_its_form_and_memory(model: str, name: str) -> None:
    assert cluster.gpu_type(model) == name


def test_settings_of_the_operator_win() -> None:
    text = plan({"options": {"ReturnToService": 0, "MaxJobCount": 50000}}).parts["slurm_conf"]
    assert "ReturnToService=0\n" in text
    assert "MaxJobCount=50000\n" in text


def test_what_is_enforced_and_who_is_next_are_settings_of_a_cluster_with_accounting() -> None:
    text = plan({"enforce": ["associations", "limits"]}).parts["slurm_conf"]
    assert "AccountingStorageEnforce=associations,limits\n" in text
    assert "PriorityWeightFairshare=10000\n" in text
    assert "AccountingStorageEnforce" not in plan().parts["slurm_conf"]
    assert "PriorityWeightAge=5\n" in plan({"options": {"PriorityWeightAge": 5}}).parts["slurm_conf"]


def without(group: str, params: dict[str, Any] | None = None) -> Any:
    """The plan of a site with every optional group but one."""
    groups, hosts = site()
    groups |= {"slurm_logins": ["ctl"], "slurm_rests": ["ctl"]}
    del groups[group]
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    return slurm_common.desired({**PARAMS, **(params or {})}, {}, {"groups": groups, "hostvars": hostvars})


@pytest.mark.parametrize(
    ("group", "needs"),
    [
        ("slurm_databases", ["AccountingStorage", "PriorityWeight", "PriorityDecayHalfLife", "gres/gpu"]),
        ("slurm_rests", ["AuthAltTypes", "jwt"]),
        ("slurm_logins", []),
        ("slurm_nodes", ["NodeName=", "Prolog=", "TaskProlog=", "Epilog=", "RequeueExit", "PartitionName=gpuops"]),
    ],
)
def test_without_an_optional_group_nothing_is_written_that_needs_it(group: str, needs: list[str]) -> None:
    partitions = [] if group == "slurm_nodes" else PARAMS["partitions"]
    told = without(group, {"partitions": partitions})
    assert told.problems == ()
    for word in needs:
        assert word not in told.parts["slurm_conf"]


def test_a_slurmdbd_of_the_operators_counts_gpus_too() -> None:
    options = {"AccountingStorageType": "accounting_storage/slurmdbd", "AccountingStorageHost": "db.example.com"}
    assert "AccountingStorageTRES=gres/gpu\n" in without("slurm_databases", {"options": options}).parts["slurm_conf"]


@pytest.mark.parametrize("key", ["AccountingStorageTRES", "AccountingStorageEnforce"])
def test_an_option_that_needs_accounting_is_refused_without_it(key: str) -> None:
    told = without("slurm_databases", {"options": {key: "gres/gpu,gres/gpu:a100"}})
    assert [(one.code, one.evidence) for one in told.problems] == [("no_accounting", "gres/gpu,gres/gpu:a100")]
    assert f"take {key} out" in told.problems[0].remedy


@pytest.mark.parametrize("params", [{"cluster_name": "GPU-Lab"}, {"options": {"ClusterName": "GPU-Lab"}}])
def test_the_name_of_the_cluster_is_the_one_that_the_accounting_knows(params: dict[str, Any]) -> None:
    """Slurm makes it small by itself; then sacctmgr has it so, and nobody finds the other one."""
    assert "ClusterName=gpu-lab\n" in plan(params).parts["slurm_conf"]


def with_portal(**changed: Any) -> list[str]:
    """The codes of the problems of a cluster with a portal."""
    groups, hosts = site()
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    there = {"groups": {**groups, "portals": ["login1"]}, "hostvars": hostvars}
    return [one.code for one in slurm_common.desired({**PARAMS, **changed}, {}, there).problems]


def test_what_users_do_not_see_of_each_other_is_a_setting() -> None:
    text = plan({"private_data": ["jobs", "usage"]}).parts["slurm_conf"]
    assert "PrivateData=jobs,usage\n" in text
    assert "PrivateData" not in plan().parts["slurm_conf"]
    assert "PrivateData=all\n" in plan({"options": {"PrivateData": "all"}}).parts["slurm_conf"]


def test_a_portal_is_not_kept_from_seeing_its_sessions() -> None:
    assert with_portal(private_data=["accounts", "usage", "users"]) == []
    assert with_portal(private_data=["usage", "jobs"]) == ["hidden_from_portal"]
    # In whatever way it is written.
    for word in ("jobs", "usage, Nodes", "all"):
        assert with_portal(options={"privatedata": word}) == ["hidden_from_portal"]


def test_nothing_can_be_enforced_without_accounting() -> None:
    groups, hosts = site()
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    alone = {"groups": {**groups, "slurm_databases": []}, "hostvars": hostvars}
    (problem,) = slurm_common.desired({**PARAMS, "enforce": ["limits"]}, {}, alone).problems
    assert problem.code == "no_accounting"
    assert "PriorityWeight" not in slurm_common.desired(PARAMS, {}, alone).parts["slurm_conf"]


def test_two_releases_are_refused_with_the_hosts_of_each() -> None:
    old = host("n2", "10.0.0.3", candidate="22.05.8-4+deb12u3")
    (problem,) = plan(n2=old).problems
    assert problem.code == "releases"
    assert "22.05 on n2, 24.11 on ctl n1" in problem.cause


def test_before_apt_has_read_its_sources_the_distributions_are_compared() -> None:
    fresh = {"candidate": None}
    assert codes(n2=host("n2", "10.0.0.3", **fresh)) == set()
    (problem,) = plan(n2=host("n2", "10.0.0.3", distribution="debian 12", **fresh)).problems
    assert problem.code == "releases"
    assert "debian 12 on n2, debian 13 on ctl n1" in problem.cause


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"installed": "", "candidate": ""}, "no_package"),
        ({"clock_ahead_s": -21.0}, "clock"),
        ({"hostname": "n1"}, "hostnames"),
        ({"hostname": "n2 State=DOWN"}, "bad_name"),
        ({"memory_mib": 2048}, "too_small"),
    ],
)
def test_what_a_host_lacks_is_told(changes: dict[str, Any], code: str) -> None:
    assert code in codes(n2=host("n2", "10.0.0.3", **changes))


def test_every_problem_is_told_at_once() -> None:
    assert codes(
        n1={**host("n1", "10.0.0.2"), "features": ["a b"]}, n2=host("n2", "10.0.0.3", clock_ahead_s=600.0)
    ) == {"bad_feature", "clock"}


def test_different_ids_of_the_user_slurm_are_refused() -> None:
    users = {"slurm": {"uid": 64030, "gid": 64030}, "munge": {"uid": 101, "gid": 101}}
    others = {"slurm": {"uid": 998, "gid": 998}, "munge": {"uid": 102, "gid": 102}}
    assert codes(n1=host("n1", "10.0.0.2", users=users), n2=host("n2", "10.0.0.3", users=others)) == {"user_ids"}
    # munge does not compare the ids of its own users.
    assert not codes(
        n1=host("n1", "10.0.0.2", users=users), n2=host("n2", "10.0.0.3", users={**others, "slurm": users["slurm"]})
    )


def away(*absent: str, lines: dict[str, Any] | None = None) -> Any:
    """The plan of a run that did not look at some hosts; `lines` are those that the controller's files have."""
    groups, hosts = site()
    hosts["ctl"]["look"]["node_lines"] = lines or {}
    hostvars = {name: {} if name in absent else {"slurm_common_host": hosts[name]} for name in hosts}
    return slurm_common.desired(PARAMS, {}, {"groups": groups, "hostvars": hostvars})


def written() -> dict[str, Any]:
    """The lines of the nodes as the role has written them."""
    parts = plan().parts
    return {
        name: {
            file: [line for line in parts[file].splitlines() if line.startswith(f"NodeName={name} ")]
            for file in ("slurm_conf", "gres_conf")
        }
        for name in ("n1", "n2")
    }


@pytest.mark.parametrize("absent", [["n1"], ["n2"], ["n1", "n2"]])
def test_a_node_that_was_not_looked_at_stays_as_it_is_configured(absent: list[str]) -> None:
    found = away(*absent, lines=written())
    assert not found.problems
    for file in ("slurm_conf", "gres_conf", "gres"):
        assert found.parts[file] == plan().parts[file]
    assert found.parts["notes"] == [
        f"{name} was not looked at in this run and stays as slurm.conf has it." for name in absent
    ]


def test_a_new_node_that_was_not_looked_at_is_not_added_and_does_not_keep_others_out() -> None:
    found = away("n2")
    assert not found.problems
    assert "NodeName=n1 " in found.parts["slurm_conf"]
    assert "n2" not in found.parts["slurm_conf"]
    assert found.parts["notes"] == [
        "n2 was not looked at in this run and is not added. Have it answer, and run it again."
    ]


@pytest.mark.parametrize("absent", [["ctl"], ["n1", "n2"], ["ctl", "n1", "n2"]])
def test_without_the_controller_or_any_node_the_hosts_are_named(absent: list[str]) -> None:
    found = away(*absent)
    assert {(problem.code, problem.subject) for problem in found.problems} == {("not_seen", name) for name in absent}


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("slurm_conf", "NodeName=n1 RealMemory=much"),
        ("slurm_conf", "NodeName=n1 CPUs=8"),
        ("gres_conf", "NodeName=n1 Name=gpu File=/dev/nvidia[0-7] Type=a100"),
    ],
)
def test_a_node_that_was_not_looked_at_and_has_lines_of_others_is_named(file: str, line: str) -> None:
    lines = written()
    lines["n1"][file] = [line]
    (problem,) = away("n1", lines=lines).problems
    assert (problem.code, problem.subject) == ("not_seen", "n1")
    assert line in problem.evidence


@pytest.mark.parametrize(
    ("partitions", "code"),
    [
        ([{"name": "gpuops", "groups": ["slurm_nodes"]}], "bad_name"),
        ([{"name": "a b", "groups": ["slurm_nodes"]}], "bad_name"),
        ([{"name": "big", "groups": ["nowhere"]}], "no_group"),
        ([{"name": "big", "groups": ["slurm_nodes"], "options": {"MaxTime": "1 State=DOWN"}}], "bad_option"),
        ([{"name": name, "groups": ["slurm_nodes"], "default": True} for name in ("a", "b")], "defaults"),
    ],
)
def test_partitions_that_slurm_would_misread_are_refused(partitions: list[dict[str, Any]], code: str) -> None:
    assert {problem.code for problem in plan({"partitions": partitions}).problems} == {code}


def test_numbers_are_written_as_ranges() -> None:
    assert conf.ranges([7, 0, 1, 2, 5]) == "0-2,5,7"


def test_the_gpus_of_a_node_with_jobs_are_not_changed() -> None:
    has_three = {"n1": {"gres": "gpu:a100:3", "busy": True, "state": "MIXED"}}
    made = slurm_controller.desired({}, {}, {"cluster": plan().as_dict(), "nodes": has_three, "has": []})
    assert not made.desired
    (problem,) = made.problems
    assert (problem.code, problem.subject) == ("gres_in_use", "n1")
    assert "from gpu:a100:3 to gpu:a100:2" in problem.cause


@pytest.mark.parametrize("gres", ["", "gpu:a100:2"])
def test_a_node_with_jobs_is_not_removed(gres: str) -> None:
    gone = {"n3": {"gres": gres, "busy": True, "state": "MIXED"}}
    (problem,) = slurm_controller.desired({}, {}, {"cluster": plan().as_dict(), "nodes": gone, "has": []}).problems
    assert (problem.code, problem.subject) == ("node_in_use", "n3")
    gone["n3"]["busy"] = False
    assert not slurm_controller.desired({}, {}, {"cluster": plan().as_dict(), "nodes": gone, "has": []}).problems


@pytest.mark.parametrize("node", [{"gres": "gpu:a100:3", "busy": False}, {"gres": "gpu:a100:2", "busy": True}])
def test_those_of_an_idle_node_are_and_a_busy_node_that_stays_is_no_problem(node: dict[str, Any]) -> None:
    nodes = {"n1": {**node, "state": "IDLE"}}
    made = slurm_controller.desired({}, {}, {"cluster": plan().as_dict(), "nodes": nodes, "has": []})
    assert not made.problems
    contents = {row["path"]: row["content"] for row in made.desired["files"] if "content" in row}
    assert {"/etc/slurm/slurm.conf", "/etc/slurm/gres.conf", "/etc/slurm/cgroup.conf"} <= set(contents)
    # A slurmctld that was killed comes back.
    assert "Restart=on-failure" in contents["/etc/systemd/system/slurmctld.service.d/baremetal-gpu.conf"]


def test_bad_gpus_are_kept_by_jobs_of_a_partition_that_no_user_has() -> None:
    text = str(plan().parts["slurm_conf"])
    (line,) = (line for line in text.splitlines() if line.startswith("PartitionName=gpuops"))
    assert {"AllowGroups=slurm", "Hidden=YES", "Default=NO", "PriorityTier=60000"} <= set(line.split())
    assert "SchedulerParameters=defer,batch_sched_delay=1" in text.splitlines()


def test_preemption_that_would_end_jobs_for_a_bad_gpu_is_refused() -> None:
    (problem,) = plan({"options": {"PreemptType": "preempt/partition_prio"}}).problems
    assert (problem.code, problem.remedy) == ("preemption", "use preempt/qos")
    assert not plan({"options": {"PreemptType": "preempt/qos"}}).problems


# --- two controllers -------------------------------------------------------------------------------------------------

SHARED = {
    "path": "/shared/slurmctld",
    "mount": "/shared",
    "type": "nfs4",
    "source": "store:/export",
    "inode": 17,
    "nearest": "/shared",
    "elsewhere": "",
    "copied": False,
    "running": True,
    "heartbeat": True,
    "error": "",
}


def plan_of_two(backup: dict[str, Any] | None = None, **primary: Any) -> Any:
    """The plan of a cluster with the controllers ctl and ctl2, whose state directories are these."""
    groups, hosts = site()
    hosts["ctl"] = host("ctl", "10.0.0.1", state_directory={**SHARED, **primary})
    hosts["ctl2"] = host("ctl2", "10.0.0.9", state_directory={**SHARED, **primary, **(backup or {})})
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    peers = {"groups": {**groups, "slurm_controllers": ["ctl", "ctl2"]}, "hostvars": hostvars}
    return slurm_common.desired({**PARAMS, "state_directory": "/shared/slurmctld"}, {}, peers)


def test_one_controller_has_the_configuration_that_it_always_had() -> None:
    assert plan().parts["slurm_conf"] == SLURM_CONF
    assert plan().parts["state"] == {}
    made = slurm_controller.desired({}, {}, {"cluster": plan().as_dict(), "nodes": {}, "has": []})
    contents = {row["path"]: row.get("content", "") for row in made.desired["files"]}
    assert "/var/lib/slurm/slurmctld" not in contents
    assert "[Unit]" not in contents["/etc/systemd/system/slurmctld.service.d/baremetal-gpu.conf"]


def test_two_controllers_are_a_primary_one_and_its_backup_with_one_state_directory() -> None:
    expected = SLURM_CONF.replace("ctl(10.0.0.1)\n", "ctl(10.0.0.1)\nSlurmctldHost=ctl2(10.0.0.9)\n")
    assert plan_of_two().parts["slurm_conf"] == expected.replace("/var/lib/slurm/slurmctld", "/shared/slurmctld")


def test_slurmctld_does_not_start_without_the_file_system_of_its_state() -> None:
    made = slurm_controller.desired({}, {}, {"cluster": plan_of_two().as_dict(), "nodes": {}, "has": []})
    files = {row["path"]: row for row in made.desired["files"]}
    unit = files["/etc/systemd/system/slurmctld.service.d/baremetal-gpu.conf"]["content"]
    assert "RequiresMountsFor=/shared/slurmctld\nAssertPathIsMountPoint=/shared\n" in unit
    assert (files["/shared/slurmctld"]["owner"], files["/shared/slurmctld"]["mode"]) == ("slurm", "0700")


def test_the_backup_is_changed_first_once_it_can_answer() -> None:
    assert plan_of_two().parts["restart_order"] == "reverse_inventory"
    # A backup waits for the first heartbeat of a primary controller that knows of it.
    assert plan_of_two(heartbeat=False).parts["restart_order"] == "inventory"
    assert plan().parts["restart_order"] == "inventory"


@pytest.mark.parametrize(
    ("primary", "backup", "code", "told"),
    [
        ({"type": "ext4"}, {}, "state_not_shared", "ext4 on ctl, ext4 on ctl2"),
        ({}, {"type": "overlay", "mount": "/"}, "state_not_shared", "overlay on ctl2"),
        ({}, {"source": "other:/export"}, "state_not_the_same", "ctl and ctl2 do not have the same directory"),
        ({}, {"inode": 18}, "state_not_the_same", "ctl and ctl2 do not have the same directory"),
        ({"error": "no answer within 30 s"}, {}, "state_not_read", "could not be examined on ctl"),
    ],
)
def test_a_state_directory_that_two_controllers_do_not_share_is_refused(
    primary: dict[str, Any], backup: dict[str, Any], code: str, told: str
) -> None:
    problem = plan_of_two(backup, **primary).problems[0]
    assert problem.code == code
    assert told in problem.cause
    assert problem.remedy


def test_the_monitors_of_ceph_may_be_listed_in_any_order() -> None:
    ceph = {"type": "ceph", "source": "10.0.0.5:6789,10.0.0.6:6789:/slurm"}
    assert not plan_of_two({"source": "10.0.0.6:6789,10.0.0.5:6789:/slurm"}, **ceph).problems
    assert plan_of_two({"source": "10.0.0.6:6789,10.0.0.5:6789:/other"}, **ceph).problems


@pytest.mark.parametrize(("copied", "running"), [(False, True), (False, False), (True, True)])
def test_state_in_another_directory_is_not_left_behind(copied: bool, running: bool) -> None:
    moved = {"elsewhere": "/var/lib/slurm/slurmctld", "copied": copied, "running": running}
    (problem,) = plan_of_two({"elsewhere": ""}, **moved).problems
    assert (problem.code, problem.subject) == ("state_elsewhere", "ctl")
    assert "runuser -u slurm -- find /var/lib/slurm/slurmctld -mindepth 1 -maxdepth 1 ! -name gpuops" in problem.remedy
    # What slurm's account cannot read.
    assert "cp -a /var/lib/slurm/slurmctld/gpuops /shared/slurmctld/" in problem.remedy
    assert "systemctl stop slurmctld" in problem.remedy


def test_state_that_was_copied_while_slurmctld_is_stopped_is_used() -> None:
    moved = {"elsewhere": "/var/lib/slurm/slurmctld", "copied": True, "running": False}
    assert not plan_of_two({"elsewhere": ""}, **moved).problems


def test_three_controllers_and_a_directory_that_is_no_word_are_refused() -> None:
    groups, hosts = site(ctl2=host("ctl2", "10.0.0.8"), ctl3=host("ctl3", "10.0.0.9"))
    hostvars = {name: {"slurm_common_host": one} for name, one in hosts.items()}
    peers = {"groups": {**groups, "slurm_controllers": ["ctl", "ctl2", "ctl3"]}, "hostvars": hostvars}
    found = slurm_common.desired({**PARAMS, "state_directory": "/a b"}, {}, peers)
    assert {problem.code for problem in found.problems} == {"controllers", "bad_path"}


def test_nodes_know_both_controllers() -> None:
    params = {"options": ["-v"], "kill_left": True, "drain_unclean": False, "adopt": False}
    params |= {"image_directory": "/var/lib/baremetal-gpu/bundles", "image_mounts": ["/datasets"], "image_days": 14}
    params |= {"node": "n1", "health_grace": 300, "containers": False}
    published = {"slurm_common_host": {"address": "10.0.0.1"}, "ansible_host": "ssh.example"}
    hostvars = {"ctl": published, "ctl2": {"ansible_host": "10.0.0.9"}, "ctl3": {}}
    for controllers, option in ((["ctl"], "10.0.0.1"), (["ctl", "ctl2"], "10.0.0.1,10.0.0.9"), (["ctl3"], "ctl3")):
        peers = {"controllers": controllers, "hostvars": hostvars, "wanted": "", "has": ""}
        files = slurm_node.desired(params, {}, peers).desired["files"]
        (content,) = (row["content"] for row in files if row["path"] == "/etc/default/slurmd")
        assert content.splitlines()[1] == f"SLURMD_OPTIONS='--conf-server {option} -v'"
