# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host bears on its acceptance and is in no fact of its GPUs. Reads only, and asks no network.

What cannot be read is null. Nothing here judges; that is done on the controller, where the whole fleet is known.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.system import clock

SCHEMA = 1
# More devices of a kind than any host has.
MOST = 64
ACS, CAPABILITIES_AT, BRIDGE, DISPLAY = 0x000D, 0x100, "0x0604", "0x03"
BRIDGES_MOST, GROUPS_MOST = 1024, 4096
# Of the ACS control register: requests and completions of peers are sent up to the root.
REDIRECTS = 0x04 | 0x08
SMART_TIMEOUT_S = 20
STARTS_JOBS = ("slurmd", "mesos-agent")
GETENT_TIMEOUT_S = 20
USERS_MOST = 200
# What programs that span GPUs and nodes are built on: its library, as the linker knows it.
LIBRARIES = {"NCCL": "libnccl.so", "MPI": "libmpi.so"}
MODULES = ("etc/profile.d/lmod.sh", "etc/profile.d/modules.sh", "usr/share/lmod", "usr/share/modules")
# What lets a network adapter reach a GPU's memory through a dma-buf.
DMABUF_OPTIONS = ("CONFIG_PCI_P2PDMA", "CONFIG_DMABUF_MOVE_NOTIFY")
LIMITS = {"locked_bytes": "Max locked memory", "open_files": "Max open files"}


def text(path: str, root: str = "/") -> str | None:
    """The first line of a file; None where it cannot be read."""
    try:
        with open(below(root, path), encoding="utf-8", errors="replace") as stream:
            return stream.read(4096).split("\n")[0].strip()
    except OSError:
        return None


def number(path: str, root: str = "/") -> int | None:
    found = text(path, root)
    try:
        return int(found) if found is not None else None
    except ValueError:
        return None


def _names(pattern: str, root: str, is_one: Callable[[str], bool] = bool, most: int = MOST) -> list[str]:
    """The first names of those that are such ones: a host may have hundreds of others beside them."""
    names = sorted(os.path.basename(path) for path in glob.iglob(below(root, pattern)))
    return list(itertools.islice(filter(is_one, names), most))


def _is_device(place: str, root: str) -> bool:
    return os.path.exists(below(root, f"{place}/device"))


def limits(root: str = "/") -> dict[str, dict[str, int | None]]:
    """What jobs inherit: the soft limits of each program that starts them, None for no limit."""
    found = {}
    for process in _names("proc/[0-9]*", root, lambda one: text(f"proc/{one}/comm", root) in STARTS_JOBS):
        name = text(f"proc/{process}/comm", root)
        if name in STARTS_JOBS and name not in found:
            found[name] = _limits_of(process, root)
    return found


def _limits_of(process: str, root: str) -> dict[str, int | None]:
    told: dict[str, int | None] = {}
    try:
        with open(below(root, f"proc/{process}/limits"), encoding="utf-8") as stream:
            for line in stream:
                for key, title in LIMITS.items():
                    if line.startswith(title):
                        soft = line[len(title) :].split()[0]
                        told[key] = int(soft) if soft.isdigit() else None
    except (OSError, IndexError):
        return {}
    return told


def acs_redirects(root: str = "/") -> list[str] | None:
    """The PCI bridges that send what GPUs write to each other up to the root; None where it cannot be read.

    Who is not root reads only the first 64 bytes of a device's configuration.
    """
    found, readable = [], False
    for address in _names("sys/bus/pci/devices/*", root, _is_of_class(BRIDGE, root), BRIDGES_MOST):
        try:
            with open(below(root, f"sys/bus/pci/devices/{address}/config"), "rb") as stream:
                config = stream.read(4096)
        except OSError:
            continue
        readable = readable or len(config) > CAPABILITIES_AT
        if _acs_control(config) & REDIRECTS:
            found.append(address)
    return found if readable else None


def _is_of_class(prefix: str, root: str) -> Callable[[str], bool]:
    """Whether the PCI device at an address is of the class."""
    return lambda address: (text(f"sys/bus/pci/devices/{address}/class", root) or "").startswith(prefix)


def _acs_control(config: bytes) -> int:
    """The control register of Access Control Services; 0 where the bridge has none."""
    at, seen = CAPABILITIES_AT, set()
    while at and at not in seen and at + 8 <= len(config):
        seen.add(at)
        header = struct.unpack_from("<I", config, at)[0]
        if header & 0xFFFF == ACS:
            return int(struct.unpack_from("<H", config, at + 6)[0])
        at = header >> 20 & 0xFFC
    return 0


def iommu_types(root: str = "/") -> dict[str, Any]:
    """How the kernel has set up the IOMMU's groups: "groups" of each type, and the types of "displays", by PCI address.

    A type is `identity` where devices pass through, `DMA` or `DMA-FQ` where their addresses are translated. It follows
    from the kernel's command line, its configuration and what a device demands.
    """
    groups: dict[str, int] = {}
    displays: dict[str, str] = {}
    for group in _names("sys/kernel/iommu_groups/*", root, most=GROUPS_MOST):
        place = f"sys/kernel/iommu_groups/{group}"
        kind = text(f"{place}/type", root)
        if kind is None:
            continue
        groups[kind] = groups.get(kind, 0) + 1
        for address in _names(f"{place}/devices/*", root, _is_of_class(DISPLAY, root)):
            displays[address] = kind
    return {"groups": groups, "displays": displays}


def interfaces(root: str = "/") -> list[dict[str, Any]]:
    """The network interfaces that have a device, with their speed and errors."""
    found = []
    for name in _names("sys/class/net/*", root, lambda one: _is_device(f"sys/class/net/{one}", root)):
        place = f"sys/class/net/{name}"
        counters = ("rx_errors", "tx_errors", "rx_crc_errors")
        found.append(
            {
                "name": name,
                "state": text(f"{place}/operstate", root),
                "speed_mb_s": number(f"{place}/speed", root),
                "mtu": number(f"{place}/mtu", root),
                "errors": {key: number(f"{place}/statistics/{key}", root) for key in counters},
            }
        )
    return found


def infiniband(root: str = "/") -> list[dict[str, Any]]:
    """The ports of InfiniBand and RoCE adapters."""
    found = []
    for port in sorted(glob.glob(below(root, "sys/class/infiniband/*/ports/*")))[:MOST]:
        place = os.path.relpath(port, below(root, "/"))
        adapter = place.split("/")[3]
        counters = ("symbol_error", "link_downed", "link_error_recovery")
        found.append(
            {
                "name": f"{adapter}/{os.path.basename(port)}",
                "state": text(f"{place}/state", root),
                "phys_state": text(f"{place}/phys_state", root),
                "link_layer": text(f"{place}/link_layer", root),
                "rate": text(f"{place}/rate", root),
                "firmware": text(f"sys/class/infiniband/{adapter}/fw_ver", root),
                "errors": {key: number(f"{place}/counters/{key}", root) for key in counters},
            }
        )
    return found


def disks(root: str = "/", run: host_run.Run = host_run.run) -> list[dict[str, Any]]:
    """The disks, and what they say of themselves where smartctl is installed."""
    found = []
    for name in _names("sys/block/*", root, lambda one: _is_device(f"sys/block/{one}", root)):
        model = text(f"sys/block/{name}/device/model", root)
        found.append({"name": name, "model": model, "passed": _smart(name, run)})
    return found


def _smart(name: str, run: host_run.Run) -> bool | None:
    status, out, _err = run(["smartctl", "--json", "--health", f"/dev/{name}"], None, SMART_TIMEOUT_S)
    if status in (host_run.NOT_FOUND, host_run.TIMED_OUT):
        return None
    try:
        passed = json.loads(out).get("smart_status", {}).get("passed")
    except (ValueError, RecursionError, AttributeError):
        return None
    return passed if isinstance(passed, bool) else None


def memory_errors(root: str = "/") -> dict[str, int] | None:
    """Errors of the host's memory since its boot; None where no driver (EDAC) counts them."""
    found = {"corrected": 0, "uncorrected": 0}
    places = _names("sys/devices/system/edac/mc/mc[0-9]*", root)
    for place in places:
        for key, file in (("corrected", "ce_count"), ("uncorrected", "ue_count")):
            found[key] += number(f"sys/devices/system/edac/mc/{place}/{file}", root) or 0
    return found if places else None


def libraries(root: str = "/", run: host_run.Run = host_run.run) -> list[str] | None:
    """Which of NCCL, MPI and modules there are; None where the linker cannot be asked."""
    status, out, _error = run(["/sbin/ldconfig", "-p"], None, GETENT_TIMEOUT_S)
    if status:
        return None
    found = [name for name, library in LIBRARIES.items() if library in out]
    return found + (["modules"] if any(os.path.exists(below(root, path)) for path in MODULES) else [])


def identities(names: Sequence[str], root: str = "/", run: host_run.Run = host_run.run) -> dict[str, Any]:
    """Where users come from, and the uid and gid of some; null for one whom the host does not know."""
    sources: list[str] = []
    with contextlib.suppress(OSError), open(below(root, "etc/nsswitch.conf"), encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("passwd:"):
                sources = [word for word in line.split("#")[0].split()[1:] if not word.startswith("[")]
    ids: dict[str, str | None] = dict.fromkeys(names[:USERS_MOST])
    if ids:
        _status, out, _error = run(["/usr/bin/getent", "passwd", "--", *ids], None, GETENT_TIMEOUT_S)
        for row in (line.split(":") for line in out.splitlines()):
            if len(row) >= 4 and row[0] in ids:
                ids[row[0]] = f"{row[2]}:{row[3]}"
    return {"sources": sources, "ids": ids}


def dmabuf(release: str | None, root: str = "/") -> dict[str, bool | None]:
    """Whether the kernel was built for it, None where that cannot be told; and whether nvidia_peermem is loaded."""
    built: bool | None = None
    with contextlib.suppress(OSError), open(below(root, f"boot/config-{release}"), encoding="utf-8") as stream:
        lines = {line.strip() for line in stream}
        built = all(f"{option}=y" in lines for option in DMABUF_OPTIONS)
    return {"built": built, "peermem": os.path.exists(below(root, "sys/module/nvidia_peermem"))}


def _chosen(path: str, root: str) -> str | None:
    """The choice in brackets: `always [madvise] never`."""
    words = (text(path, root) or "").split()
    return next((word[1:-1] for word in words if word.startswith("[")), None)


def gather(root: str = "/", run: host_run.Run = host_run.run, users: Sequence[str] = ()) -> dict[str, Any]:
    release = text("proc/sys/kernel/osrelease", root)
    return {
        "schema": SCHEMA,
        "versions": {
            "kernel": release,
            "os": _os(root),
            "bios": text("sys/class/dmi/id/bios_version", root),
            "board": text("sys/class/dmi/id/product_name", root),
        },
        "command_line": (text("proc/cmdline", root) or "").split(),
        "numa_nodes": len(_names("sys/devices/system/node/node[0-9]*", root)) or None,
        "numa_balancing": number("proc/sys/kernel/numa_balancing", root),
        "iommu_groups": len(glob.glob(below(root, "sys/kernel/iommu_groups/*"))),
        "iommu_types": iommu_types(root),
        "acs_redirects": acs_redirects(root),
        "hugepages": {
            "reserved": number("proc/sys/vm/nr_hugepages", root),
            "transparent": _chosen("sys/kernel/mm/transparent_hugepage/enabled", root),
        },
        "limits": limits(root),
        "time_synchronised": clock.time_synchronised(root),
        "interfaces": interfaces(root),
        "infiniband": infiniband(root),
        "disks": disks(root, run),
        "memory_errors": memory_errors(root),
        "libraries": libraries(root, run),
        "identities": identities(users, root, run),
        "dmabuf": dmabuf(release, root),
    }


def _os(root: str) -> str | None:
    try:
        with open(below(root, "etc/os-release"), encoding="utf-8") as stream:
            rows = dict(line.rstrip("\n").partition("=")[::2] for line in stream if "=" in line)
    except (OSError, UnicodeDecodeError):
        return None
    return rows.get("PRETTY_NAME", "").strip('"') or None
