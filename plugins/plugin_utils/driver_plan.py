# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role nvidia_driver makes of its variables and of what is known of a host.

Pure, and all of it at once: Ansible works a variable out anew each time it is asked for, and compiles its template
anew, so that a plan in templates costs a host more than the comparison with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from posixpath import dirname
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.plugin_utils.driver_packages import (
    driver_packages,
    kernel_packages,
    no_driver_packages,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.system_of import planned_system, system_of

Document = dict[str, Any]

REPOSITORIES = "https://developer.download.nvidia.com/compute/cuda/repos"
# NVIDIA's names of machines.
MACHINES = {"x86_64": "x86_64", "aarch64": "sbsa"}

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
# Each before what it stands on.
MODULES = ("nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia_peermem", "nvidia")
DEVICES = [
    "/dev/nvidia[0-9]*",
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
    "/dev/nvidia-modeset",
]
# Units that hold the cards.
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
# The daemon gives up root before it looks for the cards, so it cannot make their device files itself, and nobody has
# made them yet when it starts right after the module was loaded.
PERSISTENCE_TEXT = rf"""# {WRITTEN}
[Service]
# 255 is nvidiactl.
ExecStartPre=-+/bin/sh -c 'for minor in 255 $(sed -n "s/^Device Minor:[[:space:]]*//p" \
    /proc/driver/nvidia/gpus/*/information); do nvidia-modprobe -c "$$minor"; done'
"""
# Which stream of the module dnf takes; the file is dnf's own and in the form that dnf writes.
STREAM_TEXT = "[nvidia-driver]\nname=nvidia-driver\nprofiles=\nstate=enabled\nstream={branch}-{kind}\n"
_VERSION = re.compile(r"[0-9]{3}\.[0-9]{2,3}(\.[0-9]{2,3})?")

# What must not be before NVIDIA's installer can put another driver in the place of the loaded one.
UNLOAD: Document = {
    "units": [{"name": name, "state": "stopped"} for name in HOLDERS],
    "kernel_modules": [
        *({"name": name, "state": "unloaded"} for name in MODULES[:-1]),
        {"name": "nvidia", "state": "unloaded", "devices": DEVICES, "units": HOLDERS},
    ],
}


def plan(
    variables: Mapping[str, Any],
    schemes: Mapping[str, Any],
    systems: Mapping[str, Any],
    families: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """The plan of one host.

    :param variables: the role's variables, with their whole names.
    :param schemes: how the packages of a driver are called; see the role's variables, as for the next two.
    :param systems: which scheme a system has, by its key.
    :param families: what systems of a kind have in common.
    :param facts: the host's facts; of them `gpu`, `gpu_plan` or, for want of that, the distribution.
    :return: `check`: whether there is something to find out or to refuse before anything else. `finished`: what
        the host is like when there is nothing left to do; None where comparing it does not tell. `objections`: what
        preflight would have said, had it been asked with these variables. `way`: the name of the role's tasks that do
        it. `desired`: the document for it, empty where there are objections. `runfile`: of NVIDIA's installer
        `version`, `due`: whether it has to run, `desired`: the document before it can, `unload`: what must not be
        loaded then, and `command`; empty where another way is taken. `settings`: the directory of the persistence
        daemon's settings.
    """
    asked = {name.removeprefix("nvidia_driver_"): value for name, value in variables.items()}
    key = system_of(facts)
    present = asked["state"] == "present"
    found: dict[str, Any] = {
        "check": True,
        "finished": None,
        "objections": [],
        "way": "present_runfile" if present and asked["method"] == "runfile" else asked["state"],
        "desired": {},
        "runfile": {},
        "settings": dirname(PERSISTENCE),
    }
    if key not in systems:
        known = ", ".join(systems)
        found["objections"] = [f"the operating system {key} is not supported; use one of {known}"]
        return found
    wanted = _Wanted(asked, schemes, systems[key], families[systems[key]["family"]], facts)
    found["objections"] = wanted.objections() if present else []
    found["check"] = not planned_system(facts) or bool(found["objections"])
    if not found["objections"]:
        found["desired"] = wanted.document() if present else wanted.document_absent()
        found["runfile"] = wanted.runfile() if found["way"] == "present_runfile" else {}
    # An installer, or an uninstaller, is asked what it has left behind.
    if not found["check"] and found["way"] == "present":
        found["finished"] = found["desired"]
    return found


class _Wanted:
    """What is asked for, for one host of a known system."""

    def __init__(
        self,
        asked: Mapping[str, Any],
        schemes: Mapping[str, Any],
        system: Mapping[str, Any],
        family: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> None:
        self.asked, self.schemes, self.system, self.family = asked, dict(schemes), dict(system), family
        self.gpu: Mapping[str, Any] = facts.get("gpu") or {}
        planned: Mapping[str, Any] = facts.get("gpu_plan") or {}
        found: Mapping[str, Any] = planned.get("driver") or {}
        # What the variables leave open is what preflight found for the cards.
        self.asked_version = str(asked["version"])
        self.branch = self.asked_version[:3] or self._or_found("branch", found)
        self.flavour = self._or_found("flavour", found)
        self.version = self._version()
        os: Mapping[str, Any] = planned.get("os") or {}
        self.machine = str(os.get("machine") or facts.get("architecture") or "x86_64")
        self.codename = str(os.get("codename") or facts.get("distribution_release") or "")
        self.method = str(asked["method"])
        self.from_nvidia = self.method == "nvidia_repo"
        self.apt = system["family"] in ("debian", "ubuntu")
        # Fabric Manager is for NVSwitches, and harmful without them.
        self.fabric_manager = pci.needs_fabric_manager(self.gpu.get("pci"))
        self.subnet_manager = pci.needs_subnet_manager(self.gpu.get("pci"))

    def _or_found(self, name: str, found: Mapping[str, Any]) -> str:
        return str(self.asked[name] if self.asked[name] != "auto" else found.get(name) or "")

    def _version(self) -> str:
        """The revision of the package may be left out of a version."""
        if not self.asked_version:
            return f"{self.branch}.*"
        exact = "-" in self.asked_version or "*" in self.asked_version
        return self.asked_version if exact else f"{self.asked_version}*"

    def _is(self, name: str) -> bool:
        return bool(boolean(self.asked[name]))

    def objections(self) -> list[str]:
        asked, found = self.asked, []
        if not (self.branch and self.flavour):
            found.append(
                "no driver branch and flavour were found for the cards; set nvidia_driver_branch and "
                "nvidia_driver_flavour, or run gpu_preflight, which says why"
            )
        if self.from_nvidia and not asked["repo_url"] and self.machine not in MACHINES:
            found.append(
                f"NVIDIA has no repository for machines of type {self.machine}; set nvidia_driver_repo_url to one of "
                "your own"
            )
        if self.from_nvidia and not asked["repo_key_sha256"] and not asked["repo_options"]:
            found.append(
                "nvidia_driver_repo_key_sha256 is not set, so the key of NVIDIA's repository cannot be checked; set it "
                "to what sha256sum prints for the key at nvidia_driver_repo_key_url or nvidia_driver_repo_key_path, or "
                "declare the repository as trusted in nvidia_driver_repo_options"
            )
        if self.method == "runfile":
            if not (asked["runfile_sha256"] and (asked["runfile_url"] or asked["runfile_path"])):
                found.append(
                    "nvidia_driver_runfile_sha256 and either nvidia_driver_runfile_url or nvidia_driver_runfile_path "
                    "must be set"
                )
            if not self.runfile_version():
                found.append("the version of the installer is not in its name; set nvidia_driver_version")
        if not found:
            try:
                self._driver_packages()
            except ValueError as error:
                found.append(str(error))
        return found

    # Packages and where they come from -------------------------------------------------------------------------------

    def _repositories(self) -> list[Document]:
        found: list[Document] = []
        if self.family["components"]:
            suites = [self.codename, f"{self.codename}-updates", f"{self.codename}-security"]
            components = self.family["components"]
            found.append({"name": "baremetal-gpu-components", "extend": suites, "components": components})
        if self.from_nvidia:
            found.append(self._repository())
        return found

    def _repository(self) -> Document:
        own = f"{REPOSITORIES}/{self.system['repository']}/{MACHINES.get(self.machine, '')}/"
        url = self.asked["repo_url"] or own
        item: Document = {
            "name": "nvidia-cuda",
            "uris": [url],
            "suites": ["/"],
            "baseurl": url,
            "options": self.asked["repo_options"],
        }
        if self.asked["repo_key_sha256"]:
            source = "path" if self.asked["repo_key_path"] else "url"
            directory = "/etc/apt/keyrings" if self.apt else "/etc/pki/rpm-gpg"
            item["key"] = {
                "dest": f"{directory}/nvidia-cuda.asc",
                "sha256": self.asked["repo_key_sha256"],
                source: self.asked[f"repo_key_{source}"],
            }
        return item

    def _pins(self) -> list[Document]:
        if not self.apt:
            return []
        return [
            {
                "name": "baremetal-gpu-nvidia",
                "state": "present" if self.asked["state"] == "present" and self.from_nvidia else "absent",
                "package": "*nvidia* libcuda1 libcudadebugger1",
                "pin": f"version {self.version}",
                "priority": 1001,
            }
        ]

    def _driver_packages(self) -> list[Document]:
        """Raises ValueError where there is no such driver for the system."""
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

    def _build_packages(self) -> list[Document]:
        """Headers of the kernels, and what the module is built with."""
        headers = [
            {**row, "kernels": self.asked["kernels"]} if "{kernel}" in row["name"] else row
            for row in self.family["headers"]
        ]
        return [*headers, *self.family["runfile_build" if self.method == "runfile" else "build"]]

    # Documents -------------------------------------------------------------------------------------------------------

    def document(self) -> Document:
        return {
            "repositories": self._repositories(),
            "pins": self._pins(),
            "packages": [*self._driver_packages(), *self._build_packages(), *self.asked["extra_packages"]],
            "files": self._files(),
            "dkms": [{"name": "nvidia*", "kernels": self.asked["kernels"], **self._dkms_version()}],
            "kernel_modules": self._kernel_modules() if self._is("load") else [],
            "units": self._units(),
        }

    def _dkms_version(self) -> Document:
        wanted = self.runfile_version() if self.method == "runfile" else self.version
        return {"version": wanted} if wanted else {}

    def _files(self) -> list[Document]:
        persistence, stream = self._is("persistence"), self.system.get("modular") and self.from_nvidia
        kind = "open" if self.flavour == "open" else "dkms"
        return [
            _file(LOAD, LOAD_TEXT + ("ib_umad\n" if self.subnet_manager else ""), self._is("load")),
            *([{"path": dirname(PERSISTENCE), "state": "directory", "mode": "0755"}] if persistence else []),
            # The directory may hold settings of the operator's own.
            _file(PERSISTENCE, PERSISTENCE_TEXT, persistence),
            # Held, and left alone by unattended upgrades.
            *([_file(UNATTENDED, UNATTENDED_TEXT, self._is("hold"))] if self.apt else []),
            *(
                [{**_file(STREAM, STREAM_TEXT.format(branch=self.branch, kind=kind), True), "early": True}]
                if stream
                else []
            ),
        ]

    def _kernel_modules(self) -> list[Document]:
        return [
            {
                "name": "nvidia",
                "state": "loaded",
                # The version that is installed, or libraries and module do not go together.
                "current": True,
                "unload_first": list(MODULES[:-1]),
                "devices": DEVICES,
                "units": HOLDERS,
                "packages": kernel_packages(self.schemes),
            },
            {"name": "nvidia_uvm", "state": "loaded"},
            # The subnet manager talks to the bridges through it.
            *([{"name": "ib_umad", "state": "loaded"}] if self.subnet_manager else []),
        ]

    def _units(self) -> list[Document]:
        wanted = self._is("persistence")
        persistence = {
            "name": "nvidia-persistenced.service",
            "enabled": wanted,
            "state": "started" if wanted else "stopped",
            "restart_on": [PERSISTENCE],
        }
        fabric_manager = {"name": "nvidia-fabricmanager.service", "enabled": True, "state": "started"}
        return [persistence, *([fabric_manager] if self.fabric_manager else [])]

    def document_absent(self) -> Document:
        paths = [LOAD, UNATTENDED, RUNFILE, PERSISTENCE]
        if self.system.get("modular") and self.from_nvidia:
            paths.append(STREAM)
        return {
            "packages": no_driver_packages(self.schemes, self.system),
            "pins": self._pins(),
            "files": [{"path": path, "state": "absent"} for path in paths],
            # They hold the cards, and go with their packages.
            "units": [
                {"name": f"{name}.service", "enabled": False, "state": "stopped"}
                for name in ("nvidia-persistenced", "nvidia-fabricmanager")
            ],
            "kernel_modules": [{"name": name, "state": "unloaded", "required": False} for name in MODULES],
        }

    # NVIDIA's installer ----------------------------------------------------------------------------------------------

    def runfile_version(self) -> str:
        if self.asked_version:
            return self.asked_version
        found = _VERSION.search(f"{self.asked['runfile_url']}{self.asked['runfile_path']}")
        return found[0] if found else ""

    def runfile(self) -> Document:
        version = self.runfile_version()
        source = "url" if self.asked["runfile_url"] else "source"
        installed = (self.gpu.get("driver") or {}).get("installed") or ""
        return {
            "version": version,
            # The installer replaces an older driver of its own.
            "due": installed != version,
            "desired": {
                "repositories": self._repositories(),
                "packages": [*self._build_packages(), *no_driver_packages(self.schemes, self.system)],
                "files": [
                    {"path": dirname(RUNFILE), "state": "directory", "mode": "0755", "early": True},
                    {
                        "path": RUNFILE,
                        "mode": "0700",
                        "early": True,
                        "sha256": self.asked["runfile_sha256"],
                        source: self.asked["runfile_url"] or self.asked["runfile_path"],
                    },
                ],
            },
            "unload": UNLOAD,
            # It is told not to ask and not to touch X.
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
                *self.asked["runfile_arguments"],
            ],
        }


def _file(path: str, content: str, wanted: bool) -> Document:
    return {"path": path, "mode": "0644", "content": content} if wanted else {"path": path, "state": "absent"}
