# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the system itself can take a driver: release, name, clock, kernels, Secure Boot, disk."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement
from ansible_collections.baremetal.gpu.plugins.module_utils.system.distributions import MACHINES, SUPPORTED
from ansible_collections.baremetal.gpu.plugins.module_utils.system.kernels import headers_package


def judge_system(host: dict[str, Any], options: dict[str, Any], judgement: Judgement) -> None:
    about = host["os"]
    if about["key"] is None:
        known = ", ".join(row["name"] for row in SUPPORTED.values())
        judgement.problem(
            "os_unsupported", "the operating system is not supported", about["name"], f"install one of {known}"
        )
    elif about["level"] == "documented":
        judgement.caution(
            "os_untested",
            f"{SUPPORTED[about['key']]['name']} follows the vendor's documents and was not run in the tests",
            about["name"],
            "try it on one host first",
        )
    if about["machine"] not in MACHINES:
        judgement.problem(
            "machine_unsupported",
            "NVIDIA has no driver for this machine type",
            about["machine"],
            f"use a machine of type {' or '.join(MACHINES)}",
        )
    name = host["hostname"]
    if name["resolves"] is False:
        judgement.caution(
            "hostname_unresolved",
            "the host's own name has no address",
            name["name"],
            "put the name with its address into /etc/hosts or into the DNS",
        )
    elif name["own"] is False:
        judgement.caution(
            "hostname_elsewhere",
            f"the host's own name leads to {', '.join(name['addresses'])}, which is not an address of this host",
            name["name"],
            "correct /etc/hosts or the DNS",
        )
    if host["time_synchronised"] is not True:
        unknown = host["time_synchronised"] is None
        judgement.caution(
            "time_unknown" if unknown else "time_unsynchronised",
            "it is unknown whether the clock is synchronised" if unknown else "nothing keeps the clock in step",
            "unknown" if unknown else "unsynchronised",
            "run systemd-timesyncd or chrony and check its servers",
        )


def good_kernels(choice: Any) -> bool:
    return choice in ("running", "installed") or (
        isinstance(choice, list) and all(isinstance(kernel, str) for kernel in choice)
    )


def judge_kernels(host: dict[str, Any], options: dict[str, Any], building: bool, judgement: Judgement) -> None:
    kernels = host["kernels"]
    if not good_kernels(options["kernels"]):
        judgement.problem(
            "variable",
            "gpu_preflight_kernels, which follows nvidia_driver_kernels, names no kernels",
            options["kernels"],
            "set nvidia_driver_kernels to running, installed or a list of kernel releases",
        )
    if not kernels["checked"]:
        judgement.problem(
            "no_kernel",
            "there is no kernel to build the driver for",
            options["kernels"],
            "install a kernel package, or set gpu_preflight_kernels to the kernels that the host boots",
        )
    for kernel in kernels["checked"]:
        if isinstance(options["kernels"], list) and kernel not in kernels["installed"]:
            judgement.problem(
                "kernel_not_installed",
                "gpu_preflight_kernels names a kernel that is not installed",
                kernel,
                f"name installed ones: {', '.join(kernels['installed']) or 'there are none'}",
            )
            continue
        if not building or (host["modules"].get(kernel) or {}).get("version"):
            continue
        package = headers_package(kernel, host["os"]["family"])
        state = host["headers"].get(kernel)
        newest = kernels["installed"][-1] if kernels["installed"] else ""
        if state == "missing":
            remedy = f"add the repository that has {package}"
            if kernel != kernels["running"] and kernel != newest:
                remedy = f"remove this old kernel, set nvidia_driver_kernels to running, or {remedy}"
            elif newest and newest != kernel:
                remedy = f"reboot into the newest installed kernel {newest}, or {remedy}"
            else:
                remedy = f"upgrade the kernel and reboot into it, or {remedy}"
            judgement.problem(
                "headers_missing", "no package source has the headers of this kernel", kernel, f"{remedy}"
            )
        elif state == "unknown":
            judgement.caution(
                "headers_unknown",
                "the host has no package lists, so whether the headers of this kernel can be had is not known",
                kernel,
                f"refresh the package lists and see whether {package} is there",
            )


def judge_secure_boot(host: dict[str, Any], gpu: dict[str, Any], building: bool, judgement: Judgement) -> None:
    state = host["secure_boot"]
    if state["enabled"] is None:
        judgement.caution(
            "secure_boot_unknown",
            "the firmware does not say whether Secure Boot is on",
            "unknown",
            "look at it with `mokutil --sb-state`",
        )
        return
    if not state["enabled"] or not building or gpu["driver"]["loaded"] or state["key_enrolled"]:
        return
    if state["key"]:
        steps = f"`sudo mokutil --import {state['key']}`, reboot, and confirm the key at the console"
    else:
        steps = (
            "install dkms and mokutil, make a key with `dkms generate_mok`, `sudo mokutil --import "
            "/var/lib/dkms/mok.pub`, "
            "reboot, and confirm the key at the console"
        )
    if host["os"]["id"] == "ubuntu":
        steps = f"take Ubuntu's signed modules (linux-modules-nvidia-*), or {steps}"
    judgement.problem(
        "secure_boot",
        "Secure Boot is on and the key that DKMS signs with is not enrolled, so the kernel would refuse the module",
        "enabled",
        f"{steps}; or turn Secure Boot off in the firmware",
    )


def judge_disk(host: dict[str, Any], needs: dict[str, int], judgement: Judgement) -> None:
    """Needs on paths of the same file system add up."""
    by_device: dict[Any, dict[str, Any]] = {}
    for path, need in needs.items():
        space = host["disk"].get(path)
        if space is None or not need:
            continue
        row = by_device.setdefault(space["device"], {"paths": [], "need": 0, "free": space["free_mib"]})
        row["paths"].append(path)
        row["need"] += need
    for row in by_device.values():
        if row["free"] < row["need"]:
            judgement.problem(
                "disk_space",
                f"the file system of {', '.join(sorted(row['paths']))} has too little space: {row['need']} MiB are "
                "needed for what is to be installed",
                f"{row['free']} MiB free",
                f"free {row['need'] - row['free']} MiB or enlarge the file system; gpu_preflight_disk_mib holds the "
                "needs",
            )
