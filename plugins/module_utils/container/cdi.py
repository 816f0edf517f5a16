# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Container Device Interface specification of a host's NVIDIA GPUs.

It holds what `nvidia-ctk cdi generate` writes for the same host: every GPU by index and by UUID, `all`, the control
nodes, the driver's libraries, programs, sockets and firmware (NVIDIA/nvidia-container-toolkit, pkg/nvcdi).

One thing is different where NVIDIA's hook program is not installed. A container has a loader cache of its own, which
does not know of libraries that are mounted into it; the hook updates it and makes the links that programs look for.
Without the hook each library is mounted into a directory that the loader searches anyway, under each of its names.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
import stat
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi_search
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, driver
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below

KIND = "nvidia.com/gpu"
FILE = "/etc/cdi/nvidia.json"
# JSON has no comments, engines refuse keys that the interface does not have, and annotations need engines that know
# 0.6.0. So a variable in the containers' environment says who wrote the specification.
MARK = "BAREMETAL_GPU_CDI=nvidia_cdi"
# How the YAML begins that this module wrote before.
FORMER_MARK = "# Written by Ansible (baremetal.gpu.nvidia_cdi)."

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
)
# Not /tmp/nvidia-mps: anybody can take that name, with a link to what the engine then mounts as root.
SOCKETS = ("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket")
# What makes rendering without a screen work in a container. Most compute nodes have none of them.
GRAPHICS_FILES = (
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/egl/egl_external_platform.d/10_nvidia_wayland.json",
    "/usr/share/egl/egl_external_platform.d/15_nvidia_gbm.json",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
)
PROGRAM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
# Libraries that must be there for CUDA to work, whatever their file is called.
COMPUTE_LIBRARIES = (
    "libcuda.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-cfg.so.1",
    "libcudadebugger.so.1",
    "libnvidia-opencl.so.1",
)
# Links that a development package has and that programs open nevertheless.
EXTRA_NAMES = {
    "libcuda.so.1": ("libcuda.so",),
    "libnvidia-opticalflow.so.1": ("libnvidia-opticalflow.so",),
}
READ_ONLY = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET_OPTIONS = (*READ_ONLY, "noexec")

UUID = re.compile(r"^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
DEVICE_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?\Z")
KIND_PATTERN = re.compile(r"^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_-]*[A-Za-z0-9]\Z")
HOOK_NAMES = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")


class CannotTell(Exception):
    """The host does not show what the specification needs."""


@dataclass(frozen=True)
class Gpu:
    index: int
    minor: int
    address: str
    uuid: str | None


@dataclass(frozen=True)
class Library:
    """A library's file, and every name by which a program may ask for it."""

    path: str
    names: tuple[str, ...]


@dataclass
class Found:
    """What of the driver lies on the host."""

    version: str
    gpus: list[Gpu]
    control_nodes: list[str] = field(default_factory=list)
    drm_nodes: dict[int, list[str]] = field(default_factory=dict)
    libraries: list[Library] = field(default_factory=list)
    library_directory: str = "/usr/lib"
    # Path in the container -> path on the host, which differ where the host's is a link.
    files: dict[str, str] = field(default_factory=dict)
    sockets: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Hook:
    """NVIDIA's hook program: its path, how its arguments begin, and what it can do."""

    path: str
    prefix: tuple[str, ...]
    commands: tuple[str, ...]


# -- gather -----------------------------------------------------------------------------------------------------------


def real_path(root: str, path: str) -> str:
    """The path without links, where links are read as they are meant within root."""
    pending = [part for part in path.split("/") if part]
    done = ""
    for _step in range(200):
        if not pending:
            return done or "/"
        part = pending.pop(0)
        if part == ".":
            continue
        if part == "..":
            done = os.path.dirname(done)
            continue
        try:
            target = os.readlink(below(root, f"{done}/{part}"))
        except OSError:
            done = f"{done}/{part}"
            continue
        if target.startswith("/"):
            done = ""
        pending = [step for step in target.split("/") if step] + pending
    raise CannotTell(f"{path}: too many links")


def ldconfig(root: str = "/") -> str:
    """What the loader cache holds."""
    program = next((path for path in ("/sbin/ldconfig", "/usr/sbin/ldconfig") if os.path.exists(path)), "ldconfig")
    command = [program, "-p"] if root == "/" else [program, "-r", root, "-p"]
    try:
        status, stdout, stderr = host_run.execute(command, 60)
    except (OSError, host_run.TimedOut) as error:
        raise CannotTell(f"the loader cache cannot be read: {error}") from None
    if status:
        raise CannotTell(f"the loader cache cannot be read: {host_run.text(stderr).strip()}")
    return host_run.text(stdout)


def parse_ldconfig(text: str) -> dict[str, str]:
    """Name -> path of the 64-bit libraries. The first of a name counts, as it does for the loader."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"^\s+(\S+) \(([^)]*)\) => (\S+)$", line)
        if match and ("x86-64" in match.group(2) or "AArch64" in match.group(2)):
            found.setdefault(match.group(1), match.group(3))
    return found


def soname(path: str) -> str | None:
    """DT_SONAME of a 64-bit little-endian ELF file, by which the loader knows it."""
    try:
        with open(path, "rb") as stream:
            header = stream.read(64)
            if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
                return None
            (offset,) = struct.unpack_from("<Q", header, 32)
            size, count = struct.unpack_from("<HH", header, 54)
            stream.seek(offset)
            table = stream.read(size * count)
            segments = [struct.unpack_from("<IIQQQQQQ", table, size * index) for index in range(count)]
            loads = [(row[3], row[2], row[5]) for row in segments if row[0] == 1]
            dynamic = next((row for row in segments if row[0] == 2), None)
            if dynamic is None:
                return None
            stream.seek(dynamic[2])
            data = stream.read(dynamic[5])
            entries = dict(struct.unpack_from("<QQ", data, at) for at in reversed(range(0, len(data) - 15, 16)))
            if 14 not in entries or 5 not in entries:
                return None
            for address, file_offset, length in loads:
                if address <= entries[5] < address + length:
                    stream.seek(entries[5] - address + file_offset + entries[14])
                    return stream.read(256).split(b"\0", 1)[0].decode("ascii", "replace") or None
    except (OSError, struct.error, ValueError):
        pass
    return None


def find_gpus(root: str = "/", given: Iterable[dict[str, Any]] | None = None) -> list[Gpu]:
    """The GPUs in the order of NVML's index, which is that of their PCI addresses.

    `given` is what gpu_facts says of the GPUs. Without it the driver's own files are read, which know the UUID of a
    GPU only once something has opened it.
    """
    if given is not None:
        rows = [row for row in given if row.get("minor") is not None]
        return [Gpu(int(row["index"]), int(row["minor"]), row["pci_address"], row.get("uuid")) for row in rows]
    found = []
    for index, (address, minor) in enumerate(sorted(device_nodes.gpu_minors(root).items())):
        text = read_text(below(root, f"proc/driver/nvidia/gpus/{address}/information"))
        uuid = device_nodes.parse_fields(text).get("GPU UUID", "")
        found.append(Gpu(index, minor, address, uuid if UUID.match(uuid) else None))
    return found


def find_libraries(root: str, version: str, cache: dict[str, str]) -> list[Library]:
    """The driver's libraries: the ones that CUDA needs under whatever file name, and all of the driver's version."""
    owner: dict[str, str] = {}
    suffix = f".so.{version}"

    def claim(name: str, path: str) -> None:
        for one in (name, *EXTRA_NAMES.get(name, ())):
            owner.setdefault(one, path)

    # What the loader would take counts first: it may stand in front of a file of the driver's version.
    for name in COMPUTE_LIBRARIES:
        if name in cache:
            claim(name, real_path(root, cache[name]))
    for name, path in cache.items():
        real = real_path(root, path)
        if real.endswith(suffix):
            claim(name, real)
    directories = {os.path.dirname(path) for path in owner.values() if path.endswith(suffix)}
    directories |= {os.path.join(directory, "vdpau") for directory in directories}
    for directory in sorted(directories):
        for found in sorted(glob.glob(below(root, f"{directory}/*{suffix}"))):
            path = "/" + os.path.relpath(found, root)
            claim(soname(found) or os.path.basename(path), real_path(root, path))
    for path in sorted(set(owner.values())):
        claim(os.path.basename(path), path)
    names: dict[str, list[str]] = {}
    for name, path in owner.items():
        names.setdefault(path, []).append(name)
    return [Library(path, tuple(sorted(names[path]))) for path in sorted(names)]


def find_firmware(root: str, version: str, kernel: str) -> list[str]:
    """The GSP's firmware, from the first place in which the kernel would look for it."""
    base = "/lib/firmware"
    places = [read_text(below(root, "sys/module/firmware_class/parameters/path")).strip()]
    places += [f"{base}/updates/{kernel}", f"{base}/updates", f"{base}/{kernel}", base]
    for place in filter(None, places):
        found = glob.glob(below(root, f"{place}/nvidia/{version}/gsp*.bin"))
        if found:
            return ["/" + os.path.relpath(path, root) for path in sorted(found)]
    return []


def gather(
    root: str = "/",
    given: Iterable[dict[str, Any]] | None = None,
    kernel: str | None = None,
    read_cache: Callable[[str], str] = ldconfig,
) -> Found:
    """Read the host. Raises CannotTell where the driver is not loaded or a GPU has no node to give."""
    version, _flavour = driver.loaded(root)
    if version is None:
        raise CannotTell("the nvidia module is not loaded, so its version and its GPUs are not known")
    rows = None if given is None else list(given)
    gpus = find_gpus(root, rows)
    if not gpus:
        raise CannotTell("the driver has no GPU")
    found = Found(version, gpus)
    found.notes += [
        f"the UUID of the GPU at {gpu.address} is not known yet, so it is listed by index only; turn persistence "
        "mode on, or pass the GPUs of gpu_facts"
        for gpu in gpus
        if gpu.uuid is None
    ]
    found.notes += [
        f"the GPU at {row['pci_address']} is split by MIG, and its partitions are not listed; a container that gets "
        "the GPU cannot compute on them without NVIDIA Container Toolkit"
        for row in rows or []
        if (row.get("mig") or {}).get("enabled")
    ]
    found.control_nodes = [path for path in CONTROL_NODES if _is_device(root, path)]
    for required in ("/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{gpu.minor}" for gpu in gpus)):
        if not _is_device(root, required):
            raise CannotTell(f"{required} is not there; start baremetal-gpu-device-nodes.service")
    for gpu in gpus:
        drm = os.listdir(path) if os.path.isdir(path := below(root, f"sys/bus/pci/devices/{gpu.address}/drm")) else []
        nodes = [f"/dev/dri/{name}" for name in sorted(drm) if re.match(r"^(card|renderD)\d+$", name)]
        found.drm_nodes[gpu.index] = [path for path in nodes if _is_device(root, path)]

    cache = parse_ldconfig(read_cache(root))
    if "libcuda.so.1" not in cache:
        raise CannotTell("the loader does not find libcuda.so.1: install the CUDA driver library of the driver")
    found.libraries = find_libraries(root, version, cache)
    found.library_directory = os.path.dirname(real_path(root, cache.get("libc.so.6", "/usr/lib/libc.so.6")))
    programs = (
        next(
            (
                f"{place}/{name}"
                for place in PROGRAM_DIRECTORIES
                if os.path.exists(below(root, real_path(root, f"{place}/{name}")))
            ),
            "",
        )
        for name in PROGRAMS
    )
    files = [path for path in programs if path]
    files += find_firmware(root, version, kernel or os.uname().release)
    files += [path for path in GRAPHICS_FILES if os.path.exists(below(root, path))]
    found.files = {path: real_path(root, path) for path in files}
    found.sockets = [path for path in SOCKETS if os.path.exists(below(root, path))]
    return found


def _is_device(root: str, path: str) -> bool:
    """In a tree that a test made, a plain file stands for a device, which only root could make."""
    try:
        mode = os.stat(below(root, path)).st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or root != "/"


def find_hook() -> Hook | None:
    """NVIDIA's hook program, where the container toolkit is installed."""
    for name, prefix in (("nvidia-cdi-hook", ()), ("nvidia-ctk", ("hook",))):
        path = shutil.which(name, path="/usr/local/bin:/usr/bin")
        if path:
            _status, output, _error = host_run.execute([path, *prefix, "--help"], 30)
            commands = tuple(re.findall(r"^\s+([a-z][a-z-]+)", host_run.text(output), re.MULTILINE))
            return Hook(path, (name, *prefix), commands)
    return None


# -- desired ----------------------------------------------------------------------------------------------------------


def build(found: Found, hook: Hook | None = None, library_directories: Iterable[str] = ()) -> dict[str, Any]:
    """The specification, as plain data."""
    mounts = [_mount(source, path) for path, source in found.files.items()]
    mounts += [_mount(path, path, SOCKET_OPTIONS) for path in found.sockets]
    hooks: list[dict[str, Any]] = []
    if hook:
        mounts += [_mount(library.path, library.path) for library in found.libraries]
        hooks = _hooks(found, hook)
    else:
        for directory in dict.fromkeys([found.library_directory, *library_directories]):
            for library in found.libraries:
                mounts += [_mount(library.path, f"{directory}/{name}") for name in library.names]
    common: dict[str, Any] = {
        # Tells NVIDIA's older hook, where an engine still has it, to leave such containers alone.
        "env": ["NVIDIA_VISIBLE_DEVICES=void", MARK],
        "deviceNodes": [{"path": path} for path in found.control_nodes],
        "mounts": sorted(mounts, key=lambda mount: str(mount["containerPath"])),
    }
    if hooks:
        common["hooks"] = hooks
    listed: list[dict[str, Any]] = []
    every: list[dict[str, str]] = []
    for gpu in found.gpus:
        nodes = [{"path": path} for path in (f"/dev/nvidia{gpu.minor}", *found.drm_nodes.get(gpu.index, []))]
        every += nodes
        listed += [
            {"name": name, "containerEdits": {"deviceNodes": nodes}} for name in (str(gpu.index), gpu.uuid) if name
        ]
    listed.append({"name": "all", "containerEdits": {"deviceNodes": every}})
    spec = {"cdiVersion": "", "kind": KIND, "devices": listed, "containerEdits": common}
    spec["cdiVersion"] = least_version(spec)
    return spec


def _mount(host: str, container: str, options: Iterable[str] = READ_ONLY) -> dict[str, Any]:
    return {"hostPath": host, "containerPath": container, "options": list(options)}


def _hooks(found: Found, hook: Hook) -> list[dict[str, Any]]:
    links = []
    for library in found.libraries:
        directory, base = os.path.split(library.path)
        names = sorted(set(library.names) - {base})
        known = [name for name in names if name not in {extra for extras in EXTRA_NAMES.values() for extra in extras}]
        links += [f"{base}::{directory}/{name}" for name in known]
        links += [f"{name}::{directory}/{extra}" for name in known for extra in EXTRA_NAMES.get(name, ())]
    directories = sorted({os.path.dirname(library.path) for library in found.libraries})
    hooks = [
        ("create-symlinks", [part for link in links for part in ("--link", link)]),
        ("enable-cuda-compat", [f"--host-driver-version={found.version}"]),
        ("update-ldcache", [part for directory in directories for part in ("--folder", directory)]),
        ("disable-device-node-modification", []),
    ]
    return [
        {"hookName": "createContainer", "path": hook.path, "args": [*hook.prefix, command, *arguments]}
        for command, arguments in hooks
        if command in hook.commands
    ]


def least_version(spec: dict[str, Any]) -> str:
    """The oldest version of the interface that has everything the specification uses, so that the oldest engine
    takes it."""
    edits = [spec["containerEdits"], *(device["containerEdits"] for device in spec["devices"])]
    if "annotations" in spec or any("annotations" in device for device in spec["devices"]):
        return "0.6.0"
    nodes = [node for edit in edits for node in edit.get("deviceNodes", [])]
    if any("hostPath" in node for node in nodes) or any(device["name"][0].isdigit() for device in spec["devices"]):
        return "0.5.0"
    if any("type" in mount for edit in edits for mount in edit.get("mounts", [])):
        return "0.4.0"
    return "0.3.0"


# -- check and write --------------------------------------------------------------------------------------------------


def validate(spec: dict[str, Any]) -> list[str]:
    """What an engine would refuse."""
    errors = []
    if not re.match(r"^\d+\.\d+\.\d+\Z", str(spec.get("cdiVersion"))):
        errors.append(f"cdiVersion is {spec.get('cdiVersion')!r}")
    if not KIND_PATTERN.match(str(spec.get("kind"))):
        errors.append(f"kind is {spec.get('kind')!r}, must be vendor/class")
    names = [device.get("name", "") for device in spec.get("devices", [])]
    errors += [f"device name {name!r} is not allowed" for name in names if not DEVICE_NAME.match(name)]
    errors += [f"device {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if not names:
        errors.append("there is no device")
    for device in spec.get("devices", []):
        if not device.get("containerEdits"):
            errors.append(f"device {device.get('name')} changes nothing in a container")
        errors += _validate_edits(device.get("containerEdits", {}), f"device {device.get('name')}")
    return errors + _validate_edits(spec.get("containerEdits", {}), "common part")


def _validate_edits(edits: dict[str, Any], where: str) -> list[str]:
    errors = []
    for name, keys in (("deviceNodes", ("path",)), ("mounts", ("hostPath", "containerPath")), ("hooks", ("path",))):
        for entry in edits.get(name, []):
            errors += [
                f"{where}: {name}: {key} is {entry.get(key)!r}, must be an absolute path"
                for key in keys
                if not str(entry.get(key, "")).startswith("/")
            ]
    targets = [mount.get("containerPath") for mount in edits.get("mounts", [])]
    twice = sorted({str(target) for target in targets if targets.count(target) > 1})
    errors += [f"{where}: two mounts on {target}" for target in twice]
    errors += [f"{where}: env {entry!r}" for entry in edits.get("env", []) if "=" not in entry]
    errors += [
        f"{where}: hook name {hook.get('hookName')!r}"
        for hook in edits.get("hooks", [])
        if hook.get("hookName") not in HOOK_NAMES
    ]
    return errors


def render(spec: dict[str, Any]) -> str:
    return json.dumps(spec, indent=2) + "\n"


def written(path: str) -> str | None:
    """What is in the file, or None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def is_ours(text: str) -> bool:
    try:
        return MARK in json.loads(text)["containerEdits"]["env"]
    except (ValueError, RecursionError, TypeError, LookupError):
        return False


def former(path: str) -> str | None:
    """The YAML file beside `path` that this module wrote before it wrote JSON. No engine takes a device from two."""
    yaml_path = f"{os.path.splitext(path)[0]}.yaml"
    return yaml_path if (written(yaml_path) or "").startswith(FORMER_MARK) else None


def staying(path: str) -> str:
    """The note on a file that should be gone and is not ours."""
    return f"{path} was written by something else and stays; take_over: true removes it"


def specify(
    path: str,
    given: Iterable[dict[str, Any]] | None = None,
    hooks: str = "auto",
    library_directories: Iterable[str] = (),
    engine: str = "",
) -> tuple[dict[str, Any], Found, Hook | None]:
    """The specification of this host's GPUs for the file at `path`, what it was made of, and NVIDIA's hook in it.

    With an engine it is looked where that one looks for others. Raises CannotTell as gather() does, and Refused where
    an engine would not take it.
    """
    found = gather(given=given)
    hook = find_hook() if hooks == "auto" else None
    spec = build(found, hook, library_directories)
    errors = validate(spec)
    if errors:
        raise Refused(f"the specification would be refused by an engine: {'; '.join(errors)}")
    where = cdi_search.directories(engine)
    if not engine and os.path.realpath(os.path.dirname(path)) not in map(os.path.realpath, where):
        # Whoever names another place has an engine look there.
        where = [os.path.dirname(path), *where]
    names = (device["name"] for device in spec["devices"])
    refused, notes = cdi_search.judge(path, names, where, KIND, replaced=former(path))
    if refused:
        raise Refused(refused)
    found.notes += notes
    return spec, found, hook


def engine_arguments(found: Found, indexes: Iterable[int], library_directories: Iterable[str] = ()) -> list[str]:
    """The same as options of `docker run`, for an engine that does not know the interface."""
    spec = build(found, None, library_directories)
    names = {str(index) for index in indexes}
    edits = [device["containerEdits"] for device in spec["devices"] if device["name"] in names]
    arguments = []
    for edit in (*edits, spec["containerEdits"]):
        for node in edit.get("deviceNodes", []):
            arguments += ["--device", node["path"]]
        for mount in edit.get("mounts", []):
            arguments += ["--volume", f"{mount['hostPath']}:{mount['containerPath']}:ro"]
    return arguments
