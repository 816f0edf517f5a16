# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent may be told anew under the id that it has. Pure functions over environment files.

An agent with a checkpoint comes back under its id, with its tasks. The policy `additive` takes more cpus, mem and disk
and new attributes; anything less, or another hostname or port, and the agent ends. The list of GPUs is another matter:
the agent gives out GPUs by their place in it, so another list under running tasks gives a GPU to two of them, and
nothing stops it. Whether tasks run cannot be told from here without a race, since one may be launched between the look
and the restart. So another list is taken only by an agent without a checkpoint, which is one that was drained first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.indices import index_by_uuid
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import node as mesos_node
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import gpus_of
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.draft import problem

_PORTS = r"ports:(\[[^]]*\])"
SCALARS = ("cpus", "mem", "disk")
FIXED = {
    "MESOS_HOSTNAME": "hostname",
    "MESOS_PORT": "port",
    "MESOS_WORK_DIR": "work directory",
    "MESOS_DOMAIN": "domain",
}
# A kernel that keeps a little more for itself is no other host: differences below this share are passed over.
TOLERANCE = 0.02


def scalars(environment: Mapping[str, str]) -> dict[str, float]:
    """The numbers in MESOS_RESOURCES by name."""
    found = re.findall(r"(?:^|;)(\w+):([0-9.]+)(?=;|$)", environment.get("MESOS_RESOURCES", ""), re.ASCII)
    return {name: float(number) for name, number in found}


def attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """MESOS_ATTRIBUTES by name."""
    rows = (pair.partition(":") for pair in environment.get("MESOS_ATTRIBUTES", "").split(";"))
    return {name: value for name, colon, value in rows if colon}


def span(text: Any) -> tuple[int, int]:
    """(low, high) of low-high. Raises Refused."""
    found = re.fullmatch(r"(\d{1,5})-(\d{1,5})", str(text), re.ASCII)
    if not found:
        raise Refused(f"mesos_agent_ports has {text!r}", "give ranges as in 31000-32000")
    return int(found[1]), int(found[2])


def steady(node: Mapping[str, Any], reserve: Mapping[str, float], before: Mapping[str, str]) -> dict[str, Any]:
    """What the host has: cpus, memory_mib, disk_mib. Where it has hardly changed, what makes the settings as before."""
    published = scalars(before)
    found = {}
    for name, key in (("cpus", "cpus"), ("mem", "memory_mib"), ("disk", "disk_mib")):
        total, was = node[key], published.get(name)
        left = total - reserve.get(name, 0)
        if name != "cpus" and was is not None and abs(left - was) <= TOLERANCE * was:
            total = int(was + reserve.get(name, 0))
        found[key] = total
    return found


def as_before(node: Mapping[str, Any], devices: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The list that the agent has, {uuid, index}, with today's indices; None where it cannot have that list again.

    A GPU that is gone from an agent that runs stays at the index that the agent knows, so that nothing changes.
    """
    before = node["environment"]
    listed = gpus_of(before)
    if not node["agent_id"] or not listed:
        return None
    today = index_by_uuid(devices)
    if set(listed) <= set(today):
        return sorted(({"uuid": uuid, "index": today[uuid]} for uuid in listed), key=lambda gpu: gpu["index"])
    known = [int(index) for index in before.get("MESOS_NVIDIA_GPU_DEVICES", "").split(",") if index.isdecimal()]
    if not node["running"] or len(known) != len(listed):
        return None
    return [{"uuid": uuid, "index": index} for uuid, index in zip(listed, known, strict=True)]


def difference(was: Iterable[str], now: Iterable[str]) -> str:
    """Which GPUs one list has and the other has not; empty where they are the same."""
    first, second = set(was), set(now)
    sides = (("without", first - second), ("with", second - first))
    return " and ".join(f"{word} {', '.join(sorted(gpus))}" for word, gpus in sides if gpus)


def problems(node: Mapping[str, Any], text: str, work_dir: str) -> list[Problem]:
    """Why an agent with a checkpoint cannot be given the environment file `text`."""
    if not node["agent_id"]:
        return []
    before, after = node["environment"], mesos_node.environment(text)
    told = [] if before else ["is registered with settings that are not known here"]
    for name, what in FIXED.items():
        if before and before.get(name) != after.get(name):
            told.append(f"its {what} changes from {before.get(name)} to {after.get(name)}")
    was, now = scalars(before), scalars(after)
    told += [
        f"{name} shrinks from {was[name]:g} to {now.get(name, 0):g}"
        for name in SCALARS
        if name in was and now.get(name, 0) < was[name]
    ]
    if before and not _holds(after, before):
        words = [", ".join(re.findall(_PORTS, row.get("MESOS_RESOURCES", ""))) or "none" for row in (before, after)]
        told.append(f"its ports change from {words[0]} to {words[1]}")
    new = attributes(after)
    told += [
        f"attribute {name} changes from {value} to {new.get(name, 'none')}"
        for name, value in attributes(before).items()
        if new.get(name) != value
    ]
    told += _gpus(node, before, after)
    if after.get("MESOS_RECONFIGURATION_POLICY") == "equal" and before:
        told += [
            f"{what} changes under reconfiguration_policy=equal"
            for name, what in (("MESOS_RESOURCES", "resources"), ("MESOS_ATTRIBUTES", "attributes"))
            if before.get(name) != after.get(name)
        ]
    if not told:
        return []
    where = before.get("MESOS_WORK_DIR", work_dir)
    return [
        problem(
            f"the agent {node['agent_id']} would not come back, or give out wrong GPUs: {'; '.join(told)}",
            "take the change back; or drain the agent (baremetal.gpu.mesos_agent_state, state: drained), stop "
            f"mesos-agent, remove {where}/meta/slaves/latest and run this again",
        )
    ]


def _holds(after: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether the agent has all ports that it had: under `additive` more are taken."""
    now, was = (
        {
            port
            for text in re.findall(_PORTS, row.get("MESOS_RESOURCES", ""))
            for low, high in re.findall(r"(\d+)-(\d+)", text, re.ASCII)
            for port in range(int(low), min(int(high), 65535) + 1)
        }
        for row in (after, before)
    )
    return was <= now


def _gpus(node: Mapping[str, Any], before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    was, now = (set(gpus_of(row)) for row in (before, after))
    if before and was != now:
        return [f"its list of GPUs changes from {len(was)} to {len(now)}, {difference(was, now)}"]
    devices = [row.get("MESOS_NVIDIA_GPU_DEVICES") for row in (before, after)]
    # The same GPUs under other numbers, as after a reboot that nothing survived and before the agent was started.
    if before and devices[0] != devices[1] and (node["running"] or not node["rebooted"]):
        return [f"its GPUs are the same, and their indices change from {devices[0]} to {devices[1]}"]
    return []
