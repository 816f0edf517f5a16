# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The devices of a host that concern the NVIDIA driver: which there are, and which of them are this host's to use.

The one place that decides it, for everybody: facts, preflight, health, verification, placement. Read from sysfs; needs
no lspci and no driver. What counts is the vendor, the class and the known ids, whether it is a physical function, and
the kernel driver that is bound. A GPU that is handed through to a virtual machine is there and has a name, but is left
out of everything that is counted, planned or judged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.models import (
    ARCHITECTURE_RANGES,
    BRIDGED_MODELS,
    MODELS,
    NVSWITCH_RANGES,
    TOO_OLD_RANGES,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

NVIDIA = "10de"
MELLANOX = "15b3"
# A display controller (VGA) or a 3D controller is a GPU. An NVSwitch is a bridge of the class "other", as are devices
# of NVIDIA's old chipsets for mainboards, so that its id counts too.
GPU_CLASSES = ("0300", "0302")
SWITCH_CLASS = "0680"
# The NVSwitches of HGX B200 and B300 are no PCI devices. ConnectX functions that say so in their vital product data
# are the way to them; a network adapter has the same ids.
NETWORK_CLASS = "02"
BRIDGE_MARK = b"SW_MNG"
BRIDGE_MODEL = "NVSwitch management bridge"
VPD_MOST = 32768
DEVICES = "sys/bus/pci/devices"

# Who binds a device in order to give it away. Those of VFIO are known by their names: vfio-pci, nvgrace-gpu-vfio-pci.
GIVING_AWAY = ("pci-stub", "pciback", "xen-pciback", "uio-pci-generic", "igb-uio")

_ADDRESS = re.compile(r"([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")
_ID = re.compile(r"[0-9a-f]{4}")
_CLASS = re.compile(r"[0-9a-f]{4,8}")
_ATTRIBUTE_MOST = 4096
# File of vital product data -> (what the file is, whether it is a bridge's). Reading one takes milliseconds of
# configuration cycles, and its content never changes.
_bridges: dict[str, tuple[Any, bool]] = {}


class BusUnreadable(Exception):
    """The host shows no PCI bus, so whether it has GPUs cannot be told."""


def _attribute(path: str) -> str:
    return read_text(path, _ATTRIBUTE_MOST).strip()


def _hexadecimal(text: str) -> str:
    return text[2:].lower() if text.startswith(("0x", "0X")) else text.lower()


def _id(path: str) -> str:
    """A vendor's or device's id; empty where the file holds none."""
    found = _hexadecimal(_attribute(path))
    return found if _ID.fullmatch(found) else ""


def _class(path: str) -> str:
    found = _hexadecimal(_attribute(path))
    return found[:4] if _CLASS.fullmatch(found) else ""


def _bound(device: str) -> str | None:
    """The kernel driver that has a device; None where none has."""
    try:
        return one_line(os.path.basename(os.readlink(os.path.join(device, "driver"))), 64) or None
    except OSError:
        return None


def _among(device_id: str, ranges: Iterable[tuple[Any, ...]]) -> tuple[Any, ...] | None:
    """The row of a table (first id, last id, ...) that an id such as `20b0` lies in."""
    try:
        number = int(str(device_id), 16)
    except ValueError:
        return None
    return next((row for row in ranges if row[0] <= number <= row[1]), None)


def architecture(device_id: str) -> str | None:
    """The architecture of a PCI device id such as `20b0`, or None for one that is not known."""
    row = MODELS.get(device_id.lower())
    if row:
        return str(row["architecture"])
    found = _among(device_id, ARCHITECTURE_RANGES)
    return str(found[2]) if found else None


def model(device_id: str) -> str | None:
    row = MODELS.get(device_id.lower())
    return str(row["model"]) if row else None


# Whose a device is ---------------------------------------------------------------------------------------------------


def gives_away(driver: Any) -> bool:
    """Whether a kernel driver is bound to a device only so that somebody else, such as a virtual machine, has it."""
    name = str(driver or "").lower().replace("_", "-")
    return name.startswith("vfio") or name.endswith("vfio-pci") or name in GIVING_AWAY


def is_handed_through(row: dict[str, Any]) -> bool:
    return gives_away(row.get("driver") or row.get("driver_override"))


def is_too_old(row: dict[str, Any]) -> bool:
    """Whether a GPU is older than anything that computes with a driver of today, as on the boards of old chipsets."""
    return _among(str(row.get("device") or ""), TOO_OLD_RANGES) is not None


def _of_kind(rows: Any, kind: str) -> list[dict[str, Any]]:
    """What comes from a host need not be a list of objects."""
    listed = rows if isinstance(rows, (list, tuple)) else ()
    return [row for row in listed if isinstance(row, dict) and row.get("kind") == kind]


def gpus(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The GPUs of this host among rows of scan(), of facts or of a snapshot."""
    return [row for row in _of_kind(rows, "gpu") if not is_handed_through(row) and not is_too_old(row)]


def others(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The GPUs that are there and not this host's to use."""
    return [row for row in _of_kind(rows, "gpu") if is_handed_through(row) or is_too_old(row)]


def nvswitches(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [row for row in _of_kind(rows, "nvswitch") if not is_handed_through(row)]


def bridges(rows: Sequence[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """The ways to NVSwitches that are no PCI devices themselves."""
    return [row for row in _of_kind(rows, "nvswitch_bridge") if not is_handed_through(row)]


def needs_fabric_manager(rows: Sequence[dict[str, Any]] | None) -> bool:
    """Whether the GPUs hang on NVSwitches of this host, so that CUDA does not start without Fabric Manager."""
    return bool(nvswitches(rows) or bridges(rows))


def needs_subnet_manager(rows: Sequence[dict[str, Any]] | None) -> bool:
    """Whether Fabric Manager in its turn needs the NVLink Subnet Manager (NVLSM)."""
    return bool(bridges(rows))


def lacks_bridges(rows: Sequence[dict[str, Any]] | None) -> bool:
    """Whether there are GPUs that hang on NVSwitches, and no way to any was found."""
    return not needs_fabric_manager(rows) and any(row.get("device") in BRIDGED_MODELS for row in gpus(rows))


def why_not_ours(row: dict[str, Any]) -> str:
    """In words, what a GPU of others() is."""
    named = f"{row.get('address')} ({row.get('model') or '10de:' + str(row.get('device') or '?')})"
    if not is_handed_through(row):
        return f"{named} is older than anything that computes with a driver of today"
    if row.get("driver"):
        return f"{named} is bound to {row['driver']}, so it is another's, such as a virtual machine's"
    return f"{named} is set aside for {row.get('driver_override')}"


# What is there -------------------------------------------------------------------------------------------------------


def scan(root: str = "/") -> list[dict[str, Any]]:
    """Every GPU, every NVSwitch and every way to one, in the order of their addresses; see gpus() for those in use.

    A virtual function (SR-IOV) is a part of a GPU that is in the list, and no GPU of its own. Raises BusUnreadable
    where there is no PCI bus to look at.
    """
    base = os.path.join(root, DEVICES)
    try:
        addresses = sorted(name for name in os.listdir(base) if _ADDRESS.fullmatch(name))
    except OSError as error:
        raise BusUnreadable(f"/{DEVICES} cannot be read: {error.strerror}") from error
    found: list[dict[str, Any]] = []
    # Whether a network adapter is a way to NVSwitches is not known before the GPUs are.
    adapters: dict[str, str] = {}
    for name in addresses:
        device = os.path.join(base, name)
        row = _row(name, device)
        if row is None or os.path.lexists(os.path.join(device, "physfn")):
            continue
        if row["kind"] == "nvswitch_bridge":
            adapters[row["address"]] = device
        found.append(row)
    ask = _may_have_bridges(found)
    return [row for row in found if row["address"] not in adapters or (ask and _is_bridge(adapters[row["address"]]))]


def _row(name: str, device: str) -> dict[str, Any] | None:
    """What is known of a device at its place in sysfs; None where it does not concern the driver."""
    vendor = _id(os.path.join(device, "vendor"))
    if vendor not in (NVIDIA, MELLANOX):
        return None
    row: dict[str, Any] = {
        "address": normal_address(name),
        "vendor": vendor,
        "device": _id(os.path.join(device, "device")),
        "class": _class(os.path.join(device, "class")),
        "model": None,
        "architecture": None,
        "driver": _bound(device),
        "kind": None,
    }
    if vendor == MELLANOX:
        if not row["class"].startswith(NETWORK_CLASS):
            return None
        row.update(kind="nvswitch_bridge", model=BRIDGE_MODEL)
    elif row["class"] in GPU_CLASSES:
        row.update(kind="gpu", model=model(row["device"]), architecture=architecture(row["device"]))
    elif row["class"] == SWITCH_CLASS and _among(row["device"], NVSWITCH_RANGES):
        row.update(kind="nvswitch")
    else:
        return None
    if row["driver"] is None:
        aside = one_line(_attribute(os.path.join(device, "driver_override")), 64)
        # Until somebody uses it, such a device has no driver, and NVIDIA's will not get it.
        if gives_away(aside):
            row["driver_override"] = aside
    return row


def _may_have_bridges(rows: list[dict[str, Any]]) -> bool:
    """Whether it is worth asking network adapters: only the newest GPUs have NVSwitches that are no PCI devices."""
    return not nvswitches(rows) and any(row["architecture"] in ("blackwell", None) for row in gpus(rows))


def _is_bridge(device: str) -> bool:
    if BRIDGE_MARK.decode() in _attribute(os.path.join(device, "label")):
        return True
    path = os.path.join(device, "vpd")
    try:
        status = os.stat(path)
        of = (status.st_ino, status.st_mtime_ns)
        if path not in _bridges or _bridges[path][0] != of:
            with open(path, "rb") as stream:
                _bridges[path] = (of, BRIDGE_MARK in stream.read(VPD_MOST))
        return _bridges[path][1]
    except OSError:
        # Only root may read it, and an adapter need not have any.
        return False


def numa_node(address: str, root: str = "/") -> int | None:
    """The NUMA node that sysfs names for a device; None where the machine has no such thing."""
    text = _attribute(os.path.join(root, DEVICES, address, "numa_node"))
    try:
        node = int(text)
    except ValueError:
        return None
    return node if node >= 0 else None


def cpus(address: str, root: str = "/") -> str | None:
    """The CPUs that are nearest to a device, as a list such as 0-15,64-79."""
    return _attribute(os.path.join(root, DEVICES, address, "local_cpulist")) or None
