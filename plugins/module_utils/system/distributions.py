# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The operating systems that the collection knows, and how far each was tried.

Only data. `level` says what stands behind the row: `ci` runs in the tests of every change, `documented` follows the
vendor's documents and was not run, `hardware` was also run on a machine with real GPUs.
"""

from __future__ import annotations

SUPPORTED = {
    "debian12": {"name": "Debian 12", "family": "debian", "level": "ci", "repository": "debian12"},
    "debian13": {"name": "Debian 13", "family": "debian", "level": "ci", "repository": "debian13"},
    "ubuntu22.04": {"name": "Ubuntu 22.04", "family": "debian", "level": "documented", "repository": "ubuntu2204"},
    "ubuntu24.04": {"name": "Ubuntu 24.04", "family": "debian", "level": "documented", "repository": "ubuntu2404"},
    "el8": {"name": "Enterprise Linux 8", "family": "redhat", "level": "documented", "repository": "rhel8"},
    "el9": {"name": "Enterprise Linux 9", "family": "redhat", "level": "documented", "repository": "rhel9"},
    "el10": {"name": "Enterprise Linux 10", "family": "redhat", "level": "documented", "repository": "rhel10"},
}

# What apt's archives call these releases.
CODENAMES = {"debian12": "bookworm", "debian13": "trixie", "ubuntu22.04": "jammy", "ubuntu24.04": "noble"}

# ID in /etc/os-release -> the prefix of a key above, and how many parts of VERSION_ID belong to the key.
IDS = {
    "debian": ("debian", 1),
    "ubuntu": ("ubuntu", 2),
    "rhel": ("el", 1),
    "rocky": ("el", 1),
    "almalinux": ("el", 1),
    "centos": ("el", 1),
    "ol": ("el", 1),
}

MACHINES = ("x86_64", "aarch64")
