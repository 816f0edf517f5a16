# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler feed as Mesos takes it: settings of an agent and of a master, and the documents beside them.

Everything here gives plain values, flag -> value; mesos/flags.py checks them and writes the environment file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.indices import index_by_uuid
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# Isolators that every host gets, and those that come with the GPUs. Without filesystem/linux the agent says so,
# without cgroups/devices it aborts.
ISOLATION = ("cgroups/cpu", "cgroups/mem", "disk/du", "filesystem/linux", "docker/runtime")
# The code of a change of the masters that the operator has to confirm.
UNCONFIRMED = "unconfirmed_change"
GPU_ISOLATION = ("cgroups/devices", "gpu/nvidia")


def attribute(text: Any) -> str:
    """An attribute's name or value with nothing in it that Mesos drops, cuts or crashes at.

    Blanks would vanish and brackets crash the agent, so what is not a letter, digit or one of _ / . - becomes a hyphen.
    """
    return re.sub(r"[^A-Za-z0-9_/.-]+", "-", str(text)).strip("-")


def _loses(text: str) -> bool:
    """Whether Mesos reads the text as a number and would print another one: it keeps three decimals of a double."""
    if not re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text, re.ASCII):
        return False
    return not re.fullmatch(r"-?(0|[1-9]\d{0,14})(\.\d{1,3})?", text, re.ASCII)


def attributes(values: Mapping[str, Any]) -> str:
    """name:value;name:value, by name. Text that Mesos would read as another number is refused."""
    rows = []
    for name, value in sorted(values.items()):
        clean_name, clean = attribute(name), attribute(value)
        if not clean_name or not clean:
            raise Refused(f"attribute {name!r} is {value!r}, of which nothing is left", "give it letters or digits")
        if _loses(clean):
            raise Refused(
                f"attribute {name!r} is {value!r}, of which Mesos makes another number", "put a letter in front"
            )
        rows.append(f"{clean_name}:{clean}")
    names = [row.partition(":")[0] for row in rows]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise Refused(f"attributes {', '.join(doubled)} are given twice once cleaned", "rename one")
    return ";".join(rows)


def indices(uuids: Iterable[str], devices: Iterable[Mapping[str, Any]]) -> list[int]:
    """Today's NVML indices of GPUs that are known by UUID, in growing order. Indices can move at a reboot."""
    today = index_by_uuid(devices)
    wanted = list(uuids)
    missing = [uuid for uuid in wanted if uuid not in today]
    if missing:
        raise Refused(
            f"GPUs {', '.join(missing)} are not on this host today",
            "gather the facts again and take them out of the list",
        )
    return sorted(today[uuid] for uuid in wanted)


def resources(
    cpus: float,
    memory_mib: int,
    disk_mib: int,
    gpus: int = 0,
    reserve: Mapping[str, float] | None = None,
    ports: Iterable[tuple[int, int]] = ((31000, 32000),),
) -> str:
    """The text for --resources: what the host has, less what the operator keeps for the host (cpus, mem, disk)."""
    kept = {"cpus": 0.0, "mem": 0.0, "disk": 0.0, **(reserve or {})}
    unknown = sorted(set(kept) - {"cpus", "mem", "disk"})
    if unknown:
        raise Refused(f"nothing can be reserved of {', '.join(unknown)}", "reserve cpus, mem or disk")
    rows = []
    for name, total in (("cpus", cpus), ("mem", memory_mib), ("disk", disk_mib)):
        left = total - kept[name]
        if left <= 0 or kept[name] < 0:
            raise Refused(f"of {total:g} {name} {kept[name]:g} are reserved", "reserve from 0 to less than it has")
        rows.append(f"{name}:{int(left) if name != 'cpus' or left == int(left) else round(left, 3)}")
    spans = sorted(ports)
    for number, (low, high) in enumerate(spans):
        if not 1 <= low <= high <= 65535 or (number and spans[number - 1][1] >= low):
            raise Refused(f"ports {low}-{high} overlap or are out of range", "give ranges within 1-65535")
    rows.append("ports:[" + ",".join(f"{low}-{high}" for low, high in spans) + "]")
    if gpus:
        rows.append(f"gpus:{gpus}")
    return ";".join(rows)


def agent_settings(
    feed: Mapping[str, Any],
    capacity: Mapping[str, Any],
    isolation: Iterable[str] = ISOLATION,
) -> dict[str, str]:
    """Flags that follow from the host: resources, attributes, isolation, image provider, and the list of GPUs.

    `feed` is that of allocatable.py. `capacity` has what `resources` takes: cpus, memory_mib, disk_mib, reserve, ports.
    A host without GPUs that can be given out gets gpus:0 if GPUs are built in, so that the agent looks for none.
    """
    gpus = feed["gpus"]
    isolators = list(dict.fromkeys(isolation))
    settings = {"attributes": attributes(feed["attributes"])}
    text = resources(gpus=len(gpus), **capacity)
    if gpus:
        isolators += [name for name in GPU_ISOLATION if name not in isolators]
        if isolators.index("gpu/nvidia") < isolators.index("cgroups/devices"):
            # The agent ends where it is not behind.
            isolators.sort(key="gpu/nvidia".__eq__)
        settings["nvidia_gpu_devices"] = ",".join(str(index) for index in sorted(gpu["index"] for gpu in gpus))
    elif feed["left_out"]:
        text += ";gpus:0"
    settings.update(resources=text, isolation=",".join(isolators))
    if "docker/runtime" in isolators:
        settings["image_providers"] = "DOCKER"
    return {name: value for name, value in settings.items() if value}


def quorum(masters: Iterable[str], given: int | None = None) -> int:
    """The majority of the masters. Refused: an even number of them, one named twice, and any other quorum."""
    names = list(masters)
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise Refused(f"{', '.join(doubled)} is among the masters twice", "name each host once")
    if len(names) % 2 == 0:
        raise Refused(
            f"{len(names)} masters ({', '.join(names)}) are not better than {max(len(names) - 1, 1)} and can split "
            "evenly",
            "have 1, 3 or 5",
        )
    majority = len(names) // 2 + 1
    if given is not None and given != majority:
        why = "two halves could both write" if given < majority else "it does not stand the loss of one"
        raise Refused(f"quorum {given} of {len(names)} masters: {why}", f"leave it out, or give {majority}")
    return majority


def membership_change(before: Iterable[str], after: Iterable[str], confirmed: bool = False) -> list[str]:
    """How to go from these masters to those, step by step; empty if nothing changes.

    An extra master under the old quorum can corrupt the replicated log, so a change is refused until it is confirmed.
    """
    old, new = sorted(set(before)), sorted(set(after))
    if not old or old == new:
        return []
    wanted = quorum(new)
    change = f"masters change from {', '.join(old)} to {', '.join(new)}"
    if not set(old) & set(new):
        raise Refused(f"{change}: none stays, and the registry would be lost", "change them one by one")
    if len(old) == 1:
        raise Refused(
            f"{change}: the log of a single master cannot grow",
            f"stop the agents' work, wipe the replicated log of {old[0]}, and start all with quorum {wanted}",
        )
    if not confirmed:
        raise Refused(
            f"{change}, which can corrupt the replicated log if done at once",
            "confirm the change for this run",
            code=UNCONFIRMED,
        )
    if len(new) >= len(old):
        first = [f"restart {name} with quorum {wanted}" for name in old if name in new]
        return first + [f"start {name} with quorum {wanted}" for name in new if name not in old]
    stop = [f"stop {name} for good" for name in old if name not in new]
    return stop + [f"restart {name} with quorum {wanted}" for name in new]


def zk_url(servers: Iterable[str], chroot: str, user: str | None = None, password: str | None = None) -> str:
    """zk://[user:password@]host:port,…/chroot. One with a password belongs into a file of mode 0600, named by file://."""
    hosts = list(servers)
    bad = [host for host in hosts if not re.fullmatch(r"[A-Za-z0-9_.\-\[\]:]+:\d{1,5}", host, re.ASCII)]
    if not hosts or bad:
        raise Refused(f"ZooKeeper servers {bad or hosts} are not host:port", "give each as in zk1:2181")
    if not re.fullmatch(r"(/[A-Za-z0-9_.-]+)+", chroot, re.ASCII):
        raise Refused(f"ZooKeeper path {chroot!r} is not /name", "give one that begins with a slash and is not empty")
    if (user is None) != (password is None):
        raise Refused("ZooKeeper is given a user without a password, or the reverse", "give both or neither")
    for part in (user, password):
        if part is not None and not re.fullmatch(r"[^\s:@/,]+", part):
            raise Refused("ZooKeeper's user or password is empty or has a blank or one of : @ / , in it", "take others")
    login = f"{user}:{password}@" if user is not None else ""
    return f"zk://{login}{','.join(hosts)}{chroot}"


def credentials(pairs: Mapping[str, str]) -> str:
    """The file for a master's --credentials, from principal -> secret. An empty one is refused."""
    if not pairs or not all(principal and secret for principal, secret in pairs.items()):
        raise Refused("credentials are empty, or a principal has no secret", "give every principal a secret")
    rows = [{"principal": principal, "secret": pairs[principal]} for principal in sorted(pairs)]
    return json.dumps({"credentials": rows}, indent=2) + "\n"


def credential(principal: str, secret: str) -> str:
    """The file for an agent's --credential: one object, not a list."""
    if not principal or not secret:
        raise Refused("the agent's principal or secret is empty", "give both")
    return json.dumps({"principal": principal, "secret": secret}, indent=2) + "\n"


# ACL -> (who acts, upon what), include/mesos/authorizer/acls.proto.
_ACLS = {
    "register_agents": ("principals", "agents"),
    "register_frameworks": ("principals", "roles"),
    "run_tasks": ("principals", "users"),
    "drain_agents": ("principals", "agents"),
    "deactivate_agents": ("principals", "agents"),
    "reactivate_agents": ("principals", "agents"),
    "mark_agents_gone": ("principals", "agents"),
    "update_maintenance_schedules": ("principals", "machines"),
    "get_maintenance_schedules": ("principals", "machines"),
    "start_maintenances": ("principals", "machines"),
    "stop_maintenances": ("principals", "machines"),
    "get_maintenance_statuses": ("principals", "machines"),
    "update_quotas": ("principals", "roles"),
}


def acls(allowed: Mapping[str, Iterable[str]], permissive: bool = False) -> str:
    """The file for a master's --acls, from ACL -> principals that may; nobody else may do what is listed."""
    unknown = sorted(set(allowed) - set(_ACLS))
    if unknown:
        raise Refused(f"no ACL {', '.join(unknown)}", f"take of {', '.join(sorted(_ACLS))}")
    document: dict[str, Any] = {"permissive": permissive}
    for name in sorted(allowed):
        who, what = _ACLS[name]
        principals = sorted(allowed[name])
        entries = [{who: {"values": principals}, what: {"type": "ANY"}}] if principals else []
        # The first entry that fits decides; this one fits everybody.
        document[name] = [*entries, {who: {"type": "ANY"}, what: {"type": "NONE"}}]
    return json.dumps(document, indent=2) + "\n"
