# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings and files of mesos-master, mesos-agent and Marathon on one host, and what speaks against them.

Pure functions over what is asked for (``asked``, the roles' variables) and how the host was found (``node``, as
mesos_node_info tells it). Nothing may be written where there is a problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import cards_of
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
    set_address,
    set_master,
    zookeeper,
)

AUTHENTICATION = ("off", "required", "offered")
STEERING = ("drain_agents", "deactivate_agents", "reactivate_agents", "mark_agents_gone")
MAINTENANCE = ("update_maintenance_schedules", "start_maintenances", "stop_maintenances")
# A variable of the environment file that is for the roles, not for the program.
MEMBERS = "BAREMETAL_GPU_MASTERS"


def plan(asked: Mapping[str, Any], variables: Mapping[str, Mapping[str, Any]] | None = None) -> Row:
    """What a host is to have for one program.

    :param asked: ``program`` (master, agent or marathon), ``host`` and the rest that the role of the program asks for.
    :param variables: of all hosts, C(hostvars); masters are planned together.
    :returns: ``problems`` (sentences with host, value and remedy), ``files`` (items of a desired document),
        ``arguments`` (flags that no variable can say), ``variables`` (names of those in the environment file),
        ``joining`` (empty masters that join others), ``gpus`` (how many cards an agent gives out), ``remarks`` (what
        is left to others, one sentence each).
    """
    program = asked["program"]
    draft = Draft(asked)
    build: dict[str, Callable[[], None]] = {
        "master": lambda: _master(draft, variables or {}),
        "agent": lambda: mesos_plan_agent.settle(draft),
        "marathon": lambda: _marathon(draft),
    }
    draft.attempt(lambda: _common(draft))
    draft.attempt(build[program])
    _words(draft)
    _tls(draft, variables or {})
    settings = {**draft.settings, **dict(asked["flags"])}
    flags = draft.attempt(lambda: mesos_flags.known(program, asked["flavour"], asked["version"], tuple(asked["build"])))
    if flags is not None:
        # What is asked for by name counts in place of what the role would set.
        draft.problems += mesos_flags.problems(asked["host"], program, settings, flags)
        draft.problems += [
            f"{asked['host']}: {program} is asked for the flag {name}, which follows from {owner}. To do: set that"
            for name, owner in draft.owned.items()
            if name in asked["flags"]
        ]
        draft.problems += [
            problem
            for problem in mesos_flags.environment_problems(asked["host"], program, asked["libprocess"], flags)
            if "LIBPROCESS_" in problem
        ]
    arguments: list[str] = []
    text = ""
    if not draft.problems:
        rendered, arguments = mesos_flags.render(program, settings, {**draft.libprocess, **asked["libprocess"]})
        notes = "".join(f"{name}={value}\n" for name, value in sorted(draft.notes.items()) if value)
        text = "# Written by Ansible (baremetal.gpu). Changes made here are lost.\n" + notes + rendered
        if program == "agent":
            draft.problems += mesos_change.problems(asked["host"], asked["node"], text, asked["work_dir"])
    secret = program == "marathon"
    draft.file(asked["environment_file"], text, "0600" if secret else "0644", secret)
    return {
        "problems": draft.problems,
        "files": draft.files,
        "arguments": arguments,
        "variables": [line.partition("=")[0] for line in text.splitlines() if not line.startswith("#")],
        "gpus": len(cards_of(draft.notes)),
        "joining": draft.joining,
        "remarks": draft.remarks,
    }


def _common(draft: Draft) -> None:
    """Names, addresses and ports, which all three need."""
    asked, node = draft.asked, draft.asked["node"]
    for name, addresses in sorted(node["resolved"].items()):
        if not addresses:
            draft.refuse(f"{name} does not resolve here. To do: correct DNS or /etc/hosts, or give IP addresses")
    address = asked["address"]
    if node["resolved"].get(address) and not node["own_ip"].get(address):
        draft.refuse(
            f"its address {address} ({', '.join(node['resolved'][address])}) is none by which others reach it. To do: "
            "correct /etc/hosts, or set mesos_common_address to an IP address of the host"
        )
    variable = "MARATHON_HTTP_PORT" if asked["program"] == "marathon" else "MESOS_PORT"
    # Of one that runs with this port it is its own; the process of a container is not in the cgroup of its unit.
    if not (node["running"] and node["environment"].get(variable) == str(asked["port"])):
        for port, holder in sorted(node["held_ports"].items()):
            draft.refuse(f"port {port} is held by {holder}. To do: stop it, or choose another port")
    for source in asked["sources"]:
        _source(draft, source)


def _words(draft: Draft) -> None:
    """Settings with a few words each; YAML takes an off without quotes for a boolean."""
    for variable, value, words in (
        ("mesos_common_tls", draft.asked["tls"]["mode"], mesos_tls.MODES),
        ("mesos_common_authentication", draft.asked["authentication"], AUTHENTICATION),
    ):
        if value not in words:
            draft.refuse(f'{variable} is {value}. To do: give "off", with quotes, or {" or ".join(words[1:])}')


def _tls(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    asked, tls = draft.asked, draft.asked["tls"]
    program, mode = asked["program"], tls["mode"]
    if mode not in mesos_tls.MODES:
        return
    if mode == "off" and "LIBPROCESS_SSL_ENABLED" in asked["libprocess"]:
        # It is the operator's own doing.
        return
    flags = asked["flags"] if program == "agent" else {}
    told = [
        *mesos_tls.given_twice(asked["libprocess"], flags, tls),
        *mesos_tls.problems(program, draft.host, tls, asked["node"], variables),
    ]
    draft.problems += [f"{draft.host}: {one}" for one in told]
    if mode == "off":
        return
    draft.libprocess.update(mesos_tls.libprocess(mode, tls["directory"], tls["version"]))
    made = draft.attempt(lambda: mesos_tls.files(program, tls, asked["certificates"], asked["user"], draft.host))
    draft.files += made or []
    if program == "agent" and mesos_tls.FLAG not in flags:
        draft.settings[mesos_tls.FLAG] = mesos_tls.executor_variables(mode, tls["directory"], tls["version"])


def _source(draft: Draft, source: Mapping[str, Any]) -> None:
    """Where a program comes from. Nothing is downloaded without its SHA-256."""
    prefix, method = source["prefix"], source["method"]
    if method in ("archive", "package"):
        checksum = str(source["sha256"])
        if bool(source["url"]) == bool(source["path"]):
            draft.refuse(f"method {method} needs one of {prefix}_url and {prefix}_path. To do: set one of them")
        if not re.fullmatch(r"[0-9a-fA-F]{64}", checksum, re.ASCII):
            draft.refuse(f"{prefix}_sha256 is {checksum!r}. To do: give the SHA-256 of the file, 64 hex digits")
        place = {"url": source["url"]} if source["url"] else {"source": source["path"]}
        item = {"path": source["file"], "sha256": checksum.lower(), "mode": "0644", "owner": "root", "group": "root"}
        draft.files.append({**item, **place})
    elif method == "repository" and not source["repository"]:
        draft.refuse(f"{prefix}_repository is empty. To do: describe the repository, or take another method")
    elif method == "image":
        if not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", str(source["image"]), re.ASCII):
            draft.refuse(f"{prefix}_image is {source['image']!r}. To do: name it by its digest, NAME@sha256:…")
        if draft.asked["program"] == "agent":
            draft.refuse(
                "an agent in a container takes its tasks down whenever it restarts. To do: take another method for "
                "hosts with an agent"
            )


def _set_zk(draft: Draft) -> None:
    """The masters' own node, in a file if there is a password: of that Mesos tells the name, not the content."""
    asked = draft.asked
    url = zookeeper(draft, asked["chroot"], asked["login"], "mesos_common_zookeeper")
    if "@" in url:
        # Without an end of line: what is in the file is the value.
        draft.file(asked["zookeeper_file"], url, "0600", True)
        url = f"file://{asked['zookeeper_file']}"
    draft.set("zk", url, "mesos_common_zookeeper")


def _master(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    asked, secrets = draft.asked, draft.asked["secrets"]
    names = [row["name"] for row in asked["members"]]
    set_address(draft, asked["address"], "mesos_common_address")
    draft.set("work_dir", asked["work_dir"], "mesos_master_work_dir")
    draft.set("cluster", asked["cluster"], "mesos_common_cluster")
    draft.attempt(lambda: _set_zk(draft))
    given = int(asked["quorum"]) or None
    draft.set("quorum", draft.attempt(lambda: mesos_render.quorum(names, given)) or 1, "mesos_master_quorum")
    draft.notes[MEMBERS] = ",".join(sorted(names))
    _membership(draft, variables)
    if asked["home"]:
        draft.settings["webui_dir"] = f"{asked['home']}/share/mesos/webui"
    if asked["authentication"] == "off":
        return
    draft.set("credentials", asked["credentials_file"], "mesos_common_authentication")
    principals = {name: secret for name, secret in secrets.items() if not name.startswith(HTTP)}
    draft.file(asked["credentials_file"], mesos_render.credentials(principals), "0600", True)
    if asked["authentication"] == "required":
        for name in ("agents", "frameworks", "http_frameworks", "http_readwrite"):
            draft.set(f"authenticate_{name}", True, "mesos_common_authentication")
        draft.set("authenticate_http_readonly", asked["readonly"], "mesos_common_authenticate_readonly")
        draft.settings["http_framework_authenticators"] = "basic"
        draft.set("acls", f"file://{asked['acls_file']}", "mesos_master_acls")
        allowed = {
            "register_agents": [AGENT],
            "register_frameworks": sorted(set(principals) - {AGENT, OPERATOR}),
            **{name: [OPERATOR] for name in (*STEERING, *MAINTENANCE)},
            **asked["acls"],
        }
        draft.file(asked["acls_file"], mesos_render.acls(allowed, permissive=True), "0644", False)


def _membership(draft: Draft, variables: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares with the masters that hosts with a replicated log were last told of."""
    names = [row["name"] for row in draft.asked["members"]]
    nodes = {name: (variables.get(name) or {}).get("mesos_master_node") or {} for name in names}
    nodes[draft.host] = draft.asked["node"]
    with_log = [name for name in names if nodes[name].get("has_log")]
    draft.joining = [name for name in names if with_log and nodes[name] and name not in with_log]
    for name in with_log:
        before = [one for one in nodes[name].get("environment", {}).get(MEMBERS, "").split(",") if one]
        try:
            mesos_render.membership_change(before, names, bool(draft.asked["confirmed"]))
        except Refused as why:
            draft.refuse(str(why).replace("confirm the change for this run", _CONFIRM))
            return
    kept = len(with_log)
    if with_log and kept + 1 < len(names) // 2 + 1:
        draft.refuse(
            f"{kept} of {len(names)} masters have the replicated log, and the empty ones could be a majority without "
            f"it. To do: go from {kept} by one step, or bring the log back"
        )


_CONFIRM = "read 'Change the masters' in docs/mesos.md, then set mesos_master_confirm_members: true for this run"


def _marathon(draft: Draft) -> None:
    asked, secrets = draft.asked, draft.asked["secrets"]
    draft.set("hostname", asked["address"], "mesos_common_address")
    draft.set("http_port", asked["port"], "marathon_port")
    # Masters answer its driver there; without it that is what the host's name stands for, which may be 127.0.1.1.
    draft.libprocess["LIBPROCESS_IP"] = asked["node"]["own_ip"].get(asked["address"])
    draft.attempt(lambda: draft.set("zk", _marathon_zookeeper(draft), "marathon_zookeeper_chroot"))
    draft.attempt(lambda: set_master(draft, asked["mesos_chroot"]))
    features = [*dict.fromkeys(["gpu_resources", *asked["features"]])]
    draft.set("enable_features", ",".join(features), "marathon_features")
    draft.set("gpu_scheduling_behavior", asked["gpu_scheduling_behavior"], "marathon_gpu_scheduling_behavior")
    draft.set("mesos_user", asked["task_user"], "marathon_task_user")
    if asked["framework_name"]:
        draft.set("framework_name", asked["framework_name"], "marathon_framework_name")
    if asked["http_user"]:
        password = secrets.get(HTTP + asked["http_user"], "")
        if not re.fullmatch(r"[^\s:]+", asked["http_user"]) or not password:
            draft.refuse(f"marathon_http_user is {asked['http_user']!r}. To do: give one without a colon or blank")
        draft.set("http_credentials", f"{asked['http_user']}:{password}", "marathon_http_user")
    if asked["authentication"] != "off":
        draft.set("mesos_authentication", True, "mesos_common_authentication")
        draft.set("mesos_authentication_principal", MARATHON, "mesos_common_authentication")
        draft.set("mesos_authentication_secret_file", asked["secret_file"], "mesos_common_authentication")
        draft.file(asked["secret_file"], secrets.get(MARATHON, ""), "0600", True)


def _marathon_zookeeper(draft: Draft) -> str:
    return zookeeper(draft, draft.asked["chroot"], draft.asked["login"], "marathon_zookeeper")
