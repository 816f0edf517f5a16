# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The host that has the journals of the site.

nginx speaks TLS, checks the certificate of whoever sends, and passes the entries to the receiver of that host alone, by
a socket that no other account can open. A receiver is systemd-journal-remote, one for each host. It cannot check
certificates itself as distributions build it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.logs.store import ACTIVE_BYTES, DIRECTORY
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificate_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.logs import site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile
from ansible_collections.baremetal.gpu.plugins.plugin_utils.nginx import no_default_site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import (
    bracketed,
    size,
    unit_path,
    wrong,
    wrong_files,
)

ROLE = "log_host"
TLS = "/etc/baremetal-gpu/log-host"
NGINX_CONF = "/etc/nginx/conf.d/baremetal-gpu-logs.conf"
PROGRAM = "/usr/libexec/baremetal-gpu/log-store"
SOCKETS = "/run/baremetal-gpu-logs"
TARGET, STORE = "baremetal-gpu-logs.target", "baremetal-gpu-log-store.service"
RECEIVER_SOCKET, RECEIVER = "baremetal-gpu-log@.socket", "baremetal-gpu-log@.service"
METRICS = "baremetal_gpu_log_store.prom"
# The hosts that are to send.
SENDERS = "/etc/baremetal-gpu/log-senders"
# An operator's own certificate may have any subject, as RFC 2253 writes it.
_SUBJECT = re.compile(r"[A-Za-z0-9=,.@ _+:*/()-]{4,200}", re.ASCII)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of the log host.

    :param params: the variables of the role; ``certificates``, what the module cluster_certificates has returned, may
        be empty until the tasks have read them.
    :param peers: ``host``, the name of this host; ``hosts``, those of the group log_hosts; ``senders``, those of
        log_senders; ``subjects``, by host the subject of its certificate, empty for the one that the role makes.
    :return: With the parts `certificates`, what is asked of that module, and `url`, by which the host itself asks.
    """
    if params["state"] == "absent":
        return Plan(_absent(), parts={"certificates": [], "url": ""})
    subjects = {name: str(peers["subjects"].get(name) or f"CN={name}") for name in peers["senders"]}
    problems = tuple(_problems(params, peers, subjects))
    if problems:
        return Plan(problems=problems, parts={"certificates": [], "url": ""})
    parts = {"certificates": [_wanted(params, peers["host"])], "url": _own_url(params)}
    is_ready = params["certificates"].get("certificates")
    return Plan(_present(params, peers["host"], subjects) if is_ready else doc.Document(), parts=parts)


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any], subjects: Mapping[str, str]) -> Iterator[Problem]:
    hosts = list(peers["hosts"])
    if peers["host"] not in hosts:
        cause = "the role log_host is for the host of the group log_hosts"
        yield Problem("no_log_host", peers["host"], cause, "", f"add {peers['host']} to the group log_hosts")
    if len(hosts) > 1:
        yield Problem(
            "one_log_host",
            "log_hosts",
            f"the group log_hosts has {len(hosts)} hosts, and the journals of a site are on one",
            ", ".join(hosts),
            "leave one host in log_hosts",
        )
    for name in dict.fromkeys((*hosts, *subjects)):
        if not site.NAME.fullmatch(name):
            cause = "a name that is part of files and certificates has letters, digits, dots, hyphens and underscores"
            yield wrong("log_senders", cause, name, "rename the host in the inventory")
    for name, subject in subjects.items():
        if not _SUBJECT.fullmatch(subject):
            cause = f"the subject of the certificate of {name} has characters that no subject needs"
            yield wrong("log_sender_subject", cause, subject, "give it as openssl prints it with -nameopt RFC2253")
    twice = sorted(subject for subject, count in Counter(subjects.values()).items() if count > 1)
    if twice:
        cause = "two hosts have the same subject"
        yield wrong("log_sender_subject", cause, ", ".join(twice), "give each host a certificate of its own")
    yield from _wrong_listening(params)
    yield from _wrong_limits(params, len(subjects))
    yield from wrong_files("log_host_tls_files", params["tls_files"])
    yield from textfile.directory_problems("log_host_metrics_directory", str(params["metrics_directory"]))


def _wrong_listening(params: Mapping[str, Any]) -> Iterator[Problem]:
    for address in params["listen"]:
        try:
            ip_address(address)
        except ValueError:
            yield wrong("log_host_listen", "it is not an IP address", address, "give addresses such as 0.0.0.0 or ::")
    if not params["listen"]:
        yield wrong("log_host_listen", "there is no address", "", "give addresses such as 0.0.0.0 or ::")
    if not 1 <= params["port"] <= 65535:
        yield wrong("log_host_port", "it is not a valid port", params["port"], f"give a port such as {site.PORT}")


def _wrong_limits(params: Mapping[str, Any], senders: int) -> Iterator[Problem]:
    for name in ("space", "keep_free"):
        if not size(str(params[name])):
            yield wrong(
                f"log_host_{name}", "it is not a valid size", params[name], "give a size such as 500M, 50G or 1T"
            )
    # What hosts write to at present cannot be removed.
    least = 2 * senders * ACTIVE_BYTES
    if 0 < size(str(params["space"])) < least:
        cause = f"{senders} hosts need {least >> 20}M at least"
        yield wrong("log_host_space", cause, params["space"], f"give {least >> 20}M or more")
    if params["days"] < 1:
        yield wrong("log_host_days", "it is less than a day", params["days"], "give days such as 30")


def _wanted(params: Mapping[str, Any], host: str) -> dict[str, Any]:
    given = params["tls_files"]
    row = {"name": host, "names": list(dict.fromkeys(filter(None, (host, *params["names"]))))}
    return {**row, "certificate": given["certificate"], "key": given["key"]} if given else row


def _own_url(params: Mapping[str, Any]) -> str:
    """Where the host reaches nginx itself."""
    address = ip_address(params["listen"][0])
    if address.is_unspecified:
        address = ip_address("127.0.0.1" if address.version == 4 else "::1")
    return f"https://{bracketed(str(address))}:{params['port']}/upload"


def _present(params: Mapping[str, Any], host: str, subjects: Mapping[str, str]) -> doc.Document:
    directory = str(params["metrics_directory"])
    nginx = render(
        ROLE,
        "nginx.conf.j2",
        listen=[f"{bracketed(address)}:{params['port']}" for address in params["listen"]],
        # A map of words has a limit to their length; expressions have none.
        senders={name: f"^{re.escape(subject)}$" for name, subject in subjects.items()},
        tls=TLS,
        sockets=SOCKETS,
    )
    units = {
        TARGET: render(ROLE, f"{TARGET}.j2", senders=list(subjects)),
        RECEIVER_SOCKET: render(ROLE, f"{RECEIVER_SOCKET}.j2", target=TARGET, sockets=SOCKETS),
        RECEIVER: render(ROLE, f"{RECEIVER}.j2", target=TARGET, program=PROGRAM),
        STORE: render(
            ROLE,
            f"{STORE}.j2",
            program=PROGRAM,
            target=TARGET,
            space=size(params["space"]),
            free=size(params["keep_free"]),
            days=params["days"],
            senders=SENDERS,
            directory=directory,
            textfile=f"{directory}/{METRICS}" if directory else "",
        ),
    }
    return doc.Document(
        packages=[doc.Package("nginx"), doc.Package("systemd-journal-remote")],
        files=[
            doc.Directory(PROGRAM.rpartition("/")[0]),
            doc.File(PROGRAM, bundle("logs.store"), "0755"),
            *textfile.directory(directory),
            doc.Directory("/etc/baremetal-gpu"),
            doc.File(SENDERS, "".join(f"{name}\n" for name in sorted(subjects))),
            *certificate_files.present(TLS, params["certificates"], host),
            *(doc.File(unit_path(name), text) for name, text in units.items()),
            doc.Directory("/etc/nginx", early=True),
            doc.Directory("/etc/nginx/sites-enabled", early=True),
            no_default_site(ROLE),
            doc.Directory(DIRECTORY.rpartition("/")[0], mode=None, owner=None, group=None),
            # As the receivers' unit makes it. The program that removes files has to find it when it starts.
            doc.Directory(DIRECTORY, "0750", "systemd-journal-remote", "systemd-journal"),
            doc.File(NGINX_CONF, nginx),
        ],
        units=[
            # It takes entries from everybody, by TLS and otherwise.
            doc.Unit.stopped("systemd-journal-remote.socket"),
            doc.Unit.running(TARGET, [*map(unit_path, (TARGET, RECEIVER_SOCKET, RECEIVER)), "systemd-journal-remote"]),
            doc.Unit.running(STORE, [PROGRAM, SENDERS, unit_path(STORE)]),
            doc.Unit.running(
                "nginx.service",
                restart_on=[f"{TLS}/{certificate_files.AUTHORITY}", "nginx"],
                # After a reload, requests that are under way come to their end. None of a former authority may.
                reload_on=[NGINX_CONF, f"{TLS}/*"],
            ),
        ],
    )


def _absent() -> doc.Document:
    units = (TARGET, RECEIVER_SOCKET, RECEIVER, STORE)
    return doc.Document(
        units=[
            doc.Unit.stopped(STORE),
            doc.Unit.stopped(TARGET),
            # It goes on for other sites that it may have.
            doc.Unit("nginx.service", reload_on=[NGINX_CONF]),
        ],
        files=[
            *map(doc.Absent, (NGINX_CONF, *map(unit_path, units), PROGRAM, SENDERS)),
            *certificate_files.absent(TLS),
        ],
    )
