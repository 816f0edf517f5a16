# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads how the GPUs of a host are cut by MIG, and cuts them. `lib` is pynvml, initialised."""

from __future__ import annotations

import glob
import os
import pwd
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, mig_layout, nvml, readings
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.mig_layout import (
    Client,
    Gpu,
    Instance,
    Plan,
    Profile,
    Rule,
    Step,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.nvml_messages import error_from_code
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

# They keep GPUs open and may be stopped for a while: what watches GPUs, and what keeps the driver initialised.
OURS = (
    "baremetal-gpu-agent.service",
    "nvidia-persistenced.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "dcgm-exporter.service",
)
# A reset takes seconds, and the driver waits for its firmware afterwards.
DEADLINE_S = 180.0
UNIT_S = 120
_UNIT = re.compile(r"/([^/]+\.service)$", re.MULTILINE)
_NODE = re.compile(r"/dev/nvidia(?:\d+|-caps/nvidia-cap\d+)$")
COMPUTES_MOST = 8


# --- who uses a GPU ---------------------------------------------------------------------------------------------------


def client(pid: int, root: str = "/") -> Client:
    """A process of this host by its number."""

    def read(name: str) -> str:
        try:
            with open(os.path.join(root, f"proc/{pid}/{name}"), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    uid = re.search(r"^Uid:\s+\d+\s+(\d+)", read("status"), re.MULTILINE)
    try:
        user = pwd.getpwuid(int(uid[1])).pw_name if uid else ""
    except KeyError:
        user = uid[1] if uid else ""
    unit = _UNIT.search(read("cgroup"))
    return Client(pid, read("comm").strip(), user, unit[1] if unit else "")


def holders(root: str = "/") -> dict[str, set[int]]:
    """Node of a GPU or of a capability -> processes that have it open, but for this one."""
    found: dict[str, set[int]] = {}
    for link in glob.glob(os.path.join(root, "proc/[0-9]*/fd/*")):
        try:
            node = os.readlink(link)
        except OSError:
            continue
        pid = int(link.split("/")[-3])
        if _NODE.match(node) and pid != os.getpid():
            found.setdefault(node, set()).add(pid)
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def _ask(lib: Any, *questions: Any) -> list[Any]:
    """What the first question that this GPU or driver has answers; nothing if it has none of them."""
    for question in questions:
        answer = readings.optional(lib, question)
        if answer is not None:
            return [answer]
    return []


def read(lib: Any, root: str = "/") -> list[Gpu]:
    """The GPUs that NVML counts."""
    open_by = holders(root)
    return [_gpu(lib, index, root, open_by) for index in range(int(lib.nvmlDeviceGetCount()))]


def _gpu(lib: Any, index: int, root: str, open_by: dict[str, set[int]]) -> Gpu:
    handle = lib.nvmlDeviceGetHandleByIndex(index)
    pci = lib.nvmlDeviceGetPciInfo(handle)
    known: dict[str, Any] = {
        "index": index,
        "uuid": nvml.text(lib.nvmlDeviceGetUUID(handle)),
        "pci_address": normal_address(nvml.text(pci.busId)),
        "name": nvml.text(lib.nvmlDeviceGetName(handle)),
        "device_id": f"0x{int(pci.pciDeviceId):08x}",
    }
    minor = int(lib.nvmlDeviceGetMinorNumber(handle))
    used = _processes(lib, handle)
    pids = {pid for found in used.values() for pid in found} | open_by.get(f"/dev/nvidia{minor}", set())
    clients = tuple(client(pid, root) for pid in sorted(pids))
    mode = _ask(lib, partial(lib.nvmlDeviceGetMigMode, handle))
    if not mode:
        return Gpu(**known, mode=None, pending=None, clients=clients)
    current, pending = (bool(one) for one in mode[0])
    profiles = _profiles(lib, handle, current)
    instances = tuple(_instances(lib, handle, profiles, minor, used, open_by, root)) if current else ()
    return Gpu(**known, mode=current, pending=pending, profiles=profiles, instances=instances, clients=clients)


def _processes(lib: Any, handle: Any) -> dict[int, set[int]]:
    """Id of the GPU instance, or all bits set for the whole GPU, -> processes."""
    found: dict[int, set[int]] = {}
    graphics = readings.optional(lib, lambda: lib.nvmlDeviceGetGraphicsRunningProcesses_v3(handle)) or []
    for process in [*readings.running(lib, readings.Gpu(handle)), *graphics]:
        instance = getattr(process, "gpuInstanceId", None)
        found.setdefault(0xFFFFFFFF if instance is None else int(instance), set()).add(int(process.pid))
    return found


def _profiles(lib: Any, handle: Any, current: bool) -> tuple[Profile, ...]:
    infos = []
    for number in range(lib.NVML_GPU_INSTANCE_PROFILE_COUNT):
        infos += _ask(lib, partial(lib.nvmlDeviceGetGpuInstanceProfileInfo, handle, number))
    whole = max(infos, key=lambda info: int(info.sliceCount), default=None)
    found = []
    for info in infos:
        name = nvml.text(info.name).rpartition("MIG ")[2]
        number, slices, most = int(info.id), int(info.sliceCount), int(info.instanceCount)
        if current:
            starts, size = _placements(lib, handle, number)
        else:
            starts, size = _guessed(info, infos, whole)
        found.append(Profile(number, name, slices, most, int(info.memorySizeMB), size, starts))
    return tuple(sorted(found, key=lambda one: (one.slices, one.memory_mib, one.name)))


def _placements(lib: Any, handle: Any, profile: int) -> tuple[tuple[int, ...], int]:
    count = lib.c_uint(0)
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, lib.byref(count))
    array = (lib.c_nvmlGpuInstancePlacement_t * max(1, readings.within(int(count.value), 64)))()
    lib.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, array, lib.byref(count))
    rows = array[: int(count.value)]
    return tuple(int(row.start) for row in rows), int(rows[0].size) if rows else 1


def _guessed(info: Any, infos: Sequence[Any], whole: Any) -> tuple[tuple[int, ...], int]:
    """A GPU tells places only in MIG mode. Until then: its share of the memory, one after the other. They are read, and
    the plan is made anew, once the mode is on."""
    units = 8 if int(whole.sliceCount) == 7 else int(whole.sliceCount)
    size = max(1, round(units * int(info.memorySizeMB) / int(whole.memorySizeMB)))
    # An instance with all media engines there is once, but it can begin wherever its siblings can.
    most = max(
        int(other.instanceCount)
        for other in infos
        if int(other.memorySizeMB) == int(info.memorySizeMB) and int(other.sliceCount) == int(info.sliceCount)
    )
    return tuple(size * number for number in range(most)), size


def _instances(
    lib: Any,
    handle: Any,
    profiles: Sequence[Profile],
    minor: int,
    used: dict[int, set[int]],
    open_by: dict[str, set[int]],
    root: str,
) -> list[Instance]:
    devices: dict[int, list[tuple[str, int, bool]]] = {}
    for index in range(int(lib.nvmlDeviceGetMaxMigDeviceCount(handle))):
        try:
            device = lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except lib.NVMLError as failure:
            if int(failure.value) != lib.NVML_ERROR_NOT_FOUND:
                raise
            continue
        uuid, number = nvml.text(lib.nvmlDeviceGetUUID(device)), int(lib.nvmlDeviceGetComputeInstanceId(device))
        attributes = lib.nvmlDeviceGetAttributes(device)
        whole = int(attributes.computeInstanceSliceCount) == int(attributes.gpuInstanceSliceCount)
        devices.setdefault(int(lib.nvmlDeviceGetGpuInstanceId(device)), []).append((uuid, number, whole))
    found = []
    for profile in profiles:
        for made in _handles(lib, handle, profile):
            info = lib.nvmlGpuInstanceGetInfo(made)
            number, own = int(info.id), devices.get(int(info.id), [])
            pids = set(used.get(number, ()))
            for _uuid, compute, _whole in own:
                for node in device_nodes.instance_nodes(minor, number, compute, root):
                    pids |= open_by.get(node, set())
            found.append(
                Instance(
                    gpu_instance=number,
                    profile=profile.name,
                    start=int(info.placement.start),
                    size=int(info.placement.size),
                    computes=len(own),
                    whole=len(own) == 1 and own[0][2],
                    uuids=tuple(uuid for uuid, _compute, _whole in own),
                    clients=tuple(client(pid, root) for pid in sorted(pids)),
                )
            )
    return sorted(found, key=lambda one: one.start)


def _handles(lib: Any, handle: Any, profile: Profile) -> list[Any]:
    array = (lib.c_nvmlGpuInstance_t * max(1, profile.most))()
    count = lib.c_uint(profile.most)
    lib.nvmlDeviceGetGpuInstances(handle, profile.id, array, lib.byref(count))
    return list(array[: readings.within(int(count.value), max(1, profile.most))])


# --- changing ---------------------------------------------------------------------------------------------------------


def carry_out(lib: Any, gpus: Sequence[Gpu], steps: Sequence[Step]) -> None:
    """Carries out steps. Raises Refused with the step that NVML refused; those before it are done."""
    by_uuid = {gpu.uuid: gpu for gpu in gpus}
    for step in steps:
        gpu = by_uuid[step.uuid]
        try:
            _step(lib, gpu, lib.nvmlDeviceGetHandleByIndex(gpu.index), step)
        except lib.NVMLError as failure:
            remedy = "read what the driver says with `sudo dmesg`, and run again"
            raise Refused(
                f"{gpu}: NVML refused to {step}: {nvml.text(failure)}", remedy, code="mig_refused", subject=gpu.uuid
            ) from None


def _step(lib: Any, gpu: Gpu, handle: Any, step: Step) -> None:
    if step.kind == "mode":
        status = int(lib.nvmlDeviceSetMigMode(handle, int(step.on)))
        current = bool(lib.nvmlDeviceGetMigMode(handle)[0])
        if current != step.on:
            raise Refused(
                f"{gpu} waits for a reset until MIG is {'on' if step.on else 'off'} (NVML: status {status})",
                f"drain the host with `gpuops drain`, and run `sudo nvidia-smi --gpu-reset -i {gpu.index}` or reboot",
                code="reset_required",
                subject=gpu.uuid,
            )
    elif step.kind == "create":
        profile = next(one for one in gpu.profiles if one.name == step.profile)
        place = lib.c_nvmlGpuInstancePlacement_t(step.start, profile.size)
        made = lib.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile.id, lib.byref(place))
        _make_compute(lib, made)
    elif step.kind == "compute":
        _make_compute(lib, lib.nvmlDeviceGetGpuInstanceById(handle, step.gpu_instance))
    else:
        made = lib.nvmlDeviceGetGpuInstanceById(handle, step.gpu_instance)
        for profile in _compute_profiles(lib, made):
            array = (lib.c_nvmlComputeInstance_t * COMPUTES_MOST)()
            count = lib.c_uint(COMPUTES_MOST)
            lib.nvmlGpuInstanceGetComputeInstances(made, int(profile.id), array, lib.byref(count))
            for one in array[: readings.within(int(count.value), COMPUTES_MOST)]:
                lib.nvmlComputeInstanceDestroy(one)
        lib.nvmlGpuInstanceDestroy(made)


def _compute_profiles(lib: Any, made: Any) -> list[Any]:
    found = []
    for number in range(lib.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        found += _ask(lib, partial(lib.nvmlGpuInstanceGetComputeInstanceProfileInfo, made, number, 0))
    return found


def _make_compute(lib: Any, made: Any) -> None:
    """One compute instance with all of the GPU instance."""
    largest = max(_compute_profiles(lib, made), key=lambda info: int(info.sliceCount))
    lib.nvmlGpuInstanceCreateComputeInstance(made, int(largest.id))


# --- all of it --------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was found, and what was or would be done."""

    changed: bool = False
    steps: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    before: str = ""
    after: str = ""
    gpus: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "problems": [problem.as_dict() for problem in self.problems]}


def _in_child(source: str | None, work: Any) -> dict[str, Any]:
    """What `work(lib)` answers, from a child with a deadline; a hanging GPU takes no caller along. Raises Refused."""

    def asked() -> dict[str, Any]:
        lib = nvml.load_binding(source)
        error = nvml.start(lib)
        if error:
            return {"error": error}
        try:
            return dict(work(lib))
        except Refused as refused:
            return {"refused": refused.problem.as_dict()}
        except lib.NVMLError as failure:
            return {"error": error_from_code(int(failure.value), nvml.text(failure))}

    answer = nvml.in_child(asked, DEADLINE_S)
    if answer.get("error"):
        error = answer["error"]
        raise Refused(f"NVML cannot be used: {error['text']}", error["remedy"], code="nvml_failed", subject="nvml")
    if answer.get("refused"):
        raise Refused.of(Problem(**answer["refused"]))
    return answer


def _summary(gpu: Gpu) -> dict[str, Any]:
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "pci_address": gpu.pci_address,
        "name": gpu.name,
        "enabled": gpu.mode,
        "pending": gpu.pending,
        "profiles": [profile.name for profile in gpu.profiles],
        "instances": [
            {
                "profile": one.profile,
                "placement": [one.start, one.size],
                "gpu_instance": one.gpu_instance,
                "uuids": list(one.uuids),
                "clients": [str(user) for user in one.clients],
            }
            for one in gpu.instances
        ],
    }


def bring_about(
    chosen: Sequence[Rule],
    source: str | None,
    run: Run,
    check: bool = False,
    root: str = "/",
    ours: Sequence[str] = OURS,
) -> Result:
    """Cuts the GPUs as the rules say. Whatever is refused is refused before anything is changed.

    :param check: only says what would be done.
    :raises Refused: NVML cannot be used, or refused a step.
    """

    def look(lib: Any) -> dict[str, Any]:
        gpus = read(lib, root)
        found = mig_layout.plan(gpus, chosen, ours)
        return {
            "steps": [str(step) for step in found.steps],
            "problems": [problem.as_dict() for problem in found.problems],
            "stop": list(found.stop),
            "before": found.before,
            "after": found.after,
            "gpus": [_summary(gpu) for gpu in gpus],
        }

    def cut(lib: Any) -> dict[str, Any]:
        gpus = read(lib, root)
        found: Plan = mig_layout.plan(gpus, chosen, ours)
        modes = [step for step in found.steps if step.kind == "mode" and step.on]
        if modes and not found.problems:
            # Where its instances can be, a GPU tells only now.
            carry_out(lib, gpus, modes)
            gpus = read(lib, root)
            found = mig_layout.plan(gpus, chosen, ours)
        for problem in found.problems:
            raise Refused.of(problem)
        carry_out(lib, gpus, found.steps)
        return {}

    planned = _in_child(source, look)
    result = Result(
        changed=bool(planned["steps"]),
        steps=planned["steps"],
        problems=[Problem(**row) for row in planned["problems"]],
        before=planned["before"],
        after=planned["after"],
        gpus=planned["gpus"],
    )
    if check or not result.changed:
        return result
    stopped = [unit for unit in planned["stop"] if run(["systemctl", "stop", unit], None, UNIT_S)[0] == 0]
    try:
        if stopped:
            # Its last process may still be closing the GPU.
            time.sleep(1)
        _in_child(source, cut)
    finally:
        for unit in reversed(stopped):
            # What waits for the unit that runs this is started after it.
            run(["systemctl", "start", "--no-block", unit], None, UNIT_S)
    result.gpus = _in_child(source, look)["gpus"]
    return result
