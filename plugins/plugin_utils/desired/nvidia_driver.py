# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA driver of a host, from the variables of the role nvidia_driver and the facts of the host.

Pure, and all of it at once: Ansible evaluates a variable, and compiles its template, at each use, so that a plan in
templates costs a host more than the comparison with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from posixpath import dirname
from typing import Any, Literal

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.nvidia_repository import (
    has_repository,
    nvidia_repository,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.driver_packages import (
    driver_packages,
    kernel_packages,
    no_driver_packages,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.system_of import planned_system, system_of

ROLE = "nvidia_driver"

UNATTENDED = "/etc/apt/apt.conf.d/52baremetal-gpu-nvidia"
LOAD = "/etc/modules-load.d/baremetal-gpu-nvidia.conf"
STREAM = "/etc/dnf/modules.d/nvidia-driver.module"
RUNFILE = "/var/lib/baremetal-gpu/nvidia-driver.run"
PERSISTENCE = "/etc/systemd/system/nvidia-persistenced.service.d/baremetal-gpu.conf"

# Names of the driver's packages, for what must not touch them: a regular expression each, from the start.
NAMES = (
    "nvidia-",
    "libnvidia-",
    "libcuda1",
    "libcudadebugger1",
    "firmware-nvidia-",
    "linux-modules-nvidia-",
    "linux-objects-nvidia-",
    "linux-signatures-nvidia-",
)
# Each before the ones that it depends on.
MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
DEVICES = [
    "/dev/nvidia[0-9]*",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
]
# Units that hold the GPUs open.
HOLDERS = [
    "nvidia-persistenced",
    "nvidia-fabricmanager",
    "nvidia-gridd",
    "nvidia-topologyd",
    "nvidia-dcgm",
    "nvlsm",
    "baremetal-gpu-agent",
]

WRITTEN = "Written by baremetal.gpu; changes are overwritten."
LOAD_TEXT = f"# {WRITTEN}\nnvidia\nnvidia-uvm\n"
UNATTENDED_TEXT = "\n".join(
    [
        f"// {WRITTEN}",
        "// A driver that changes under a running host no longer goes with the module that is loaded.",
        "Unattended-Upgrade::Package-Blacklist {",
        *(f'  "^{name}";' for name in NAMES),
        "};\n",
    ]
)
# Which stream of the module dnf takes; the file is dnf's own and in the form that dnf writes.
STREAM_TEXT = "[nvidia-driver]\nname=nvidia-driver\nprofiles=\nstate=enabled\nstream={branch}-{kind}\n"
_VERSION = re.compile(r"[0-9]{3}\.[0-9]{2,3}(\.[0-9]{2,3})?")

# What must be stopped and unloaded before NVIDIA's installer can replace the loaded driver.
UNLOAD = doc.Document(
    units=[doc.Unit(name, state="stopped") for name in HOLDERS],
    kernel_modules=[
        *(doc.KernelModule(name, "unloaded") for name in MODULES[:-1]),
        doc.KernelModule("nvidia", "unloaded", devices=DEVICES, units=HOLDERS),
    ],
)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables, and its tables `schemes` (how the packages of a driver are called), `systems`
        (which scheme a system has, by its key) and `families` (what systems of a kind have in common).
    :param facts: the host's facts; of them `gpu`, `gpu_plan` or, without that, the distribution.
    :return: The parts are `check`: whether preflight is needed before anything else. `finished`: the document of a
        host on which nothing is left to do; None where comparing it does not tell. `way`: the name of the task file
        that installs or removes the driver. `runfile`: of NVIDIA's installer `version`, `due`: whether it has to run,
        `desired`: the document before it can, `unload`: what must not be loaded then, and `command`; empty where
        another way is taken. `settings`: the directory of the persistence daemon's settings.
    """
    present = params["state"] == "present"
    way = "present_runfile" if present and params["method"] == "runfile" else str(params["state"])
    key, systems = system_of(facts), params["systems"]
    if key not in systems:
        unknown = Problem(
            "unknown_system",
            ROLE,
            f"the operating system {key} is not supported",
            key,
            f"use one of {', '.join(systems)}",
        )
        return _plan(way, problems=[unknown])
    driver = _Driver(params, facts, systems[key])
    problems = driver.problems() if present else []
    if problems:
        return _plan(way, problems=problems)
    document = driver.document() if present else driver.document_absent()
    check = not planned_system(facts)
    return _plan(
        way,
        document,
        check=check,
        # An installer, or an uninstaller, may have left something behind that the document does not show.
        finished=None if check or way != "present" else document,
        runfile=driver.runfile() if way == "present_runfile" else {},
    )


def _plan(
    way: str,
    document: doc.Document | None = None,
    problems: Sequence[Problem] = (),
    check: bool = True,
    finished: doc.Document | None = None,
    runfile: Mapping[str, Any] | None = None,
) -> Plan:
    parts = {
        "check": check,
        "finished": finished and finished.plain,
        "way": way,
        "runfile": runfile or {},
        "settings": dirname(PERSISTENCE),
    }
    return Plan(document or doc.Document(), tuple(problems), parts)


class _Driver:
    """The driver of one host of a known system."""

    def __init__(self, params: Mapping[str, Any], facts: Mapping[str, Any], system: Mapping[str, Any]) -> None:
        self.params, self.schemes, self.system = params, built_in(params["schemes"]), dict(system)
        self.family: Mapping[str, Any] = params["families"][system["family"]]
        self.gpu: Mapping[str, Any] = facts.get("gpu") or {}
        planned: Mapping[str, Any] = facts.get("gpu_plan") or {}
        choice: Mapping[str, Any] = planned.get("driver") or {}
        # What the variables leave open is preflight's choice for the GPUs.
        self.exact_version = str(params["version"])
        self.branch = self.exact_version[:3] or self._or_chosen("branch", choice)
        self.flavour = self._or_chosen("flavour", choice)
        self.version = self._version()
        os: Mapping[str, Any] = planned.get("os") or {}
        self.machine = str(os.get("machine") or facts.get("architecture") or "x86_64")
        self.codename = str(os.get("codename") or facts.get("distribution_release") or "")
        self.method = str(params["method"])
        self.from_nvidia = self.method == "nvidia_repo"
        self.apt = system["family"] in ("debian", "ubuntu")
        # Fabric Manager is for NVSwitches, and harmful without them.
        self.fabric_manager = pci.needs_fabric_manager(self.gpu.get("pci"))
        self.subnet_manager = pci.needs_subnet_manager(self.gpu.get("pci"))

    def _or_chosen(self, name: str, choice: Mapping[str, Any]) -> str:
        return str(self.params[name] if self.params[name] != "auto" else choice.get(name) or "")

    def _version(self) -> str:
        """The revision of the package may be left out of a version."""
        if not self.exact_version:
            return f"{self.branch}.*"
        exact = "-" in self.exact_version or "*" in self.exact_version
        return self.exact_version if exact else f"{self.exact_version}*"

    def _is(self, name: str) -> bool:
        return bool(boolean(self.params[name]))

    def problems(self) -> list[Problem]:
        params = self.params
        problems: list[Problem] = []
        if not (self.branch and self.flavour):
            problems.append(
                Problem(
                    "no_driver_chosen",
                    ROLE,
                    "no driver branch and flavour were found for the GPUs",
                    f"branch {self.branch or 'unknown'}, flavour {self.flavour or 'unknown'}",
                    "set nvidia_driver_branch and nvidia_driver_flavour, or run gpu_preflight, which says why",
                )
            )
        if self.from_nvidia and not params["repo_url"] and not has_repository(self.machine):
            problems.append(
                Problem(
                    "no_repository",
                    "nvidia_driver_repo_url",
                    f"NVIDIA has no repository for machines of type {self.machine}",
                    self.machine,
                    "set nvidia_driver_repo_url to one of your own",
                )
            )
        if self.from_nvidia and not params["repo_key_sha256"] and not params["repo_options"]:
            problems.append(
                Problem(
                    "no_key_checksum",
                    "nvidia_driver_repo_key_sha256",
                    "nvidia_driver_repo_key_sha256 is not set, so the key of NVIDIA's repository cannot be checked",
                    remedy="set it to what sha256sum prints for the key at nvidia_driver_repo_key_url or "
                    "nvidia_driver_repo_key_path, or declare the repository as trusted in nvidia_driver_repo_options",
                )
            )
        if self.method == "runfile":
            problems += self._installer_problems()
        if not problems:
            try:
                self._driver_packages()
            except Refused as refused:
                problems.append(replace(refused.problem, subject=ROLE))
        return problems

    def _installer_problems(self) -> list[Problem]:
        params, problems = self.params, []
        if not (params["runfile_sha256"] and (params["runfile_url"] or params["runfile_path"])):
            problems.append(
                Problem(
                    "no_installer",
                    "nvidia_driver_runfile_sha256",
                    "the checksum or the place of NVIDIA's installer is not set",
                    remedy="set nvidia_driver_runfile_sha256 and either nvidia_driver_runfile_url or "
                    "nvidia_driver_runfile_path",
                )
            )
        if not self.runfile_version():
            problems.append(
                Problem(
                    "no_installer_version",
                    "nvidia_driver_version",
                    "the version of the installer is not in its name",
                    str(params["runfile_url"] or params["runfile_path"]),
                    "set nvidia_driver_version",
                )
            )
        return problems

    # Packages and where they come from -------------------------------------------------------------------------------

    def _repositories(self) -> list[doc.Repository]:
        repositories: list[doc.Repository] = []
        if self.family["components"]:
            suites = [self.codename, f"{self.codename}-updates", f"{self.codename}-security"]
            components = self.family["components"]
            repositories.append(doc.Repository("baremetal-gpu-components", extend=suites, components=components))
        if self.from_nvidia:
            repositories.append(nvidia_repository(self.params, self.system["repository"], self.machine, self.apt))
        return repositories

    def _pins(self) -> list[doc.Pin]:
        if not self.apt:
            return []
        is_pinned = self.params["state"] == "present" and self.from_nvidia
        return [
            doc.Pin(
                "baremetal-gpu-nvidia",
                "present" if is_pinned else "absent",
                package="*nvidia* libcuda1 libcudadebugger1",
                pin=f"version {self.version}",
                priority=1001,
            )
        ]

    def _driver_packages(self) -> list[doc.Package]:
        """Raises Refused where the system has no such driver."""
        if self.method == "runfile":
            return []
        return driver_packages(
            self.schemes,
            self.system,
            self.method,
            self.branch,
            self.flavour,
            self.version,
            self._is("hold"),
            self._is("persistence"),
            self.fabric_manager,
            self.subnet_manager,
        )

    def _build_packages(self) -> list[doc.Package]:
        """Headers of the kernels, and what the module is built with."""
        rows = [*self.family["headers"], *self.family["runfile_build" if self.method == "runfile" else "build"]]
        kernels = self.params["kernels"]
        return [doc.Package(**row, kernels=kernels if "{kernel}" in row["name"] else None) for row in rows]

    # Documents -------------------------------------------------------------------------------------------------------

    def document(self) -> doc.Document:
        version = self.runfile_version() if self.method == "runfile" else self.version
        return doc.Document(
            repositories=self._repositories(),
            pins=self._pins(),
            packages=[*self._driver_packages(), *self._build_packages(), *self.params["extra_packages"]],
            files=self._files(),
            dkms=[doc.Dkms("nvidia*", version or None, self.params["kernels"])],
            kernel_modules=self._kernel_modules() if self._is("load") else [],
            units=self._units(),
        )

    def _files(self) -> list[doc.Entry]:
        persistence, stream = self._is("persistence"), self.system.get("modular") and self.from_nvidia
        kind = "open" if self.flavour == "open" else "dkms"
        return [
            _file(LOAD, LOAD_TEXT + ("ib_umad\n" if self.subnet_manager else ""), self._is("load")),
            *([doc.Directory(dirname(PERSISTENCE), owner=None, group=None)] if persistence else []),
            # The directory may hold settings of the operator's own.
            _file(PERSISTENCE, render(ROLE, "persistence.conf.j2"), persistence),
            # Held, and left alone by unattended upgrades.
            *([_file(UNATTENDED, UNATTENDED_TEXT, self._is("hold"))] if self.apt else []),
            *([_file(STREAM, STREAM_TEXT.format(branch=self.branch, kind=kind), True, early=True)] if stream else []),
        ]

    def _kernel_modules(self) -> list[doc.KernelModule]:
        return [
            doc.KernelModule(
                "nvidia",
                "loaded",
                # The version that is installed, or libraries and module do not go together.
                current=True,
                unload_first=list(MODULES[:-1]),
                devices=DEVICES,
                units=HOLDERS,
                packages=kernel_packages(self.schemes),
            ),
            doc.KernelModule("nvidia_uvm", "loaded"),
            # The subnet manager talks to the bridges through it.
            *([doc.KernelModule("ib_umad", "loaded")] if self.subnet_manager else []),
        ]

    def _units(self) -> list[doc.Unit]:
        running = self._is("persistence")
        state: Literal["started", "stopped"] = "started" if running else "stopped"
        return [
            doc.Unit("nvidia-persistenced.service", running, state, restart_on=[PERSISTENCE]),
            *([doc.Unit.running("nvidia-fabricmanager.service")] if self.fabric_manager else []),
        ]

    def document_absent(self) -> doc.Document:
        paths = [LOAD, UNATTENDED, RUNFILE, PERSISTENCE]
        if self.system.get("modular") and self.from_nvidia:
            paths.append(STREAM)
        return doc.Document(
            packages=no_driver_packages(self.schemes, self.system),
            pins=self._pins(),
            files=[*map(doc.Absent, paths)],
            # They hold the GPUs open, and go with their packages.
            units=[*map(doc.Unit.stopped, ("nvidia-persistenced.service", "nvidia-fabricmanager.service"))],
            kernel_modules=[doc.KernelModule(name, "unloaded", required=False) for name in MODULES],
        )

    # NVIDIA's installer ----------------------------------------------------------------------------------------------

    def runfile_version(self) -> str:
        if self.exact_version:
            return self.exact_version
        match = _VERSION.search(f"{self.params['runfile_url']}{self.params['runfile_path']}")
        return match[0] if match else ""

    def runfile(self) -> dict[str, Any]:
        version = self.runfile_version()
        sha256, url = self.params["runfile_sha256"], self.params["runfile_url"]
        place = {"url": url} if url else {"source": self.params["runfile_path"]}
        installed = (self.gpu.get("driver") or {}).get("installed") or ""
        return {
            "version": version,
            # The installer replaces an older driver of its own.
            "due": installed != version,
            "desired": doc.Document(
                repositories=self._repositories(),
                packages=[*self._build_packages(), *no_driver_packages(self.schemes, self.system)],
                files=[
                    doc.Directory(dirname(RUNFILE), owner=None, group=None, early=True),
                    doc.File(RUNFILE, None, "0700", None, None, sha256=sha256, early=True, **place),
                ],
            ).plain,
            "unload": UNLOAD.plain,
            # No questions, and X is left alone.
            "command": [
                "/bin/sh",
                RUNFILE,
                "--silent",
                "--no-questions",
                "--ui=none",
                "--dkms",
                "--no-x-check",
                "--no-nouveau-check",
                f"--kernel-module-type={self.flavour}",
                *self.params["runfile_arguments"],
            ],
        }


def _file(path: str, content: str, present: bool, early: bool | None = None) -> doc.Entry:
    return doc.File(path, content, owner=None, group=None, early=early) if present else doc.Absent(path)
