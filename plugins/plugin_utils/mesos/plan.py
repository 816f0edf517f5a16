# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings and files of mesos-master, mesos-agent and Marathon on one host, and what speaks against them.

Pure functions over the variables of the roles (``params``) and the state of the host (``node``, as
mesos_node_info tells it). Nothing may be written where there is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import gpus_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import change as mesos_change
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import plan_agent as mesos_plan_agent
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import render as mesos_render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import tls as mesos_tls
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import (
    AGENT,
    HTTP,
    MARATHON,
    OPERATOR,
    Draft,
    Row,
    problem,
    set_address,
    set_master,
    zookeeper,
)

AUTHENTICATION = ("off", "required", "offered")
STEERING = ("drain_agents", "deactivate_agents", "reactivate_agents", "mark_agents_gone")
MAINTENANCE = ("update_maintenance_schedules", "start_maintenances", "stop_maintenances")
# A variable of the environment file that is for the roles, not for the program.
MEMBERS = "BAREMETAL_GPU_MASTERS"


def plan(params: Mapping[str, Any], variables: Mapping[str, Mapping[str, Any]] | None = None) -> Row:
    """What a host is to have for one program.

    :param params: ``program`` (master, agent or marathon), ``host`` and the rest of the settings of its role.
    :param variables: of all hosts, C(hostvars); masters are planned together.
    :returns: ``problems``, ``files`` (items of a desired document),
        ``arguments`` (flags that no variable can say), ``variables`` (names of those in the environment file),
        ``joining`` (empty masters that join others), ``gpus`` (how many GPUs an agent gives out), ``remarks`` (what
        is left to others, one sentence each).
    """
    program = params["program"]
    draft = Draft(params)
    build: dict[str, Callable[[], None]] = {
        "master": lambda: _master(draft, variables or {}),
        "agent": lambda: mesos_plan_agent.settle(draft),
        "marathon": lambda: _marathon(draft),
    }
    draft.attempt(lambda: _common(draft))
    draft.attempt(build[program])
    _words(draft)
    _tls(draft, variables or {})
    settings = {**draft.settings, **dict(params["flags"])}
    flags = draft.attempt(
        lambda: mesos_flags.known(program, params["flavour"], params["version"], tuple(params["build"]))
    )
    if flags is not None:
        # A flag that the operator names counts in place of the one that the role would set.
        draft.problems += mesos_flags.problems(program, settings, flags)
        draft.problems += [
            problem(f"{params['prefix']}_flags has {name}, which follows from {owner}", "set that")
            for name, owner in draft.owned.items()
            if name in params["flags"]
        ]
        draft.problems += [
            one
            for one in mesos_flags.environment_problems(program, params["libprocess"], flags)
            if "LIBPROCESS_" in one.cause
        ]
    arguments: list[str] = []
    text = ""
    if not draft.problems:
        rendered, arguments = mesos_flags.render(program, settings, {**draft.libprocess, **params["libprocess"]})
        notes = "".join(f"{name}={value}\n" for name, value in sorted(draft.notes.items()) if value)
        text = "# Written by Ansible (baremetal.gpu). Changes made here are lost.\n" + notes + rendered
        if program == "agent":
            draft.problems += mesos_change.problems(params["node"], text, params["work_dir"])
    secret = program == "marathon"
    draft.file(params["environment_file"], text, "0600" if secret else "0644", secret)
    return {
        "problems": draft.problems,
        "files": draft.files,
        "arguments": arguments,
        "variables": [line.partition("=")[0] for line in text.splitlines() if not line.startswith("#")],
        "gpus": len(gpus_of(draft.notes)),
        "joining": draft.joining,
        "remarks": draft.remarks,
    }


def _common(draft: Draft) -> None:
    """Names, addresses and ports, which all three need."""
    params, node = draft.params, draft.params["node"]
    for name, addresses in sorted(node["resolved"].items()):
        if not addresses:
            draft.refuse(f"{name} does not resolve here", "correct DNS or /etc/hosts, or give IP addresses")
    address = params["address"]
    if node["resolved"].get(address) and not node["own_ip"].get(address):
        draft.refuse(
            f"its address {address} ({', '.join(node['resolved'][address])}) is none by which others reach it",
            "correct /etc/hosts, or set mesos_common_address to an IP address of the host",
        )
    variable = "MARATHON_HTTP_PORT" if params["program"] == "marathon" else "MESOS_PORT"
    # Of one that runs with this port it is its own; the process of a container is not in the cgroup of its unit.
    if not (node["running"] and node["environment"].get(variable) == str(params["port"])):
        for port, holder in sorted(node["held_ports"].items()):
            draft.refuse(f"port {port} is held by {holder}", "stop it, or choose another port")
    for source in params["sources"]:
        _source(draft, source)


def _words(draft: Draft) -> None:
    """Settings with a few words each; YAML takes an off without quotes for a boolean."""
    for variable, value, words in (
        ("mesos_common_tls", draft.params["tls"]["mode"], mesos_tls.MODES),
        ("mesos_common_authentication", draft.params["authentication"], AUTHENTICATION),
    ):
        if value not in words:
            draft.refuse(f"{variable} is {value}", f'give "off", with quotes, or {" or ".join(words[1:])}')


def _tls(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    params, tls = draft.params, draft.params["tls"]
    program, mode = params["program"], tls["mode"]
    if mode not in mesos_tls.MODES:
        return
    if mode == "off" and "LIBPROCESS_SSL_ENABLED" in params["libprocess"]:
        # It is the operator's own doing.
        return
    flags = params["flags"] if program == "agent" else {}
    draft.problems += [
        *mesos_tls.given_twice(params["libprocess"], flags, tls),
        *mesos_tls.problems(program, draft.host, tls, params["node"], variables),
    ]
    if mode == "off":
        return
    draft.libprocess.update(mesos_tls.libprocess(mode, tls["directory"], tls["version"]))
    made = draft.attempt(lambda: mesos_tls.files(program, tls, params["certificates"], params["user"], draft.host))
    draft.files += made or []
    if program == "agent" and mesos_tls.FLAG not in flags:
        draft.settings[mesos_tls.FLAG] = mesos_tls.executor_variables(mode, tls["directory"], tls["version"])


def _source(draft: Draft, source: Mapping[str, Any]) -> None:
    """Where a program comes from. Nothing is downloaded without its SHA-256."""
    prefix, method = source["prefix"], source["method"]
    if method in ("archive", "package"):
        checksum = str(source["sha256"])
        if bool(source["url"]) == bool(source["path"]):
            draft.refuse(f"method {method} needs one of {prefix}_url and {prefix}_path", "set one of them")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", checksum, re.ASCII):
            draft.refuse(f"{prefix}_sha256 is {checksum!r}", "give the SHA-256 of the file, 64 hex digits")
        url, path = source["url"] or None, source["path"]
        draft.files.append(doc.File(source["file"], sha256=checksum.lower(), url=url, source=None if url else path))
    elif method == "repository" and not source["repository"]:
        draft.refuse(f"{prefix}_repository is empty", "describe the repository, or take another method")
    elif method == "image":
        if not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", str(source["image"]), re.ASCII):
            draft.refuse(f"{prefix}_image is {source['image']!r}", "name it by its digest, NAME@sha256:…")
        if draft.params["program"] == "agent":
            draft.refuse(
                "an agent in a container takes its tasks down whenever it restarts",
                "take another method for hosts with an agent",
            )


def _set_zk(draft: Draft) -> None:
    """The masters' own node, in a file if there is a password: of that Mesos tells the name, not the content."""
    params = draft.params
    url = zookeeper(draft, params["chroot"], params["login"], "mesos_common_zookeeper")
    if "@" in url:
        # Without an end of line: what is in the file is the value.
        draft.file(params["zookeeper_file"], url, "0600", True)
        url = f"file://{params['zookeeper_file']}"
    draft.set("zk", url, "mesos_common_zookeeper")


def _master(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    params, secrets = draft.params, draft.params["secrets"]
    names = [row["name"] for row in params["members"]]
    set_address(draft, params["address"], "mesos_common_address")
    draft.set("work_dir", params["work_dir"], "mesos_master_work_dir")
    draft.set("cluster", params["cluster"], "mesos_common_cluster")
    draft.attempt(lambda: _set_zk(draft))
    given = int(params["quorum"]) or None
    draft.set("quorum", draft.attempt(lambda: mesos_render.quorum(names, given)) or 1, "mesos_master_quorum")
    draft.notes[MEMBERS] = ",".join(sorted(names))
    _membership(draft, variables)
    if params["home"]:
        draft.settings["webui_dir"] = f"{params['home']}/share/mesos/webui"
    if params["authentication"] == "off":
        return
    draft.set("credentials", params["credentials_file"], "mesos_common_authentication")
    principals = {name: secret for name, secret in secrets.items() if not name.startswith(HTTP)}
    draft.file(params["credentials_file"], mesos_render.credentials(principals), "0600", True)
    if params["authentication"] == "required":
        for name in ("agents", "frameworks", "http_frameworks", "http_readwrite"):
            draft.set(f"authenticate_{name}", True, "mesos_common_authentication")
        draft.set("authenticate_http_readonly", params["readonly"], "mesos_common_authenticate_readonly")
        draft.settings["http_framework_authenticators"] = "basic"
        draft.set("acls", f"file://{params['acls_file']}", "mesos_master_acls")
        allowed = {
            "register_agents": [AGENT],
            "register_frameworks": sorted(set(principals) - {AGENT, OPERATOR}),
            **{name: [OPERATOR] for name in (*STEERING, *MAINTENANCE)},
            **params["acls"],
        }
        draft.file(params["acls_file"], mesos_render.acls(allowed, permissive=True), "0644", False)


def _membership(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares with the masters that hosts with a replicated log were last told of."""
    names = [row["name"] for row in draft.params["members"]]
    nodes = {name: (variables.get(name) or {}).get("mesos_master_node") or {} for name in names}
    nodes[draft.host] = draft.params["node"]
    with_log = [name for name in names if nodes[name].get("has_log")]
    draft.joining = [name for name in names if with_log and nodes[name] and name not in with_log]
    for name in with_log:
        before = [one for one in nodes[name].get("environment", {}).get(MEMBERS, "").split(",") if one]
        try:
            mesos_render.membership_change(before, names, bool(draft.params["confirmed"]))
        except Refused as why:
            remedy = _CONFIRM if why.problem.code == mesos_render.UNCONFIRMED else why.problem.remedy
            draft.problems.append(replace(why.problem, remedy=remedy))
            return
    kept = len(with_log)
    if with_log and kept + 1 < len(names) // 2 + 1:
        draft.refuse(
            f"{kept} of {len(names)} masters have the replicated log, and the empty ones could be a majority without "
            f"it",
            f"go from {kept} by one step, or bring the log back",
        )


_CONFIRM = "read 'Change the masters' in docs/mesos.md, then set mesos_master_confirm_members: true for this run"


def _marathon(draft: Draft) -> None:
    params, secrets = draft.params, draft.params["secrets"]
    draft.set("hostname", params["address"], "mesos_common_address")
    draft.set("http_port", params["port"], "marathon_port")
    # Masters answer its driver there; without it that is what the host's name stands for, which may be 127.0.1.1.
    draft.libprocess["LIBPROCESS_IP"] = params["node"]["own_ip"].get(params["address"])
    draft.attempt(lambda: draft.set("zk", _marathon_zookeeper(draft), "marathon_zookeeper_chroot"))
    draft.attempt(lambda: set_master(draft, params["mesos_chroot"]))
    features = [*dict.fromkeys(["gpu_resources", *params["features"]])]
    draft.set("enable_features", ",".join(features), "marathon_features")
    draft.set("gpu_scheduling_behavior", params["gpu_scheduling_behavior"], "marathon_gpu_scheduling_behavior")
    draft.set("mesos_user", params["task_user"], "marathon_task_user")
    if params["framework_name"]:
        draft.set("framework_name", params["framework_name"], "marathon_framework_name")
    if params["http_user"]:
        password = secrets.get(HTTP + params["http_user"], "")
        if not re.fullmatch(r"[^\s:]+", params["http_user"]) or not password:
            draft.refuse(f"marathon_http_user is {params['http_user']!r}", "give one without a colon or blank")
        draft.set("http_credentials", f"{params['http_user']}:{password}", "marathon_http_user")
    if params["authentication"] != "off":
        draft.set("mesos_authentication", True, "mesos_common_authentication")
        draft.set("mesos_authentication_principal", MARATHON, "mesos_common_authentication")
        draft.set("mesos_authentication_secret_file", params["secret_file"], "mesos_common_authentication")
        draft.file(params["secret_file"], secrets.get(MARATHON, ""), "0600", True)


def _marathon_zookeeper(draft: Draft) -> str:
    return zookeeper(draft, draft.params["chroot"], draft.params["login"], "marathon_zookeeper")
