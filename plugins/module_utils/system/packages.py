# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages that are installed on a host, as far as they matter to the driver and the container engines."""

from __future__ import annotations

import os
import re

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask
from ansible_collections.baremetal.gpu.plugins.module_utils.system.dpkg import STATUS, parse_dpkg

# The rest of the package database is skipped over.
PACKAGES_OF_INTEREST = re.compile(
    r"^(nvidia|libnvidia|libcuda1|cuda|xserver-xorg-video-nvidia|kmod-nvidia|docker|podman|containerd|moby|cri-o|dkms|"
    r"linux-(modules|objects)-nvidia)"
)


def packages(root: str = "/", run: Call = ask) -> dict[str, dict[str, str]]:
    """The installed packages that matter here: name -> version and vendor."""
    found = {}
    status = read_text(below(root, STATUS))
    if status:
        for row in parse_dpkg(status, PACKAGES_OF_INTEREST.match):
            if row["state"] == "installed":
                found[row["name"]] = {"version": row.get("version", ""), "vendor": row.get("vendor", "")}
    elif os.path.isdir(below(root, "var/lib/rpm")) or os.path.isdir(below(root, "usr/lib/sysimage/rpm")):
        command = ["rpm", "--root", root, "-qa", "--qf", "%{NAME}\\t%{VERSION}-%{RELEASE}\\t%{VENDOR}\\n"]
        for line in run(command)[1].splitlines():
            name, version, vendor = [*line.split("\t"), "", ""][:3]
            if PACKAGES_OF_INTEREST.match(name):
                found[name] = {"version": version, "vendor": vendor}
    return found
