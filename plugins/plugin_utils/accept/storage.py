# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The storage as hosts have it, and the cluster behind it.

`hosts` are {name: {"storage": what accept_storage returns}}, `services` {the host of a monitor: {"ceph": what
ceph_cluster_info returns, "homes": what ceph_info does}}. What hosts send is untrusted.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    FLEET_LEAST,
    NOT_APPLICABLE,
    NOT_TESTABLE,
    STORAGE,
    Item,
    judged,
    outliers,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, number, rows

Rows = Mapping[str, Mapping[str, Any]]

# A host that is this much slower than the others, which have the same storage, is named.
TOLERANCE = 0.4
FREE_LEAST = 0.05
# Each figure with its words, and whether less is better.
FIGURES: dict[str, tuple[str, str, bool]] = {
    "write_mb_s": ("storage.write", "writes {:.0f} MB/s", False),
    "read_mb_s": ("storage.read", "reads {:.0f} MB/s", False),
    "read_iops": ("storage.read_iops", "reads {:.0f} blocks of 4 KiB a second", False),
    "write_iops": ("storage.write_iops", "writes {:.0f} blocks of 4 KiB a second", False),
    "fsync_ms": ("storage.fsync", "fsync takes {:.2f} ms", True),
}
NO_DIRECTORY = "no directory of shared storage is known; name one in accept_storage_directories"


def _cluster(services: Rows) -> list[Item]:
    items = []
    for name, row in services.items():
        if "ceph" not in row:
            continue
        found = mapping(row["ceph"])
        problems = rows(found.get("problems"))
        told = "; ".join(f"{one.get('cause')} {one.get('evidence') or ''}".strip() for one in problems)
        remedy = "; ".join(dict.fromkeys(str(one["remedy"]) for one in problems if one.get("remedy")))
        health = mapping(mapping(found.get("cluster")).get("health")).get("status")
        if not found or (health is None and not problems):
            items.append(Item("storage.health", STORAGE, name, NOT_TESTABLE, "the storage cluster was not asked"))
            continue
        remedy = remedy or "see `sudo ceph health detail` on a host of ceph_mons"
        evidence = told or f"the storage cluster says {health}"
        items.append(judged("storage.health", STORAGE, name, not problems, evidence, remedy))
    return items


def _quotas(services: Rows) -> list[Item]:
    items = []
    for name, row in services.items():
        if "homes" not in row:
            continue
        homes = mapping(row["homes"]).get("subvolumes")
        if not isinstance(homes, Mapping):
            items.append(Item("storage.quota", STORAGE, name, NOT_TESTABLE, "the homes cannot be listed"))
            continue
        whole = {home: row for home, row in homes.items() if mapping(row).get("state", "complete") == "complete"}
        without = [home for home, row in whole.items() if not number(mapping(row).get("size"))]
        remedy = "give it a size in `cephfs_homes_users`, and run `gpuops up --tags storage`"
        items += [
            judged("storage.quota", STORAGE, name, False, "the home has no quota", remedy, f"home {home}")
            for home in without
        ]
        if not whole:
            items.append(Item("storage.quota", STORAGE, name, NOT_APPLICABLE, "there are no homes"))
        elif not without:
            items.append(judged("storage.quota", STORAGE, name, True, f"all {len(whole)} homes have a quota", ""))
    return items


def _space(name: str, row: Mapping[str, Any]) -> list[Item]:
    items = []
    for told in (*rows(row.get("spaces")), mapping(mapping(row.get("measured")).get("space"))):
        total, free = number(told.get("total_bytes")), number(told.get("free_bytes"))
        if not total or free is None:
            continue
        evidence = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB are free"
        remedy = "make room"
        items.append(
            judged("storage.space", STORAGE, name, free >= total * FREE_LEAST, evidence, remedy, f"{told.get('path')}")
        )
    return items


def _speed(name: str, row: Mapping[str, Any]) -> list[Item]:
    measured = mapping(row.get("measured"))
    if row.get("has_fio") is not True:
        return [Item("storage.works", STORAGE, name, NOT_TESTABLE, "fio is not installed", "install fio")]
    if not measured:
        return [Item("storage.works", STORAGE, name, NOT_APPLICABLE, NO_DIRECTORY)]
    directory = str(measured.get("directory"))
    if not measured.get("error"):
        return [judged("storage.works", STORAGE, name, True, "it was written, read and synced", "", directory)]
    text = str(measured["error"])
    if measured.get("is_fault") is not True:
        return [Item("storage.works", STORAGE, name, NOT_TESTABLE, text, "", directory)]
    remedy = f"look at the mount of {directory}: `gpuops doctor {name}`"
    return [judged("storage.works", STORAGE, name, False, text, remedy, directory)]


def _fleet(hosts: Rows, tolerance: float) -> list[Item]:
    items = []
    measured = {name: mapping(mapping(row.get("storage")).get("measured")) for name, row in hosts.items()}
    for key, (id, words, less_is_better) in FIGURES.items():
        known = {name: value for name, row in measured.items() if (value := number(row.get(key)))}
        known = {name: value for name, value in known.items() if value > 0}
        named = outliers({name: 1 / value if less_is_better else value for name, value in known.items()}, tolerance)
        slow = {row.key for row in named}
        median = statistics.median(known.values()) if known else 0.0
        for name, value in known.items():
            text = words.format(value)
            if len(known) < FLEET_LEAST:
                items.append(Item(id, STORAGE, name, NOT_APPLICABLE, f"{text}; there are no others to compare it with"))
                continue
            evidence = f"{text}, where the median of all hosts is {median:.4g}"
            remedy = "look at the host's network, its load, and the options of the mount"
            items.append(judged(id, STORAGE, name, name not in slow, evidence, remedy))
    return items


def items(hosts: Rows, services: Rows, tolerance: float = TOLERANCE) -> list[Item]:
    """All items of the stage. A row may have "why": what kept the host from measuring."""
    found = _cluster(services) + _quotas(services)
    for name, row in hosts.items():
        told = mapping(row.get("storage"))
        if not told:
            why = str(row.get("why") or "the host did not answer")
            found.append(Item("storage.works", STORAGE, name, NOT_TESTABLE, why))
            continue
        found += _speed(name, told) + _space(name, told)
    return found + _fleet(hosts, tolerance)
