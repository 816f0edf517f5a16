# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether nouveau may have the GPUs, from the variable of the role nouveau."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

FILE = "/etc/modprobe.d/baremetal-gpu-nouveau.conf"
BLACKLIST = """# Written by baremetal.gpu; changes are overwritten.
# NVIDIA's driver cannot take a GPU that nouveau has.
blacklist nouveau
options nouveau modeset=0
"""


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables.
    :return: The part `file` is the path of the file that keeps nouveau off.
    """
    return Plan(_blacklisted() if params["state"] == "blacklisted" else _allowed(), parts={"file": FILE})


def _blacklisted() -> doc.Document:
    return doc.Document(
        files=[doc.File(FILE, BLACKLIST)],
        initramfs=doc.Initramfs([FILE]),
        # A module that is in use now is gone after a reboot.
        kernel_modules=[doc.KernelModule("nouveau", "unloaded", required=False)],
    )


def _allowed() -> doc.Document:
    return doc.Document(files=[doc.Absent(FILE)], initramfs=doc.Initramfs([FILE]))
