# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVIDIA driver as the files of a host show it: what is installed, what is loaded, and nouveau."""

from __future__ import annotations

import glob
import gzip
import lzma
import os
import re
import struct
from typing import Any, BinaryIO

from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key

VERSION = re.compile(r"(?<![\d.])(\d{3}\.\d{2,3}(?:\.\d{2,3})?)(?![\d.])")

# Where the distributions and NVIDIA's installer put the library and the modules.
LIBRARIES = (
    "usr/lib/*-linux-gnu/libnvidia-ml.so.*",
    "usr/lib/*-linux-gnu/nvidia/*/libnvidia-ml.so.*",
    "usr/lib64/libnvidia-ml.so.*",
    "usr/lib/libnvidia-ml.so.*",
)
MODULES = (
    "updates/dkms/nvidia.ko*",
    "updates/dkms/nvidia-current.ko*",
    "updates/dkms/nvidia-current-open.ko*",
    "updates/dkms/nvidia-tesla-*.ko*",
    "updates/nvidia.ko*",
    "extra/nvidia.ko*",
    "extra/nvidia/nvidia.ko*",
    "weak-updates/nvidia.ko*",
    "kernel/drivers/video/nvidia.ko*",
    "kernel/nvidia-*/nvidia.ko*",
)
# Debian names the main module of a tesla branch nvidia-tesla-470-current or so; these are its companions.
_COMPANIONS = re.compile(r"-(drm|modeset|uvm|peermem|fs)\.ko")
# What DKMS calls the driver itself: nvidia (NVIDIA and Ubuntu), nvidia-current and nvidia-tesla-470 (Debian),
# nvidia-srv (Ubuntu) and so on. nvidia-fs, nvidia-peer-memory and their like have versions of their own.
_DKMS_NAME = re.compile(r"nvidia(-current|-tesla|-srv|-server|-legacy)?(-\d{3}(xx)?)?(-server)?(-open)?")
_DKMS_VERSION = re.compile(r"\d{3}\.\d+(\.\d+)?")


def branch_of(version: str | None) -> int | None:
    match = re.match(r"^(\d{3})\b", version or "")
    return int(match.group(1)) if match else None


def parse_proc_version(text: str) -> tuple[str | None, str | None]:
    """Version and flavour from /proc/driver/nvidia/version."""
    for line in text.splitlines():
        if line.startswith("NVRM version:"):
            match = VERSION.search(line)
            if match:
                return match.group(1), "open" if "Open Kernel Module" in line else "proprietary"
    return None, None


def loaded(root: str = "/") -> tuple[str | None, str | None]:
    """Version and flavour of the module in the kernel; (None, None) where none is."""
    version, flavour = parse_proc_version(read_text(os.path.join(root, "proc/driver/nvidia/version")))
    if version is None:
        match = VERSION.search(read_text(os.path.join(root, "sys/module/nvidia/version")))
        version = match.group(1) if match else None
    return version, flavour


def loaded_modules(root: str = "/") -> list[str]:
    return [line.split(" ", 1)[0] for line in read_text(os.path.join(root, "proc/modules")).splitlines() if line]


def modinfo(stream: BinaryIO) -> dict[str, str]:
    """The .modinfo section of a 64-bit little-endian kernel module, without reading the rest of it."""
    header = stream.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return {}
    (table_offset,) = struct.unpack_from("<Q", header, 40)
    entry_size, entries, names_index = struct.unpack_from("<HHH", header, 58)
    stream.seek(table_offset)
    table = stream.read(entry_size * entries)
    if entry_size < 64 or len(table) < entry_size * entries or names_index >= entries:
        return {}

    def section(index: int) -> bytes:
        offset, size = struct.unpack_from("<QQ", table, entry_size * index + 24)
        stream.seek(offset)
        return stream.read(size)

    names = section(names_index)
    for index in range(entries):
        (start,) = struct.unpack_from("<I", table, entry_size * index)
        if names[start : names.find(b"\0", start)] == b".modinfo":
            fields = section(index).decode("utf-8", "replace").split("\0")
            return dict(field.split("=", 1) for field in fields if "=" in field)
    return {}


def _modinfo_of_file(path: str) -> dict[str, str]:
    openers: dict[str, Any] = {".ko": open, ".gz": gzip.open, ".xz": lzma.open}
    opener = openers.get(os.path.splitext(path)[1])
    if opener is None:
        return {}
    try:
        with opener(path, "rb") as stream:
            return modinfo(stream)
    except (OSError, EOFError, lzma.LZMAError, struct.error, ValueError):
        return {}


def gpu(address: str, root: str = "/") -> dict[str, Any]:
    """What the driver has written down of a GPU, {uuid, minor, name}, even if the GPU answers no more."""
    text = read_text(os.path.join(root, f"proc/driver/nvidia/gpus/{address}/information"))
    fields = {key.strip(): value.strip() for key, _colon, value in (line.partition(":") for line in text.splitlines())}
    found: dict[str, Any] = {}
    # A GPU that was never opened has question marks in its UUID.
    if re.fullmatch(r"GPU-[0-9a-f-]{36}", fields.get("GPU UUID", "")):
        found["uuid"] = fields["GPU UUID"]
    if fields.get("Device Minor", "").isdigit():
        found["minor"] = int(fields["Device Minor"])
    if fields.get("Model", "").strip("?. "):
        found["name"] = fields["Model"]
    return found


def is_dkms_driver(name: str, version: str) -> bool:
    """Whether a module that DKMS knows by this name and version is the driver, and not another one of the prefix."""
    return bool(_DKMS_NAME.fullmatch(name) and _DKMS_VERSION.fullmatch(version))


def dkms_modules(root: str = "/") -> dict[str, dict[str, Any]]:
    """What DKMS has installed: kernel -> {name, version} of the driver's module, from DKMS' own tree."""
    found: dict[str, dict[str, Any]] = {}
    libraries = library_version(root)
    ranks: dict[str, Any] = {}
    for link in sorted(glob.glob(os.path.join(root, "var/lib/dkms/nvidia*/kernel-*"))):
        try:
            # <version>/<kernel>/<machine>
            parts = os.readlink(link).strip("/").split("/")
        except OSError:
            continue
        name = os.path.basename(os.path.dirname(link))
        if len(parts) >= 3 and is_dkms_driver(name, parts[-3]):
            version, kernel = parts[-3], parts[-2]
            # A driver of another name may have been left behind. Libraries and module go together.
            rank = (version == libraries, version_key(version))
            if kernel not in ranks or rank >= ranks[kernel]:
                found[kernel], ranks[kernel] = {"name": name, "version": version}, rank
    return found


def modules(root: str = "/") -> dict[str, dict[str, Any]]:
    """Kernel -> {version, flavour, path, dkms} of the NVIDIA module that lies ready for it."""
    dkms = dkms_modules(root)
    found: dict[str, dict[str, Any]] = {}
    for kernel_directory in sorted(glob.glob(os.path.join(root, "lib/modules/*"))):
        kernel = os.path.basename(kernel_directory)
        candidates: list[str] = []
        for pattern in MODULES:
            candidates += sorted(glob.glob(os.path.join(kernel_directory, pattern)))
        candidates = [path for path in candidates if not _COMPANIONS.search(path)]
        if not candidates:
            continue
        path = candidates[0]
        version, flavour = None, None
        if kernel in dkms:
            version = dkms[kernel]["version"]
            name = dkms[kernel]["name"]
            if "open" in name:
                flavour = "open"
            elif name.startswith(("nvidia-current", "nvidia-tesla-")):
                flavour = "proprietary"
        if version is None or flavour is None:
            # Reading a compressed module costs up to a second, so it is the last resort.
            fields = _modinfo_of_file(path)
            version = version or fields.get("version")
            if flavour is None and fields.get("license"):
                flavour = "open" if "GPL" in fields["license"] else "proprietary"
        found[kernel] = {
            "version": version,
            "flavour": flavour,
            "path": "/" + os.path.relpath(path, root),
            "dkms": kernel in dkms,
        }
    return found


def library_version(root: str = "/") -> str | None:
    """The version of the installed NVML library, the newest where several lie about."""
    versions = set()
    for pattern in LIBRARIES:
        for path in glob.glob(os.path.join(root, pattern)):
            match = re.search(r"\.so\.(\d{3}\.\d+(?:\.\d+)?)$", path)
            if match and not os.path.islink(path):
                versions.add(match.group(1))
    return max(versions, key=version_key) if versions else None


def read(root: str = "/", kernel: str | None = None) -> dict[str, Any]:
    """The driver of this host. `kernel` is the running one, whose module counts before those of others."""
    loaded_version, flavour = loaded(root)
    ready = modules(root)
    module = ready.get(kernel or "")
    if module is None and ready:
        module = ready[max(ready, key=version_key)]
    # The library is what applications and NVML compare with the loaded module, so it names the installed version.
    installed = library_version(root) or (module["version"] if module else None)
    if flavour is None and module:
        flavour = module["flavour"]
    return {
        "installed": installed,
        "loaded": loaded_version,
        "nouveau_loaded": "nouveau" in loaded_modules(root),
        "branch": branch_of(loaded_version or installed),
        "flavour": flavour,
    }
