# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""slurmrestd, which only programs on its own host reach."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Address
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import jwt, units

ROLE = "slurm_rest"
SLURMRESTD = "slurmrestd.service"
# A copy of its own: where other roles have slurm.conf on this host too, slurmrestd still restarts with a new one.
CONFIG = "/etc/slurm/slurmrestd.conf"
SOCKETS = "/run/slurmrestd"
_SOCKET = re.compile(rf"unix:({SOCKETS}/[A-Za-z0-9][A-Za-z0-9._-]{{0,62}})")
# Slurm has no IPv6 unless it is told to.
_ADDRESS = re.compile(r"([0-9.]{7,15}):([0-9]{1,5})")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: ``listen``, an IPv4 loopback address with its port, or ``unix:`` and the path of a socket.
    :param peers: ``cluster``, the plan of slurm_common.
    :return: With the parts `url`, what requests on this host begin with, and `socket`, the path of the socket that they
        go to, empty with an address.
    """
    listen = str(params["listen"])
    socket, url = _socket(listen), _url(listen)
    if not socket and not url:
        return Plan(problems=(_refused(listen),))
    sockets = SOCKETS.rpartition("/")[2] if socket else ""
    sections = render(ROLE, "slurmrestd.conf.j2", config=CONFIG, listen=listen, socket_directory=sockets)
    return Plan(
        doc.Document(
            packages=[doc.Package("slurmrestd"), doc.Package(jwt.PACKAGE)],
            # Before the package, which starts slurmrestd at once, on all addresses.
            files=[
                doc.Directory("/etc/slurm", owner=None, group=None, early=True),
                doc.File(CONFIG, peers["cluster"]["slurm_conf"], early=True),
                *units.drop_in(ROLE, SLURMRESTD, sections),
            ],
            units=[doc.Unit.running(SLURMRESTD, [CONFIG, units.path(SLURMRESTD), "slurmrestd"])],
        ),
        parts={"url": url or "http://localhost", "socket": socket},
    )


def _socket(listen: str) -> str:
    found = _SOCKET.fullmatch(listen)
    return found.group(1) if found else ""


def _url(listen: str) -> str:
    """The URL of an address of this host alone; empty for anything else."""
    found = _ADDRESS.fullmatch(listen)
    if not found:
        return ""
    try:
        address = IPv4Address(found.group(1))
    except ValueError:
        return ""
    # Ports below are root's, and slurmrestd is not.
    return f"http://{listen}" if address.is_loopback and 1024 <= int(found.group(2)) < 65536 else ""


def _refused(listen: str) -> Problem:
    return Problem(
        "not_loopback",
        "slurm_rest_listen",
        "slurmrestd does not encrypt, so it is to listen only on a loopback address with a port from 1024 on, or on a "
        f"socket in {SOCKETS}",
        listen,
        f"set 127.0.0.1:6820 or unix:{SOCKETS}/slurmrestd.socket; other machines use an SSH tunnel, or an HTTPS "
        "server on the same host that passes their requests on",
    )
