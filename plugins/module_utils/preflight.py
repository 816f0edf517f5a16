# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Judges a host before anything is changed: what is in the way, what deserves a warning, and the plan.

Pure: it is given what osinfo.py and gpu.py found and what the variables ask for.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import compatibility, osinfo
from ansible_collections.baremetal.gpu.plugins.module_utils.compatibility import problem, version_key
from ansible_collections.baremetal.gpu.plugins.module_utils.data_os import MACHINES, SUPPORTED

# The variables of the roles that preflight joins with the host. `None` for a choice means that any text is possible.
CHOICES: dict[str, tuple[str, ...]] = {
    "nvidia_driver_state": ("present", "absent"),
    "nvidia_driver_method": ("distro", "nvidia_repo", "runfile"),
    "nvidia_driver_flavour": ("auto", "open", "proprietary"),
    "cuda_state": ("present", "absent"),
    "cuda_method": ("distro", "nvidia_repo"),
    "container_runtime_state": ("present", "absent"),
    "container_runtime_engine": ("docker", "podman", "containerd", "none"),
    "container_runtime_nvidia": ("auto", "toolkit", "cdi", "none"),
}
DEFAULTS: dict[str, Any] = {
    "nvidia_driver_state": "present",
    "nvidia_driver_method": "distro",
    "nvidia_driver_branch": "auto",
    "nvidia_driver_version": "",
    "nvidia_driver_flavour": "auto",
    "nvidia_driver_load": True,
    "cuda_state": "present",
    "cuda_versions": ["distro"],
    "cuda_method": "distro",
    "container_runtime_state": "present",
    "container_runtime_engine": "docker",
    "container_runtime_docker_repo_url": "",
    "container_runtime_nvidia": "auto",
}
METHODS = {"distro": "the distribution", "nvidia_repo": "NVIDIA's repository", "runfile": "NVIDIA's installer"}
NVIDIA_REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
CUDA_REPOSITORY = re.compile(r"/compute/cuda/repos/(?P<os>[a-z]+[0-9]+)(?:/|$)")
ENGINE_PACKAGES = {
    "docker": ("docker.io", "docker-ce", "moby-engine"),
    "podman": ("podman",),
    "containerd": ("containerd", "containerd.io"),
}


class Judgement:
    """Collects what is found; nothing stops at the first problem."""

    def __init__(self) -> None:
        self.problems: list[dict[str, Any]] = []
        self.cautions: list[dict[str, Any]] = []

    def problem(self, code: str, message: str, value: Any, remedy: str) -> None:
        self.problems.append(problem(code, message, value, remedy))

    def caution(self, code: str, message: str, value: Any, remedy: str) -> None:
        self.cautions.append(problem(code, message, value, remedy))


def normalise(variables: dict[str, Any], judgement: Judgement) -> dict[str, Any]:
    """The variables with defaults; a value that means nothing is a problem and gives way to the default."""
    wanted = {**DEFAULTS, **{name: value for name, value in variables.items() if value is not None}}
    for name, choices in CHOICES.items():
        if wanted[name] not in choices:
            judgement.problem(
                "variable",
                f"{name} is none of the values it can have",
                wanted[name],
                f"set {name} to one of {', '.join(choices)}",
            )
            wanted[name] = DEFAULTS[name]
    branch = wanted["nvidia_driver_branch"]
    if isinstance(branch, bool) or not re.match(r"^(auto|\d{3})$", str(branch)):
        judgement.problem(
            "variable",
            "nvidia_driver_branch is no driver branch",
            branch,
            "set nvidia_driver_branch to auto or to the number of a branch, such as 550",
        )
        branch = "auto"
    wanted["nvidia_driver_branch"] = branch if branch == "auto" else int(branch)
    version = str(wanted["nvidia_driver_version"] or "")
    if version and not re.match(r"^\d{3}\.[\w.*~+:-]+$", version):
        judgement.problem(
            "variable",
            "nvidia_driver_version is no driver version",
            version,
            "set nvidia_driver_version to a version such as 550.163.01, or leave it empty",
        )
        version = ""
    wanted["nvidia_driver_version"] = version
    toolkits = wanted["cuda_versions"]
    if not isinstance(toolkits, list):
        judgement.problem(
            "variable",
            "cuda_versions is no list",
            toolkits,
            "set cuda_versions to a list such as ['distro'] or ['12.4', '11.8'], or to [] for none",
        )
        toolkits = []
    good = []
    for toolkit in toolkits:
        if re.match(r"^(distro|\d{1,2}\.\d{1,2}(\.\d{1,2})?)$", str(toolkit)):
            good.append(str(toolkit))
        else:
            judgement.problem(
                "variable",
                "cuda_versions names something that is no CUDA version",
                toolkit,
                "write the versions as texts such as '12.4', or distro for the distribution's own",
            )
    wanted["cuda_versions"] = good
    return wanted


# The system ---------------------------------------------------------------------------------------------------------


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
            "whether the clock is synchronised cannot be told" if unknown else "nothing keeps the clock in step",
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
        package = osinfo.headers_package(kernel, host["os"]["family"])
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
        steps = f"`mokutil --import {state['key']}`, reboot, and confirm the key at the console"
    else:
        steps = (
            "install dkms and mokutil, make a key with `dkms generate_mok`, `mokutil --import /var/lib/dkms/mok.pub`, "
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


# Package sources ----------------------------------------------------------------------------------------------------


def judge_repositories(host: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    by_place: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in host["repositories"]:
        by_place.setdefault((row["uri"].rstrip("/"), row["suite"].rstrip("/")), []).append(row)
    for (uri, suite), rows in sorted(by_place.items()):
        files = sorted({row["file"] for row in rows})
        if len({row["signed_by"] for row in rows}) > 1:
            judgement.problem(
                "repository_conflict",
                f"{' and '.join(files)} name the same repository with different keys, which apt refuses",
                f"{uri} {suite}",
                f"keep it in one file, or give Signed-By the same value in {' and '.join(files)}",
            )
        elif len(rows) > 1:
            seen: set[str] = set()
            for row in rows:
                again = seen & set(row["components"] or ["/"])
                seen |= set(row["components"] or ["/"])
                if again:
                    judgement.caution(
                        "repository_duplicate",
                        f"the repository is named more than once in {' and '.join(files)}",
                        f"{uri} {suite}",
                        "keep it in one place",
                    )
                    break
    for row in host["repositories"]:
        match = CUDA_REPOSITORY.search(row["uri"])
        if not match:
            continue
        if host["os"]["repository"] and match["os"] != host["os"]["repository"]:
            judgement.problem(
                "repository_wrong_os",
                f"{row['file']} names NVIDIA's repository for {match['os']}, and this host is {host['os']['name']}",
                row["uri"],
                f"remove it or take the repository for {host['os']['repository']}",
            )
        elif wanted["nvidia_driver_method"] == "distro" and wanted["cuda_method"] == "distro":
            judgement.problem(
                "repository_mixed",
                f"{row['file']} names NVIDIA's repository, whose driver would take the place of the distribution's",
                row["uri"],
                f"remove {row['file']}, or set nvidia_driver_method to nvidia_repo",
            )


def judge_installed(host: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    """A driver that came by another way than the one that is asked for."""
    if wanted["nvidia_driver_state"] == "absent":
        return
    method = wanted["nvidia_driver_method"]
    for other, evidence in sorted(host["driver_from"].items()):
        if other == method:
            continue
        if other == "runfile":
            remedy = "remove it with `nvidia-uninstall --silent`, or set nvidia_driver_method to runfile"
        else:
            remedy = (
                f"run the role nvidia_driver with nvidia_driver_state: absent and nvidia_driver_method: {other} first, "
                f"or set nvidia_driver_method to {other}"
            )
        judgement.problem(
            "driver_other_method",
            f"a driver from {METHODS[other]} is on the host, and nvidia_driver_method is {method}",
            evidence,
            remedy,
        )


def judge_containers(host: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    engine = wanted["container_runtime_engine"]
    if engine != "docker" or wanted["container_runtime_state"] == "absent":
        return
    if host["daemon_json"]["error"]:
        judgement.problem(
            "daemon_json",
            "/etc/docker/daemon.json is not valid, and what it says would be lost",
            host["daemon_json"]["error"],
            "correct the file (`python3 -m json.tool /etc/docker/daemon.json` shows the place) or move it away",
        )
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


# The driver ---------------------------------------------------------------------------------------------------------


def plan_driver(
    host: dict[str, Any], gpu: dict[str, Any], wanted: dict[str, Any], options: dict[str, Any], judgement: Judgement
) -> dict[str, Any]:
    """The driver that the variables and the cards lead to. What stands against it goes into the judgement."""
    cards = [card for card in gpu["pci"] if card["kind"] == "gpu"]
    method = wanted["nvidia_driver_method"]
    os_name = SUPPORTED[host["os"]["key"]]["name"] if host["os"]["key"] else host["os"]["name"]
    offers = compatibility.distro_drivers(host["os"]["key"]) if method == "distro" else None
    offered = [offer["branch"] for offer in offers] if offers is not None else None
    branch, version = wanted["nvidia_driver_branch"], wanted["nvidia_driver_version"]
    flavour = wanted["nvidia_driver_flavour"]

    for card in cards:
        if card["architecture"] is None:
            judgement.caution(
                "card_unknown",
                f"the card at {card['address']} is not in the collection's table, so nothing about it can be checked",
                f"{card['vendor']}:{card['device']}",
                "set nvidia_driver_branch and nvidia_driver_flavour to what NVIDIA names for the card",
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
        branch = compatibility.choose_branch(cards, offered, flavour)
        if branch is None:
            _no_branch(cards, offered, flavour, os_name, judgement)
    elif offered is not None and branch not in offered and not compatibility.check_branch(cards, branch):
        judgement.problem(
            "branch_not_offered",
            f"{os_name} has no driver of branch {branch}; it has {_list(offered)}",
            branch,
            f"set nvidia_driver_branch to {_list(offered, 'or')}, or nvidia_driver_method to nvidia_repo",
        )

    packages: list[str] = []
    if branch is not None:
        judgement.problems += compatibility.check(cards, branch, flavour, version=version or None)
        # Updates move the distribution's version within the branch, so no exact one is promised.
        version = version or f"{branch}.*"
        offer = next((row for row in offers or [] if row["branch"] == branch), None)
        available = tuple(offer["dkms"]) if offer else compatibility.FLAVOURS
        if flavour == "auto":
            flavour = compatibility.choose_flavour(cards, branch, available) or "auto"
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
                    "plan the move to a newer branch where the cards allow it",
                )
            ]
    if any(card["kind"] == "nvswitch" for card in gpu["pci"]) and method == "distro" and host["os"]["id"] == "debian":
        judgement.problem(
            "fabric_manager",
            "the host has NVSwitches, whose Fabric Manager Debian does not have; without it CUDA does not start",
            "distro",
            "set nvidia_driver_method to nvidia_repo",
        )
    return {"branch": branch, "flavour": flavour, "method": method, "version": version, "packages": packages}


def _runfile_version(options: dict[str, Any]) -> str:
    """NVIDIA names its installers NVIDIA-Linux-x86_64-550.163.01.run."""
    source = options.get("runfile") or {}
    match = re.search(r"-(\d{3}\.\d+(?:\.\d+)?)(?:-[\w-]+)?\.run$", str(source.get("path") or source.get("url") or ""))
    return match.group(1) if match else ""


def _list(numbers: list[int], word: str = "and") -> str:
    return f" {word} ".join(str(number) for number in numbers) or "none"


def _no_branch(
    cards: list[dict[str, Any]], offered: list[int] | None, flavour: str, os_name: str, judgement: Judgement
) -> None:
    names = compatibility.architectures(cards)
    first, last = compatibility.branch_range(names)
    label = ", ".join(sorted({str(card["model"] or card["device"]) for card in cards}))
    if last is not None and last < first:
        judgement.problem(
            "cards_mixed",
            "no driver branch drives all the cards of this host together",
            label,
            f"put them into different hosts: {', '.join(name.capitalize() for name in names)}",
        )
        return
    need = f"branch {last}" if last is not None else f"branch {first} or newer"
    if flavour != "auto":
        need += f" with {flavour} kernel modules"
    judgement.problem(
        "no_branch",
        f"no driver of {os_name} ({_list(offered or [])}) drives these cards; they need {need}",
        label,
        "set nvidia_driver_method to nvidia_repo or runfile with such a driver, use an operating system that has one, "
        "or take the cards out",
    )


def plan_cuda(
    host: dict[str, Any], gpu: dict[str, Any], wanted: dict[str, Any], driver: dict[str, Any], judgement: Judgement
) -> list[str]:
    """The toolkits by version; what does not go with cards and driver goes into the judgement."""
    if wanted["cuda_state"] == "absent":
        return []
    cards = [card for card in gpu["pci"] if card["kind"] == "gpu"]
    toolkits = []
    for name in wanted["cuda_versions"]:
        version = name
        if name == "distro":
            version = compatibility.distro_cuda(host["os"]["key"]) or ""
            if not version:
                judgement.caution(
                    "cuda_distro_unknown",
                    "which CUDA toolkit this distribution has is not known here, so it cannot be checked",
                    "distro",
                    "name the version in cuda_versions and set cuda_method to nvidia_repo",
                )
                continue
        elif wanted["cuda_method"] == "distro":
            own = compatibility.distro_cuda(host["os"]["key"])
            if own and version_key(own)[:2] != version_key(version)[:2]:
                judgement.problem(
                    "cuda_not_offered",
                    f"{host['os']['name']} has CUDA {own} only",
                    version,
                    f"set cuda_versions to ['{own}'] or ['distro'], or cuda_method to nvidia_repo",
                )
        if wanted["cuda_method"] == "distro" and _libcuda_too_old(host, driver, name, version, judgement):
            continue
        toolkits.append(version)
        if wanted["nvidia_driver_state"] == "absent":
            against = None
        else:
            exact = re.match(r"^\d{3}\.\d+(\.\d+)?", driver["version"])
            against = exact.group(0) if exact else driver["branch"]
        judgement.problems += compatibility.check_cuda(cards, str(against) if against else None, version)
    return toolkits


def _libcuda_too_old(
    host: dict[str, Any], driver: dict[str, Any], name: str, version: str, judgement: Judgement
) -> bool:
    """Whether the distribution's toolkit would bring a libcuda beside that of an older driver, which then breaks."""
    need = compatibility.distro_cuda_branch(host["os"]["key"])
    if driver["branch"] is None or driver["branch"] >= need:
        return False
    message = (
        f"CUDA {version} of {host['os']['name']} wants libcuda of branch {need} or newer, and the driver is of branch "
        f"{driver['branch']}"
    )
    remedy = "set cuda_versions to [], or to older ones with cuda_method: nvidia_repo"
    if name == "distro":
        # The default: a card with an old last driver must not stop the host.
        judgement.caution("cuda_distro_skipped", f"{message}, so no toolkit is installed", version, remedy)
    else:
        judgement.problem("cuda_libcuda", message, version, remedy)
    return True


# All together -------------------------------------------------------------------------------------------------------


def _driver_installed(host: dict[str, Any], gpu: dict[str, Any], driver: dict[str, Any]) -> bool:
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


def _toolkit_installed(packages: dict[str, dict[str, str]], version: str) -> bool:
    major, minor = (*version_key(version), 0)[:2]
    own = packages.get("nvidia-cuda-toolkit", {}).get("version", "")
    return f"cuda-toolkit-{major}-{minor}" in packages or own.startswith(f"{major}.{minor}.")


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


def judge(
    host: dict[str, Any], gpu: dict[str, Any], variables: dict[str, Any], options: dict[str, Any]
) -> dict[str, Any]:
    """Problems, cautions and the plan of one host.

    `options`: kernels (as in gpu_preflight_kernels), disk_mib (stage -> path -> MiB), urls (variable -> URL),
    checksums (variable of a download -> SHA-256 that belongs to it), host (its name in the inventory).
    """
    judgement = Judgement()
    wanted = normalise(variables, judgement)
    judge_system(host, options, judgement)
    judge_urls(options, judgement)
    cards = [card for card in gpu["pci"] if card["kind"] == "gpu"]
    present = bool(cards)
    if gpu["present"] is None:
        judgement.problem(
            "bus_unreadable",
            "whether the host has cards cannot be told",
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
        installed = _driver_installed(host, gpu, driver)
        building = not installed and driver["method"] != "none"
        judge_kernels(host, options, building, judgement)
        judge_secure_boot(host, gpu, building, judgement)
        judge_installed(host, wanted, judgement)
        judge_runfile(options, wanted, judgement)
        _plan_nouveau(gpu, steps, reboot)
        if not installed:
            needs_of("driver")
            steps.append(_driver_step(gpu, driver))
        _plan_reload(host, gpu, driver, wanted, steps, reboot)
    elif present and gpu["driver"]["installed"]:
        steps.append(f"remove driver {gpu['driver']['installed']}")
    if present:
        toolkits = plan_cuda(host, gpu, wanted, driver or {"version": "", "branch": None}, judgement)
        missing = [version for version in toolkits if not _toolkit_installed(host["packages"], version)]
        if missing:
            needs_of("cuda", len(missing))
            steps.append(f"install CUDA {', '.join(missing)} from {METHODS[wanted['cuda_method']]}")
    else:
        steps.append("no NVIDIA card: GPU stages are skipped")

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
            {"address": card["address"], "model": card["model"], "architecture": card["architecture"]} for card in cards
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


def judge_urls(options: dict[str, Any], judgement: Judgement) -> None:
    for name, value in sorted((options.get("urls") or {}).items()):
        wrong = osinfo.url_problem(str(value)) if value else None
        if wrong:
            judgement.problem("url", f"{name} is no URL: {wrong}", value, f"correct {name}")


def judge_runfile(options: dict[str, Any], wanted: dict[str, Any], judgement: Judgement) -> None:
    if wanted["nvidia_driver_method"] != "runfile":
        return
    source = options.get("runfile") or {}
    if not source.get("url") and not source.get("path"):
        judgement.problem(
            "runfile_missing",
            "nvidia_driver_method is runfile and no installer is named",
            "",
            "set nvidia_driver_runfile_url or nvidia_driver_runfile_path",
        )
    checksum = str(source.get("sha256") or "")
    if not re.match(r"^[0-9a-fA-F]{64}$", checksum):
        judgement.problem(
            "runfile_checksum",
            "the installer has no SHA-256 to be checked against",
            checksum,
            "set nvidia_driver_runfile_sha256 to the 64 digits that `sha256sum` prints for the file",
        )
    elif source.get("found_sha256") and source["found_sha256"].lower() != checksum.lower():
        judgement.problem(
            "runfile_mismatch",
            f"{source['path']} on the controller has the SHA-256 {source['found_sha256']}, not the one that is set",
            checksum,
            "fetch the file again, or correct nvidia_driver_runfile_sha256 if the file is the right one",
        )
    if source.get("error"):
        judgement.problem(
            "runfile_missing",
            f"the installer cannot be read on the controller: {source['error']}",
            source["path"],
            "correct nvidia_driver_runfile_path, which is a path on the controller",
        )


def _driver_step(gpu: dict[str, Any], driver: dict[str, Any]) -> str:
    what = f"branch {driver['branch']}" if "*" in driver["version"] else driver["version"]
    step = f"install driver {what} ({driver['flavour']}) from {METHODS[driver['method']]}"
    before = gpu["driver"]["installed"]
    return f"{step} in place of {before}" if before else step


def _plan_nouveau(gpu: dict[str, Any], steps: list[str], reboot: list[str]) -> None:
    bound = [card["address"] for card in gpu["pci"] if card["driver"] == "nouveau"]
    if gpu["driver"]["nouveau_loaded"] or bound:
        steps.append("keep nouveau from loading and unload it")
        reboot.append(
            f"nouveau is bound to {', '.join(bound)} and may be in use"
            if bound
            else "nouveau is loaded and may be in use"
        )


def _plan_reload(
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


def urls_in_use(host: dict[str, Any], present: bool, variables: dict[str, Any], urls: dict[str, Any]) -> dict[str, str]:
    """Those of the URLs that the variables lead to on this host, with NVIDIA's own repository where none is named."""
    wanted = {**DEFAULTS, **{name: value for name, value in variables.items() if value is not None}}

    def uses(role: str, method: str) -> bool:
        return present and wanted[f"{role}_state"] == "present" and wanted[f"{role}_method"] == method

    runtime = wanted["container_runtime_state"] == "present"
    in_use = {
        "nvidia_driver_runfile_": uses("nvidia_driver", "runfile"),
        "nvidia_driver_repo_": uses("nvidia_driver", "nvidia_repo") or uses("cuda", "nvidia_repo"),
        "cuda_": uses("cuda", "nvidia_repo"),
        "container_runtime_docker_": runtime and wanted["container_runtime_engine"] == "docker",
        "container_runtime_toolkit_": runtime and present and wanted["container_runtime_nvidia"] in ("auto", "toolkit"),
    }
    chosen = {
        name: str(url)
        for name, url in urls.items()
        if url and next((used for prefix, used in in_use.items() if name.startswith(prefix)), True)
    }
    machine = {"x86_64": "x86_64", "aarch64": "sbsa"}.get(host["os"]["machine"])
    own = [role for role in ("nvidia_driver", "cuda") if uses(role, "nvidia_repo")]
    if own and host["os"]["repository"] and machine and "nvidia_driver_repo_url" not in chosen:
        for role in own:
            chosen.setdefault(f"{role}_repo_url", f"{NVIDIA_REPOSITORIES}/{host['os']['repository']}/{machine}/")
    return chosen


def targets(host: dict[str, Any], urls: dict[str, str]) -> list[dict[str, Any]]:
    """What an installation would fetch from: {name, urls of which one must be there, apt: by its proxy, strict}."""
    rows: list[dict[str, Any]] = []
    places: tuple[str, ...]
    for name, url in sorted(urls.items()):
        if osinfo.url_problem(url):
            continue
        base = url.rstrip("/")
        if name.endswith(("_key_url", "_runfile_url")):
            # Files are fetched without apt.
            rows.append({"name": url, "urls": [url], "apt": False, "strict": True})
        else:
            places = (f"dists/{host['os']['codename']}/InRelease", "InRelease", "Release", "repodata/repomd.xml", "")
            rows.append({"name": url, "urls": [f"{base}/{place}" for place in places], "apt": True, "strict": False})
    for row in host["repositories"]:
        # What yum puts in place of its variables is not known here.
        if osinfo.url_problem(row["uri"]) or "$" in row["uri"]:
            continue
        base = directory = row["uri"].rstrip("/")
        suite = row["suite"]
        if row["file"].endswith(".repo"):
            name, places = base, ("repodata/repomd.xml", "")
        else:
            # A suite that ends in a slash is the directory itself.
            directory = f"{base}/{suite}".rstrip("/") if suite.endswith("/") else f"{base}/dists/{suite}"
            name, places = f"{base} {suite}", ("InRelease", "Release")
        if name not in [known["name"] for known in rows]:
            rows.append(
                {"name": name, "urls": [f"{directory}/{place}" for place in places], "apt": True, "strict": True}
            )
    return rows


def judge_reach(answers: dict[str, str | None]) -> list[dict[str, Any]]:
    """`answers`: URL -> why it cannot be reached, None where it can."""
    return [
        problem(
            "unreachable",
            f"the host cannot reach what it is to install from: {why}",
            url,
            "check the network, the name service and the proxy of the host, correct the URL, or name a mirror",
        )
        for url, why in answers.items()
        if why
    ]


def words(row: dict[str, Any]) -> str:
    value = f" [{row['value']}]" if row["value"] not in ("", None) else ""
    return f"{row['message']}{value}. Remedy: {row['remedy']}."


def report(name: str, problems: list[dict[str, Any]]) -> str:
    """All problems of a host in words; empty without any."""
    if not problems:
        return ""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    lines = [f"{name}: {count} in the way, nothing was changed."]
    for number, row in enumerate(problems, 1):
        message, remedy = words(row).rsplit(" Remedy: ", 1)
        lines += [f"{number}. {message}", f"   Remedy: {remedy}"]
    return "\n".join(lines)
