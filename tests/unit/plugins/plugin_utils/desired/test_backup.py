# SPDX-License-Identifier: GPL-3.0-or-later
"""What each host alone knows, and the timer that makes an archive of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import nightly, parts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import backup
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from tests.unit.project.tree import ROOT

PARAMS = {
    "state": "present",
    "path": "/mnt/backup/head1",
    "mount": "/mnt/backup",
    "at": "*-*-* 02:30",
    "keep": 3,
    "also": [],
    "metrics_directory": "/var/lib/prometheus/node-exporter",
    "slurm_state": "/var/lib/slurm/slurmctld",
    "slurm_database": "slurm_acct_db",
    "zookeeper_data": "/var/lib/zookeeper",
}


def plan(host: str = "head1", groups: dict[str, list[str]] | None = None, **params: Any) -> Plan:
    return backup.desired({**PARAMS, **params}, {}, {"host": host, "groups": groups or {}})


def named(found: Plan) -> dict[str, dict[str, Any]]:
    return {part["name"]: part for part in found.parts["parts"]}


def test_a_head_has_what_its_groups_know() -> None:
    names = ("slurm_controllers", "slurm_databases", "portals", "registries", "ceph_mons")
    found = named(plan(groups={name: ["head1"] for name in names}))
    assert list(found) == [
        "slurm",
        "slurm_accounting",
        "munge",
        "portal",
        "registry",
        "gpu_reconciler",
        "ceph_mon.head1",
    ]
    # What the reconciler has in slurmctld's directory is not written while it is put back.
    assert found["slurm"]["units"] == ["slurmctld.service", "baremetal-gpu-reconciler.service"]
    assert found["slurm"]["saved_by"] == "slurmctld"
    assert found["slurm_accounting"]["mariadb"] == "slurm_acct_db"
    # Its database is copied through SQLite; beside it is uids.json.
    assert found["portal"]["sqlite"] == ["/var/lib/baremetal-gpu-portal/jupyterhub.sqlite"]
    portal = next(part for part in parts.read(found.values()) if part.name == "portal")
    assert portal.has("/var/lib/baremetal-gpu-portal/uids.json")
    assert not portal.has("/var/lib/baremetal-gpu-portal/backups/jupyterhub-1.sqlite")
    assert found["ceph_mon.head1"]["frozen"] == "ceph-mon@head1.service"


def test_the_portal_has_the_passwords_of_the_people_in_the_list_alone() -> None:
    row = {"name": "alice", "uid": 10001, "gid": 10001, "group": "alice", "state": "present", "ssh_keys": []}
    found = named(plan(groups={"portals": ["head1"]}, people=[row]))
    assert list(found) == ["portal", "passwords"]
    (part,) = parts.read([found["passwords"]])
    assert part.people == ({"name": "alice", "uid": 10001, "gid": 10001, "group": "alice"},)
    assert list(named(plan(groups={"registries": ["head1"]}, people=[row]))) == ["registry"]


def test_what_others_have_too_is_not_needed_and_a_second_controller_has_nothing() -> None:
    three = ["c1", "c2", "c3"]
    found = named(plan("c2", {"zookeeper": three, "ceph_mons": three, "slurm_controllers": ["c1", "c2"]}))
    assert list(found) == ["munge", "gpu_reconciler", "zookeeper", "ceph_mon.c2"]
    assert [found[name]["paths"] for name in ("zookeeper", "ceph_mon.c2")] == [[], []]
    assert "other monitors" in found["ceph_mon.c2"]["not_needed"]


def test_the_first_control_plane_has_what_kubeadm_cannot_make_again() -> None:
    planes = {"kubernetes_control_planes": ["head1", "head2", "head3"]}
    (part,) = parts.read(plan(groups=planes).parts["parts"])
    for path in ("pki/ca.key", "pki/etcd/ca.key", "pki/sa.key", "baremetal-gpu/encryption.json"):
        assert part.has(f"/etc/kubernetes/{path}")
    # Of another name or address on another host.
    assert not part.has("/etc/kubernetes/pki/apiserver.crt")
    assert (part.saved_by, part.has(parts.SNAPSHOT)) == ("etcd", True)
    assert plan("head2", planes).parts["parts"] == []


def test_the_playbook_has_the_hosts_of_every_group_that_has_a_part() -> None:
    (play,) = yaml.safe_load((ROOT / "playbooks" / "fetch_backup.yml").read_text())
    asked = {name for name in backup.GROUPS if f"'{name}'" in play["hosts"]}
    assert asked == set(backup.GROUPS)
    for name in backup.GROUPS:
        if name != backup.GROUP:
            assert plan(groups={name: ["head1"]}).parts["parts"], name


def test_the_program_reads_the_settings_that_the_role_writes(tmp_path: Any) -> None:
    only = tmp_path / "only"
    only.write_text("known")
    found = plan(path=str(tmp_path / "kept"), mount="", also=[str(only)], metrics_directory="")
    files = {row["path"]: row for row in found.desired["files"]}
    assert files[backup.SETTINGS]["mode"] == "0600"
    settings = json.loads(files[backup.SETTINGS]["content"])
    settings["metrics"] = str(tmp_path / "backup.prom")
    made = [nightly.nightly(settings, lambda *_: (1, "", ""), 86400.0 * day) for day in range(5)]
    assert sorted(str(path) for path in (tmp_path / "kept").iterdir()) == made[-3:]
    assert "baremetal_gpu_backup_timestamp_seconds 345600\n" in (tmp_path / "backup.prom").read_text()


def test_a_night_that_fails_says_so_and_keeps_the_others(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings = tmp_path / "settings.json"
    part = {"name": "portal", "paths": [], "sqlite": [str(settings)]}
    rows = {"host": "head1", "path": str(tmp_path), "keep": 1, "parts": [part], "metrics": ""}
    settings.write_text(json.dumps(rows))
    earlier = tmp_path / "head1-20260101-000000.tar.gz"
    earlier.touch()
    assert nightly.main([str(settings)]) == 1
    assert "the earlier ones are kept" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [earlier.name, settings.name]


def test_the_unit_waits_for_its_mount_and_goes_with_the_role() -> None:
    texts = {row["path"]: row.get("content", "") for row in plan().desired["files"]}
    assert "AssertPathIsMountPoint=/mnt/backup\n" in texts["/etc/systemd/system/baremetal-gpu-backup.service"]
    assert "OnCalendar=*-*-* 02:30\n" in texts["/etc/systemd/system/baremetal-gpu-backup.timer"]
    gone = plan(state="absent").desired
    assert {row["state"] for row in gone["files"]} == {"absent"}
    assert gone["units"] == [{"name": "baremetal-gpu-backup.timer", "enabled": False, "state": "stopped"}]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"path": "relative", "mount": ""}, "backup_path"),
        ({"path": "/a b", "mount": ""}, "backup_path"),
        ({"mount": "/mnt/other"}, "backup_mount"),
        ({"at": "now\nExecStart=x"}, "backup_at"),
        ({"keep": 0}, "backup_keep"),
        ({"also": ["relative"]}, "backup_also"),
        ({"metrics_directory": "x"}, "backup_metrics_directory"),
    ],
)
def test_what_cannot_be_is_told_with_its_variable(params: dict[str, Any], told: str) -> None:
    found = plan(**params)
    assert [problem.subject for problem in found.problems] == [told]
    assert not found.desired
