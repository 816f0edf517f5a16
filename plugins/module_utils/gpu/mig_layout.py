# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the GPUs of a host are to be cut by MIG, and the steps from what there is to that. Pure functions.

A layout is {selector: {profile: count}}, with `all`, an index or a UUID as selector; the narrower one counts. False in
place of the profiles is a GPU without MIG. Or it is a file of NVIDIA's mig-parted, with the name of one of its
configurations. What a GPU can be cut into is read from it, never from a table.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

PROFILE = re.compile(r"[1-9]g\.[1-9][0-9]{0,3}gb([+-][a-z]{2,3}(\.[a-z]{2,3})?)*\Z")
COMPUTE_PROFILE = re.compile(r"[1-9]c\.[1-9]g\.")
UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# A PCI id as mig-parted writes it: device and vendor.
DEVICE_ID = re.compile(r"0x[0-9a-fA-F]{8}\Z")
GPUS_MOST, RULES_MOST, COUNT_MOST = 64, 256, 16

# None: the GPU is not in MIG mode.
Wanted = Optional[Mapping[str, int]]


@dataclass(frozen=True)
class Profile:
    """What a GPU can be cut into.

    :ivar most: how many of it there can be at once.
    :ivar size, starts: what it takes and where it can begin, in units of the GPU's memory.
    """

    id: int
    name: str
    slices: int
    most: int
    memory_mib: int
    size: int
    starts: tuple[int, ...]


@dataclass(frozen=True)
class Client:
    """A process that has a GPU or an instance open."""

    pid: int
    name: str
    user: str
    unit: str = ""

    def __str__(self) -> str:
        return f"{self.name or 'a process'} (PID {self.pid}, user {self.user or 'unknown'})"


@dataclass(frozen=True)
class Instance:
    """A GPU instance.

    :ivar computes: how many compute instances it has, and `whole` whether that is one with all of its slices. Between
        two steps of a change that was cut off it has none.
    """

    gpu_instance: int
    profile: str
    start: int
    size: int
    computes: int
    whole: bool
    uuids: tuple[str, ...] = ()
    clients: tuple[Client, ...] = ()


@dataclass(frozen=True)
class Gpu:
    """A GPU as it is. `mode` is None where it has no MIG; `clients` have the GPU open, its instances' included."""

    index: int
    uuid: str
    pci_address: str
    name: str
    device_id: str
    mode: bool | None
    pending: bool | None
    profiles: tuple[Profile, ...] = ()
    instances: tuple[Instance, ...] = ()
    clients: tuple[Client, ...] = ()

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.pci_address}, {self.name})"


@dataclass(frozen=True)
class Step:
    """`mode` (on), `destroy` (gpu_instance), `create` (profile, start) or `compute`, which makes the compute instance
    of a GPU instance that has none."""

    kind: str
    uuid: str
    on: bool = False
    gpu_instance: int = -1
    profile: str = ""
    start: int = -1

    def __str__(self) -> str:
        return {
            "mode": f"switch MIG {'on' if self.on else 'off'}",
            "destroy": f"destroy {self.profile} at {self.start} (instance {self.gpu_instance})",
            "create": f"create {self.profile} at {self.start}",
            "compute": f"make the compute instance of {self.profile} at {self.start}",
        }[self.kind]


@dataclass(frozen=True)
class Plan:
    """The steps, in their order, or what stands in the way; `stop` are units to stop meanwhile; texts for a diff."""

    steps: tuple[Step, ...] = ()
    problems: tuple[Problem, ...] = ()
    stop: tuple[str, ...] = ()
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Rule:
    """Which GPUs are to be cut how. `devices` None: all; filters: PCI ids, none of which is every GPU."""

    devices: frozenset[int | str] | None
    wanted: Wanted
    filters: frozenset[str] = frozenset()

    def is_for(self, gpu: Gpu) -> bool:
        chosen = self.devices is None or gpu.index in self.devices or gpu.uuid in self.devices
        return chosen and (not self.filters or gpu.device_id in self.filters)


class LayoutError(Refused):
    """A layout that cannot be read."""

    def __init__(self, cause: str, evidence: Any, remedy: str) -> None:
        evidence = one_line(str(evidence), 100)
        super().__init__(cause, remedy, code="wrong_layout", subject="gpu_mig_layout", evidence=evidence)


# --- reading a layout -------------------------------------------------------------------------------------------------


def rules(layout: Any, config: str = "") -> list[Rule]:
    """The rules of a layout, of which the last that is for a GPU counts. Raises LayoutError."""
    if not isinstance(layout, Mapping):
        raise LayoutError("the layout is not a mapping", layout, "give a layout such as {all: {1g.10gb: 7}}")
    if "mig-configs" in layout:
        return _of_mig_parted(layout["mig-configs"], config)
    if config:
        raise LayoutError(
            "a configuration is chosen, and the layout is not one of mig-parted",
            config,
            "empty gpu_mig_config, or give a layout with mig-configs",
        )
    if len(layout) > RULES_MOST:
        raise LayoutError(f"the layout has more than {RULES_MOST} rows", len(layout), "shorten it")
    found = []
    for selector, cut in layout.items():
        width, devices = _selector(selector)
        found.append((width, Rule(devices, _wanted(cut, str(selector)))))
    return [rule for _width, rule in sorted(found, key=lambda one: one[0])]


def _selector(selector: Any) -> tuple[int, frozenset[int | str] | None]:
    if selector == "all":
        return 0, None
    text = str(selector)
    if not isinstance(selector, bool) and text.isdigit() and int(text) < GPUS_MOST:
        return 1, frozenset([int(text)])
    if UUID.match(text):
        return 2, frozenset([text])
    raise LayoutError(f"{one_line(text, 60)!r} selects no GPU", text, "use all, an index such as 0, or a UUID (GPU-…)")


def _wanted(cut: Any, where: str) -> Wanted:
    if cut is False or cut == "off":
        return None
    if not isinstance(cut, Mapping):
        remedy = "give profiles with their numbers, as in {1g.10gb: 7}, or false for a GPU without MIG"
        raise LayoutError(f"the layout of {one_line(where, 60)!r} is not a mapping", cut, remedy)
    wanted = {}
    for name, count in cut.items():
        if COMPUTE_PROFILE.match(str(name)):
            raise LayoutError(
                f"{one_line(str(name), 40)} is a part of a GPU instance, which is not supported",
                name,
                "give the whole instance, such as 1g.10gb",
            )
        if not PROFILE.match(str(name)):
            raise LayoutError(f"{one_line(str(name), 40)!r} is not a profile", name, "give profiles such as 1g.10gb")
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= COUNT_MOST:
            raise LayoutError(
                f"the number of {name} is not from 0 to {COUNT_MOST}", count, "give how many instances there are to be"
            )
        if count:
            wanted[str(name)] = count
    return wanted


def _of_mig_parted(configs: Any, config: str) -> list[Rule]:
    """Source of the form: NVIDIA/mig-parted, api/spec/v1 and its examples."""
    if not isinstance(configs, Mapping) or not isinstance(configs.get(config), list):
        names = ", ".join(sorted(map(str, configs))[:20]) if isinstance(configs, Mapping) else ""
        raise LayoutError(
            f"mig-configs has no configuration {one_line(config, 40)!r}",
            names,
            f"set gpu_mig_config to one of: {names}",
        )
    found = []
    for row in configs[config][:RULES_MOST]:
        if not isinstance(row, Mapping) or "devices" not in row or "mig-enabled" not in row:
            raise LayoutError(f"a row of {config} lacks devices or mig-enabled", row, "give both in each row")
        devices, filters = row["devices"], row.get("device-filter") or []
        filters = [filters] if isinstance(filters, str) else filters
        if not isinstance(filters, list) or not all(isinstance(one, str) and DEVICE_ID.match(one) for one in filters):
            raise LayoutError(f"a device-filter of {config} is not a PCI id", filters, "give ids such as 0x20B210DE")
        chosen: frozenset[int | str] | None = None
        if devices != "all":
            if not isinstance(devices, list):
                raise LayoutError(f"devices of {config} is neither all nor a list", devices, "give all, or a list")
            chosen = frozenset(itertools.chain.from_iterable(_selector(one)[1] or () for one in devices))
        cut = (row.get("mig-devices") or {}) if row["mig-enabled"] is True else False
        found.append(Rule(chosen, _wanted(cut, config), frozenset(one.lower() for one in filters)))
    return found


# --- what is wanted of each GPU ---------------------------------------------------------------------------------------


def wanted_of(gpus: Sequence[Gpu], chosen: Sequence[Rule]) -> tuple[dict[str, Wanted], list[Problem]]:
    """What each GPU is to be by its UUID; without those that no rule is for. A GPU without MIG is left out of `all`."""
    wanted: dict[str, Wanted] = {}
    problems = []
    known: set[int | str] = {name for gpu in gpus for name in (gpu.index, gpu.uuid)}
    for rule in chosen:
        for name in sorted(map(str, (rule.devices or frozenset()) - known)):
            there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus)
            problems.append(Problem("no_such_gpu", name, f"there is no GPU {name}", there, f"name one of: {there}"))
        for gpu in gpus:
            if not rule.is_for(gpu):
                continue
            if gpu.mode is not None:
                wanted[gpu.uuid] = rule.wanted
            elif rule.devices is not None and rule.wanted is not None:
                problems.append(
                    Problem(
                        "no_mig", gpu.uuid, f"{gpu} cannot be cut by MIG", gpu.name, "take it out of gpu_mig_layout"
                    )
                )
    if not wanted and not problems and any(rule.wanted is not None for rule in chosen):
        names = ", ".join(map(str, gpus)) or "no GPU"
        cause = "no GPU here can be cut as gpu_mig_layout says"
        problems.append(Problem("no_mig", "gpu_mig_layout", cause, names, "take the host out of the layout"))
    return wanted, problems


# --- places -----------------------------------------------------------------------------------------------------------


def places(profiles: Sequence[Profile], taken: Iterable[tuple[int, int]] = ()) -> list[int] | None:
    """A start for each profile, in their order, beside what is taken as (start, size); None where they do not fit."""
    used = {unit for start, size in taken for unit in range(start, start + size)}
    order = sorted(range(len(profiles)), key=lambda number: (-profiles[number].size, len(profiles[number].starts)))
    chosen: dict[int, int] = {}

    def place(depth: int) -> bool:
        if depth == len(order):
            return True
        profile = profiles[order[depth]]
        alike = depth and profiles[order[depth - 1]] == profile
        for start in profile.starts:
            units = set(range(start, start + profile.size))
            # Those that are alike follow one another, so that no two orders of them are tried.
            if units & used or (alike and start < chosen[order[depth - 1]]):
                continue
            used.update(units)
            chosen[order[depth]] = start
            if place(depth + 1):
                return True
            used.difference_update(units)
        return False

    return [chosen[number] for number in range(len(profiles))] if place(0) else None


# --- the plan ---------------------------------------------------------------------------------------------------------


def plan(gpus: Sequence[Gpu], chosen: Sequence[Rule], ours: Iterable[str] = ()) -> Plan:
    """What leads from the GPUs as they are to the rules. Any problem, and there is no step at all.

    :param ours: units that may be stopped for a while, and hinder no change of the mode.
    """
    wanted, problems = wanted_of(gpus, chosen)
    steps: list[Step] = []
    stop: list[str] = []
    before, after = [], []
    for gpu in gpus:
        if gpu.uuid not in wanted:
            continue
        own, wrong, result = _of_gpu(gpu, wanted[gpu.uuid])
        if any(step.kind == "mode" for step in own):
            stop += [client.unit for client in gpu.clients if client.unit and client.unit in ours]
            others = [client for client in gpu.clients if client.unit not in ours or not client.unit]
            wrong += [_gpu_in_use(gpu, wanted[gpu.uuid] is not None, others)] if others else []
        steps += own
        problems += wrong
        before.append(_text(gpu, gpu.mode, [(one.start, one.size, one.profile) for one in gpu.instances]))
        after.append(_text(gpu, wanted[gpu.uuid] is not None, result))
    if problems:
        return Plan(problems=tuple(problems), before="".join(before), after="".join(before))
    return Plan(tuple(steps), (), tuple(dict.fromkeys(stop)), "".join(before), "".join(after))


def _text(gpu: Gpu, mode: bool | None, instances: Iterable[tuple[int, int, str]]) -> str:
    lines = [f"{gpu}: MIG {'on' if mode else 'off'}"]
    lines += [f"  {name} at {start}:{size}" for start, size, name in sorted(instances)]
    return "".join(f"{line}\n" for line in lines)


def _gpu_in_use(gpu: Gpu, on: bool, others: Sequence[Client]) -> Problem:
    clients = ", ".join(map(str, others))
    cause = f"{gpu} is in use, so MIG cannot be switched {'on' if on else 'off'}: {clients}"
    remedy = "drain the host with `gpuops drain`, end these processes and run again"
    return Problem("gpu_in_use", gpu.uuid, cause, "", remedy)


def _of_gpu(gpu: Gpu, wanted: Wanted) -> tuple[list[Step], list[Problem], list[tuple[int, int, str]]]:
    """(steps, problems, instances afterwards as (start, size, profile))"""
    if wanted is None:
        gone = list(gpu.instances)
        problems = [_busy(gpu, one) for one in gone if one.clients]
        steps = [_destroy(gpu, one) for one in gone]
        return [*steps, *([Step("mode", gpu.uuid, on=False)] if gpu.mode else [])], problems, []
    by_name = {profile.name: profile for profile in gpu.profiles}
    problems = list(_wrong_profiles(gpu, wanted, by_name))
    if problems:
        return [], problems, []
    kept, starts = _kept(gpu, wanted, by_name)
    gone = [one for one in gpu.instances if one not in kept]
    problems = [_busy(gpu, one) for one in gone if one.clients]
    if starts is None:
        if places(_all(wanted, by_name)) is None:
            problems = [_does_not_fit(gpu, wanted, by_name)]
        else:
            # It fits on an idle GPU: what runs is in the way, where it is.
            problems += [_busy(gpu, one) for one in kept if one.clients]
        return [], problems, []
    mode = [] if gpu.mode else [Step("mode", gpu.uuid, on=True)]
    halves = [
        Step("compute", gpu.uuid, False, one.gpu_instance, one.profile, one.start) for one in kept if not one.computes
    ]
    fresh = [Step("create", gpu.uuid, profile=name, start=start) for name, start in starts]
    result = [(one.start, one.size, one.profile) for one in kept]
    result += [(start, by_name[name].size, name) for name, start in starts]
    return [*mode, *(_destroy(gpu, one) for one in gone), *halves, *fresh], problems, result


def _all(wanted: Mapping[str, int], by_name: Mapping[str, Profile]) -> list[Profile]:
    return [by_name[name] for name, count in sorted(wanted.items()) for _number in range(count)]


def _kept(
    gpu: Gpu, wanted: Mapping[str, int], by_name: Mapping[str, Profile]
) -> tuple[list[Instance], list[tuple[str, int]] | None]:
    """The instances that stay, as many as can, and (profile, start) of those to make; None where these find no place.

    What is busy stays in any case, as far as it is wanted; what is idle goes where it stands in the way.
    """
    left = dict(wanted)
    busy: list[Instance] = []
    idle: list[Instance] = []
    for one in sorted(gpu.instances, key=lambda one: (not one.clients, one.start)):
        if left.get(one.profile, 0) and (one.whole or not one.computes):
            left[one.profile] -= 1
            (busy if one.clients else idle).append(one)
    for removed in range(len(idle) + 1):
        for dropped in itertools.combinations(idle, removed):
            kept = [*busy, *(one for one in idle if one not in dropped)]
            missing = dict(wanted)
            for one in kept:
                missing[one.profile] -= 1
            profiles = _all(missing, by_name)
            starts = places(profiles, [(one.start, one.size) for one in kept])
            if starts is not None:
                return kept, [(profile.name, start) for profile, start in zip(profiles, starts)]
    return busy, None


def _wrong_profiles(gpu: Gpu, wanted: Mapping[str, int], by_name: Mapping[str, Profile]) -> Iterator[Problem]:
    for name, count in sorted(wanted.items()):
        if name not in by_name:
            names = ", ".join(profile.name for profile in gpu.profiles)
            cause = f"{gpu} cannot be cut into {name}; its profiles are {names}"
            yield Problem("unknown_profile", gpu.uuid, cause, name, "choose among these")
        elif count > by_name[name].most:
            most = by_name[name].most
            cause = f"{gpu} can have {most} of {name} at most, and {count} are wanted"
            yield Problem("does_not_fit", gpu.uuid, cause, str(count), f"give {most} or fewer")


def _does_not_fit(gpu: Gpu, wanted: Mapping[str, int], by_name: Mapping[str, Profile]) -> Problem:
    needed = sum(by_name[name].size * count for name, count in wanted.items())
    most = max(start + profile.size for profile in gpu.profiles for start in profile.starts)
    layout = " + ".join(f"{count} x {name}" for name, count in sorted(wanted.items()))
    why = f"it takes {needed} of {most} units of memory" if needed > most else "there are no places for all of it"
    starts = "; ".join(
        f"{name} takes {by_name[name].size} from {'/'.join(map(str, by_name[name].starts))}" for name in sorted(wanted)
    )
    cause = f"{layout} does not fit on {gpu}: {why} ({starts})"
    return Problem("does_not_fit", gpu.uuid, cause, layout, "take instances away, or choose smaller profiles")


def _busy(gpu: Gpu, one: Instance) -> Problem:
    clients = ", ".join(map(str, one.clients))
    cause = f"{one.profile} at {one.start} of {gpu} is in use and would have to go: {clients}"
    return Problem("instance_in_use", gpu.uuid, cause, one.uuids[0] if one.uuids else "", "end these processes first")


def _destroy(gpu: Gpu, one: Instance) -> Step:
    return Step("destroy", gpu.uuid, False, one.gpu_instance, one.profile, one.start)
