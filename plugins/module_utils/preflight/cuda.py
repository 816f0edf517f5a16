# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which CUDA toolkits go with the GPUs and the driver."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import compatibility, pci
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.report import Judgement


def plan_cuda(
    host: dict[str, Any], gpu: dict[str, Any], wanted: dict[str, Any], driver: dict[str, Any], judgement: Judgement
) -> list[str]:
    """The toolkits by version; what does not go with GPUs and driver goes into the judgement."""
    if wanted["cuda_state"] == "absent":
        return []
    gpus = pci.gpus(gpu["pci"])
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
        judgement.problems += compatibility.check_cuda(gpus, str(against) if against else None, version)
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
        # The default: a GPU with an old last driver must not stop the host.
        judgement.caution("cuda_distro_skipped", f"{message}, so no toolkit is installed", version, remedy)
    else:
        judgement.problem("cuda_libcuda", message, version, remedy)
    return True


def is_toolkit_installed(packages: dict[str, dict[str, str]], version: str) -> bool:
    major, minor = (*version_key(version), 0)[:2]
    own = packages.get("nvidia-cuda-toolkit", {}).get("version", "")
    return f"cuda-toolkit-{major}-{minor}" in packages or own.startswith(f"{major}.{minor}.")
