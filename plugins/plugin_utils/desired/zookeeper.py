# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A server of ZooKeeper: its program, its configuration and its unit."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import conf as zookeeper_conf
from ansible_collections.baremetal.gpu.plugins.plugin_utils import zookeeper_ensemble
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import templates
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

# The name is the one of Debian's zookeeperd, in whose place the unit comes where that is installed.
UNIT = "zookeeper.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
CONFIG_DIR = "/etc/zookeeper/ensemble"
CONFIG = f"{CONFIG_DIR}/zoo.cfg"
JAAS = f"{CONFIG_DIR}/jaas.conf"
PACKAGE_LOG = f"{CONFIG_DIR}/simplelogger.properties"
ARCHIVE_LOG = f"{CONFIG_DIR}/logback.xml"
STAMP = "/run/zookeeper/started"
ARCHIVE = "/var/lib/baremetal-gpu/zookeeper.tar.gz"
JAVA_PACKAGES = {"Debian": "default-jre-headless", "RedHat": "java-17-openjdk-headless"}
# slf4j-simple, which the package depends on, writes to the journal; without it nothing would be logged.
PACKAGE_JARS = ["/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar"]
PASSWORD = re.compile(r"[ -~]{8,}")
OWNER = "zookeeper"

SIMPLELOGGER = """\
# Written by Ansible (baremetal.gpu.zookeeper). Changes made here are lost.
org.slf4j.simpleLogger.defaultLogLevel=info
org.slf4j.simpleLogger.showThreadName=false
org.slf4j.simpleLogger.showShortLogName=true
"""
LOGBACK = """\
<!-- Written by Ansible (baremetal.gpu.zookeeper). Changes made here are lost. -->
<configuration>
  <appender name="CONSOLE" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%-5level %logger{0} - %msg%n</pattern></encoder>
  </appender>
  <root level="INFO"><appender-ref ref="CONSOLE" /></root>
</configuration>
"""
# Of the variables, those that other hosts plan with. None of them holds a secret.
SHARED = (
    "address",
    "removed_ids",
    "method",
    "archive_url",
    "archive_path",
    "archive_sha256",
    "client_address",
    "client_port",
    "peer_port",
    "election_port",
    "heap_mib",
    "data_dir",
    "log_dir",
    "tick_time",
    "init_limit",
    "sync_limit",
    "max_client_connections",
    "snapshots_kept",
    "purge_interval",
    "words",
    "options",
    "client_auth",
    "quorum_auth",
)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one server.

    :param peers: ``host`` (the name of this one), ``groups`` and ``hostvars``; of the hosts of the ensemble
        ``zookeeper_params`` (the part ``shared`` of their plans) and ``zookeeper_node`` are read.
    """
    host = peers["host"]
    if params["state"] == "absent":
        return Plan(_absent(params, host))
    group = params["group"]
    members = list(peers["groups"].get(group, []))
    shared = _shared(params, facts, len(members))
    variables = {name: _known(peers["hostvars"][name], shared if name == host else None) for name in members}
    ensemble = zookeeper_ensemble.ensemble(members, variables)
    read_files = _read_files(params)
    parts = {
        "shared": shared,
        "id": ensemble["ids"].get(host, 0),
        "servers": ensemble["servers"],
        "members": [{"host": row["host"], "port": row["port"]} for row in ensemble["servers"]],
        "joining": ensemble["joining"],
        "config": CONFIG,
        "unit": UNIT,
        "stamp": STAMP,
        "archive": ARCHIVE,
        "home": _home(params),
        "read_files": read_files,
    }
    if host not in members:
        outside = Problem(
            "outside_group",
            "zookeeper_group",
            f"the host is not in the group {group}",
            group,
            f"add the host to the group {group}",
        )
        return Plan(problems=(outside,), parts=parts)
    problems = tuple(ensemble["problems"].get(host, ()))
    if problems or not parts["id"]:
        # Before somebody has looked at the host it has no id, and nothing to be brought.
        return Plan(problems=problems, parts=parts)
    return Plan(_present(params, facts, shared, parts), parts=parts)


def _known(hostvars: Mapping[str, Any], own: Mapping[str, Any] | None) -> dict[str, Any]:
    names = ("zookeeper_params", "zookeeper_node", "zookeeper_address", "ansible_host", "zookeeper_id")
    known = {name: hostvars.get(name) for name in names}
    return {**known, "zookeeper_params": own} if own is not None else known


def _shared(params: Mapping[str, Any], facts: Mapping[str, Any], size: int) -> dict[str, Any]:
    """What the other hosts plan with; of passwords only whose cannot be used."""
    quorum_password = str(params["quorum_password"])
    weak = [name for name, password in params["users"].items() if not PASSWORD.fullmatch(str(password))]
    if quorum_password and not PASSWORD.fullmatch(quorum_password):
        weak.append("the servers")
    weak += [row["path"] for row in params["chroots"] if not PASSWORD.fullmatch(str(row["password"]))]
    return {
        **{name: params[name] for name in SHARED},
        "id": int(params["id"]),
        "size": size,
        "os_family": facts.get("os_family", ""),
        "user_names": list(params["users"]),
        "weak": weak,
        "chroots": {row["path"]: row["user"] for row in params["chroots"]},
        "has_quorum_password": bool(quorum_password),
    }


def _home(params: Mapping[str, Any]) -> str:
    """Another archive is unpacked beside the one that a server runs from."""
    return f"/opt/zookeeper/{str(params['archive_sha256'])[:12].lower()}"


def _read_files(params: Mapping[str, Any]) -> list[str]:
    """A restart is due when one of them is another than at the start."""
    files = [CONFIG, JAAS, UNIT_PATH, PACKAGE_LOG, ARCHIVE_LOG, f"{params['data_dir']}/myid"]
    return files + (PACKAGE_JARS if params["method"] == "package" else [])


def _command(params: Mapping[str, Any], has_secrets: bool) -> list[str]:
    jars = PACKAGE_JARS if params["method"] == "package" else [f"{_home(params)}/lib/*"]
    heap = params["heap_mib"]
    return [
        params["java"],
        f"-Xms{heap}m",
        f"-Xmx{heap}m",
        "-XX:+ExitOnOutOfMemoryError",
        *([f"-Djava.security.auth.login.config={JAAS}"] if has_secrets else []),
        *(["-Dzookeeper.fips-mode=false"] if params["quorum_auth"] != "off" else []),
        *params["jvm_flags"],
        "-cp",
        ":".join([CONFIG_DIR, *jars]),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        CONFIG,
    ]


def _present(
    params: Mapping[str, Any], facts: Mapping[str, Any], shared: Mapping[str, Any], parts: Mapping[str, Any]
) -> doc.Document:
    has_secrets = bool(params["users"]) or bool(str(params["quorum_password"]))
    directories = [path for path in (params["data_dir"], params["log_dir"]) if path]
    java = params["java_package"] or JAVA_PACKAGES.get(facts.get("os_family", ""), "")
    unit = templates.render(
        "zookeeper",
        "zookeeper.service.j2",
        directories=" ".join(directories),
        read_files=" ".join(parts["read_files"]),
        stamp=STAMP,
        command=" ".join(_command(params, has_secrets)).replace("%", "%%").replace("$", "$$"),
    )
    files = [
        *_archive_files(params),
        *(_data_directory(path, directories) for path in directories),
        doc.Directory("/etc/zookeeper", owner=None, group=None),
        doc.Directory(CONFIG_DIR),
        doc.File(f"{params['data_dir']}/myid", f"{parts['id']}\n", "0640", OWNER, OWNER),
        doc.File(CONFIG, zookeeper_conf.zoo_cfg(shared, parts["servers"])),
        # The log of the package, and below it that of the archive; both go to the journal.
        doc.File(PACKAGE_LOG, SIMPLELOGGER),
        doc.File(ARCHIVE_LOG, LOGBACK),
        doc.File(UNIT_PATH, unit),
        _jaas(params) if has_secrets else doc.Absent(JAAS),
    ]
    return doc.Document(
        # Not zookeeperd: its scripts restart the server at every upgrade, whatever the others are doing.
        packages=[doc.Package("zookeeper" if params["method"] == "package" else java)],
        files=files,
        # When it is started is the business of the next stage.
        units=[doc.Unit(UNIT, enabled=True)],
    )


def _data_directory(path: str, others: Sequence[str]) -> doc.Directory:
    below = any(path.startswith(f"{other.rstrip('/')}/") for other in others)
    # Earlier versions made the directories above it ZooKeeper's too. One of these two stays its own.
    return doc.Directory(path, "0750", OWNER, OWNER, reclaim=None if below else True)


def _jaas(params: Mapping[str, Any]) -> doc.File:
    content = zookeeper_conf.jaas(params["users"], str(params["quorum_password"]))
    return doc.File(JAAS, content, "0600", OWNER, OWNER, sensitive=True)


def _archive_files(params: Mapping[str, Any]) -> list[doc.Entry]:
    if params["method"] != "archive":
        return []
    url, path = params["archive_url"], params["archive_path"]
    return [
        doc.Directory(ARCHIVE.rpartition("/")[0], owner=None, group=None),
        doc.File(ARCHIVE, sha256=params["archive_sha256"], url=url or None, source=None if url else path),
    ]


def _absent(params: Mapping[str, Any], host: str) -> doc.Document:
    data = [path for path in (params["data_dir"], params["log_dir"]) if path]
    paths = [UNIT_PATH, CONFIG_DIR, ARCHIVE, "/opt/zookeeper", *(data if host in params["purge"] else [])]
    package, unit = doc.Package("zookeeper", "absent"), doc.Unit.stopped(UNIT)
    return doc.Document(packages=[package], units=[unit], files=[*map(doc.Absent, paths)])
