# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the firmware enforces signatures of kernel modules."""

from __future__ import annotations

import glob
import os
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_bytes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below

GLOBAL_VARIABLE = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_VARIABLE = "605dab50-e046-4300-abb6-3dd810dd8b23"
MOK_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")


def secure_boot(root: str = "/") -> dict[str, Any]:
    """Whether the firmware enforces signatures, and whether the key that DKMS signs with is enrolled."""
    firmware = below(root, "sys/firmware/efi")
    if not os.path.isdir(firmware):
        return {"enabled": False, "key": None, "key_enrolled": None}
    variables = os.path.join(firmware, "efivars")
    # Four bytes of attributes come before the value.
    value = read_bytes(os.path.join(variables, f"SecureBoot-{GLOBAL_VARIABLE}"))
    enabled = value[4] == 1 if len(value) >= 5 else None
    key = next((path for path in MOK_KEYS if os.path.exists(below(root, path))), None)
    enrolled = None
    if key:
        certificate = read_bytes(below(root, key))
        lists = [read_bytes(path) for path in glob.glob(os.path.join(variables, f"MokListRT*-{SHIM_VARIABLE}"))]
        if lists and certificate:
            enrolled = any(certificate in content for content in lists)
    return {"enabled": enabled, "key": f"/{key}" if key else None, "key_enrolled": enrolled}
