# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges a host before anything is changed: what is in the way, what deserves a warning, and the plan.

Pure: it is given what gather.py and gpu/facts.py found and what the variables ask for.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.cuda import is_toolkit_installed, plan_cuda
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.driver import (
    driver_step,
    is_installed,
    judge_installed,
    plan_driver,
    plan_nouveau,
    plan_reload,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.sources import (
    judge_repositories,
    judge_runfile,
    judge_urls,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.system import (
    judge_disk,
    judge_kernels,
    judge_secure_boot,
    judge_system,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.variables import METHODS, normalise

ENGINE_PACKAGES = {
    "docker": ("docker.io", "docker-ce", "moby-engine"),
    "podman": ("podman",),
    "containerd": ("containerd", "containerd.io"),
}


def judge(
    host: dict[str, Any], gpu: dict[str, Any], variables: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Problems, cautions and the plan of one host.

    `options`: kernels (as in gpu_preflight_kernels), disk_mib (stage -> path -> MiB), urls (variable -> URL),
    checksums (variable of a download -> SHA-256 that belongs to it), host (its name in the inventory), unsuitable
    (problems as rows: variables that do not suit their roles).
    """
    judgement = Judgement()
    wanted = normalise(variables, judgement)
    for row in options.get("unsuitable", []):
        judgement.problem("variable", row["cause"], row["evidence"], row["remedy"])
    judge_system(host, options, judgement)
    judge_urls(options, judgement)
    gpus = pci.gpus(gpu["pci"])
    present = bool(gpus)
    if gpu["present"] is None:
        judgement.problem(
            "bus_unreadable",
            "it is unknown whether the host has GPUs",
            gpu["reason"],
            "mount /sys on the host, or leave the host out of the play",
        )

    steps: list[str] = []
    needs: dict[str, int] = {}
    reboot: list[str] = []
    driver: dict[str, Any] | None = None
    toolkits: list[str] = []

    def needs_of(stage: str, times: int = 1) -> None:
        for path, mib in (options.get("disk_mib") or {}).get(stage, {}).items():
            needs[path] = needs.get(path, 0) + int(mib) * times

    if present and wanted["nvidia_driver_state"] == "present":
        driver = plan_driver(host, gpu, wanted, options, judgement)
        installed = is_installed(host, gpu, driver)
        judge_kernels(host, options, not installed, judgement)
        judge_secure_boot(host, gpu, not installed, judgement)
        judge_installed(host, gpu, wanted, judgement)
        judge_runfile(options, wanted, judgement)
        plan_nouveau(gpu, steps, reboot)
        if not installed:
            needs_of("driver")
            steps.append(driver_step(gpu, driver))
            if pci.needs_fabric_manager(gpu["pci"]) and driver["method"] != "runfile":
                and_more = " and the NVLink Subnet Manager" if pci.needs_subnet_manager(gpu["pci"]) else ""
                steps.append(f"install Fabric Manager{and_more} for the NVSwitches")
        plan_reload(host, gpu, driver, wanted, steps, reboot)
    elif present and gpu["driver"]["installed"]:
        steps.append(f"remove driver {gpu['driver']['installed']}")
    if present:
        toolkits = plan_cuda(host, gpu, wanted, driver or {"version": "", "branch": None}, judgement)
        missing = [version for version in toolkits if not is_toolkit_installed(host["packages"], version)]
        if missing:
            needs_of("cuda", len(missing))
            steps.append(f"install CUDA {', '.join(missing)} from {METHODS[wanted['cuda_method']]}")
    else:
        steps.append("no NVIDIA GPU: GPU stages are skipped")
    for device in pci.others(gpu["pci"]):
        judgement.caution(
            "gpu_left_out",
            f"{pci.why_not_ours(device)}: it is left out, here and everywhere",
            device["driver"] or device["device"],
            "nothing where that is meant; else give it back to NVIDIA's driver",
        )

    judge_repositories(host, wanted, judgement)
    judge_containers(host, wanted, judgement)
    runtime = missing_runtime(host, wanted, options, present)
    if "engine" in runtime:
        needs_of("container_runtime")
    steps += runtime.values()
    judge_disk(host, needs, judgement)

    _apply_overrides(judgement, options)
    plan = {
        "host": options.get("host", host["hostname"]["name"]),
        "os": {key: host["os"][key] for key in ("key", "family", "codename", "machine")},
        "gpus": [
            {"address": device["address"], "model": device["model"], "architecture": device["architecture"]}
            for device in gpus
        ],
        "driver": driver,
        "cuda": toolkits,
        "runtime": {
            "engine": wanted["container_runtime_engine"],
            "nvidia": wanted["container_runtime_nvidia"] if present else "none",
        },
        "reboot_expected": bool(reboot),
        "reboot_reasons": reboot,
        "steps": steps,
        "installs": bool(needs) or any(step.startswith("install ") for step in steps),
    }
    return {"problems": judgement.problems, "cautions": judgement.cautions, "plan": plan}


def judge_containers(host: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    engine = wanted["container_runtime_engine"]
    if engine == "none" or wanted["container_runtime_state"] == "absent":
        return
    config = host["engine_configs"][engine]
    if config["error"]:
        judgement.problem(
            "engine_config",
            f"{config['path']} is not valid, and what it says would be lost",
            config["error"],
            "correct the file at this place, or move it away",
        )
    if engine != "docker":
        return
    if "podman-docker" in host["packages"]:
        judgement.problem(
            "engine_conflict",
            "podman-docker takes the place of the command docker",
            f"podman-docker {host['packages']['podman-docker']['version']}",
            "remove podman-docker, or set container_runtime_engine to podman",
        )
    if "docker-ce" in host["packages"] and not wanted["container_runtime_docker_repo_url"]:
        judgement.problem(
            "engine_conflict",
            "docker-ce is on the host, and the distribution's docker.io would take its place",
            f"docker-ce {host['packages']['docker-ce']['version']}",
            "set container_runtime_docker_repo_url to the repository that docker-ce came from, or remove docker-ce",
        )


def missing_runtime(
    host: dict[str, Any], wanted: dict[str, Any], options: dict[str, Any], present: bool
) -> dict[str, str]:
    """The parts of the container runtime that are not on the host, each with the step that installs it."""
    engine, nvidia = wanted["container_runtime_engine"], wanted["container_runtime_nvidia"]
    if engine == "none" or wanted["container_runtime_state"] == "absent":
        return {}
    missing = {}
    if not any(name in host["packages"] for name in ENGINE_PACKAGES[engine]):
        missing["engine"] = f"install the container engine {engine}"
    # A repository for it is what `auto` takes as the wish to have it.
    repository = (options.get("urls") or {}).get("container_runtime_toolkit_repo_url")
    toolkit = present and (nvidia == "toolkit" or (nvidia == "auto" and repository))
    if toolkit and "nvidia-container-toolkit" not in host["packages"]:
        missing["toolkit"] = "install the NVIDIA Container Toolkit"
    return missing


def _apply_overrides(judgement: Judgement, options: dict[str, Any]) -> None:
    """The operator may take a problem for a warning, or a warning for a problem."""
    accept, refuse = set(options.get("accept") or ()), set(options.get("refuse") or ())
    problems: list[dict[str, Any]] = []
    cautions: list[dict[str, Any]] = []
    for row in judgement.problems:
        (cautions if row["code"] in accept else problems).append(row)
    for row in judgement.cautions:
        (problems if row["code"] in refuse else cautions).append(row)
    judgement.problems, judgement.cautions = _unique(problems), _unique(cautions)


def _unique(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for row in rows:
        if row not in kept:
            kept.append(row)
    return kept
