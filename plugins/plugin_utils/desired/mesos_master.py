# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A master of Mesos: its program, its settings and its unit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import common as mesos_common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import CONFIG, Common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import OPERATOR
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.plan import plan

UNIT = "mesos-master.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
ENVIRONMENT = f"{CONFIG}/master.env"
ZOOKEEPER = f"{CONFIG}/master.zk"
CREDENTIALS = f"{CONFIG}/credentials.json"
ACLS = f"{CONFIG}/acls.json"
STAMP = "/run/mesos-master/started"
# Keys are below the directory; the certificate of the authority is beside it, for everybody.
TLS = f"{CONFIG}/tls-master"
AUTHORITY = f"{TLS}-ca.pem"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one master.

    :param params: beside the variables ``common``, those of mesos_common, and ``all_seen``, whether all hosts of the
        run have been looked at.
    :param peers: ``host``, ``groups`` and ``hostvars``; ``mesos_master_params`` (the part ``shared`` of the plans of
        the others) and the state of all programs (``mesos_master_node`` and so on) are read.
    """
    common = Common(params["common"], facts, peers)
    in_container = common.params["method"] == "image"
    source = common.source()
    members = common.members(common.params["masters_group"], "master", params["port"])
    shared = _shared(params, common, in_container, source)
    read_files = _read_files(common, in_container)
    parts = {
        "unit": UNIT,
        "environment": ENVIRONMENT,
        "credentials": CREDENTIALS,
        "stamp": STAMP,
        "tls_directory": TLS,
        "authority": AUTHORITY,
        "ca_file": AUTHORITY if common.params["tls"] != "off" else "",
        "shared": shared,
        "user": shared["user"],
        "directory": params["work_dir"],
        "programs": [source] if source["method"] != "repository" else [],
        "libraries": mesos_common.needs_libraries([source]),
        "login": common.login(OPERATOR),
        "members": [{"name": row["name"], "url": row["url"]} for row in members],
        "read_files": read_files,
    }
    if params["state"] == "absent":
        paths = [UNIT_PATH, ENVIRONMENT, ZOOKEEPER, CREDENTIALS, TLS, AUTHORITY, ACLS]
        registry = [params["work_dir"]] if common.host in params["purge"] else []
        return Plan(mesos_common.without(UNIT, [*paths, *registry]), parts=parts)
    node = peers["hostvars"][common.host].get("mesos_master_node")
    if node is None or not common.has_certificates():
        return Plan(parts=parts)
    login = {"user": common.params["zookeeper_user"], "password": common.params["zookeeper_password"]}
    settings = {**shared, **common.settings(node=node, members=members, login=login)}
    planned = plan(settings, peers["hostvars"])
    joining = planned["joining"]
    others = [name for name in joining if name != common.host]
    parts |= {
        "joining": joining,
        # Masters that have their log learn a new quorum before empty ones are started.
        "started_members": [row for row in parts["members"] if row["name"] not in others],
    }
    group = common.params["masters_group"]
    outside = [] if common.host in common.group(group) else [outside_group("mesos_common_masters_group", group)]
    problems = (*outside, *planned["problems"])
    if problems:
        return Plan(problems=problems, parts=parts)
    command = _command(params, common, planned, in_container)
    unit = templates.render(
        "mesos_master",
        "mesos-master.service.j2",
        engine=common.params["engine"],
        in_container=in_container,
        work_dir=params["work_dir"],
        environment=ENVIRONMENT,
        show=f"{mesos_common.SHOW} {common.below}",
        read_files=" ".join(read_files),
        stamp=STAMP,
        command=" ".join(command) if in_container else mesos_common.escaped(command),
    )
    files = [*planned["files"], doc.File(UNIT_PATH, unit)]
    return Plan(common.present(UNIT, [source], files), parts=parts)


def outside_group(variable: str, group: str) -> Problem:
    """The host is not where the role is for."""
    cause = f"the host is not in the group {group}"
    return Problem("outside_group", variable, cause, group, f"add the host to the group {group}")


def _shared(params: Mapping[str, Any], common: Common, in_container: bool, source: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, without a secret: other hosts learn from them who the masters are."""
    return {
        "program": "master",
        "prefix": "mesos_master",
        "host": common.host,
        "flavour": common.params["flavour"],
        "version": common.params["version"],
        "build": common.params["build"],
        "sources": [source],
        "address": common.params["address"],
        "port": int(params["port"]),
        "home": common.home,
        "user": "root" if in_container else "mesos",
        "work_dir": params["work_dir"],
        "cluster": common.params["cluster"],
        "chroot": common.params["zookeeper_chroot"],
        "quorum": int(params["quorum"]),
        "confirmed": boolean(params["confirm_members"], strict=False),
        "authentication": common.params["authentication"],
        "readonly": boolean(common.params["authenticate_readonly"], strict=False),
        "acls": params["acls"],
        "flags": params["flags"],
        "libprocess": params["libprocess"],
        "tls": common.tls(directory=TLS, whole=params["all_seen"]),
        "environment_file": ENVIRONMENT,
        "zookeeper_file": ZOOKEEPER,
        "credentials_file": CREDENTIALS,
        "acls_file": ACLS,
    }


def _read_files(common: Common, in_container: bool) -> list[str]:
    """A restart is due when one of them is another than at the start."""
    program = [f"{common.below}/sbin/mesos-master", f"{common.below}/bin/mesos-master"]
    sasl = mesos_common.SASL_FILES if common.authenticated else []
    own = [] if in_container else [*program, *sasl]
    return [ENVIRONMENT, ZOOKEEPER, CREDENTIALS, ACLS, UNIT_PATH, *own, *common.read_files(TLS)]


def _command(params: Mapping[str, Any], common: Common, planned: Mapping[str, Any], in_container: bool) -> list[str]:
    if not in_container:
        return [mesos_common.START, common.below, "mesos-master", *planned["arguments"]]
    work_dir = params["work_dir"]
    return [
        *(common.params["engine"], "run", "--rm", "--name", "mesos-master", "--network", "host"),
        *("--volume", f"{CONFIG}:{CONFIG}:ro", "--volume", f"{work_dir}:{work_dir}"),
        *(f"--env={name}" for name in planned["variables"]),
        common.params["image"],
        *planned["arguments"],
    ]
