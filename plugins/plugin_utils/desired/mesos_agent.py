# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An agent of Mesos: its program, what it gives out and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import common as mesos_common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import CONFIG, Common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import AGENT
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.plan import plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import fence

UNIT = "mesos-agent.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
ENVIRONMENT = f"{CONFIG}/agent.env"
CREDENTIAL = f"{CONFIG}/credential.json"
STATE = "/var/lib/mesos"
STAMP = "/run/mesos-agent/started"
# Run before every start, since indices can move while no playbook looks.
CHECK = "/usr/libexec/baremetal-gpu/mesos-agent-gpus"
# Keys are below the directory; the certificate of the authority is beside it, for everybody.
TLS = f"{CONFIG}/tls-agent"
AUTHORITY = f"{TLS}-ca.pem"
# Of the variables, those that plan.py takes as they are.
SETTINGS = (
    "hostname",
    "work_dir",
    "gpus",
    "exclude_gpus",
    "gpu_slots",
    "rack",
    "attributes",
    "reserve",
    "ports",
    "isolation",
    "flags",
    "libprocess",
)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one agent.

    :param params: beside the variables ``common``, those of mesos_common; ``all_seen``, whether all hosts of the run
        have been looked at; ``orders``, those of the reconciler that the host obeys; and ``masters_port``.
    :param peers: ``host``, ``groups`` and ``hostvars``; the settings of masters, the state of programs and the mode of
        the reconcilers are read.
    """
    common = Common(params["common"], facts, peers)
    source = common.source()
    scheme = "https" if common.params["tls"] == "required" else "http"
    parts: dict[str, Any] = {
        "unit": UNIT,
        "environment": ENVIRONMENT,
        "credential": CREDENTIAL,
        "stamp": STAMP,
        "tls_directory": TLS,
        "authority": AUTHORITY,
        "ca_file": AUTHORITY if common.params["tls"] != "off" else "",
        "user": "root",
        "directory": params["work_dir"],
        "programs": [source] if source["method"] != "repository" else [],
        "libraries": mesos_common.needs_libraries([source]),
    }
    if params["state"] == "absent":
        paths = [CHECK, UNIT_PATH, ENVIRONMENT, CREDENTIAL, TLS, AUTHORITY]
        checkpoint = [params["work_dir"]] if common.host in params["purge"] else []
        return Plan(mesos_common.without(UNIT, [*paths, *checkpoint]), parts=parts)
    node = peers["hostvars"][common.host].get("mesos_agent_node")
    if node is None or not common.has_certificates():
        return Plan(parts=parts)
    planned = plan(_settings(params, common, source, node, facts), peers["hostvars"])
    gpus = planned["gpus"]
    read_files = _read_files(common, gpus)
    url = f"{scheme}://{common.params['address']}:{params['port']}"
    parts |= {
        "gpus": gpus,
        "remarks": planned["remarks"],
        "members": [{"name": common.host, "url": url}],
        # Who knows whether the agent is registered, and the login for them, which this host has anyway.
        "masters": [row["url"] for row in common.masters(params["masters_port"])],
        "login": common.login(AGENT),
        # An agent that lists a GPU that does not answer would not come back.
        "may_restart": [params["python"], "-I", CHECK, ENVIRONMENT] if gpus else [],
        "read_files": read_files,
    }
    if planned["problems"]:
        return Plan(problems=tuple(planned["problems"]), parts=parts)
    command = [mesos_common.START, common.below, "mesos-agent", *planned["arguments"]]
    unit = templates.render(
        "mesos_agent",
        "mesos-agent.service.j2",
        work_dir=params["work_dir"],
        environment=ENVIRONMENT,
        check=f"{params['python']} -I {CHECK}" if gpus else "",
        show=f"{mesos_common.SHOW} {common.below}",
        read_files=" ".join(read_files),
        stamp=STAMP,
        command=mesos_common.escaped(command),
    )
    check = doc.File(CHECK, mesos_common.text_of("mesos_agent", "agent_gpus.py"))
    files = [*_above(params["work_dir"]), *([check] if gpus else []), *planned["files"], doc.File(UNIT_PATH, unit)]
    old_agents = mesos_common.OLD_AGENTS.get(common.params["flavour"], [])
    return Plan(common.present(UNIT, [source], files, old_agents), parts=parts)


def _above(work_dir: str) -> list[doc.Directory]:
    """The directory that the agent shares with the master. Whose it is can put another in the place of root's."""
    return [doc.Directory(STATE)] if work_dir.startswith(f"{STATE}/") else []


def _settings(
    params: Mapping[str, Any],
    common: Common,
    source: Mapping[str, Any],
    node: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "program": "agent",
        "prefix": "mesos_agent",
        "host": common.host,
        "flavour": common.params["flavour"],
        "version": common.params["version"],
        "build": common.params["build"],
        "sources": [source],
        "address": common.params["address"],
        "port": int(params["port"]),
        "home": common.home,
        "user": "root",
        "chroot": common.params["zookeeper_chroot"],
        "authentication": common.params["authentication"],
        **{name: params[name] for name in SETTINGS},
        "tls": common.tls(directory=TLS, whole=params["all_seen"], group=params["task_group"]),
        "environment_file": ENVIRONMENT,
        "credential_file": CREDENTIAL,
        "reconciled": _reconciled(params, common),
        "gpu": facts["gpu"],
        **common.settings(node=node),
    }


def _reconciled(params: Mapping[str, Any], common: Common) -> bool:
    """Whether the reconciler of the site acts, and this host obeys it."""
    hostvars = common.peers["hostvars"]
    modes = (fence.mode(hostvars[name], fence.AUTO_WITH_ZOOKEEPER) for name in common.group(fence.RECONCILERS))
    return "replace" in params["orders"] and fence.ACT in modes


def _read_files(common: Common, gpus: int) -> list[str]:
    """A restart is due when one of them is another than at the start. The agent has copied the driver's files."""
    return [
        *(ENVIRONMENT, CREDENTIAL, UNIT_PATH, f"{common.below}/sbin/mesos-agent", f"{common.below}/bin/mesos-agent"),
        *(mesos_common.SASL_FILES if common.authenticated else []),
        *(["/sys/module/nvidia/version"] if gpus else []),
        *common.read_files(TLS),
    ]
