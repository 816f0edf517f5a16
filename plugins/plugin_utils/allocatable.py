# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host's GPUs a scheduler may give out, in a shape that belongs to no scheduler.

`feed` makes {gpus: [{uuid, index, model, links}], left_out: [{uuid, index, pci_address, why}], attributes: {name: text
or number}} from the facts of the GPUs and their health. Attributes are what stays the same while the host runs: an
agent refuses to come back with a changed one. Renderers for schedulers, mesos/render.py for one, take it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import DEGRADED, OK, UNKNOWN

# Verdicts of GPUs that are given out. What cannot be told keeps the state it had: see `keep`.
GIVEN = (OK, DEGRADED)
COUNT_CLASS = "gpu_count_class"
NAMES = (COUNT_CLASS, "gpu_model", "gpu_arch", "cuda_capability", "gpu_memory_gib", "nvlink")


def feed(
    facts: Mapping[str, Any],
    health: Mapping[str, Any] | None = None,
    exclude: Iterable[str] = (),
    keep: Iterable[str] = (),
    site: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    slots: int | None = None,
) -> dict[str, Any]:
    """The feed from `ansible_facts.gpu` and the report of `gpu_health_info`, which may be missing.

    `exclude` are UUIDs that the operator holds back. `keep` are UUIDs that were given out before: a GPU whose health
    is unknown stays as it was, because a failed look is no evidence. `site` adds attributes of the operator's (rack,
    …). `before` are the attributes last published: the count class among them stays whatever the bus shows, and the
    rest where no GPU answers, with the driver broken say. `slots` is the number of GPUs that the operator says the
    host is built for, which takes the place of what was published; 0 for none.
    """
    verdicts = {row["uuid"]: row for row in (health or {}).get("devices", []) if row.get("uuid")}
    excluded, kept = set(exclude), set(keep)
    gpus, left_out = [], []
    devices = list(facts.get("devices") or [])
    for row in devices:
        why = _why_not(row, verdicts, health is not None, excluded, kept)
        if why:
            left_out.append({**{key: row.get(key) for key in ("uuid", "index", "pci_address")}, "why": why})
        else:
            gpus.append({"uuid": row["uuid"], "index": row["index"], "model": row["slug"], "links": {}})
    if facts.get("topology"):
        _link(gpus, devices, facts["topology"]["scores"])
    return {
        "gpus": sorted(gpus, key=lambda gpu: gpu["index"]),
        "left_out": left_out,
        "attributes": {**_attributes(facts, before or {}, slots), **(site or {})},
    }


def _why_not(
    row: Mapping[str, Any],
    verdicts: Mapping[str, Mapping[str, Any]],
    judged: bool,
    excluded: set[str],
    kept: set[str],
) -> str | None:
    uuid = row.get("uuid")
    if uuid is None or row.get("index") is None or not row.get("slug"):
        return f"NVML cannot reach it: {(row.get('error') or {}).get('text', 'no answer')}"
    if uuid in excluded:
        return "held back by the operator"
    if (row.get("mig") or {}).get("enabled"):
        return "MIG is enabled"
    if not judged:
        return None
    found = verdicts.get(uuid, {"verdict": UNKNOWN})
    if found["verdict"] in GIVEN or (found["verdict"] == UNKNOWN and uuid in kept):
        return None
    reasons = ", ".join(reason["code"] for reason in found.get("reasons", []))
    return f"its health is {found['verdict']}" + (f" ({reasons})" if reasons else "")


def _link(gpus: list[dict[str, Any]], devices: list[dict[str, Any]], scores: list[list[int]]) -> None:
    """Score of each pair of GPUs that are given out; rows of the matrix are in the order of the devices."""
    place = {row.get("uuid"): number for number, row in enumerate(devices)}
    for one in gpus:
        one["links"] = {
            other["uuid"]: scores[place[one["uuid"]]][place[other["uuid"]]] for other in gpus if other is not one
        }


def count_class(count: int) -> int:
    """The size of a host by its slots, 1, 2, 4, 8, …: the largest power of two that is no more than the count."""
    return 1 << (count.bit_length() - 1) if count > 0 else 0


def _attributes(facts: Mapping[str, Any], before: Mapping[str, Any], slots: int | None) -> dict[str, Any]:
    """From the GPUs that are built in, whether healthy or not: a GPU that fails must change no attribute.

    One that is gone from the bus after a boot must not either, and nothing tells it from one that was taken out. So the
    count class is taken from the bus once, and only the operator changes it.
    """
    built_in = pci.gpus(facts.get("pci"))
    told = [row for row in facts.get("devices") or [] if row.get("slug")]
    published = {name: value for name, value in before.items() if name in NAMES}
    if slots is not None:
        size = count_class(slots)
    elif str(published.get(COUNT_CLASS, "")).isdecimal():
        size = int(published[COUNT_CLASS])
    else:
        size = count_class(len(built_in) or len(told))
    if not size:
        return {}
    found: dict[str, Any] = {COUNT_CLASS: size}
    if not told:
        return {**published, **found}
    if len({str(row.get("device")) for row in built_in}) > 1:
        # Of two models, no value is true of what a task gets, and which of them answer may change.
        return found
    for name, key in (
        ("gpu_model", "slug"),
        ("gpu_arch", "architecture"),
        ("cuda_capability", "compute_capability"),
    ):
        values = {str(row[key]) for row in told if row.get(key)}
        if len(values) == 1:
            found[name] = values.pop()
    memory = {round(row["memory_mib"] / 1024) for row in told if row.get("memory_mib")}
    if len(memory) == 1:
        found["gpu_memory_gib"] = memory.pop()
    # A link that goes down is health; whether the GPUs have any is the model. Null: the model has none.
    links = [row["nvlinks"] for row in told if "nvlinks" in row]
    if links:
        found["nvlink"] = "yes" if any(number is not None for number in links) else "no"
    return found
