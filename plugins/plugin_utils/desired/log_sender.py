# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host that sends its journal to the log host.

systemd-journal-upload reads the journal and keeps a cursor of what the log host has confirmed. So the journal is the
spool: journald keeps it on the disk, within a size, and drops the oldest first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificate_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.logs import site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import size, wrong, wrong_files

ROLE = "log_sender"
TLS = "/etc/baremetal-gpu/log-sender"
PROGRAM = "/usr/libexec/baremetal-gpu/log-spool"
UPLOAD, SPOOL = "systemd-journal-upload.service", "baremetal-gpu-log-spool.service"
UPLOAD_CONF = "/etc/systemd/journal-upload.conf.d/baremetal-gpu.conf"
JOURNALD_CONF = "/etc/systemd/journald.conf.d/baremetal-gpu.conf"
DROP_IN = f"/etc/systemd/system/{UPLOAD}.d/baremetal-gpu.conf"
SPOOL_UNIT = f"/etc/systemd/system/{SPOOL}"
STATE = "/var/lib/baremetal-gpu-log-spool"
METRICS = "baremetal_gpu_log_spool.prom"
# journald keeps eight files or so, and drops one at a time.
LEAST_SPOOL = "64M"
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of a host that sends.

    :param params: the variables of the role; ``certificates``, what the module cluster_certificates has returned, may
        be empty until the tasks have read them.
    :param peers: ``host``, the name of this host; ``hosts``, those of the group log_hosts; ``senders``, those of
        log_senders; ``port``, that of the log host.
    :return: With the parts `certificates`, what is asked of that module; `files`, the pattern of this host's journal on
        the log host; and `proof`, the name of the proof that a message arrives.
    """
    nothing = {"certificates": [], "files": "", "proof": ""}
    if params["state"] == "absent":
        return Plan(_absent(), parts=nothing)
    problems = tuple(_problems(params, peers))
    if problems:
        return Plan(problems=problems, parts=nothing)
    host = peers["host"]
    parts = {"certificates": [_wanted(params, host)], "files": site.files_of(host), "proof": ROLE}
    return Plan(_present(params, peers) if params["certificates"].get("certificates") else doc.Document(), parts=parts)


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    host, server = peers["host"], str(params["server"])
    if not peers["hosts"]:
        yield Problem("no_log_host", "log_hosts", "no host takes the journals", "", "add a host to the group log_hosts")
    elif not _is_address(server) and not _HOST_NAME.fullmatch(server):
        yield wrong("log_sender_server", "it is neither a host name nor an address", server, "give one of them")
    if host not in peers["senders"]:
        cause = "the log host takes journals of the group log_senders alone"
        yield Problem("no_sender", host, cause, "", f"add {host} to the group log_senders")
    if not site.NAME.fullmatch(host):
        cause = "a name that is part of files and certificates has letters, digits, dots, hyphens and underscores"
        yield wrong("log_senders", cause, host, "rename the host in the inventory")
    if size(str(params["spool"])) < size(LEAST_SPOOL):
        cause = f"it is not a size of {LEAST_SPOOL} or more"
        yield wrong("log_sender_spool", cause, params["spool"], "give a size such as 500M or 4G")
    yield from wrong_files("log_sender_tls_files", params["tls_files"])
    yield from textfile.directory_problems("log_sender_metrics_directory", str(params["metrics_directory"]))


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _wanted(params: Mapping[str, Any], host: str) -> dict[str, Any]:
    given = params["tls_files"]
    row = {"name": host, "names": [host]}
    return {**row, "certificate": given["certificate"], "key": given["key"]} if given else row


def _present(params: Mapping[str, Any], peers: Mapping[str, Any]) -> doc.Document:
    directory, server = str(params["metrics_directory"]), str(params["server"])
    url = f"https://{f'[{server}]' if ':' in server else server}:{peers['port']}"
    metrics = f"{directory}/{METRICS}" if directory else ""
    texts = {
        JOURNALD_CONF: render(ROLE, "journald.conf.j2", spool=params["spool"]),
        UPLOAD_CONF: render(ROLE, "journal-upload.conf.j2", url=url, tls=TLS, unit=UPLOAD),
        DROP_IN: render(ROLE, f"{UPLOAD}.j2", tls=TLS),
        SPOOL_UNIT: render(
            ROLE,
            f"{SPOOL}.j2",
            program=PROGRAM,
            state=STATE.rpartition("/")[2],
            directory=directory,
            textfile=metrics,
            upload=UPLOAD,
        ),
    }
    directories = [path.rpartition("/")[0] for path in (PROGRAM, TLS, JOURNALD_CONF, UPLOAD_CONF, DROP_IN)]
    return doc.Document(
        packages=[doc.Package("systemd-journal-remote")],
        files=[
            *map(doc.Directory, directories),
            doc.File(PROGRAM, bundle("logs.spool"), "0755"),
            *textfile.directory(directory),
            *certificate_files.present(TLS, params["certificates"], peers["host"]),
            *(doc.File(path, text) for path, text in texts.items()),
        ],
        units=[
            doc.Unit("systemd-journald.service", state="started", restart_on=[JOURNALD_CONF]),
            doc.Unit.running(UPLOAD, [UPLOAD_CONF, DROP_IN, f"{TLS}/*", "systemd-journal-remote"]),
            doc.Unit.running(SPOOL, [PROGRAM, SPOOL_UNIT]),
        ],
        proofs=[doc.Proof(ROLE, "that a message arrives at the log host")],
    )


def _absent() -> doc.Document:
    """The cursor stays: a host that sends again goes on where it ended."""
    paths = (UPLOAD_CONF, DROP_IN, JOURNALD_CONF, SPOOL_UNIT, PROGRAM, STATE)
    return doc.Document(
        units=[
            doc.Unit.stopped(SPOOL),
            doc.Unit.stopped(UPLOAD),
            doc.Unit("systemd-journald.service", state="started", restart_on=[JOURNALD_CONF]),
        ],
        files=[*map(doc.Absent, paths), *certificate_files.absent(TLS)],
        proofs=[doc.Proof(ROLE, state="absent")],
    )
