# SPDX-License-Identifier: GPL-3.0-or-later
"""From document and drift to what the tasks of the role converge loop over."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.plugin_utils import drift_remedy
from tests.unit.plugins.drift_host import KERNEL, DriftHost


@pytest.fixture
def host(tmp_path):
    return DriftHost(tmp_path)


def remedy(host, desired):
    found = drift.inspect(drift_remedy.as_sent(desired), host.run, root=str(host.root), kernel=KERNEL)
    return drift_remedy.remedy(desired, found)


def test_what_packages_may_overwrite_is_written_again_after_them():
    desired = {
        "packages": [{"name": "zookeeper"}],
        "files": [
            {"path": "/var/lib/zookeeper/myid", "content": "1\n", "mode": "0640"},
            {"path": "/etc/early", "content": "x", "early": True},
            {"path": "/var/lib/zookeeper", "state": "directory"},
        ],
    }
    found = {"manager": "apt", "refresh": False, "drift": {"packages": [{"name": "zookeeper", "actions": ["install"]}]}}
    (entry,) = drift_remedy.remedy(desired, found)["files"]["entries"]
    assert (entry["path"], entry["content"], entry["mode"]) == ("/var/lib/zookeeper/myid", "1\n", "0640")
    found["drift"]["packages"][0]["actions"] = ["hold"]
    assert drift_remedy.remedy(desired, found)["files"]["entries"] == []


def test_both_sides_keep_records_in_the_same_place():
    assert drift.PENDING == drift_remedy.PENDING


def test_nothing_to_do(host):
    done = remedy(host, {"packages": [{"name": "curl", "state": "absent"}]})
    by_task = ("new_keys", "sources", "files", "kernel_modules")
    assert not any(value for name, value in done.items() if name not in ("manager", *by_task))
    assert not any(any(done[name].values()) for name in by_task)


def test_packages_go_and_come_in_one_transaction(host):
    host.package("old", status="hold ok installed")
    host.package("kept", "535.1-1", status="hold ok installed")
    done = remedy(
        host,
        {
            "packages": [
                {"name": "new", "version": "550.*", "hold": True},
                {"name": "kept", "version": "550.*", "hold": True},
                {"name": "old", "state": "absent"},
            ]
        },
    )
    assert done["unhold"] == ["kept", "old"]
    assert done["transaction"] == ["new=550.*", "kept=550.*", "old-"]
    assert done["hold"] == ["new", "kept"]
    assert done["at_once"] is True
    assert done["touches_packages"] is True
    assert done["touches_sources"] is False


def test_a_version_that_is_not_the_newest_is_asked_of_apt_get_itself(host):
    """Of the versions that a pin allows, Ansible's module finds only the newest."""
    host.package("libcuda1", "570.124.06-1")
    missing = {"name": "nvidia-fabricmanager-570", "version": "570.*", "together": True}
    document = {"packages": [{"name": "libcuda1", "version": "570.*", "together": True}, missing]}
    done = remedy(host, document)
    assert (done["at_once"], done["transaction"]) == (True, ["nvidia-fabricmanager-570=570.124.06*"])
    assert remedy(host, {"packages": [missing]})["at_once"] is False


def test_dnf_wants_versions_behind_a_dash():
    assert drift_remedy.package_spec({"name": "a", "version": "1.*"}, "dnf") == "a-1.*"
    assert drift_remedy.package_spec({"name": "a"}, "dnf") == "a"


def test_contents_come_from_the_document(host):
    files = [
        {"path": "/etc/a", "content": "A", "validate": "check %s", "backup": True},
        {"path": "/etc/b", "url": "http://x.example/b", "sha256": "0" * 64},
        {"path": "/etc/c", "source": "/controller/c", "sha256": "0" * 64},
        {"path": "/etc/d", "state": "directory"},
        {"path": "/etc/e", "state": "link", "src": "a"},
        {"path": "/etc/f", "content": "S", "sensitive": True},
    ]
    done = remedy(host, {"files": files})["files"]
    assert {name: [item["path"] for item in items] for name, items in done.items()} == {
        # Of what is downloaded, which is brought first.
        "directories": ["/etc/d"],
        "downloads": ["/etc/b"],
        "entries": ["/etc/d", "/etc/a", "/etc/c", "/etc/e"],
        "secrets": ["/etc/f"],
    }
    directory, file, copy, link = done["entries"]
    assert directory == {"path": "/etc/d", "state": "directory", "mode": "0755"}
    assert file == {
        "path": "/etc/a",
        "state": "file",
        "mode": "0644",
        "content": "A",
        "validate": "check %s",
        "backup": True,
    }
    assert link == {"path": "/etc/e", "state": "link", "src": "a"}
    assert (copy["source"], copy["sha256"], copy["mode"]) == ("/controller/c", "0" * 64, "0644")
    assert done["secrets"][0]["content"] == "S"


def test_directories_come_first_and_what_goes_goes_before_all(host):
    host.file("/etc/old", "")
    files = [
        {"path": "/etc/d/a", "content": "A"},
        {"path": "/etc/d", "state": "directory", "mode": "0700"},
        {"path": "/etc/old", "state": "absent"},
    ]
    done = remedy(host, {"files": files})["files"]
    assert [item["path"] for item in done["entries"]] == ["/etc/old", "/etc/d", "/etc/d/a"]
    assert done["directories"] == []


def test_keys_and_repositories_are_files(host):
    repositories = [
        {"name": "a", "uris": ["u"], "suites": ["/"], "key": {"url": "http://x.example/k", "sha256": "0" * 64}},
        {
            "name": "b",
            "uris": ["u"],
            "suites": ["/"],
            "key": {"path": "/controller/k", "sha256": "0" * 64, "dest": "/k"},
        },
        {"name": "c", "uris": ["u"], "suites": ["/"], "key": {"content": "K"}},
    ]
    done = remedy(host, {"repositories": repositories})
    assert [(item["path"], item["url"]) for item in done["new_keys"]["downloads"]] == [
        ("/etc/apt/keyrings/a.asc", "http://x.example/k")
    ]
    written = done["new_keys"]["entries"] + done["sources"]["entries"]
    by_path = {item["path"]: item for item in written}
    assert by_path["/k"]["source"] == "/controller/k"
    assert by_path["/etc/apt/keyrings/c.asc"]["content"] == "K"
    assert "Signed-By: /k\n" in by_path["/etc/apt/sources.list.d/b.sources"]["content"]


def test_a_key_comes_before_its_repository_and_goes_after_it(host):
    repository = {"name": "a", "uris": ["u"], "suites": ["/"], "key": {"content": "K"}}
    done = remedy(host, {"repositories": [repository]})
    assert [item["path"] for item in done["new_keys"]["entries"]] == ["/etc/apt/keyrings/a.asc"]
    assert [item["path"] for item in done["sources"]["entries"]] == ["/etc/apt/sources.list.d/a.sources"]
    host.file("/etc/apt/keyrings/a.asc", "K")
    done = remedy(host, {"repositories": [{**repository, "state": "absent"}]})
    assert not any(done["new_keys"].values())
    (gone,) = [item["path"] for item in done["sources"]["entries"] if item["state"] == "absent"]
    assert gone == "/etc/apt/keyrings/a.asc"
    assert done["touches_sources"] is True


def test_what_follows_a_change_is_recorded_before_it_and_cleared_after(host):
    host.file("/usr/sbin/update-initramfs")
    host.unit("a.service")
    host.file("/var/lib/baremetal-gpu/pending/restart-b.service")
    desired = {
        "files": [{"path": "/etc/a", "content": "A"}],
        "initramfs": {"rebuild_on": ["/etc/a"]},
        "units": [
            {"name": "a", "state": "started", "restart_on": ["/etc/a"]},
            {"name": "b", "state": "stopped"},
        ],
    }
    done = remedy(host, desired)
    assert [(item["path"], item["state"], item.get("content"), item["mode"]) for item in done["records"]] == [
        (drift.PENDING, "directory", None, "0755"),
        (f"{drift.PENDING}/restart-a.service", "file", "/etc/a changes\n", "0644"),
        (f"{drift.PENDING}/initramfs", "file", "/etc/a changes\n", "0644"),
    ]
    assert (done["touches_kernel"], done["initramfs"]) == (True, [["update-initramfs", "-u", "-k", "all"]])
    assert done["initramfs_done"] == [{"path": f"{drift.PENDING}/initramfs", "state": "absent"}]
    assert {item["state"] for item in done["done"]} == {"absent"}
    assert sorted(item["path"] for item in done["done"]) == sorted(
        f"{drift.PENDING}/{name}" for name in ("restart-a.service", "initramfs", "restart-b.service")
    )


def test_the_record_of_a_proof_is_left_to_whoever_proves_it(host):
    done = remedy(host, {"files": [{"path": "/etc/a", "content": "A"}], "proofs": [{"name": "a", "what": "that"}]})
    assert [item["path"] for item in done["records"]] == [drift.PENDING, f"{drift.PENDING}/proof-a"]
    assert done["done"] == []


def test_a_record_keeps_its_first_reason(host):
    """A run that is cut twice must not wrap the reason once more each time."""
    host.unit("a.service")
    host.file("/etc/a", "A")
    host.file(f"{drift.PENDING}/restart-a.service", "/etc/a changes\n")
    desired = {"files": [{"path": "/etc/a", "content": "A"}], "units": [{"name": "a", "restart_on": ["/etc/a"]}]}
    _directory, record = remedy(host, desired)["records"]
    assert (record["path"], record["content"]) == (f"{drift.PENDING}/restart-a.service", "/etc/a changes\n")


@pytest.mark.parametrize(
    ("desired", "reload"),
    [
        ({"files": [{"path": "/etc/systemd/system/a.service", "content": ""}]}, True),
        ({"files": [{"path": "/etc/systemd/system/a.service.d/b.conf", "content": "", "early": True}]}, True),
        ({"files": [{"path": "/usr/lib/systemd/system/a.service", "state": "link", "src": "b"}]}, True),
        ({"files": [{"path": "/etc/a", "content": ""}]}, False),
        ({"units": [{"name": "stale", "state": "started"}]}, True),
    ],
)
def test_systemd_reads_units_again_when_they_change(host, desired, reload):
    host.unit("stale.service", NeedDaemonReload="yes")
    assert remedy(host, desired)["daemon_reload"] is reload


def test_a_document_without_secrets_is_sent_as_it_is():
    desired = {"files": [{"path": "/a", "content": "x"}], "packages": [{"name": "p"}]}
    assert drift_remedy.as_sent(desired) == desired


def test_of_a_secret_only_the_checksum_is_sent():
    desired = {"files": [{"path": "/a", "content": "a\n", "sensitive": True}]}
    assert drift_remedy.as_sent(desired) == {
        "files": [
            {
                "path": "/a",
                "sensitive": True,
                "sha256": "87428fc522803d31065e7bce3cf03fe475096631e5e07bbd7a0fde60c4cf25c7",
            }
        ]
    }
    assert desired["files"][0]["content"] == "a\n"


def test_of_a_long_file_the_checksum_is_sent_where_nobody_is_shown_a_difference(host):
    long = "a line of a program\n" * 1000
    desired = {"files": [{"path": "/usr/libexec/x", "content": long}, {"path": "/etc/y", "content": "short\n"}]}
    sent = drift_remedy.as_sent(desired, brief=True)
    assert len(str(sent)) < 300
    assert sent["files"][1] == desired["files"][1]
    assert drift_remedy.as_sent(desired) == desired
    host.file("/etc/y", "short\n")
    for there, plan in (("another\n", ["write /usr/libexec/x (content differs)"]), (long, [])):
        host.file("/usr/libexec/x", there)
        found = drift.inspect(sent, host.run, root=str(host.root), kernel=KERNEL)
        assert found["plan"] == plan
        # What is written comes from the whole document.
        written = drift_remedy.remedy(desired, found)["files"]["entries"]
        assert [item["content"] for item in written] == [long] * len(plan)


def test_units_that_go_are_stopped_before_anything_else(host):
    host.unit("old.service")
    host.unit("new.service", active="inactive")
    done = remedy(
        host,
        {
            "units": [
                {"name": "old.service", "enabled": False, "state": "stopped"},
                {"name": "new.service", "state": "started"},
            ]
        },
    )
    assert [unit["name"] for unit in done["units_first"]] == ["old.service"]
    assert done["stops"] is True
    assert [unit["name"] for unit in done["units"]] == ["new.service"]


def test_units_that_failed_are_reset_before_they_are_started_and_those_that_a_package_may_start_in_vain(host):
    host.unit("dead.service", active="failed")
    host.unit("idle.service", active="inactive")
    done = remedy(host, {"units": [{"name": name, "state": "started"} for name in ("dead", "idle", "new")]})
    assert [unit["name"] for unit in done["units"]] == ["dead.service", "idle.service", "new.service"]
    assert done["units_reset"] == ["dead.service", "new.service"]


def test_documents_are_joined_section_by_section():
    one, other = {"name": "nvidia-cuda", "uris": ["http://mirror/"]}, {"name": "components"}
    joined = drift_remedy.joined(
        [
            {"repositories": [one], "initramfs": {"rebuild_on": ["/etc/a"]}, "cdi": None},
            {},
            {"repositories": [one, other], "initramfs": {"rebuild_on": ["/etc/b"]}, "device_nodes": True},
        ]
    )
    assert joined == {
        "repositories": [one, other],
        "initramfs": {"rebuild_on": ["/etc/a", "/etc/b"]},
        "cdi": None,
        "device_nodes": True,
    }


def test_documents_that_contradict_each_other_are_not_joined():
    with pytest.raises(ValueError, match="state is present in one document and absent in another"):
        drift_remedy.joined([{"cdi": {"state": "present"}}, {"cdi": {"state": "absent"}}])


def test_a_host_names_no_file_of_the_controller():
    """A host that lies about what differs there does not get what it has no business with."""
    desired = {
        "files": [{"path": "/etc/a", "source": "/srv/site/a"}],
        "repositories": [{"name": "r", "key": {"path": "/srv/site/key"}}],
    }
    wanted = {"source": "/root/.ssh/id_ed25519", "actions": ["write"]}
    told = {
        "files": [{"path": "/etc/a", **wanted}, {"path": "/tmp/stolen", **wanted}],
        "keys": [{"name": "r", "path": "/etc/keys/r", **wanted}],
        **{section: [{"path": f"/tmp/{section}", **wanted}] for section in ("repositories", "pins", "early_files")},
    }
    found = drift_remedy.remedy(desired, {"drift": told, "manager": "apt", "refresh": False})
    assert "id_ed25519" not in json.dumps(found)
    assert [item["source"] for item in found["files"]["entries"] if "source" in item] == ["/srv/site/a"]
    assert [item["source"] for item in found["new_keys"]["entries"] if "source" in item] == ["/srv/site/key"]


@pytest.mark.parametrize("manager", ["../../../../tmp/evil", "", None, ["apt"]])
def test_the_manager_of_packages_is_one_that_there_is(manager):
    with pytest.raises(ValueError, match="there are apt, dnf"):
        drift_remedy.remedy({}, {"drift": {}, "manager": manager, "refresh": False})
