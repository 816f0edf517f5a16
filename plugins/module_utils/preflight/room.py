# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host has room for a service: its ports, and space for what is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.net import held_ports


def taken_ports(ports: Iterable[Mapping[str, Any]], root: str = "/") -> list[Problem]:
    """Ports that another program has than the units whose names begin as ``unit`` says."""
    found = []
    for row in ports:
        for port, holder in held_ports([row["port"]], row["unit"], root).items():
            setting = row.get("setting") or ""
            remedy = f"stop that program, or set {setting} to another port" if setting else "stop that program"
            cause = f"port {port} is to be that of {row['unit']}, and {holder} has it"
            found.append(Problem("port_taken", setting or str(port), cause, holder, remedy))
    return found


def too_small(spaces: Iterable[Mapping[str, Any]], root: str = "/") -> list[Problem]:
    """Directories whose file system has less space than is needed, where ``unless`` is not there yet."""
    found = []
    for row in spaces:
        if row.get("unless") and os.path.exists(os.path.join(root, row["unless"].lstrip("/"))):
            continue
        place = row["path"]
        while not os.path.isdir(os.path.join(root, place.lstrip("/"))):
            place = os.path.dirname(place)
        free = shutil.disk_usage(os.path.join(root, place.lstrip("/"))).free >> 20
        if free < row["mib"]:
            cause = f"{row['what']} needs {row['mib']} MiB in {row['path']}, and {free} MiB are free"
            remedy = f"free {row['mib'] - free} MiB there, or enlarge the file system"
            found.append(Problem("disk_space", row["path"], cause, str(free), remedy))
    return found
