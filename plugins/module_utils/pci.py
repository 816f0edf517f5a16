# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's devices on the PCI bus, read from sysfs. Needs no lspci and no driver."""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.data_gpus import ARCHITECTURE_RANGES, MODELS

NVIDIA = "10de"
# Display controllers and 3D controllers are cards; NVSwitch is a bridge of the class "other".
KINDS = {"0300": "gpu", "0302": "gpu", "0680": "nvswitch"}
DEVICES = "sys/bus/pci/devices"


class BusUnreadable(Exception):
    """The host shows no PCI bus, so whether it has cards cannot be told."""


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def _hexadecimal(text: str) -> str:
    return text[2:].lower() if text.startswith("0x") else text.lower()


def normal_address(address: str) -> str:
    """The way the kernel writes an address: NVML has eight digits of domain and capitals."""
    match = re.match(r"^([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])$", address.strip())
    if not match:
        return address.strip().lower()
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function}".lower()


def architecture(device_id: str) -> str | None:
    """The architecture of a PCI device id such as `20b0`, or None for one that is not known."""
    row = MODELS.get(device_id.lower())
    if row:
        return str(row["architecture"])
    try:
        number = int(device_id, 16)
    except ValueError:
        return None
    for first, last, name, _source in ARCHITECTURE_RANGES:
        if first <= number <= last:
            return name
    return None


def model(device_id: str) -> str | None:
    row = MODELS.get(device_id.lower())
    return str(row["model"]) if row else None


def scan(root: str = "/") -> list[dict[str, Any]]:
    """Every NVIDIA card and NVSwitch, in the order of their addresses.

    Raises BusUnreadable where there is no PCI bus to look at.
    """
    base = os.path.join(root, DEVICES)
    try:
        addresses = sorted(os.listdir(base))
    except OSError as error:
        raise BusUnreadable(f"/{DEVICES} cannot be read: {error.strerror}") from error
    found = []
    for address in addresses:
        device = os.path.join(base, address)
        if _hexadecimal(_read(os.path.join(device, "vendor"))) != NVIDIA:
            continue
        device_class = _hexadecimal(_read(os.path.join(device, "class")))[:4]
        kind = KINDS.get(device_class)
        if kind is None:
            continue
        device_id = _hexadecimal(_read(os.path.join(device, "device")))
        driver = os.path.join(device, "driver")
        found.append(
            {
                "address": normal_address(address),
                "vendor": NVIDIA,
                "device": device_id,
                "class": device_class,
                "model": model(device_id),
                "architecture": architecture(device_id) if kind == "gpu" else None,
                "driver": os.path.basename(os.readlink(driver)) if os.path.islink(driver) else None,
                "kind": kind,
            }
        )
    return found


def numa_node(address: str, root: str = "/") -> int | None:
    """The NUMA node that sysfs names for a device; None where the machine has no such thing."""
    text = _read(os.path.join(root, DEVICES, address, "numa_node"))
    try:
        node = int(text)
    except ValueError:
        return None
    return node if node >= 0 else None


def cpus(address: str, root: str = "/") -> str | None:
    """The CPUs that are nearest to a device, as a list such as 0-15,64-79."""
    return _read(os.path.join(root, DEVICES, address, "local_cpulist")) or None
