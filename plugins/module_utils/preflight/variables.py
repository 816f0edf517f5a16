# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The variables of the roles as a preflight reads them: choices, defaults, and what means nothing."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement

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
    "converge_reboot": ("allowed", "refused"),
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
    "converge_reboot": "refused",
}
METHODS = {"distro": "the distribution", "nvidia_repo": "NVIDIA's repository", "runfile": "NVIDIA's installer"}


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
    if isinstance(branch, bool) or not re.match(r"^(auto|\d{3})\Z", str(branch)):
        judgement.problem(
            "variable",
            "nvidia_driver_branch is not a driver branch",
            branch,
            "set nvidia_driver_branch to auto or to the number of a branch, such as 550",
        )
        branch = "auto"
    wanted["nvidia_driver_branch"] = branch if branch == "auto" else int(branch)
    version = str(wanted["nvidia_driver_version"] or "")
    if version and not re.match(r"^\d{3}\.[\w.*~+:-]+\Z", version):
        judgement.problem(
            "variable",
            "nvidia_driver_version is not a driver version",
            version,
            "set nvidia_driver_version to a version such as 550.163.01, or leave it empty",
        )
        version = ""
    wanted["nvidia_driver_version"] = version
    toolkits = wanted["cuda_versions"]
    if not isinstance(toolkits, list):
        judgement.problem(
            "variable",
            "cuda_versions is not a list",
            toolkits,
            "set cuda_versions to a list such as ['distro'] or ['12.4', '11.8'], or to [] for none",
        )
        toolkits = []
    good = []
    for toolkit in toolkits:
        if re.match(r"^(distro|\d{1,2}\.\d{1,2}(\.\d{1,2})?)\Z", str(toolkit)):
            good.append(str(toolkit))
        else:
            judgement.problem(
                "variable",
                "cuda_versions names something that is not a CUDA version",
                toolkit,
                "write the versions as texts such as '12.4', or distro for the distribution's own",
            )
    wanted["cuda_versions"] = good
    return wanted
