# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the portal of this host does: whether its hub and its proxy answer, and what the hub has written down."""

from __future__ import annotations

import http.client
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    mapping_of,
    number,
    object_of,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part

TOLD = "/var/lib/baremetal-gpu-portal/told.json"
ANSWER_S = 5.0
# The hub tells four times a minute.
OLD_S = 120.0
BYTES_AT_MOST = 64 << 10
UNITS = {"hub": "baremetal-gpu-portal", "proxy": "baremetal-gpu-portal-proxy"}
_counts = mapping_of(text(r"[a-z_]{1,30}"), whole(), 10)
SHAPE = object_of(
    {
        "at": number(0, 1e11),
        "sessions": _counts,
        "unmeasured": _counts,
        "starts": _counts,
        "idle_warnings": whole(),
        "idle_stops": whole(),
        "notices_failed": whole(),
    }
)
# Port, directory of the hub's certificates where it is the hub, and path; what is wrong, empty where it answers.
Ask = Callable[[int, str, str], str]


def ask(port: int, certificates: str, path: str) -> str:
    """Whether a server of this host answers.

    The hub wants a certificate of those that it knows, and proves itself. The proxy's is for its name, and is not
    checked for this: nothing is shown to it.
    """
    try:
        context = _of_hub(certificates) if certificates else _unchecked()
    except OSError as why:
        return f"the certificates in {certificates} cannot be read: {one_line(why.strerror or why)}"
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=ANSWER_S, context=context)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
        return "" if status == 200 else f"port {port} answers with status {status}"
    except (OSError, http.client.HTTPException) as why:
        return f"port {port} does not answer: {one_line(why) or type(why).__name__}"
    finally:
        connection.close()


def _of_hub(directory: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=os.path.join(directory, "hub-ca", "hub-ca.crt"))
    own = os.path.join(directory, "proxy-client", "proxy-client")
    context.load_cert_chain(f"{own}.crt", f"{own}.key")
    return context


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def condition(hub_port: int, port: int, told: str, ask: Ask = ask) -> dict[str, Any]:
    """What is wrong with hub and proxy, empty for nothing, and what the hub has told last; None where it has not.

    :param told: the file of the hub.
    """
    row = None
    why = ""
    try:
        row = SHAPE(json_object(files.read(told, BYTES_AT_MOST), BYTES_AT_MOST), "it")
    except (OSError, Malformed) as failure:
        why = f"{told} cannot be read: {one_line(getattr(failure, 'strerror', None) or failure)}"
    return {
        "hub": ask(hub_port, os.path.join(os.path.dirname(told), "tls"), "/hub/health"),
        "proxy": ask(port, "", "/_chp_healthz"),
        "told": row,
        "why": why,
    }


def summary(found: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The same for people: whether hub and proxy answer, how many sessions there are, and what is wrong."""
    problems = [
        Problem(
            f"{name}_down",
            name,
            f"the {name} of the portal does not answer",
            found[name],
            f"see `sudo journalctl -u {unit}` on its host",
        )
        for name, unit in UNITS.items()
        if found[name]
    ]
    row = found["told"]
    # The clock may have been set back.
    is_old = row is not None and abs(now - row["at"]) > OLD_S
    if not found["hub"] and (row is None or is_old):
        cause = "the hub does not write down how many sessions there are"
        evidence = found["why"] or f"last at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(row['at']))}"
        remedy = f"see `sudo journalctl -u {UNITS['hub']}` on its host, and whether the disk is full"
        problems.append(Problem("tells_nothing", "hub", cause, evidence, remedy))
    silent = row["unmeasured"].get("silent", 0) if row and not is_old else 0
    if silent:
        who = "1 session sends" if silent == 1 else f"{silent} sessions send"
        cause = f"{who} no measurements, and would not be ended for being idle"
        program = "/usr/libexec/baremetal-gpu/portal-measure"
        remedy = (
            f"run `gpuops up --tags portal` for all nodes; then see on a session's node whether {program} runs in it"
        )
        problems.append(Problem("sessions_unmeasured", "sessions", cause, "", remedy))
    return {
        "hub": not found["hub"],
        "proxy": not found["proxy"],
        "sessions": None if row is None or is_old else {name: row["sessions"].get(name, 0) for name in ("run", "wait")},
        "problems": [problem.as_dict() for problem in problems],
    }


def look(hub_port: int, port: int, told: str, ask: Ask = ask) -> Part:
    """The metrics of the portal."""
    part = Part()
    found = condition(hub_port, port, told, ask)
    for name in ("hub", "proxy"):
        part.add(f"portal_{name}_up", {}, float(not found[name]))
        if found[name]:
            part.complain(f"the {name} of the portal: {found[name]}")
    row = found["told"]
    if row is None:
        part.complain(found["why"])
        return part
    part.add("portal_told_timestamp_seconds", {}, row["at"])
    for metric, label, key in COUNTS:
        for name, count in sorted(row[key].items()):
            part.add(metric, {label: name}, float(count))
    for metric, key in TOTALS:
        part.add(metric, {}, float(row[key]))
    return part


COUNTS = (
    ("portal_sessions", "state", "sessions"),
    ("portal_sessions_unmeasured", "reason", "unmeasured"),
    ("portal_session_starts_total", "result", "starts"),
)
TOTALS = (
    ("portal_idle_warnings_total", "idle_warnings"),
    ("portal_idle_stops_total", "idle_stops"),
    ("portal_notices_failed_total", "notices_failed"),
)
