# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says of devices for OSDs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.devices import PARTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

KEYS = ("path", "method", "device_class", *PARTS, "dmcrypt")
# Other names change with the slot, the order of detection or the next boot.
STABLE = "/dev/disk/by-id/"
VOLUME = re.compile(r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]*/[A-Za-z0-9+_.][A-Za-z0-9+_.-]*")
USE_STABLE = f"name it as 'ls -l {STABLE}' on the host does, whose names last"


def rows(
    devices: Sequence[Any], defaults: Mapping[str, Any], wipe: Sequence[str]
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Rows as the modules take them, and what makes no sense."""
    listed: list[dict[str, Any]] = []
    problems: list[Problem] = []
    paths: list[str] = []
    for device in devices:
        params = {"path": device} if isinstance(device, str) else dict(device)
        path = str(params.get("path", ""))
        row = {"device_class": "", "db": "", "wal": "", **defaults, **params, "wipe": path in wipe}
        parts = [row[key] for key in PARTS if row[key]]
        listed.append({**row, "also_wipe": [name for name in parts if name in wipe]})
        problems += _problems(params, row, path)
        paths += [path, *parts]
    problems += [
        _problem("ceph_osd_devices", f"{path} is twice in ceph_osd_devices", path, "list it once")
        for path in dict.fromkeys(paths)
        if paths.count(path) > 1
    ]
    problems += [
        _problem(
            "ceph_osd_wipe",
            f"ceph_osd_wipe lists {path}, which is not in ceph_osd_devices",
            path,
            "correct the name or take it out",
        )
        for path in wipe
        if path not in paths
    ]
    return listed, problems


def _problem(subject: str, cause: str, evidence: str, remedy: str) -> Problem:
    return Problem("osd_device", subject, cause, evidence, remedy)


def _problems(params: Mapping[str, Any], row: Mapping[str, Any], path: str) -> list[Problem]:
    subject = path or str(dict(params))
    problems = []
    unknown = ", ".join(sorted(set(params) - set(KEYS)))
    if unknown:
        problems.append(_problem(subject, f"{subject}: unknown {unknown}", unknown, f"use {', '.join(KEYS)}"))
    if not path.startswith(STABLE):
        problems.append(_problem(subject, f"{subject} is not a name in {STABLE}", path, USE_STABLE))
    for key in PARTS:
        if row[key] and not row[key].startswith(STABLE) and not VOLUME.fullmatch(row[key]):
            cause = f"{path}: its {key} {row[key]} is neither a name in {STABLE} nor VOLUME_GROUP/VOLUME"
            problems.append(_problem(subject, cause, row[key], USE_STABLE))
    lvm_only = ", ".join(key for key in (*PARTS, "dmcrypt") if row.get(key))
    if row.get("method") == "raw" and lvm_only:
        cause = f"{path}: {lvm_only} is not available with raw"
        problems.append(_problem(subject, cause, lvm_only, "set ceph_osd_method: lvm"))
    return problems
