# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which driver the GPUs get, and what stands between it and the kernel."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import compatibility, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.compatibility import problem
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.variables import METHODS
from ansible_collections.baremetal.gpu.plugins.module_utils.system.distributions import SUPPORTED


def judge_installed(host: dict[str, Any], gpu: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    """A driver that came by another way than the one that is asked for."""
    if wanted["nvidia_driver_state"] == "absent":
        return
    method = wanted["nvidia_driver_method"]
    loaded = gpu["driver"]["loaded"]
    if loaded and not gpu["driver"]["installed"] and not host["driver_from"]:
        judgement.caution(
            "driver_unknown_origin",
            "a driver is loaded that no package and no installer of this host has",
            loaded,
            "use an image without a driver, or stop what brings this one; the role's takes its place",
        )
    for other, evidence in sorted(host["driver_from"].items()):
        if other == method:
            continue
        if other == "runfile":
            remedy = "remove it with `nvidia-uninstall --silent`, or set nvidia_driver_method to runfile"
        else:
            remedy = (
                f"run `gpuops up --tags driver` with nvidia_driver_state: absent and nvidia_driver_method: {other} "
                "first, "
                f"or set nvidia_driver_method to {other}"
            )
        judgement.problem(
            "driver_other_method",
            f"a driver from {METHODS[other]} is on the host, and nvidia_driver_method is {method}",
            evidence,
            remedy,
        )


def plan_driver(
    host: dict[str, Any], gpu: dict[str, Any], wanted: dict[str, Any], options: dict[str, Any], judgement: Judgement
) -> dict[str, Any]:
    """The driver that the variables and the GPUs lead to. What stands against it goes into the judgement."""
    gpus = pci.gpus(gpu["pci"])
    method = wanted["nvidia_driver_method"]
    os_name = SUPPORTED[host["os"]["key"]]["name"] if host["os"]["key"] else host["os"]["name"]
    offers = compatibility.distro_drivers(host["os"]["key"]) if method == "distro" else None
    offered = [offer["branch"] for offer in offers] if offers is not None else None
    branch, version = wanted["nvidia_driver_branch"], wanted["nvidia_driver_version"]
    flavour = wanted["nvidia_driver_flavour"]

    for device in compatibility.unknown(gpus):
        judgement.caution(
            "gpu_unknown",
            f"the GPU at {device['address']} is not in the collection's table, so it is taken for one that is newer "
            "than all in it",
            f"{device['vendor']}:{device['device']}",
            "set nvidia_driver_branch and nvidia_driver_flavour to what NVIDIA names for the GPU",
        )

    if not version and method == "runfile":
        version = _runfile_version(options)
    if version:
        of_version = int(version[:3])
        if branch not in ("auto", of_version):
            judgement.problem(
                "version_branch",
                f"version {version} is not of nvidia_driver_branch {branch}",
                version,
                f"set nvidia_driver_branch to {of_version} or auto, or correct the version",
            )
        branch = of_version
    if branch == "auto":
        branch = compatibility.choose_branch(gpus, offered, flavour)
        if branch is None:
            _no_branch(gpus, offered, flavour, os_name, judgement)
    elif offered is not None and branch not in offered and not compatibility.check_branch(gpus, branch):
        judgement.problem(
            "branch_not_offered",
            f"{os_name} has no driver of branch {branch}; it has {_list(offered)}",
            branch,
            f"set nvidia_driver_branch to {_list(offered, 'or')}, or nvidia_driver_method to nvidia_repo",
        )

    packages: list[str] = []
    if branch is not None:
        judgement.problems += compatibility.check(gpus, branch, flavour, version=version or None)
        # Updates move the distribution's version within the branch, so no exact one is promised.
        version = version or f"{branch}.*"
        offer = next((row for row in offers or [] if row["branch"] == branch), None)
        available = tuple(offer["dkms"]) if offer else compatibility.FLAVOURS
        if flavour == "auto":
            flavour = compatibility.choose_flavour(gpus, branch, available) or "auto"
        elif flavour not in available and offer:
            judgement.problem(
                "flavour_not_offered",
                f"{os_name} has no {flavour} kernel modules of branch {branch}",
                flavour,
                f"set nvidia_driver_flavour to {' or '.join(available)}, or take another branch",
            )
        if offer:
            packages = [offer["dkms"][flavour]] if flavour in offer["dkms"] else []
        end = compatibility.end_of_life(branch)
        if method == "nvidia_repo" and end:
            judgement.cautions += [
                problem(
                    "branch_end_of_life",
                    f"NVIDIA's support of branch {branch} ends in {end}",
                    branch,
                    "plan the move to a newer branch where the GPUs allow it",
                )
            ]
    _judge_fabric(host, gpu, method, judgement)
    return {"branch": branch, "flavour": flavour, "method": method, "version": version, "packages": packages}


def _judge_fabric(host: dict[str, Any], gpu: dict[str, Any], method: str, judgement: Judgement) -> None:
    """Where GPUs hang on NVSwitches, CUDA does not start without what sets the switches up."""
    if pci.needs_subnet_manager(gpu["pci"]) and method == "distro":
        judgement.problem(
            "fabric_manager",
            "the host has NVSwitches behind ConnectX bridges, whose NVLink Subnet Manager (nvlsm) only NVIDIA has; "
            "without it and Fabric Manager CUDA does not start",
            "distro",
            "set nvidia_driver_method to nvidia_repo",
        )
    elif pci.needs_fabric_manager(gpu["pci"]) and method == "distro" and host["os"]["id"] == "debian":
        judgement.problem(
            "fabric_manager",
            "the host has NVSwitches, whose Fabric Manager Debian does not have; without it CUDA does not start",
            "distro",
            "set nvidia_driver_method to nvidia_repo",
        )
    elif pci.needs_fabric_manager(gpu["pci"]) and method == "runfile":
        packages = "nvidia-fabricmanager" + (" and nvlsm" if pci.needs_subnet_manager(gpu["pci"]) else "")
        judgement.caution(
            "fabric_manager_missing",
            "the host has NVSwitches, and NVIDIA's installer brings no Fabric Manager; without it CUDA does not start",
            "runfile",
            f"add {packages} of exactly the driver's version to nvidia_driver_extra_packages, or set "
            "nvidia_driver_method to nvidia_repo",
        )
    elif pci.lacks_bridges(gpu["pci"]):
        judgement.caution(
            "nvswitch_unknown",
            "GPUs of this model hang on NVSwitches, and no way to these was found: no ConnectX function says SW_MNG in "
            "its vital product data",
            ", ".join(sorted({str(device["model"]) for device in pci.gpus(gpu["pci"])})),
            "gather the facts as root; where the bridges are elsewhere, as with a virtual machine, nothing is to do",
        )


def _runfile_version(options: dict[str, Any]) -> str:
    """NVIDIA names its installers NVIDIA-Linux-x86_64-550.163.01.run."""
    source = options.get("runfile") or {}
    match = re.search(r"-(\d{3}\.\d+(?:\.\d+)?)(?:-[\w-]+)?\.run$", str(source.get("path") or source.get("url") or ""))
    return match.group(1) if match else ""


def _list(numbers: list[int], word: str = "and") -> str:
    return f" {word} ".join(str(number) for number in numbers) or "none"


def _no_branch(
    gpus: list[dict[str, Any]], offered: list[int] | None, flavour: str, os_name: str, judgement: Judgement
) -> None:
    first, last = compatibility.needed_range(gpus)
    label = ", ".join(sorted({str(device["model"] or device["device"]) for device in gpus}))
    if not compatibility.go_together(gpus):
        names = [*compatibility.architectures(gpus), *("unknown" for _gpu in compatibility.unknown(gpus)[:1])]
        judgement.problem(
            "gpus_mixed",
            "no driver branch drives all the GPUs of this host together",
            label,
            f"put them into different hosts: {', '.join(name.capitalize() for name in names)}",
        )
        return
    need = f"branch {last}" if last is not None else f"branch {first} or newer"
    if flavour == "auto" and compatibility.unknown(gpus):
        flavour = "open"
    if flavour != "auto":
        need += f" with {flavour} kernel modules"
    judgement.problem(
        "no_branch",
        f"no driver of {os_name} ({_list(offered or [])}) drives these GPUs; they need {need}",
        label,
        "set nvidia_driver_method to nvidia_repo or runfile with such a driver, use an operating system that has one, "
        "or take the GPUs out",
    )


def is_installed(host: dict[str, Any], gpu: dict[str, Any], driver: dict[str, Any]) -> bool:
    """Whether the driver of the plan is on the host with a module for every kernel that counts."""
    installed = gpu["driver"]["installed"] or ""
    if not installed or (driver["branch"] is not None and not installed.startswith(f"{driver['branch']}.")):
        return False
    for kernel in host["kernels"]["checked"]:
        module = host["modules"].get(kernel)
        if not module or (
            driver["flavour"] in compatibility.FLAVOURS and module["flavour"] not in (None, driver["flavour"])
        ):
            return False
    return True


def driver_step(gpu: dict[str, Any], driver: dict[str, Any]) -> str:
    what = f"branch {driver['branch']}" if "*" in driver["version"] else driver["version"]
    step = f"install driver {what} ({driver['flavour']}) from {METHODS[driver['method']]}"
    before = gpu["driver"]["installed"]
    return f"{step} in place of {before}" if before else step


def plan_nouveau(gpu: dict[str, Any], steps: list[str], reboot: list[str]) -> None:
    bound = [device["address"] for device in pci.gpus(gpu["pci"]) if device["driver"] == "nouveau"]
    if gpu["driver"]["nouveau_loaded"] or bound:
        steps.append("keep nouveau from loading and unload it")
        reboot.append(
            f"nouveau is bound to {', '.join(bound)} and may be in use"
            if bound
            else "nouveau is loaded and may be in use"
        )


def plan_reload(
    host: dict[str, Any],
    gpu: dict[str, Any],
    driver: dict[str, Any],
    wanted: dict[str, Any],
    steps: list[str],
    reboot: list[str],
) -> None:
    """A loaded module that is not the one of the plan has to go, and a kernel without one has to be left."""
    if not wanted["nvidia_driver_load"]:
        return
    loaded, installed = gpu["driver"]["loaded"], gpu["driver"]["installed"]
    if loaded:
        wrong = driver["branch"] is not None and not loaded.startswith(f"{driver['branch']}.")
        if wrong or (installed and installed != loaded):
            steps.append(f"load the new driver in place of {loaded}")
            reboot.append(f"driver {loaded} is loaded and may be in use")
    running = host["kernels"]["running"]
    if not loaded and running not in host["kernels"]["checked"] and running not in host["kernels"]["installed"]:
        # Where a kernel of another machine runs (a container), no reboot brings another one.
        return
    if not loaded and running not in host["kernels"]["checked"]:
        reboot.append(f"the running kernel {running} is not one that gets the driver")
