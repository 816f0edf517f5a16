# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the roles of Mesos, and hosts as they may be. All made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import plan as mesos_plan

ADDRESS = "10.0.0.1"
SECRETS = {"mesos-agent": "secret-agent", "marathon": "secret-marathon", "operator": "secret-operator"}
SOURCE = {
    "prefix": "mesos_common",
    "method": "archive",
    "url": "https://mirror.example.com/mesos.tar.gz",
    "path": "",
    "sha256": "ab" * 32,
    "file": "/var/lib/baremetal-gpu/mesos/abababababab.tar.gz",
    "repository": {},
    "image": "",
}


def node(**changes: Any) -> dict[str, Any]:
    """As mesos_node_info returns it of a host that has nothing of Mesos."""
    return {
        "environment": {},
        "running": False,
        "agent_id": None,
        "rebooted": False,
        "has_log": False,
        "cgroups": "v1",
        "cpus": 16,
        "memory_mib": 64000,
        "disk_mib": 500000,
        "resolved": {ADDRESS: [ADDRESS], "zk1": ["10.0.0.9"]},
        "own_ip": {ADDRESS: ADDRESS, "zk1": None},
        "held_ports": {},
        "device_directories": [],
        **changes,
    }


def gpu_device(index: int, verdict: str = "ok", uuid: str = "") -> dict[str, Any]:
    uuid = uuid or f"GPU-{index}"
    return {
        "uuid": uuid,
        "index": index,
        "slug": "A100-SXM4-40GB",
        "architecture": "ampere",
        "compute_capability": "8.0",
        "memory_mib": 40960,
        "pci_address": f"0000:0{index}:00.0",
        "nvlinks": 12,
        "verdict": verdict,
    }


def gpu(*gpus: dict[str, Any]) -> dict[str, Any]:
    """The part of `ansible_facts.gpu` that counts; without GPUs a host that has none."""
    verdicts = [{"uuid": row["uuid"], "verdict": row["verdict"], "reasons": []} for row in gpus]
    return {
        "pci": [{"kind": "gpu", "device": "10de:20b0"} for _ in gpus],
        "devices": list(gpus),
        "topology": None,
        "health": {"verdict": "ok", "devices": verdicts},
    }


COMMON: dict[str, Any] = {
    "host": "gpu1",
    "flavour": "apache",
    "version": "1.11.0",
    "build": [],
    "sources": [SOURCE],
    "address": ADDRESS,
    "home": "/opt/mesos/abababababab",
    "chroot": "/mesos",
    "flags": {},
    "libprocess": {},
    "zookeeper": ["zk1:2181"],
    "login": {"user": "", "password": ""},
    "secrets": SECRETS,
    "authentication": "required",
    "tls": {"mode": "off"},
}


def agent(**changes: Any) -> dict[str, Any]:
    return {
        **COMMON,
        "program": "agent",
        "prefix": "mesos_agent",
        "port": 5051,
        "user": "root",
        "work_dir": "/var/lib/mesos/agent",
        "hostname": "gpu1",
        "gpus": "healthy",
        "exclude_gpus": [],
        "gpu_slots": "auto",
        "reconciled": False,
        "rack": "",
        "attributes": {},
        "reserve": {"cpus": 1, "mem": 1024, "disk": 5120},
        "ports": ["31000-32000"],
        "isolation": ["cgroups/cpu", "cgroups/mem", "disk/du", "filesystem/linux", "docker/runtime"],
        "environment_file": "/etc/agent.env",
        "credential_file": "/etc/credential.json",
        "gpu": gpu(),
        "node": node(),
        **changes,
    }


def master(**changes: Any) -> dict[str, Any]:
    return {
        **COMMON,
        "host": "m1",
        "program": "master",
        "prefix": "mesos_master",
        "port": 5050,
        "user": "mesos",
        "work_dir": "/var/lib/mesos/master",
        "cluster": "lab",
        "quorum": 0,
        "confirmed": False,
        "readonly": False,
        "acls": {},
        "environment_file": "/etc/master.env",
        "zookeeper_file": "/etc/master.zk",
        "credentials_file": "/etc/credentials.json",
        "acls_file": "/etc/acls.json",
        "members": [{"name": name} for name in ("m1", "m2", "m3")],
        "node": node(),
        **changes,
    }


def marathon(**changes: Any) -> dict[str, Any]:
    return {
        **COMMON,
        "host": "m1",
        "program": "marathon",
        "version": "1.10.26",
        "prefix": "marathon",
        "port": 8080,
        "user": "marathon",
        "chroot": "/marathon",
        "mesos_chroot": "/mesos",
        "features": [],
        "gpu_scheduling_behavior": "restricted",
        "task_user": "nobody",
        "framework_name": "marathon",
        "http_user": "operator",
        "secrets": {**SECRETS, "http:operator": "secret-http"},
        "environment_file": "/etc/marathon.env",
        "secret_file": "/etc/marathon.secret",
        "node": node(),
        **changes,
    }


def plan(params: Mapping[str, Any], *more: Any) -> dict[str, Any]:
    """The plan of a program, with its files as they are sent."""
    found = mesos_plan.plan(params, *more)
    return {**found, **Document(files=found["files"]).plain}


def file(plan: dict[str, Any], path: str) -> dict[str, Any]:
    """The file of a plan at a path."""
    return next(row for row in plan["files"] if row["path"] == path)


def variables(plan: dict[str, Any], path: str) -> dict[str, str]:
    """The variables in an environment file of a plan, read by hand."""
    lines = file(plan, path)["content"].splitlines()
    pairs = (line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name: value.strip('"') for name, value in pairs}


def sentences(plan: dict[str, Any]) -> list[str]:
    """The problems of a plan as people read them."""
    return [str(problem) for problem in plan["problems"]]
