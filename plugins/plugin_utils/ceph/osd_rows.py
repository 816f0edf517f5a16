# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the inventory says of devices for OSDs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd.devices import PARTS

KEYS = ("path", "method", "device_class", *PARTS, "dmcrypt")
# Other names change with the slot, the order of detection or the next boot.
STABLE = "/dev/disk/by-id/"
VOLUME = re.compile(r"[A-Za-z0-9+_.][A-Za-z0-9+_.-]*/[A-Za-z0-9+_.][A-Za-z0-9+_.-]*")


def rows(devices: Sequence[Any], defaults: Mapping[str, Any], wipe: Sequence[str]) -> dict[str, Any]:
    """Rows as the modules take them, and what makes no sense: {rows, problems}."""
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    paths: list[str] = []
    for device in devices:
        given = {"path": device} if isinstance(device, str) else dict(device)
        path = str(given.get("path", ""))
        row = {"device_class": "", "db": "", "wal": "", **defaults, **given, "wipe": path in wipe}
        parts = [row[key] for key in PARTS if row[key]]
        found.append({**row, "also_wipe": [name for name in parts if name in wipe]})
        problems += _problems(given, row, path)
        paths += [path, *parts]
    problems += [f"{path} is twice in ceph_osd_devices" for path in dict.fromkeys(paths) if paths.count(path) > 1]
    problems += [
        f"ceph_osd_wipe lists {path}, which is not in ceph_osd_devices; correct the name or take it out"
        for path in wipe
        if path not in paths
    ]
    return {"rows": found, "problems": problems}


def _problems(given: Mapping[str, Any], row: Mapping[str, Any], path: str) -> list[str]:
    problems = []
    unknown = sorted(set(given) - set(KEYS))
    if unknown:
        problems.append(f"{path or given}: unknown {', '.join(unknown)}; there are {', '.join(KEYS)}")
    if not path.startswith(STABLE):
        problems.append(f"{path or given} is no name in {STABLE}; 'ls -l {STABLE}' on the host lists the lasting names")
    problems += [
        f"{path}: its {key} {row[key]} is neither a name in {STABLE} nor VOLUME_GROUP/VOLUME"
        for key in PARTS
        if row[key] and not row[key].startswith(STABLE) and not VOLUME.fullmatch(row[key])
    ]
    lvm_only = [key for key in (*PARTS, "dmcrypt") if row.get(key)]
    if row.get("method") == "raw" and lvm_only:
        problems.append(f"{path}: {', '.join(lvm_only)} is not to be had with raw; set ceph_osd_method: lvm")
    return problems
