# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The release of Ceph that a distribution packages."""

from __future__ import annotations

# The package lists of a bare host know no Ceph yet. https://packages.debian.org/ceph, https://packages.ubuntu.com/ceph
RELEASES = {"debian-12": "16.2", "debian-13": "18.2", "ubuntu-22.04": "17.2", "ubuntu-24.04": "19.2"}


def packaged_release(path: str = "/etc/os-release") -> str:
    """The release of Ceph that the packages of the distribution have; empty if that is not known."""
    try:
        with open(path, encoding="utf-8") as file:
            pairs = dict(line.strip().split("=", 1) for line in file if "=" in line)
    except OSError:
        return ""
    return RELEASES.get("-".join(pairs.get(key, "").strip("\"'") for key in ("ID", "VERSION_ID")), "")
