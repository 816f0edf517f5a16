# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""TLS of Mesos in two passes: what libprocess is told of it, and when a host must not go there. Pure functions.

With `downgrade` a program speaks TLS where the other side does, and does without where it does not; with `required` it
speaks nothing else. So a program with `required` and one with `off` know nothing of each other, and nobody goes from
the one to the other in one step. Source: https://mesos.apache.org/documentation/latest/ssl/.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import tls_mode
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import problem

MODES = ("off", "downgrade", "required")
OPPOSITE = {"off": "required", "required": "off"}
# With whom a program talks. Agents do not talk to each other.
PEERS = {"master": ("master", "agent", "marathon"), "agent": ("master",), "marathon": ("master",)}
NODES = {"master": "mesos_master_node", "agent": "mesos_agent_node", "marathon": "marathon_node"}
# Those that libprocess offers by itself are refused by today's clients, Python's and browsers among them.
CIPHERS = ":".join(
    f"ECDHE-{kind}-{cipher}" for cipher in ("AES256-GCM-SHA384", "AES128-GCM-SHA256") for kind in ("ECDSA", "RSA")
)
# The authority is beside the directory, for everybody.
CA, CERTIFICATE, KEY = "-ca.pem", "certificate.pem", "key.pem"
EXECUTOR = "executor-"
# What the operator may still say by the role's variable for libprocess.
FREE = ("LIBPROCESS_SSL_CIPHERS",)
FLAG = "executor_environment_variables"


def libprocess(mode: str, directory: str, version: str, prefix: str = "") -> dict[str, str]:
    """Variables of a program or, with the prefix of their files, of the executors of an agent."""
    if mode == "off":
        return {}
    found = {
        "LIBPROCESS_SSL_ENABLED": "true",
        "LIBPROCESS_SSL_SUPPORT_DOWNGRADE": "true" if mode == "downgrade" else "false",
        "LIBPROCESS_SSL_CERT_FILE": os.path.join(directory, prefix + CERTIFICATE),
        "LIBPROCESS_SSL_KEY_FILE": os.path.join(directory, prefix + KEY),
        "LIBPROCESS_SSL_CA_FILE": directory + CA,
        "LIBPROCESS_SSL_CIPHERS": CIPHERS,
    }
    if mode == "required":
        # As long as both are spoken, whoever is in between has only to break TLS.
        verify = "VERIFY_CERT" if mesos_flags.is_older(version, (1, 10)) else "VERIFY_SERVER_CERT"
        found[f"LIBPROCESS_SSL_{verify}"] = "true"
        # Programs know each other by address.
        found["LIBPROCESS_SSL_VERIFY_IPADD"] = "true"
        found["LIBPROCESS_SSL_HOSTNAME_VALIDATION_SCHEME"] = "openssl"
    return found


def executor_variables(mode: str, directory: str, version: str) -> str:
    """The flag by which an agent gives executors their variables: they inherit none of its own."""
    return json.dumps(libprocess(mode, directory, version, EXECUTOR), sort_keys=True)


def files(
    program: str, tls: Mapping[str, Any], certificates: Mapping[str, Any], user: str, host: str
) -> list[doc.Entry]:
    """Items of a desired document. Tasks of the group `tls.group` may read what is for executors."""
    group = tls["group"] if program == "agent" else user
    directory = tls["directory"]
    authority = certificates["authority"]
    items: list[doc.Entry] = [
        # Root's, since others write here: who owns a directory can lead its names elsewhere.
        doc.Directory(directory, "0750", group=group),
        doc.File(directory + CA, source=authority["path"], sha256=authority["sha256"]),
    ]
    pairs = [("", host, "0600", user)]
    if program == "agent":
        pairs.append((EXECUTOR, f"{host}-executor", "0640", group))
    for prefix, name, mode, readers in pairs:
        if name not in certificates["certificates"]:
            raise Refused(f"{name} has no certificate", "add the host to the group mesos_agents")
        told = certificates["certificates"][name]
        for file, kind, sensitive in ((CERTIFICATE, "certificate", None), (KEY, "key", True)):
            path, source, sha256 = os.path.join(directory, prefix + file), told[kind], told[f"{kind}_sha256"]
            items.append(doc.File(path, None, mode, user, readers, source=source, sha256=sha256, sensitive=sensitive))
    return items


def given_twice(variables: Iterable[str], flags: Mapping[str, Any], tls: Mapping[str, Any]) -> list[Problem]:
    """What the operator sets himself and follows from mesos_common_tls, or has to."""
    if tls["mode"] == "off":
        return []
    wanted = libprocess(tls["mode"], tls["directory"], tls["version"])
    found = [
        problem(f"{name} follows from mesos_common_tls", "take it out of the variables for libprocess")
        for name in sorted(set(variables) & set(wanted) - set(FREE))
    ]
    if FLAG in flags:
        try:
            given = flags[FLAG] if isinstance(flags[FLAG], Mapping) else json.loads(str(flags[FLAG]))
            missing = sorted(set(wanted) - set(given))
        except (ValueError, RecursionError, TypeError):
            missing = sorted(wanted)
        if missing:
            found.append(
                problem(
                    f"the flag {FLAG} has no {', '.join(missing)}, without which no executor reaches its agent",
                    f"add them, with files that tasks may read, such as {tls['directory']}/{EXECUTOR}{KEY}",
                )
            )
    return found


def _against(mode: str, node: Mapping[str, Any]) -> str:
    """Why a program that was found so, and one with `mode`, must not meet; empty if they may."""
    if mode not in OPPOSITE or not node.get("running"):
        return ""
    current = tls_mode(node.get("environment") or {})
    if current == OPPOSITE[mode]:
        return f"runs with {current}"
    # Its settings allow it, but the program was started with others.
    return "was not restarted since its settings changed" if current != mode and node.get("stale") else ""


def problems(
    program: str,
    host: str,
    tls: Mapping[str, Any],
    node: Mapping[str, Any],
    variables: Mapping[str, Mapping[str, Any]],
) -> list[Problem]:
    """Why the host must not have this `mode` now.

    :param tls: ``mode``; ``hosts``, those of each program; and ``whole``, whether all hosts have been looked at.
    :param node: the state of the host, as mesos_node_info returns it.
    :param variables: of all hosts, for the state of the others.
    """
    mode, before = tls["mode"], tls_mode(node.get("environment") or {})
    if mode not in OPPOSITE:
        return []
    way = f"set mesos_common_tls: downgrade, run `gpuops up --tags scheduler` for all hosts, then set {mode}"
    found = []
    why = _against(mode, node)
    if why:
        found.append(problem(f"mesos_common_tls is {mode}, and {program} {why}", way))
    lost = (node.get("executors") or {}).get(OPPOSITE[mode], 0)
    if program == "agent" and lost and before != mode:
        found.append(
            problem(
                f"mesos_common_tls is {mode}, and {lost} executors were started with {OPPOSITE[mode]}: the agent would "
                "lose their tasks",
                "drain the agent, or let these tasks end, then run again",
            )
        )
    moves = bool(node.get("running")) and before != mode
    if not moves and (mode == "off" or node.get("running")):
        return found
    unknown, others = [], []
    for kind in PEERS[program]:
        for name in tls["hosts"].get(kind) or []:
            if (kind, name) == (program, host):
                continue
            other = (variables.get(name) or {}).get(NODES[kind])
            if other is None:
                unknown.append(name)
            elif _against(mode, other):
                others.append(f"{kind} on {name} {_against(mode, other)}")
    if others:
        found.append(problem(f"mesos_common_tls is {mode}, and {'; '.join(others)}", way))
    if unknown and moves and tls["whole"]:
        found.append(
            problem(
                f"mesos_common_tls is {mode}, but it is unknown how {', '.join(sorted(set(unknown)))} runs",
                "run `gpuops up --tags scheduler` for all hosts, without --limit, or remove a host that is gone from "
                "its groups",
            )
        )
    return found
