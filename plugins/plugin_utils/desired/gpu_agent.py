# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role gpu_agent: the agent's program, its settings, its unit, and where it publishes."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import policy
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import fence

Params = Mapping[str, Any]

ROLE = "gpu_agent"
UNIT = "baremetal-gpu-agent.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
ORDER_PATH_UNIT = "baremetal-gpu-order.path"
ORDER_PATH_FILE = f"/etc/systemd/system/{ORDER_PATH_UNIT}"
ORDER_SERVICE_FILE = "/etc/systemd/system/baremetal-gpu-order.service"
PROGRAM = "/usr/libexec/baremetal-gpu/gpu-agent"
COMMAND = "/usr/local/bin/gpu-agent"
# As both were called before. The name gpuops belongs to the command of the controller, which a host may have too.
FORMER_PROGRAM = "/usr/libexec/baremetal-gpu/gpuops"
FORMER_COMMAND = "/usr/local/bin/gpuops"
FORMER = [doc.Absent(FORMER_COMMAND, src=FORMER_PROGRAM), doc.Absent(FORMER_PROGRAM)]
CONFIG = "/etc/baremetal-gpu/agent.json"
CREDENTIALS = "/etc/baremetal-gpu/agent-zookeeper.json"
FACT = "/etc/ansible/facts.d/gpu.fact"
FACT_TEXT = f"""#!/bin/sh
# Written by Ansible (baremetal.gpu.gpu_agent). Changes made here are lost.
exec {{python}} -I {PROGRAM} fact
"""
# The login that all hosts of a site once shared.
SHARED_USER = "gpu-agents"


@dataclass(frozen=True)
class Publishing:
    """Where the agent publishes its verdicts, and as whom.

    :ivar servers: host:port of each server of ZooKeeper; none if the agent does not publish there.
    :ivar login: user, password, former_user and former_password; empty texts where there is none.
    :ivar controllers: host:port of slurmctld's hosts; none if they do not hear the agent.
    :ivar in_kubernetes: whether the daemon of Kubernetes publishes them, and hands the reconciler's orders on.
    """

    servers: tuple[str, ...]
    path: str
    login: Mapping[str, str]
    controllers: tuple[str, ...] = ()
    in_kubernetes: bool = False

    @property
    def logs_in(self) -> bool:
        return bool(self.servers and self.login["user"])

    @property
    def gets_orders(self) -> bool:
        return bool(self.servers) or self.in_kubernetes


def desired(params: Params, facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the role.

    Peers: `host` is the name in the inventory; `publishers` are the hosts of the groups mesos_agents and
    slurm_nodes, `reconcilers` those of gpu_reconcilers; `reconciler_servers`, `reconciler_users` and
    `reconciler_paths` have what each of these
    says of ZooKeeper. `zookeeper` (host:port of the site's servers) and `secrets` (password by user) are read only for
    a host that publishes in the site's own ZooKeeper, and may be empty until the tasks have read them.

    `groups` and `hostvars` are those of the inventory.

    Part `uses_site`: whether the tasks have to read those two.
    """
    parts = {"uses_site": False}
    if params["state"] == "absent":
        return Plan(_absent(), parts=parts)
    of_site = bool(not params["zookeeper_servers"] and peers["reconcilers"] and peers["host"] in peers["publishers"])
    if of_site and (peers["reconciler_servers"][0] or peers["reconciler_users"][0]):
        return Plan(problems=(_reconciler_elsewhere(peers),), parts=parts)
    parts["uses_site"] = of_site
    publishing = _of_site(params, peers) if of_site else _of_params(params)
    controllers = fence.addresses(peers["host"], peers["groups"], peers["hostvars"])
    in_kubernetes = peers["host"] in peers["groups"].get("kubernetes_nodes", ())
    publishing = replace(publishing, controllers=tuple(controllers), in_kubernetes=in_kubernetes)
    problems = tuple(_problems(params, publishing))
    return Plan(doc.Document() if problems else _present(params, publishing), problems, parts)


def _of_site(params: Params, peers: Mapping[str, Any]) -> Publishing:
    user = f"gpu-agent-{peers['host']}"
    secrets = peers["secrets"]
    # A site that began with one login for all hosts has it in its file until that is taken out.
    login = {
        "user": user,
        "password": secrets.get(user, ""),
        "former_user": SHARED_USER if SHARED_USER in secrets else "",
        "former_password": secrets.get(SHARED_USER, ""),
    }
    path = peers["reconciler_paths"][0] or params["zookeeper_path"]
    return Publishing(tuple(peers["zookeeper"]), path, login)


def _of_params(params: Params) -> Publishing:
    login = {name: params[f"zookeeper_{name}"] for name in ("user", "password", "former_user", "former_password")}
    return Publishing(tuple(params["zookeeper_servers"]), params["zookeeper_path"], login)


def _reconciler_elsewhere(peers: Mapping[str, Any]) -> Problem:
    return Problem(
        "reconciler_elsewhere",
        peers["host"],
        "gpu_reconciler_zookeeper_servers or gpu_reconciler_zookeeper_user is given for "
        f"{peers['reconcilers'][0]}, and gpu_agent_zookeeper_servers is not given here",
        ", ".join(peers["reconciler_servers"][0]) or peers["reconciler_users"][0],
        "give gpu_agent_zookeeper_servers, gpu_agent_zookeeper_user and gpu_agent_zookeeper_password too",
    )


def _problems(params: Params, publishing: Publishing) -> Iterator[Problem]:
    """What does not go together."""

    def problem(name: str, cause: str, remedy: str) -> Problem:
        return Problem("wrong_setting", name, cause, str(params.get(name.removeprefix("gpu_agent_"), "")), remedy)

    interval, slow = params["interval"], params["slow_interval"]
    deadline, start = params["look_timeout"], params["first_look_timeout"]
    if not (interval > 0 and slow >= interval and deadline > 0 and start >= deadline):
        yield problem(
            "gpu_agent_interval",
            f"gpu_agent_interval ({interval}), gpu_agent_slow_interval ({slow}), gpu_agent_look_timeout ({deadline}), "
            f"gpu_agent_first_look_timeout ({start}) are seconds above 0, the slow interval is at least the interval, "
            "and the timeout of the first look is at least that of the others",
            "correct the one that is too small",
        )
    if not all(re.match(r"[^:\s]+:[0-9]+$", server) for server in publishing.servers):
        listed = ", ".join(params["zookeeper_servers"])
        yield problem(
            "gpu_agent_zookeeper_servers",
            f"gpu_agent_zookeeper_servers ({listed}) are host:port each",
            "give each server with its port",
        )
    if not re.match(r"(/[A-Za-z0-9_.-]+)+$", params["zookeeper_path"]):
        yield problem(
            "gpu_agent_zookeeper_path",
            f"gpu_agent_zookeeper_path ({params['zookeeper_path']}) begins with a slash and names a node",
            "give a path such as /baremetal-gpu",
        )
    user, former = params["zookeeper_user"], params["zookeeper_former_user"]
    if bool(user) != bool(params["zookeeper_password"]):
        yield Problem(
            "half_a_login",
            "gpu_agent_zookeeper_user",
            "gpu_agent_zookeeper_user and gpu_agent_zookeeper_password are given both or neither",
            user,
            "give both or neither",
        )
    if bool(former) != bool(params["zookeeper_former_password"]) or (former and not user):
        yield Problem(
            "half_a_login",
            "gpu_agent_zookeeper_former_user",
            "gpu_agent_zookeeper_former_user and gpu_agent_zookeeper_former_password are given both or neither, and "
            "with gpu_agent_zookeeper_user",
            former,
            "give both or neither",
        )
    orders = ", ".join(params["orders"])
    if orders and publishing.servers and not publishing.logs_in:
        yield problem(
            "gpu_agent_orders",
            f"gpu_agent_orders ({orders}) need gpu_agent_zookeeper_user and its password, since without a login "
            "anybody who reaches ZooKeeper could give them",
            "give gpu_agent_zookeeper_user and gpu_agent_zookeeper_password",
        )
    if params["zookeeper_session_timeout"] < 4:
        yield problem(
            "gpu_agent_zookeeper_session_timeout",
            f"gpu_agent_zookeeper_session_timeout ({params['zookeeper_session_timeout']}) is at least 4",
            "give 4 or more",
        )
    if orders and not publishing.gets_orders:
        yield problem(
            "gpu_agent_orders",
            f"gpu_agent_orders ({orders}) need gpu_agent_zookeeper_servers",
            "give gpu_agent_zookeeper_servers, or no orders",
        )
    if "reboot" in params["orders"] and "replace" not in params["orders"] and not publishing.in_kubernetes:
        yield problem(
            "gpu_agent_orders",
            f"gpu_agent_orders ({orders}) has reboot, which needs replace",
            "add replace to gpu_agent_orders",
        )
    yield from _metrics_problems(params)
    if not re.match(r"/[^\s]+$", params["kernel_log"]):
        yield problem(
            "gpu_agent_kernel_log",
            f"gpu_agent_kernel_log ({params['kernel_log']}) is an absolute path without blanks",
            "give the path of the kernel's log, such as /dev/kmsg",
        )
    try:
        policy.merge(params["policy"])
    except policy.PolicyError as error:
        yield problem("gpu_agent_policy", f"gpu_agent_policy: {error}", "correct gpu_agent_policy")


def _metrics_problems(params: Params) -> Iterator[Problem]:
    port, address, names = params["metrics_port"], params["metrics_address"], params["dcgm_names"]
    if port and not 1024 <= port <= 65535:
        yield Problem(
            "wrong_setting",
            "gpu_agent_metrics_port",
            f"gpu_agent_metrics_port ({port}) is 0 for no port, or from 1024 to 65535",
            str(port),
            "give a port such as 9400, or 0",
        )
    try:
        ipaddress.ip_address(address)
    except ValueError:
        yield Problem(
            "wrong_setting",
            "gpu_agent_metrics_address",
            f"gpu_agent_metrics_address ({address}) is an IP address of the host",
            address,
            "give an address such as 127.0.0.1, or 0.0.0.0 for all of the host's",
        )
    if names != "none" and not params["textfile_directory"] and not port:
        yield Problem(
            "wrong_setting",
            "gpu_agent_dcgm_names",
            f"gpu_agent_dcgm_names ({names}) needs gpu_agent_textfile_directory or gpu_agent_metrics_port",
            names,
            "give one of the two, or set gpu_agent_dcgm_names to none",
        )


def _present(params: Params, publishing: Publishing) -> doc.Document:
    obeys = bool(publishing.gets_orders and params["orders"])
    orders = doc.Unit.running(ORDER_PATH_UNIT, [ORDER_PATH_FILE]) if obeys else doc.Unit.stopped(ORDER_PATH_UNIT)
    return doc.Document(
        files=[
            *map(doc.Directory, ("/usr/libexec/baremetal-gpu", "/etc/baremetal-gpu")),
            doc.Directory("/etc/ansible/facts.d", owner=None, group=None),
            *textfile.directory(params["textfile_directory"]),
            *_program_files(params, publishing, obeys),
            _credentials(publishing),
            *_order_files(params, obeys),
            *FORMER,
        ],
        units=[doc.Unit.running(UNIT, [PROGRAM, CONFIG, CREDENTIALS, UNIT_PATH]), orders],
    )


def _program_files(params: Params, publishing: Publishing, obeys: bool) -> list[doc.Entry]:
    config = json.dumps(_config(params, publishing, obeys), indent=2, sort_keys=True)
    unit = render(
        ROLE,
        "baremetal-gpu-agent.service.j2",
        python=params["python"],
        program=PROGRAM,
        textfile_directory=params["textfile_directory"],
        textfile=_textfile(params),
        networked=bool(publishing.servers or publishing.controllers or params["metrics_port"]),
        kernel_log=params["kernel_log"],
    )
    return [
        doc.File(PROGRAM, bundle("agent.command"), "0755"),
        doc.Link(COMMAND, PROGRAM),
        doc.File(CONFIG, f"{config}\n"),
        doc.File(UNIT_PATH, unit),
        doc.File(FACT, FACT_TEXT.format(python=params["python"]), "0755"),
    ]


def _textfile(params: Params) -> str:
    return f"{params['textfile_directory']}/baremetal_gpu.prom" if params["textfile_directory"] else ""


def _config(params: Params, publishing: Publishing, obeys: bool) -> dict[str, Any]:
    """The agent's file of settings. What is not used is not in it."""
    config: dict[str, Any] = {
        "settings": {
            "kernel_log": params["kernel_log"],
            "interval_s": params["interval"],
            "slow_interval_s": params["slow_interval"],
            "deadline_s": params["look_timeout"],
            "start_deadline_s": params["first_look_timeout"],
            "policy": params["policy"],
        },
        "textfile": _textfile(params),
    }
    if params["dcgm_names"] != "none":
        config["dcgm_names"] = params["dcgm_names"]
    if params["metrics_port"]:
        config["metrics"] = {"address": params["metrics_address"], "port": params["metrics_port"]}
    if publishing.servers:
        config["zookeeper"] = {
            "servers": publishing.servers,
            "host": params["host"],
            "path": publishing.path,
            "credentials": CREDENTIALS if publishing.logs_in else None,
            "session_s": params["zookeeper_session_timeout"],
            "silent_s": _silent_s(params),
        }
        config["mesos"] = {
            "unit": params["mesos_unit"],
            "work_dir": params["mesos_work_dir"],
            "environment": params["mesos_environment"],
            "url": params["mesos_url"],
            "ca_file": params["mesos_ca_file"] or None,
        }
    if publishing.controllers:
        config["slurm"] = {"controllers": publishing.controllers, "host": params["host"], "silent_s": _silent_s(params)}
    if obeys:
        config["orders"] = params["orders"]
    return config


def _silent_s(params: Params) -> int:
    """Seconds without a word of the agent's loop after which its verdict is no more told."""
    return int(max(90, params["interval"] * 4 + params["first_look_timeout"]))


def _credentials(publishing: Publishing) -> doc.Entry:
    """The password, in a file of its own that only the agent can read."""
    if not publishing.logs_in:
        return doc.Absent(CREDENTIALS)
    login = {name: value for name, value in publishing.login.items() if value}
    return doc.File(CREDENTIALS, f"{json.dumps(login)}\n", "0600", sensitive=True)


def _order_files(params: Params, obeys: bool) -> list[doc.Entry]:
    if not obeys:
        return [doc.Absent(ORDER_PATH_FILE), doc.Absent(ORDER_SERVICE_FILE)]
    path_unit = render(ROLE, "baremetal-gpu-order.path.j2")
    service = render(ROLE, "baremetal-gpu-order.service.j2", python=params["python"], program=PROGRAM)
    return [doc.File(ORDER_PATH_FILE, path_unit), doc.File(ORDER_SERVICE_FILE, service)]


def _absent() -> doc.Document:
    paths = (
        UNIT_PATH,
        COMMAND,
        PROGRAM,
        CONFIG,
        CREDENTIALS,
        ORDER_PATH_FILE,
        ORDER_SERVICE_FILE,
        "/var/lib/baremetal-gpu/orders",
        FACT,
        "/var/lib/baremetal-gpu/agent",
    )
    units = [doc.Unit.stopped(ORDER_PATH_UNIT), doc.Unit.stopped(UNIT)]
    return doc.Document(units=units, files=[*map(doc.Absent, paths), *FORMER])
