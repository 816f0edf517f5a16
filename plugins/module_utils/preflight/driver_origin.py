# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""By which methods the driver that is on a host came there."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below


def installed_method(
    installed: dict[str, dict[str, str]], root: str = "/", family: str | None = "debian"
) -> dict[str, Any]:
    """How the driver that is on the host came there: by which methods, and what shows it.

    On Enterprise Linux all repositories have the same packages, so one takes over from the other.
    """
    evidence: dict[str, str] = {}
    libraries = ("libnvidia-ml1", "libcuda1", "nvidia-driver-cuda", "nvidia-driver-cuda-libs")
    for name, package in sorted(installed.items()) if family != "redhat" else ():
        # Debian's nvidia-kernel-common and the like stay behind when a driver goes, and have no version of one.
        if not driver.VERSION.search(package["version"]):
            continue
        if name in libraries or re.match(r"^(libnvidia-(compute|tesla)|nvidia-(kernel|open-kernel|dkms|tesla))", name):
            vendor = package["vendor"].lower()
            method = "nvidia_repo" if "@nvidia.com" in vendor or vendor == "nvidia" else "distro"
            evidence.setdefault(method, f"package {name} {package['version']}")
    uninstaller = below(root, "usr/bin/nvidia-uninstall")
    if os.path.lexists(uninstaller):
        evidence["runfile"] = "/usr/bin/nvidia-uninstall"
    return evidence
