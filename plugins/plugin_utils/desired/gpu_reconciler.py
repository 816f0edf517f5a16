# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role gpu_reconciler: its program, its settings and secrets, and the logins of hosts that it knows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import rights
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.settings import (
    Settings as KubernetesSettings,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import digest_id
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import fence

Params = Mapping[str, Any]
Peers = Mapping[str, Any]

ROLE = "gpu_reconciler"
UNIT = "baremetal-gpu-reconciler.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/libexec/baremetal-gpu/reconciler"
COMMAND = "/usr/local/bin/gpuops-reconciler"
CONFIG = "/etc/baremetal-gpu/reconciler.json"
CREDENTIALS = "/etc/baremetal-gpu/reconciler-credentials.json"
# The logins of the hosts, without their passwords. The reconciler reads the file again when it changes.
LOGINS = "/etc/baremetal-gpu/reconciler-hosts.json"
# The authority of the site's masters, where they speak nothing but TLS.
AUTHORITY = "/etc/baremetal-gpu/reconciler-ca.pem"
USER = "gpu-reconciler"
FORMER_USER = "gpu-reconciler-former"
# The login that all hosts of a site once shared.
SHARED_USER = "gpu-agents"
# Names of variables that go together: a user, and its password.
PAIRS = (
    ("zookeeper_user", "zookeeper_password"),
    ("zookeeper_former_user", "zookeeper_former_password"),
    ("agents_user", "agents_password"),
    ("mesos_principal", "mesos_secret"),
)
METRICS_FILE = "baremetal_gpu_reconciler.prom"
# In the directory in which slurmctld saves the state of the cluster.
STATE_NAME = "gpuops"
SLURM_STATE = "/var/lib/slurm/slurmctld"
MIB = 1048576


def desired(params: Params, facts: Mapping[str, Any], peers: Peers) -> Plan:
    """The plan of the role.

    Peers: `host` is this one's name in the inventory; `in_slurm` tells whether it is a host of slurmctld, whose
    reconciler hears the nodes itself and keeps all in Slurm's state directory, without ZooKeeper; `slurm_state` is that
    directory, empty where it was not read; `kubernetes` is host:port of the API server on a control plane of
    Kubernetes, whose reconciler keeps all there, empty elsewhere; `mesos_masters` are hosts, and `slurm_hosts` those
    that have the commands of Slurm; `publishers` are the hosts of the groups mesos_agents and slurm_nodes;
    `publisher_hosts` and `publisher_hostnames` have the gpu_agent_host and the mesos_agent_hostname of each, empty by
    default.
    `zookeeper` (host:port) and `masters` (URLs) are the site's own; `tls` and `authentication` are the modes of its
    masters; `operator_user` and `operator_password` are the login of their operator; `authority` is the text of
    their authority, read only where it is used. `secrets` has passwords for ZooKeeper by user. What the tasks have
    not read yet is empty.

    Parts: `makes_logins` tells whether the logins for the site's own ZooKeeper are made, and `is_operator` whether
    the reconciler logs in to the masters as the site's operator. With Kubernetes, `objects` are its rights there.
    """
    in_kubernetes = bool(peers["kubernetes"])
    uses_zookeeper = not peers["in_slurm"] and not in_kubernetes
    parts: dict[str, Any] = {
        "makes_logins": uses_zookeeper and _makes_logins(params),
        "is_operator": uses_zookeeper and _is_operator(params, peers),
        **({"objects": rights.manifests(KubernetesSettings.namespace)} if in_kubernetes else {}),
    }
    if params["state"] == "absent":
        return Plan(_absent(in_kubernetes), parts=parts)
    if peers["in_slurm"] and in_kubernetes:
        return Plan(doc.Document(), (_two_schedulers(peers),), parts)
    if in_kubernetes:
        return _plan_in_kubernetes(params, peers, parts)
    if peers["in_slurm"]:
        return _plan_in_slurm(params, peers, parts)
    config = _config(params, peers)
    logins, login_problems = _host_logins(params, peers)
    problems = (
        *_login_problems(params),
        *_scheduler_problems(params, peers),
        *login_problems,
        *_config_problems(config),
        *textfile.directory_problems("gpu_reconciler_metrics_directory", params["metrics_directory"]),
    )
    return Plan(doc.Document() if problems else _present(params, peers, config, logins), problems, parts)


def _two_schedulers(peers: Peers) -> Problem:
    return Problem(
        "two_schedulers",
        "gpu_reconciler_scheduler",
        f"{peers['host']} is a controller of Slurm and a control plane of Kubernetes, and a host has one reconciler",
        remedy="take it out of slurm_controllers or of kubernetes_control_planes",
    )


def _plan_in_kubernetes(params: Params, peers: Peers, parts: Mapping[str, Any]) -> Plan:
    config = {
        "scheduler": "kubernetes",
        "server": f"https://{peers['kubernetes']}",
        **_common_config(params, fence.ACT),
    }
    problems = (
        *_config_problems(config),
        *textfile.directory_problems("gpu_reconciler_metrics_directory", params["metrics_directory"]),
    )
    absent = map(doc.Absent, (CREDENTIALS, LOGINS, AUTHORITY))
    document = doc.Document(
        files=[*_files(params, config), _unit_file(params), *absent],
        units=[doc.Unit.running(UNIT, [PROGRAM, CONFIG, UNIT_PATH])],
    )
    return Plan(doc.Document() if problems else document, problems, dict(parts))


def _plan_in_slurm(params: Params, peers: Peers, parts: Mapping[str, Any]) -> Plan:
    directory = f"{peers['slurm_state'] or SLURM_STATE}/{STATE_NAME}"
    config = {
        "scheduler": "slurm",
        "state_directory": directory,
        "port": params["port"],
        **_common_config(params, fence.AUTO_IN_SLURM),
    }
    problems = (
        *_config_problems(config),
        *textfile.directory_problems("gpu_reconciler_metrics_directory", params["metrics_directory"]),
    )
    absent = map(doc.Absent, (CREDENTIALS, LOGINS, AUTHORITY))
    document = doc.Document(
        files=[*_files(params, config), _unit_file(params, directory.rpartition("/")[0]), *absent],
        units=[doc.Unit.running(UNIT, [PROGRAM, CONFIG, UNIT_PATH])],
    )
    return Plan(doc.Document() if problems else document, problems, dict(parts))


def _is_slurm(params: Params, peers: Peers) -> bool:
    if params["scheduler"] == "auto":
        return bool(peers["slurm_hosts"]) and not peers["mesos_masters"] and not params["masters"]
    return bool(params["scheduler"] == "slurm")


def _scheduler_problems(params: Params, peers: Peers) -> Iterator[Problem]:
    if _is_slurm(params, peers) and peers["host"] not in peers["slurm_hosts"]:
        yield Problem(
            "no_slurm",
            "gpu_reconciler_scheduler",
            f"{peers['host']} is to fence the nodes of Slurm, and is neither in slurm_controllers nor in slurm_logins",
            str(params["scheduler"]),
            "put the reconciler on a host of slurm_controllers",
        )


def _makes_logins(params: Params) -> bool:
    return not params["zookeeper_servers"] and not params["zookeeper_user"]


def _is_operator(params: Params, peers: Peers) -> bool:
    own = not params["masters"] and not params["mesos_principal"] and not _is_slurm(params, peers)
    return own and peers["authentication"] != "off"


def _logs_in(params: Params) -> bool:
    return _makes_logins(params) or bool(params["zookeeper_user"])


def _has_authority(params: Params, peers: Peers) -> bool:
    own = not params["masters"] and not params["ca_file"] and not _is_slurm(params, peers)
    return own and peers["tls"] == "required"


def _login_problems(params: Params) -> Iterator[Problem]:
    for user, secret in PAIRS:
        if bool(params[user]) != bool(params[secret]):
            yield Problem(
                "half_a_login",
                f"gpu_reconciler_{user}",
                f"gpu_reconciler_{user} goes with gpu_reconciler_{secret}, and one of them is not given",
                str(params[user]),
                "give both or neither",
            )
    for name in ("agents_user", "hosts"):
        if params[name] and not params["zookeeper_user"]:
            yield Problem(
                "half_a_login",
                f"gpu_reconciler_{name}",
                f"gpu_reconciler_{name} goes with a login of the reconciler, and gpu_reconciler_zookeeper_user is not "
                "given",
                remedy=f"give gpu_reconciler_zookeeper_user and its password, or no gpu_reconciler_{name}",
            )
    if params["mode"] == "act" and not _logs_in(params):
        yield Problem(
            "no_login",
            "gpu_reconciler_mode",
            "gpu_reconciler_mode is act, and there is no login for ZooKeeper, where anybody could then give orders to "
            "the hosts",
            "act",
            "give gpu_reconciler_zookeeper_user and gpu_reconciler_zookeeper_password",
        )


def _config_problems(config: dict[str, Any]) -> Iterator[Problem]:
    """What the reconciler itself would refuse when it starts."""
    try:
        reconciler_settings.settings_of(config, "the reconciler's settings")
    except Wrong as wrong:
        yield wrong.problem


def _host_logins(params: Params, peers: Peers) -> tuple[dict[str, str], list[Problem]]:
    """The logins of hosts as ACLs of ZooKeeper name them, by the names of their Mesos agents.

    They are those of all hosts of the group, whichever are in this run: the reconciler would forget the others.
    """
    problems: list[Problem] = []
    logins = _made_logins(peers, problems) if _makes_logins(params) else params["hosts"]
    digests: dict[str, str] = {}
    hosts_by_digest: dict[str, str] = {}
    for host, login in logins.items():
        user, password = (login.get(key) if isinstance(login, Mapping) else None for key in ("user", "password"))
        if not isinstance(user, str) or not isinstance(password, str) or not user or not password or ":" in user:
            cause = f"gpu_reconciler_hosts has no login for {host}"
            problems.append(Problem("wrong_login", host, cause, remedy="give a user without a colon, and a password"))
            continue
        digest = digest_id(user, password)
        if digest in hosts_by_digest:
            cause = f"{hosts_by_digest[digest]} and {host} have the same login"
            problems.append(Problem("shared_login", host, cause, user, "give each host its own"))
        hosts_by_digest[digest] = host
        digests[host] = digest
    return digests, problems


def _made_logins(peers: Peers, problems: list[Problem]) -> dict[str, dict[str, str]]:
    """The logins that are made, by the names of Mesos agents. Hosts without a password are left out."""
    logins: dict[str, dict[str, str]] = {}
    owners: dict[str, str] = {}
    rows = zip(peers["publishers"], peers["publisher_hosts"], peers["publisher_hostnames"], strict=True)
    for name, agent_host, mesos_hostname in rows:
        host = str(agent_host or mesos_hostname or name)
        if host in owners:
            cause = f"{owners[host]} and {name} both have {host} as the name of their Mesos agent"
            problems.append(Problem("shared_agent_name", name, cause, host, "give each its own mesos_agent_hostname"))
        owners[host] = name
        user = f"gpu-agent-{name}"
        if user in peers["secrets"]:
            logins[host] = {"user": user, "password": peers["secrets"][user]}
    return logins


def _config(params: Params, peers: Peers) -> dict[str, Any]:
    """The reconciler's file of settings."""
    return {
        "zookeeper": ",".join(params["zookeeper_servers"] or peers["zookeeper"]),
        "path": params["zookeeper_path"],
        "credentials": CREDENTIALS,
        "logins": LOGINS if _logs_in(params) else None,
        **({"scheduler": "slurm"} if _is_slurm(params, peers) else _mesos_config(params, peers)),
        "session_s": params["zookeeper_session_timeout"],
        **_common_config(params, fence.AUTO_WITH_ZOOKEEPER),
    }


def _mesos_config(params: Params, peers: Peers) -> dict[str, Any]:
    return {
        "masters": params["masters"] or peers["masters"],
        "ca_file": AUTHORITY if _has_authority(params, peers) else params["ca_file"] or None,
    }


def _common_config(params: Params, auto: str) -> dict[str, Any]:
    """What the file has in any case. `auto` is the mode that auto stands for."""
    return {
        "journal_bytes": params["journal_size"] * MIB,
        "journal_files": params["journal_files"],
        **({"metrics": _metrics(params)} if params["metrics_directory"] else {}),
        "poll_s": params["poll"],
        "request_timeout_s": params["request_timeout"],
        "policy": {**params["policy"], "mode": auto if params["mode"] == "auto" else params["mode"]},
    }


def _metrics(params: Params) -> str:
    return f"{params['metrics_directory']}/{METRICS_FILE}"


def _credentials(params: Params, peers: Peers) -> dict[str, str]:
    """The reconciler's secrets; what there is none of is left out."""
    secrets = peers["secrets"]
    if _makes_logins(params):
        credentials = {
            "zookeeper_user": USER,
            "zookeeper_password": secrets.get(USER, ""),
            "zookeeper_former_user": USER if FORMER_USER in secrets else "",
            "zookeeper_former_password": secrets.get(FORMER_USER, ""),
            "zookeeper_agents_user": SHARED_USER if SHARED_USER in secrets else "",
            "zookeeper_agents_password": secrets.get(SHARED_USER, ""),
        }
    else:
        credentials = {
            "zookeeper_user": params["zookeeper_user"],
            "zookeeper_password": params["zookeeper_password"],
            "zookeeper_former_user": params["zookeeper_former_user"],
            "zookeeper_former_password": params["zookeeper_former_password"],
            "zookeeper_agents_user": params["agents_user"],
            "zookeeper_agents_password": params["agents_password"],
        }
    if _is_operator(params, peers):
        credentials.update(mesos_principal=peers["operator_user"], mesos_secret=peers["operator_password"])
    elif not _is_slurm(params, peers):
        credentials.update(mesos_principal=params["mesos_principal"], mesos_secret=params["mesos_secret"])
    return {name: value for name, value in credentials.items() if value}


def _present(params: Params, peers: Peers, config: dict[str, Any], logins: Mapping[str, str]) -> doc.Document:
    has_authority = _has_authority(params, peers)
    return doc.Document(
        packages=[doc.Package(params["package"], "present")] if params["package"] else [],
        files=[
            *_files(params, config),
            # The secrets are in files of their own, which only the reconciler can read.
            _secret_file(CREDENTIALS, _credentials(params, peers)),
            _secret_file(LOGINS, logins),
            _unit_file(params),
            doc.File(AUTHORITY, peers["authority"]) if has_authority else doc.Absent(AUTHORITY),
        ],
        units=[doc.Unit.running(UNIT, [PROGRAM, CONFIG, CREDENTIALS, AUTHORITY, UNIT_PATH])],
    )


def _unit_file(params: Params, slurm_state: str = "") -> doc.File:
    """:param slurm_state: the directory of slurmctld, where all is kept there; empty with ZooKeeper."""
    unit = render(
        ROLE,
        f"{UNIT}.j2",
        python=params["python"],
        program=PROGRAM,
        metrics_directory=params["metrics_directory"],
        metrics=_metrics(params),
        slurm_state=slurm_state,
    )
    return doc.File(UNIT_PATH, unit)


def _files(params: Params, config: dict[str, Any]) -> list[doc.Entry]:
    """The program and its settings."""
    settings = f"{json.dumps(config, indent=2, sort_keys=True)}\n"
    return [
        *map(doc.Directory, ("/usr/libexec/baremetal-gpu", "/etc/baremetal-gpu")),
        *textfile.directory(params["metrics_directory"]),
        doc.File(PROGRAM, bundle("reconciler.command"), "0755"),
        doc.Link(COMMAND, PROGRAM),
        doc.File(CONFIG, settings),
    ]


def _secret_file(path: str, content: Mapping[str, str]) -> doc.File:
    return doc.File(path, f"{json.dumps(content)}\n", "0600", sensitive=True)


def _absent(in_kubernetes: bool) -> doc.Document:
    paths = [UNIT_PATH, COMMAND, PROGRAM, CONFIG, CREDENTIALS, LOGINS, AUTHORITY]
    paths += [KubernetesSettings.certificate] if in_kubernetes else []
    return doc.Document(units=[doc.Unit.stopped(UNIT)], files=[*map(doc.Absent, paths)])
