# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts of a host's cards, put together from the PCI bus, the driver's files and NVML."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils import compatibility, driver, nvml, pci

SCHEMA = 1
SUBSETS = ("pci", "driver", "devices")


def gather(
    subset: Iterable[str] = SUBSETS,
    binding_source: str | None = None,
    deadline_s: float = 20.0,
    root: str = "/",
    kernel: str | None = None,
    probe: Callable[[str | None, float, str], dict[str, Any]] = nvml.probe,
) -> dict[str, Any]:
    """The value of `ansible_facts.gpu`. Only the parts that were asked for are in it."""
    wanted = set(subset)
    facts: dict[str, Any] = {"schema": SCHEMA, "present": None, "reason": None}
    try:
        bus = pci.scan(root)
        facts["present"] = any(row["kind"] == "gpu" for row in bus)
        if not facts["present"]:
            facts["reason"] = "no NVIDIA card on the PCI bus"
    except pci.BusUnreadable as unreadable:
        bus = []
        facts["reason"] = str(unreadable)
    if "pci" in wanted:
        facts["pci"] = bus
    if not wanted & {"driver", "devices"}:
        return facts

    state = driver.read(root, kernel or os.uname().release)
    state["cuda"] = compatibility.newest_cuda(state["branch"])
    state["nvml_error"] = None
    devices: list[dict[str, Any]] = []
    # Without cards there is nothing to ask. Where the bus cannot be read, NVML may still know.
    if "devices" in wanted and facts["present"] is not False:
        answer = probe(binding_source, deadline_s, root)
        state["nvml_error"] = answer["error"]
        state["cuda"] = answer["cuda"] or state["cuda"]
        devices = answer["devices"]
        if answer["error"]:
            error = answer["error"]
            facts["reason"] = facts["reason"] or f"{error['text']}: {error['remedy']}"
        else:
            facts["reason"] = facts["reason"] or _missing(bus, devices)
    if "driver" in wanted:
        facts["driver"] = state
    if "devices" in wanted:
        facts["devices"] = devices
    return facts


def _missing(bus: list[dict[str, Any]], devices: list[dict[str, Any]]) -> str | None:
    """Why fewer cards can be used than are on the bus. A lost card no longer tells its address, so it is worked out."""
    answering = {row.get("pci_address") for row in devices}
    missing = [row["address"] for row in bus if row["kind"] == "gpu" and row["address"] not in answering]
    silent = [row for row in devices if row.get("pci_address") is None]
    if len(missing) == len(silent) == 1:
        silent[0]["pci_address"] = missing[0]
    failed = [row for row in devices if row.get("error")]
    if missing:
        why = f": {failed[0]['error']['text']}: {failed[0]['error']['remedy']}" if failed else ""
        return f"NVML cannot reach {', '.join(missing)}{why}"
    return None
