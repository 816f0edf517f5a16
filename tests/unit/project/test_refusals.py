# SPDX-License-Identifier: GPL-3.0-or-later
"""What a site would be refused for is found before the first change, by plays that only look."""

from __future__ import annotations

import functools
import json
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import SHARED_ROLES, STAGES
from tests.unit.gpuops.conftest import HERE
from tests.unit.project.tree import BIN, ROOT, load_yaml, tracked, try_run

BUILTIN, OURS = "ansible.builtin.", "baremetal.gpu."
# A role and a file of its tasks.
File = tuple[str, str]

# Modules that change nothing on a host, whatever their arguments are.
LOOK = {
    *(f"{BUILTIN}{name}" for name in ("debug", "fail", "find", "getent", "set_fact", "setup", "slurp", "stat")),
    *(f"{OURS}{name}" for name in ("gpu_facts", "refuse")),
}
# They write on the controller, where the secrets of a site are.
CONTROLLER = {
    f"{OURS}{name}" for name in ("ceph_secrets", "cluster_certificates", "cluster_secrets", "registry_passwords")
}
INCLUDES = {f"{BUILTIN}{verb}_{what}" for verb in ("import", "include") for what in ("role", "tasks")}

# Refusals that no look at a host before the run could replace, and why.
NOT_BEFORE = {
    "validate.yml": "a proof of what the stage has made",
    "readiness.yml": "a proof of what the stage has made",
}
LATE = {
    ("ceph_common", "apply_settings.yml"): "whether the cluster can do without a daemon at the moment of its restart",
    ("ceph_mgr", "preflight.yml"): "the version of Ceph, when its packages are there",
    ("converge", "compare_again.yml"): "what is left after all was done",
    ("converge", "reboot.yml"): "preflight announces the reboot; whether it is allowed is asked where it is due",
    ("converge", "remediate.yml"): "what holds a kernel module at the moment at which it has to go",
    ("converge", "report_failure.yml"): "what has failed",
    ("converge", "transaction_dnf.yml"): "what dnf would do, with the sources that the stage gives it",
    ("kubernetes_apps", "jobs.yml"): "of playbooks of their own",
    ("kubernetes_apps", "main.yml"): "of playbooks of their own",
    ("kubernetes_apps", "wait.yml"): "of playbooks of their own",
    ("kubernetes_control_plane", "answers.yml"): "whether another control plane answers at the moment of creation",
    ("kubernetes_control_plane", "differences.yml"): "only warns, of what a cluster was created with",
    ("kubernetes_control_plane", "restore.yml"): "of a playbook of its own",
    ("kubernetes_gpu", "main.yml"): "which pods have GPUs at the moment at which they would get them in another way",
    ("kubernetes_network", "main.yml"): "the ranges that the cluster gives its nodes",
    ("kubernetes_node", "etcd_member.yml"): "what the cluster knows of the host when it joins",
    ("kubernetes_node", "token.yml"): "whether the control plane that this run has made gives a token",
    ("kubernetes_operator", "main.yml"): "of playbooks of their own",
    ("kubernetes_users", "users.yml"): "which namespaces the cluster has",
    ("marathon_apps", "main.yml"): "of playbooks of their own",
    ("marathon_apps", "preflight.yml"): "of playbooks of their own",
    ("mesos_operator", "main.yml"): "of playbooks of their own",
    ("nfs_homes", "main.yml"): "whether the server of this run came to its end",
    ("nouveau", "reboot.yml"): "preflight announces the reboot; whether nouveau can be unloaded shows by trying",
    ("nvidia_driver", "runfile_install.yml"): "what NVIDIA's installer says",
    ("nvidia_driver", "runfile_look.yml"): "who holds a GPU at the moment at which the driver has to go",
    ("slurm_apps", "jobs.yml"): "of playbooks of their own",
    ("slurm_apps", "main.yml"): "of playbooks of their own",
    ("slurm_apps", "packages.yml"): "of playbooks of their own",
    ("slurm_apps", "smoke.yml"): "of playbooks of their own",
    (
        "slurm_common",
        "main.yml",
    ): "what the storage and the driver have brought: the file system of the state, and GPUs",
    ("slurm_controller", "check.yml"): "jobs that run at the moment at which their GPUs would change",
    ("slurm_controller", "ready.yml"): "whether slurmctld answers",
    ("slurm_login", "main.yml"): "whether slurmctld answers",
    ("slurm_operator", "main.yml"): "of playbooks of their own",
    ("slurm_operator", "restore.yml"): "whether slurmctld takes the node back",
}


def tasks_in(content: Any) -> Iterator[dict[str, Any]]:
    for task in content or ():
        for key in ("block", "rescue", "always"):
            yield from tasks_in(task.get(key))
        if "block" not in task:
            yield task


@functools.cache
def tasks_of(file: File) -> list[dict[str, Any]]:
    return list(tasks_in(load_yaml(f"roles/{file[0]}/tasks/{file[1]}")))


def called(task: dict[str, Any], role: str) -> File | None:
    """The file that a task includes."""
    for verb in ("import", "include"):
        if file := task.get(f"{BUILTIN}{verb}_tasks"):
            return role, PurePosixPath(file if isinstance(file, str) else file["file"]).name
        if other := task.get(f"{BUILTIN}{verb}_role"):
            return other["name"].removeprefix(OURS), f"{PurePosixPath(other.get('tasks_from', 'main')).stem}.yml"
    return None


def plays_of(playbook: str) -> Iterator[dict[str, Any]]:
    for play in load_yaml(f"playbooks/{playbook}"):
        imported = play.get(f"{BUILTIN}import_playbook")
        yield from plays_of(imported) if imported else [play]


def playbooks() -> list[str]:
    return [play[f"{BUILTIN}import_playbook"] for play in load_yaml("playbooks/site.yml")]


def reached(tasks: list[dict[str, Any]], role: str, known: set[File]) -> set[File]:
    for task in tasks:
        file = called(task, role)
        if file and file not in known:
            known.add(file)
            reached(tasks_of(file), file[0], known)
    return known


@functools.cache
def early() -> set[File]:
    """The files that plays before the first change come to."""
    looks = [play for name in playbooks() if name.endswith("preflight.yml") for play in plays_of(name)]
    tasks = [task for play in looks for task in tasks_in(play["tasks"])]
    return reached([*tasks, *checks_of_nodes()], "", set())


def checks_of_nodes() -> list[dict[str, Any]]:
    """The tasks of node.yml before the first that may change something."""
    tasks = [task for play in plays_of("node.yml") for task in tasks_in(play["tasks"])]
    files = [called(task, "") for task in tasks]
    first = next(place for place, file in enumerate(files) if file and file[0] and file[1] == "main.yml")
    return [task for task, file in zip(tasks[:first], files, strict=False) if file and file[0]]


def test_the_playbooks_that_only_look_come_first() -> None:
    looks = [name.endswith("preflight.yml") for name in playbooks()]
    assert looks == sorted(looks, reverse=True)
    assert len(early()) > 40


def may_change(file: File, task: dict[str, Any]) -> bool:
    module = next((key for key in task if "." in key), "")
    if module in LOOK or module in INCLUDES or module.endswith("_info") or task.get("check_mode") is True:
        return False
    if module == f"{BUILTIN}command":
        return task.get("changed_when") is not False
    return not (module in CONTROLLER and task.get("delegate_to") == "localhost")


def test_what_comes_first_changes_nothing_on_a_host() -> None:
    assert [(file, task["name"]) for file in sorted(early()) for task in tasks_of(file) if may_change(file, task)] == []


def refusing() -> set[File]:
    """The files of the stages' roles in which a host is refused."""
    roles = {role for stage in STAGES for role in (*stage.roles, *stage.further_roles)} | set(SHARED_ROLES)
    files = [path for path in tracked("roles", ".yml") if path.parts[1] in roles and path.parts[2] == "tasks"]
    verbs = {f"{OURS}refuse", f"{BUILTIN}assert", f"{BUILTIN}fail"}
    return {
        file
        for file in ((path.parts[1], path.name) for path in files)
        if any(verbs & set(task) for task in tasks_of(file))
    }


def test_a_refusal_comes_before_the_first_change_or_says_why_not() -> None:
    late = {file for file in refusing() - early() if file[1] not in NOT_BEFORE}
    assert late == set(LATE)


# The host's Python sees another name of the host, another clock and other users.
OTHER_HOST = """
import os, pwd, socket, time
late, uid, name = float(os.environ["LATE"]), int(os.environ["SLURM_UID"]), os.environ["HOST"]
real_time, real_user = time.time, pwd.getpwnam
time.time = lambda: real_time() - late
socket.gethostname = lambda: name
slurm = pwd.struct_passwd(("slurm", "x", uid, uid, "", "/", ""))
pwd.getpwnam = lambda user: slurm if user == "slurm" else real_user(user)
"""


def other_host(directory: Path, name: str, late: int = 0, uid: int = 64030) -> dict[str, str]:
    """How Ansible reaches a host that is this machine with a name, a clock and a user of its own."""
    (directory / "sitecustomize.py").write_text(OTHER_HOST)
    python = directory / f"python-{name}"
    seen = f"LATE={late} SLURM_UID={uid} HOST={name} PYTHONPATH={directory}"
    python.write_text(f'#!/bin/sh\n{seen} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return {**HERE, "ansible_python_interpreter": str(python)}


def refused(directory: Path, tags: str, groups: dict[str, dict[str, dict[str, Any]]]) -> tuple[str, set[str]]:
    """What the looks at a site say, and which hosts are refused; none is changed."""
    listed = {group: {"hosts": {name: {**HERE, **row} for name, row in rows.items()}} for group, rows in groups.items()}
    (directory / "hosts.json").write_text(json.dumps(listed))
    gpus = {"name": "Have GPUs", "ansible.builtin.set_fact": {"gpu": {"present": True}, "cacheable": True}}
    play = {"hosts": "gpu_cluster", "gather_facts": False, "tasks": [gpus], "tags": ["always"]}
    looks = [
        row for row in load_yaml("playbooks/site.yml") if row[f"{BUILTIN}import_playbook"].endswith("_preflight.yml")
    ]
    looks = [
        {**row, f"{BUILTIN}import_playbook": f"{ROOT}/playbooks/{row[f'{BUILTIN}import_playbook']}"} for row in looks
    ]
    (directory / "play.yml").write_text(json.dumps([play, *looks]))
    words = [BIN / "ansible-playbook", "-i", directory / "hosts.json", "--tags", tags, directory / "play.yml"]
    done = try_run(words, cwd=directory)
    recap = dict(re.findall(r"^(\w+) +: (.*)$", done.stdout.partition("PLAY RECAP")[2], re.MULTILINE))
    assert [name for name, row in recap.items() if "changed=0" not in row] == []
    said = " ".join(done.stdout.split())
    assert "To do: " in said
    return said, {name for name, row in recap.items() if "failed=0" not in row}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_certificates_ports_mounts_and_the_agent_are_refused_before_anything_is_changed(
    tmp_path: Path, taken: int
) -> None:
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("ca.pem", "ca-key.pem"):
        (secrets / name).write_text("")
    (secrets / "ca-key.pem").chmod(0o644)
    nowhere = {name: f"/nowhere/{name}.pem" for name in ("authority", "certificate", "key")}
    mount = {"path": "datasets", "subpath": "/", "client": "x", "secret": "y"}
    right = {"right": {"node_exporter_state": "absent", "log_sender_state": "absent"}}
    groups: dict[str, Any] = {
        "gpu_cluster": {"agent": {"gpu_agent_interval": 0}, **right},
        "ceph_clients": {"mounter": {"cephfs_client_mounts": [mount]}, **right},
        "node_exporters": {
            "exporter": {"node_exporter_tls_path": str(secrets)},
            "busy": {"node_exporter_listen": f":{taken}"},
            **right,
        },
        "log_senders": {"sender": {"log_sender_tls_files": nowhere}, **right},
        "log_hosts": {"log": {"log_host_state": "absent"}},
    }
    said, hosts = refused(tmp_path, "storage,agent,monitoring", groups)
    assert hosts == {"agent", "mounter", "exporter", "busy", "sender"}
    assert f"port {taken} is to be that of prometheus-node-exporter.service, and " in said
    assert f"{secrets} cannot be used: others than its owner may read {secrets}/ca-key.pem" in said
    assert "/nowhere/authority.pem is not there" in said
    assert "'datasets' is not a place to mount at" in said
    assert "gpu_agent_interval (0)" in said


def test_clocks_and_users_of_slurm_are_refused_before_anything_is_changed(tmp_path: Path) -> None:
    head = {"head": other_host(tmp_path, "head")}
    groups = {
        "gpu_cluster": head,
        "slurm_controllers": head,
        "slurm_nodes": {
            "late": other_host(tmp_path, "late", late=3600),
            "other": other_host(tmp_path, "other", uid=999),
        },
    }
    said, hosts = refused(tmp_path, "slurm", groups)
    # The description of a cluster is made once, for all.
    assert len(hosts) == 1
    assert re.search(r"the clock of late is 3\d\d\d s behind the controller's", said), said
    assert "the user slurm has different ids: 64030:64030 on head late, 999:999 on other" in said


def test_a_registry_without_the_disk_of_its_images_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    nothing = f"{tmp_path}/images"
    store = {"store": {"registry_storage_mount": nothing, "registry_storage_path": f"{nothing}/store"}}
    said, hosts = refused(tmp_path, "registry", {"gpu_cluster": store, "registries": store})
    assert hosts == {"store"}
    assert f"store has nothing mounted at {nothing}" in said
