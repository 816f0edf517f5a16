# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the facts of a host say to an inventory: its groups and its GPUs.

Facts are the value of `ansible_facts.gpu`, as gpu.gather() returns it. They come from another machine by way of a
cache or a file, so nothing is taken for granted about them: what does not have the documented shape is BrokenFacts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml_messages, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.facts_schema import SCHEMA
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, FAULTS, VERDICTS, worst
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import UNKNOWN as NOT_KNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

UNKNOWN = "gpu_unknown"
ABSENT = "gpu_absent"
UNHEALTHY = "gpu_unhealthy"

# Errors of a GPU that mean that the GPU as a whole is out of order.
LOST = tuple(nvml_messages.REMEDIES[code][0] for code in nvml_messages.FATAL)

GPU_KEYS = ("index", "uuid", "pci_address", "name", "slug", "architecture", "memory_mib")


# Of what a group may be named after, and how many groups of a kind one host may be in.
NAME, MOST_NAMES = 100, 32


class BrokenFacts(ValueError):
    """Facts that cannot be used; the message says why."""


def facts_of(host_facts: Any) -> Any:
    """The facts of the GPUs among all that is known of a host; None if there are none.

    The agent's last look (`ansible_local.gpu`) stands in for what gpu_facts was not asked for. If it was an old one
    when it was read, it does not tell that anything is well.
    """
    if not isinstance(host_facts, dict):
        raise BrokenFacts(f"the host's facts are a {type(host_facts).__name__}, not a mapping")
    found = host_facts.get("gpu")
    local = host_facts.get("ansible_local")
    agent = local.get("gpu") if isinstance(local, dict) else None
    if not isinstance(agent, dict) or "present" not in agent or not isinstance(found, (dict, type(None))):
        return found
    if agent.get("stale") and isinstance(agent.get("health"), dict):
        agent = {**agent, "health": _not_well(agent["health"])}
    if found is None:
        return agent
    return {**agent, **{key: value for key, value in found.items() if value is not None}}


def _not_well(health: dict[str, Any]) -> dict[str, Any]:
    def part(one: Any) -> Any:
        if not isinstance(one, dict) or one.get("verdict") not in VERDICTS:
            return one
        return {**one, "verdict": worst(one["verdict"], NOT_KNOWN)}

    devices = health.get("devices")
    return {**part(health), "devices": [part(row) for row in devices]} if isinstance(devices, list) else part(health)


def _list(facts: dict[str, Any], key: str) -> list[dict[str, Any]]:
    rows = facts.get(key)
    if rows is None:
        return []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BrokenFacts(f"{key} is not a list of mappings")
    return rows


def _mapping(facts: dict[str, Any], key: str) -> dict[str, Any]:
    value = facts.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BrokenFacts(f"{key} is a {type(value).__name__}, not a mapping")
    return value


def checked(facts: Any) -> dict[str, Any]:
    """The facts, if they are of this version's schema and shape."""
    if not isinstance(facts, dict):
        raise BrokenFacts(f"they are a {type(facts).__name__}, not a mapping")
    if facts.get("schema") != SCHEMA:
        raise BrokenFacts(f"they have schema {facts.get('schema')!r}, and this version reads {SCHEMA}")
    for device in _list(facts, "devices"):
        _mapping(device, "mig")
    _list(facts, "pci")
    _mapping(facts, "driver")
    _list(_mapping(facts, "health"), "devices")
    return facts


def is_lost(device: dict[str, Any]) -> bool:
    """Whether the facts of a GPU say that it is out of order as a whole."""
    error = device.get("error")
    return isinstance(error, dict) and error.get("name") in LOST


def verdicts(facts: dict[str, Any]) -> list[str]:
    """The verdict on each of the facts' devices, in their order.

    A GPU that the facts themselves call lost is fatal. For the others the health report is asked, and without one
    their verdict is unknown.
    """
    told: dict[str, Any] = {}
    for row in _list(_mapping(facts, "health"), "devices"):
        for name in (row.get("pci_address"), row.get("uuid")):
            if isinstance(name, str):
                told[name] = row.get("verdict")
    found = []
    for device in _list(facts, "devices"):
        verdict = told.get(str(device.get("uuid"))) or told.get(str(device.get("pci_address")))
        found.append(FATAL if is_lost(device) else verdict if verdict in VERDICTS else NOT_KNOWN)
    return found


def _shared(value: Any) -> Any:
    """A fleet has thousands of GPUs of a few models: equal strings are kept once."""
    return sys.intern(str(value)) if isinstance(value, str) else value


def gpus(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """What an inventory tells of each GPU: GPU_KEYS as in the facts' devices, and the verdict."""
    return [
        {**{key: _shared(device.get(key)) for key in GPU_KEYS}, "verdict": _shared(verdict)}
        for device, verdict in zip(_list(facts, "devices"), verdicts(facts), strict=True)
    ]


def has_fault(health: dict[str, Any]) -> bool:
    """Whether a fault of the host or of a GPU is known, whatever else of them is not known."""
    return any(part.get("verdict") in FAULTS or part.get("reasons") for part in (health, *_list(health, "devices")))


def _unhealthy(facts: dict[str, Any]) -> bool:
    """By the health report. Without one, by what the facts themselves say: GPUs that NVML cannot reach."""
    health = _mapping(facts, "health")
    if health.get("verdict") is not None:
        return has_fault(health)
    devices = _list(facts, "devices")
    if any(is_lost(device) for device in devices):
        return True
    # A driver that cannot be asked is not installed yet or not loaded: that says nothing about the GPUs.
    return bool(devices) and not _mapping(facts, "driver").get("nvml_error") and len(_bus(facts)) > len(devices)


def _bus(facts: dict[str, Any]) -> list[dict[str, Any]]:
    return pci.gpus(_list(facts, "pci"))


def _has_nvlink(device: dict[str, Any]) -> bool:
    """nvlinks is a number of links that are up, or the links, each with `active`."""
    links = device.get("nvlinks")
    if isinstance(links, list):
        return any(isinstance(link, dict) and link.get("active") for link in links)
    return isinstance(links, int) and links > 0


def _profiles(devices: list[dict[str, Any]]) -> list[Any]:
    """The profiles of the MIG devices that there are, such as 1g.10gb."""
    return [row.get("profile") for device in devices for row in _list(_mapping(device, "mig"), "instances")]


def _names(prefix: str, values: Iterable[Any]) -> list[str]:
    """Names of groups. What is not a letter, a digit or an underscore becomes an underscore."""
    found = []
    for value in values:
        if value is None:
            continue
        if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value) or len(str(value)) > NAME:
            raise BrokenFacts(f"{untrusted_text.one_line(repr(value), NAME)} is not a name for a group {prefix}_*")
        name = f"{prefix}_" + re.sub(r"[^a-z0-9]+", "_", str(value).lower()).strip("_")
        if name not in found:
            found.append(name)
        if len(found) > MOST_NAMES:
            raise BrokenFacts(f"they name more than {MOST_NAMES} groups {prefix}_*")
    return found


def groups(facts: Any) -> list[str]:
    """The groups of a host, by its facts. Raises BrokenFacts."""
    facts = checked(facts)
    devices, bus, driver = _list(facts, "devices"), _bus(facts), _mapping(facts, "driver")
    unhealthy = [UNHEALTHY] if _unhealthy(facts) else []
    present = facts.get("present")
    if present is False or (pci.others(_list(facts, "pci")) and not bus and not devices):
        return [ABSENT, *unhealthy]
    if not present and not devices:
        return [UNKNOWN, *unhealthy]
    # The bus names a GPU before there is a driver. Its name is not always NVML's, so never both.
    models = [device.get("slug") for device in devices if device.get("slug")] or [
        nvml_messages.slug(row["model"]) for row in bus if isinstance(row.get("model"), str)
    ]
    found = _names("gpu_model", models)
    found += _names("gpu_count", [len(bus) or len(devices)])
    found += _names("gpu_arch", [row.get("architecture") for row in [*devices, *bus]])
    found += _names("driver_branch", [driver.get("branch")])
    found += _names("cuda", [driver.get("cuda")])
    if any(_has_nvlink(device) for device in devices):
        found.append("nvlink")
    if any(_mapping(device, "mig").get("enabled") for device in devices):
        found.append("mig")
    found += _names("mig", _profiles(devices))
    return found + unhealthy
