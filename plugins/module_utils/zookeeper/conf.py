# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a ZooKeeper server: zoo.cfg and the file with its secrets, written and read.

The settings: https://zookeeper.apache.org/doc/current/zookeeperAdmin.html#sc_configuration, those of the servers'
authentication: https://cwiki.apache.org/confluence/display/ZOOKEEPER/Server-Server+mutual+authentication.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

HEADER = "# Written by Ansible (baremetal.gpu.zookeeper). Changes made here are lost.\n"
QUORUM_USER = "quorum"

# Authentication between servers is brought in and taken out by these steps, each a restart of all: first every server
# accepts it, then every server sends it, then every server asks for it.
QUORUM_AUTH = ("off", "offered", "sent", "required")
LOGINS = {"quorum_auth": QUORUM_AUTH, "client_auth": ("off", "offered", "required")}

# What the role sets has a variable, so that nothing is set twice.
RESERVED = {
    "dataDir": "zookeeper_data_dir",
    "dataLogDir": "zookeeper_log_dir",
    "clientPort": "zookeeper_client_port",
    "clientPortAddress": "zookeeper_client_address",
    "tickTime": "zookeeper_tick_time",
    "initLimit": "zookeeper_init_limit",
    "syncLimit": "zookeeper_sync_limit",
    "maxClientCnxns": "zookeeper_max_client_connections",
    "autopurge.snapRetainCount": "zookeeper_snapshots_kept",
    "autopurge.purgeInterval": "zookeeper_purge_interval",
    "4lw.commands.whitelist": "zookeeper_words",
    "quorum.auth.enableSasl": "zookeeper_quorum_auth",
    "quorum.auth.learnerRequireSasl": "zookeeper_quorum_auth",
    "quorum.auth.serverRequireSasl": "zookeeper_quorum_auth",
    "sessionRequireClientSASLAuth": "zookeeper_client_auth",
    "reconfigEnabled": "the inventory, which says who is in the ensemble",
    "dynamicConfigFile": "the inventory, which says who is in the ensemble",
}


def reserved(key: str) -> str | None:
    """The variable that a key of `zookeeper_options` belongs to; None if the key is free."""
    if re.match(r"(server|group|weight|authProvider)\.", key):
        return "the inventory" if not key.startswith("authProvider") else "zookeeper_client_auth"
    return RESERVED.get(key)


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def zoo_cfg(settings: Mapping[str, Any], servers: Sequence[Mapping[str, Any]]) -> str:
    """The text of zoo.cfg.

    :param settings: the role's variables without their prefix; sizes and times in the units of the variables.
    :param servers: ``id`` and ``host`` of each, as `zookeeper_ensemble` has them.
    """
    step = QUORUM_AUTH.index(settings["quorum_auth"])
    lines: dict[str, Any] = {
        "dataDir": settings["data_dir"],
        **({"dataLogDir": settings["log_dir"]} if settings["log_dir"] else {}),
        "clientPort": settings["client_port"],
        **({"clientPortAddress": settings["client_address"]} if settings["client_address"] else {}),
        "tickTime": settings["tick_time"],
        "initLimit": settings["init_limit"],
        "syncLimit": settings["sync_limit"],
        "maxClientCnxns": settings["max_client_connections"],
        "autopurge.snapRetainCount": settings["snapshots_kept"],
        "autopurge.purgeInterval": settings["purge_interval"],
        "4lw.commands.whitelist": ",".join(settings["words"]),
        "admin.enableServer": "false",
    }
    if step:
        lines["quorum.auth.enableSasl"] = "true"
        lines["quorum.auth.learnerRequireSasl"] = str(step >= 2).lower()
        lines["quorum.auth.serverRequireSasl"] = str(step >= 3).lower()
        lines["quorum.auth.learner.saslLoginContext"] = "QuorumLearner"
        lines["quorum.auth.server.saslLoginContext"] = "QuorumServer"
    if settings["client_auth"] != "off":
        lines["authProvider.1"] = "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"
    if settings["client_auth"] == "required":
        lines["sessionRequireClientSASLAuth"] = "true"
    for key, value in sorted(settings["options"].items()):
        lines[key] = str(value).lower() if isinstance(value, bool) else value
    # A server alone needs no list of servers, and with one it would look for a quorum.
    if len(servers) > 1:
        for server in sorted(servers, key=lambda row: int(row["id"])):
            ports = f"{settings['peer_port']}:{settings['election_port']}"
            lines[f"server.{server['id']}"] = f"{_bracketed(server['host'])}:{ports}"
    return HEADER + "".join(f"{key}={value}\n" for key, value in lines.items())


def _quoted(text: Any) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def jaas(users: Mapping[str, Any], quorum_password: str) -> str:
    """The file with the secrets of DIGEST-MD5, in the form of Java's login configuration.

    :param users: clients and their passwords.
    :param quorum_password: what servers show each other; empty for no authentication between them.
    """
    module = "  org.apache.zookeeper.server.auth.DigestLoginModule required"
    sections = []
    if users:
        rows = [f"  user_{name}={_quoted(password)}" for name, password in sorted(users.items())]
        sections.append(("Server", rows))
    if quorum_password:
        sections.append(("QuorumServer", [f"  user_{QUORUM_USER}={_quoted(quorum_password)}"]))
        sections.append(("QuorumLearner", [f'  username="{QUORUM_USER}"', f"  password={_quoted(quorum_password)}"]))
    text = "".join(f"{name} {{\n{module}\n" + "\n".join(rows) + ";\n};\n" for name, rows in sections)
    return HEADER.replace("#", "//", 1) + text if text else ""


def parse(text: str) -> dict[str, Any]:
    """A zoo.cfg as it was found: where its data is, its port, its servers (id -> address) and its quorum_auth."""
    pairs = dict(re.findall(r"^\s*([^#!\s=:]+)\s*[=:]\s*(.*?)\s*$", text, re.MULTILINE))
    servers = {}
    for key, value in pairs.items():
        number = re.fullmatch(r"server\.(\d+)", key)
        address = re.match(r"\[([^]]+)\]|([^:]+)", value)
        if number and address:
            servers[int(number[1])] = address[1] or address[2]

    def is_on(key: str) -> bool:
        return bool(pairs.get(f"quorum.auth.{key}", "").lower() == "true")

    step = 0
    if is_on("enableSasl"):
        step = 3 if is_on("serverRequireSasl") else 2 if is_on("learnerRequireSasl") else 1
    return {
        "data_dir": pairs.get("dataDir", "").rstrip("/"),
        "log_dir": pairs.get("dataLogDir", "").rstrip("/"),
        "servers": servers,
        "quorum_auth": QUORUM_AUTH[step],
    }
