# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Marathon: its program, its settings and its unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.mesos_master import outside_group
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import common as mesos_common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import CONFIG, Common
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import HTTP, MARATHON, Row
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.plan import plan

UNIT = "marathon.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
ENVIRONMENT = f"{CONFIG}/marathon.env"
SECRET = f"{CONFIG}/marathon.secret"
STAMP = "/run/marathon/started"
WORK_DIR = "/var/lib/marathon"
# Keys are below the directory; the certificate of the authority is beside it, for everybody.
TLS = f"{CONFIG}/tls-marathon"
AUTHORITY = f"{TLS}-ca.pem"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one Marathon.

    :param params: beside the variables ``common``, those of mesos_common; ``all_seen``, whether all hosts of the run
        have been looked at; and ``masters_port``.
    :param peers: ``host``, ``groups`` and ``hostvars``; the settings of Marathons and masters and the state of
        programs are read.
    """
    common = Common(params["common"], facts, peers)
    in_container = params["method"] == "image"
    home = mesos_common.archive_home("/opt/marathon", params["method"], params["sha256"])
    program = f"{home or params['prefix']}/bin/marathon"
    # It loads the library of Mesos, unless an image brings both or the operator names another one.
    with_mesos = not in_container and common.params["method"] != "image" and not params["libmesos"]
    sources = [*([common.source()] if with_mesos else []), _source(params, common, home)]
    shared = _shared(params, common, sources, "root" if in_container else "marathon")
    http_user = params["http_user"]
    members = common.members(params["group"], "marathon", params["port"])
    read_files = [
        *(ENVIRONMENT, SECRET, UNIT_PATH),
        *([] if in_container else [program]),
        *([] if in_container or not common.authenticated else mesos_common.SASL_FILES),
        *common.read_files(TLS),
    ]
    parts = {
        "unit": UNIT,
        "environment": ENVIRONMENT,
        "secret": SECRET,
        "stamp": STAMP,
        "tls_directory": TLS,
        "authority": AUTHORITY,
        "ca_file": AUTHORITY if common.params["tls"] != "off" else "",
        "shared": shared,
        "user": shared["user"],
        "directory": WORK_DIR,
        "programs": [row for row in sources if row["method"] != "repository"],
        "libraries": mesos_common.needs_libraries(sources),
        "members": [{"name": row["name"], "url": row["url"]} for row in members],
        "login": {"user": http_user, "password": common.secrets.get(HTTP + http_user, "") if http_user else ""},
        # Who knows whether it is registered, and the login for them, which this host has anyway.
        "masters": [row["url"] for row in common.masters(params["masters_port"])],
        "masters_login": common.login(MARATHON),
        "read_files": read_files,
    }
    if params["state"] == "absent":
        paths = (UNIT_PATH, ENVIRONMENT, SECRET, TLS, AUTHORITY, "/opt/marathon")
        return Plan(mesos_common.without(UNIT, paths), parts=parts)
    node = peers["hostvars"][common.host].get("marathon_node")
    if node is None or not common.has_certificates():
        return Plan(parts=parts)
    login = {"user": params["zookeeper_user"], "password": params["zookeeper_password"]}
    planned = plan({**shared, **common.settings(node=node, login=login)}, peers["hostvars"])
    group = params["group"]
    outside = [] if common.host in common.group(group) else [outside_group("marathon_group", group)]
    problems = (*outside, *planned["problems"])
    if problems:
        return Plan(problems=problems, parts=parts)
    command = _command(params, common, planned, program, in_container)
    unit = templates.render(
        "marathon",
        "marathon.service.j2",
        engine=common.params["engine"],
        in_container=in_container,
        environment=ENVIRONMENT,
        libmesos=params["libmesos"] or f"{common.below}/lib/libmesos.so",
        java_home=params["java_home"],
        java_options=" ".join(params["java_options"]),
        show=f"{mesos_common.SHOW} {common.below}" if with_mesos else "",
        read_files=" ".join(read_files),
        stamp=STAMP,
        command=" ".join(command) if in_container else mesos_common.escaped(command),
    )
    files = [*planned["files"], doc.File(UNIT_PATH, unit)]
    return Plan(common.present(UNIT, sources, files), parts=parts)


def _source(params: Mapping[str, Any], common: Common, home: str) -> Row:
    """Where the program of Marathon comes from."""
    return {
        "prefix": "marathon",
        **{key: params[key] for key in ("method", "url", "path", "sha256", "repository", "image")},
        "engine": common.params["engine"],
        "file": mesos_common.stored_file(params["method"], params["sha256"], common.family),
        "packages": [{"name": params["package"]}],
        "home": home,
        "proofs": ["bin/marathon"],
    }


def _shared(params: Mapping[str, Any], common: Common, sources: Sequence[Row], user: str) -> Row:
    """The settings, without a secret: other hosts learn from them where the Marathons are."""
    names = ("features", "gpu_scheduling_behavior", "task_user", "framework_name", "http_user", "flags", "libprocess")
    return {
        "program": "marathon",
        "prefix": "marathon",
        "host": common.host,
        "flavour": common.params["flavour"],
        "version": params["version"],
        "build": [],
        "sources": list(sources),
        "address": common.params["address"],
        "port": int(params["port"]),
        "user": user,
        "chroot": params["zookeeper_chroot"],
        "mesos_chroot": common.params["zookeeper_chroot"],
        **{name: params[name] for name in names},
        "authentication": common.params["authentication"],
        "tls": common.tls(directory=TLS, whole=params["all_seen"]),
        "environment_file": ENVIRONMENT,
        "secret_file": SECRET,
    }


def _command(
    params: Mapping[str, Any], common: Common, planned: Mapping[str, Any], program: str, in_container: bool
) -> list[str]:
    if not in_container:
        return [program, *planned["arguments"]]
    return [
        *(common.params["engine"], "run", "--rm", "--name", "marathon", "--network", "host"),
        *("--volume", f"{CONFIG}:{CONFIG}:ro"),
        *(f"--env={name}" for name in planned["variables"]),
        params["image"],
        *planned["arguments"],
    ]
