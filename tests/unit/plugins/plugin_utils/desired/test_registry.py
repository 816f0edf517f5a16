# SPDX-License-Identifier: GPL-3.0-or-later
"""The plans of the registry and of the hosts that trust it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import registry, registry_client
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from tests.local_registry import PARAMS

PAIR = {
    "certificate": "/site/reg1.pem",
    "certificate_sha256": "c" * 64,
    "key": "/site/reg1-key.pem",
    "key_sha256": "d" * 64,
}
AUTHORITY = {"path": "/site/ca.pem", "sha256": "a" * 64}
HASH = "$2b$05$" + "a" * 53
CACHE = {"name": "up", "upstream": "https://registry.example.org", "port": 5002, "path": "/srv/cache"}


def host(**params: Any) -> Plan:
    peers = {"host": "reg1", "hosts": ["reg1"]}
    given = {name: params.pop(name) for name in tuple(peers) if name in params}
    certificates = {"authority": AUTHORITY, "certificates": {"reg1": PAIR}}
    return registry.desired({**PARAMS, "certificates": certificates, **params}, {}, {**peers, **given})


def client(**params: Any) -> Plan:
    peers = {
        "host": "gpu1",
        "registries": ["reg1"],
        "name": "registry.example.com",
        "names": ["10.0.0.5"],
        "port": 5000,
        "caches": [],
    }
    given = {name: params.pop(name) for name in tuple(peers) if name in params}
    defaults = {"state": "present", "engines": ["docker", "podman", "containerd"]}
    return registry_client.desired(
        {**defaults, "certificates": {"authority": AUTHORITY}, **params}, {}, {**peers, **given}
    )


def files(plan: Plan) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in plan.desired["files"]}


def units(plan: Plan) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in plan.desired["units"]}


def only_problem(plan: Plan) -> Any:
    (problem,) = plan.problems
    assert plan.desired == {}
    assert problem.remedy
    return problem


# --- refusals ---


@pytest.mark.parametrize(
    ("wrong", "subject", "word"),
    [
        ({"hosts": []}, "reg1", "registries"),
        ({"hosts": ["reg1", "reg2"]}, "registries", "2 hosts"),
        ({"name": "no host; name"}, "registry_names", "no host; name"),
        ({"names": ["$host"]}, "registry_names", "$host"),
        ({"operator": "Operator"}, "registry_operator", "Operator"),
        ({"users": [{"name": "catalogue"}]}, "registry_users", "site's own images"),
        ({"users": [{"name": "operator"}]}, "registry_users", "registry_operator"),
        ({"users": [{"name": "alice"}, {"name": "alice"}]}, "registry_users", "another user"),
        ({"users": [{"name": "Alice"}]}, "registry_users", "lower-case letters"),
        ({"users": [{"name": "a/b"}]}, "registry_users", "lower-case letters"),
        ({"users": [{"name": "a|.*"}]}, "registry_users", "lower-case letters"),
        ({"users": [{"name": ""}]}, "registry_users", "lower-case letters"),
        ({"users": [{"name": "../etc"}]}, "registry_users", "lower-case letters"),
        ({"users": [{"name": "alice", "hash": "secret"}]}, "registry_users", "bcrypt"),
        ({"users": [{"name": "alice", "hash": "$2y$15$" + "a" * 53}]}, "registry_users", "bcrypt"),
        ({"users": [{"name": "alice", "hash": HASH + "\nbob:x"}]}, "registry_users", "bcrypt"),
        ({"users": [{"name": "alice", "quota": "much"}]}, "registry_users", "not a valid size"),
        # It would be the quota of the site, or none at all.
        ({"users": [{"name": "alice", "quota": 0}]}, "registry_users", "not a valid size"),
        ({"users": [{"name": "alice", "password": "secret"}]}, "registry_users", "password"),
        ({"public": ["a b"]}, "registry_public", "a b"),
        ({"public": [".*"]}, "registry_public", ".*"),
        ({"listen": []}, "registry_listen", "no address"),
        ({"listen": ["reg1"]}, "registry_listen", "reg1"),
        ({"port": 0}, "registry_port", "0"),
        ({"port": 5001}, "registry_port", "same"),
        ({"quota": "5"}, "registry_quota", "5"),
        ({"min_free": ""}, "registry_min_free", "size"),
        ({"storage_path": "images"}, "registry_storage_path", "images"),
        ({"storage_path": "/etc/images"}, "registry_storage_path", "belong"),
        ({"storage_path": "/"}, "registry_storage_path", "/"),
        ({"storage_path": "/srv/../etc"}, "registry_storage_path", "plain"),
        ({"storage_path": "/srv/a b"}, "registry_storage_path", "plain"),
        ({"storage_mount": "/mnt"}, "registry_storage_mount", "not below"),
        ({"collect_at": "a\nb"}, "registry_collect_at", "calendar"),
        ({"untagged_days": -1}, "registry_untagged_days", "-1"),
        ({"grace_hours": 0}, "registry_grace_hours", "0"),
        ({"upload_hours": 0}, "registry_upload_hours", "0"),
        ({"backup_path": "/var/lib/docker-registry/copy"}, "registry_backup_path", "storage"),
        ({"backup_path": "/srv/copy", "backup_mount": "/mnt"}, "registry_backup_mount", "not below"),
        ({"caches": [{**CACHE, "upstream": "registry.example.org"}]}, "registry_caches (up)", "upstream"),
        ({"caches": [{**CACHE, "upstream": "https://u:p@registry.example.org"}]}, "registry_caches (up)", "upstream"),
        ({"caches": [{**CACHE, "path": "/var/lib/docker-registry/up"}]}, "registry_caches (up)", "storage"),
        ({"caches": [{**CACHE, "username": "me"}]}, "registry_caches (up)", "password"),
        ({"caches": [{**CACHE, "name": "Up"}]}, "registry_caches (Up)", "lower-case letters"),
        ({"tls_files": {"key": "/k"}}, "registry_tls_files", "authority"),
        ({"metrics_directory": "x"}, "registry_metrics_directory", "x"),
    ],
)
def test_settings_that_do_not_go_together_are_told_before_anything_is_changed(
    wrong: dict[str, Any], subject: str, word: str
) -> None:
    problem = only_problem(host(**wrong))
    assert problem.subject == subject
    assert word in f"{problem.cause} {problem.evidence}"


def test_a_wrong_hash_is_not_shown() -> None:
    problem = only_problem(host(users=[{"name": "alice", "hash": "my-real-password"}]))
    assert "my-real-password" not in str(problem)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    assert len(host(port=0, quota="x", storage_path="x").problems) == 3


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        ({"registries": []}, "registries"),
        ({"name": "a b"}, "registry_names"),
        ({"port": 70000}, "registry_port"),
        ({"engines": ["docker", "rkt"]}, "registry_client_engines"),
    ],
)
def test_a_client_with_wrong_settings_is_refused(wrong: dict[str, Any], subject: str) -> None:
    assert only_problem(client(**wrong)).subject == subject


# --- the host ---


def test_secrets_are_closed_and_kept_out_of_the_diff() -> None:
    found = files(host(caches=[{**CACHE, "username": "me", "password": "p'a\"ss"}]))
    assert found[registry.HTPASSWD]["sensitive"]
    assert (found[registry.HTPASSWD]["group"], found[registry.HTPASSWD]["mode"]) == ("www-data", "0640")
    cache = found[f"{registry.DIRECTORY}/cache-up.yml"]
    assert (cache["sensitive"], cache["mode"]) == (True, "0640")
    assert found[f"{registry.DIRECTORY}/key.pem"]["mode"] == "0600"
    assert [path for path, row in found.items() if "p'a" in str(row.get("content"))] == [
        f"{registry.DIRECTORY}/cache-up.yml"
    ]


def test_a_password_is_made_for_whom_no_hash_is_given() -> None:
    plan = host(users=[{"name": "alice"}, {"name": "bob", "hash": HASH}], hashes={"operator": "x", "alice": "y"})
    assert plan.parts["users"] == ["operator", "alice"]
    assert files(plan)[registry.HTPASSWD]["content"] == f"alice:y\nbob:{HASH}\noperator:x\n"


def test_whoever_s_home_is_archived_has_no_password_and_no_quota() -> None:
    users = [{"name": "alice", "quota": "1T"}, {"name": "bob", "hash": HASH}, {"name": "carol"}]
    homes = [{"name": "alice", "state": "archived"}, {"name": "bob", "state": "absent"}, {"name": "carol"}]
    hashes = {"operator": "x", "alice": "y", "carol": "z"}
    plan = host(users=users, homes_users=homes, hashes={name: hashes[name] for name in ("operator", "carol")})
    assert plan.parts["users"] == ["operator", "carol"]
    assert files(plan)[registry.HTPASSWD]["content"] == "carol:z\noperator:x\n"
    assert json.loads(files(plan)[registry.LIMITS]["content"])["quotas"] == {}
    # Whoever comes back has it again.
    back = host(users=users, homes_users=[{"name": "alice", "state": "present"}], hashes=hashes)
    assert "alice:y\n" in files(back)[registry.HTPASSWD]["content"]


def test_users_and_quotas_restart_nothing() -> None:
    kinds = ("restart_on", "reload_on")
    watched = {path for unit in units(host()).values() for kind in kinds for path in unit.get(kind, [])}
    assert registry.NGINX_CONF in watched
    assert not watched & {registry.HTPASSWD, registry.LIMITS}


def test_the_word_by_which_nginx_knows_itself_root_alone_reads() -> None:
    there = files(host())
    row = there[registry.OWN_REQUESTS]
    assert (row["owner"], row["mode"], row["sensitive"]) == ("root", "0600", True)
    word = re.search("[0-9a-f]{64}", row["content"])
    assert word
    assert word[0] not in there[registry.NGINX_CONF]["content"]


def test_quotas_are_the_user_s_own_or_the_site_s() -> None:
    users = [{"name": "alice", "quota": "1T"}, {"name": "bob"}]
    quotas = json.loads(files(host(users=users, quota="2G"))[registry.LIMITS]["content"])["quotas"]
    assert quotas == {"alice": 1 << 40, "bob": 2 << 30}
    assert json.loads(files(host(users=users))[registry.LIMITS]["content"])["quotas"] == {"alice": 1 << 40}


def test_the_unit_of_the_package_never_starts() -> None:
    link = files(host())["/etc/systemd/system/docker-registry.service"]
    # The package would start it when it is installed.
    assert (link["src"], link["early"]) == ("/dev/null", True)
    assert units(host())["docker-registry.service"]["state"] == "stopped"
    assert "/etc/systemd/system/docker-registry.service" not in files(host(state="absent"))


def test_without_its_file_system_no_registry_and_no_collection_starts() -> None:
    plan = host(storage_path="/mnt/ceph/images", storage_mount="/mnt/ceph")
    texts = [str(row.get("content")) for row in plan.desired["files"]]
    assert sum("AssertPathIsMountPoint=/mnt/ceph\n" in text for text in texts) == 3
    assert not any("AssertPathIsMountPoint" in str(row.get("content")) for row in host().desired["files"])


def test_the_reading_registry_cannot_write() -> None:
    found = registry.configurations(PARAMS)
    assert "readonly:" in found["read"]
    assert "readonly:" not in found["write"]


def test_a_cache_that_is_removed_goes_and_keeps_its_copies() -> None:
    gone = host(caches=[{**CACHE, "state": "absent"}])
    assert units(gone)["baremetal-gpu-registry@cache-up.service"]["state"] == "stopped"
    assert files(gone)[f"{registry.DIRECTORY}/cache-up.yml"]["state"] == "absent"
    assert CACHE["path"] not in files(gone)
    assert "5002" not in files(gone)[registry.NGINX_CONF]["content"]


def test_absent_keeps_the_images_unless_the_host_is_named() -> None:
    data = "/var/lib/docker-registry/docker"
    assert data not in files(host(state="absent"))
    assert files(host(state="absent", purge_storage="reg1"))[data]["state"] == "absent"
    problem = only_problem(host(state="absent", purge_storage="reg2"))
    assert problem.subject == "registry_purge_storage"
    assert data not in files(host(purge_storage="reg1"))


def test_absent_takes_back_every_file_but_those_of_others() -> None:
    made = {path for path, row in files(host(backup_path="/srv/copy")).items() if row.get("state") != "directory"}
    left = made - set(files(host(state="absent")))
    assert left == {"/etc/systemd/system/docker-registry.service", "/etc/nginx/sites-enabled/default"}


# --- clients ---


def test_each_engine_has_files_of_its_own_for_each_name() -> None:
    found = files(client(caches=[CACHE]))
    for name in ("registry.example.com", "reg1", "10.0.0.5"):
        for port in (5000, 5002):
            for directory in ("/etc/docker", "/etc/containers", "/etc/containerd"):
                assert found[f"{directory}/certs.d/{name}:{port}/ca.crt"]["source"] == AUTHORITY["path"]
    toml = found["/etc/containerd/certs.d/reg1:5000/hosts.toml"]["content"]
    assert '[host."https://reg1:5000"]' in toml
    assert '"/etc/containerd/certs.d/reg1:5000/ca.crt"' in toml
    assert client().parts["url"] == "https://registry.example.com:5000/v2/"
    assert "units" not in client().desired


def test_an_engine_that_is_not_wanted_any_more_loses_its_files_and_no_directory() -> None:
    found = files(client(engines=["docker"]))
    assert found["/etc/containers/certs.d/reg1:5000/ca.crt"] == {
        "path": "/etc/containers/certs.d/reg1:5000/ca.crt",
        "state": "absent",
    }
    assert "/etc/containers/certs.d" not in found


def test_a_client_that_trusts_no_more_keeps_what_others_have() -> None:
    gone = client(state="absent")
    assert {row["state"] for row in gone.desired["files"]} == {"absent"}
    made = {path for path, row in files(client()).items() if row.get("state") != "directory"}
    assert made == set(files(gone))
    assert all("registry-client" in path or "certs.d/" in path for path in files(gone))
