# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device nodes of the NVIDIA driver: which must be there, which are not as they must be, and making them.

The driver's modules make no nodes themselves. Whoever opens a GPU first is expected to call the setuid program
nvidia-modprobe; until somebody does, a container engine or a scheduler that starts at boot finds nothing in /dev.

The file imports only the standard library, because it is also installed as the program that a unit runs at boot.
Numbers and names are those of nvidia-modprobe (modprobe-utils/nvidia-modprobe-utils.{c,h} of 610.43.03).
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

# 'nvidia' since driver 550.40, 'nvidia-frontend' before.
GPU_MAJOR_NAMES = ("nvidia", "nvidia-frontend")
MINOR_CONTROL = 255
MINOR_MODESET = 254
MINOR_UVM = 0
MINOR_UVM_TOOLS = 1
MINOR_NVSWITCH_CONTROL = 255
DEFAULT_MODE = 0o666
# Drivers that have a device for somebody else, beside those of VFIO, as in pci.py.
GIVING_AWAY = ("pci-stub", "pciback", "xen-pciback", "uio-pci-generic", "igb-uio")

# The earlier hide files of the same name in the later. Source: modules-load.d(5).
MODULES_LOAD = ("etc/modules-load.d", "run/modules-load.d", "usr/local/lib/modules-load.d", "usr/lib/modules-load.d")


class DriverNotLoaded(Exception):
    """The nvidia module is not in the kernel, so no node can be told the right number."""


@dataclass(frozen=True)
class Node:
    path: str
    major: int
    minor: int
    mode: int = DEFAULT_MODE
    uid: int = 0
    gid: int = 0
    # Whether jobs open it. The others are for who administers NVSwitches, MIG or IMEX.
    for_jobs: bool = True

    def as_dict(self) -> dict[str, Any]:
        numbers = {"major": self.major, "minor": self.minor, "mode": f"{self.mode:04o}"}
        return {"path": self.path, **numbers, "uid": self.uid, "gid": self.gid}

    @property
    def link(self) -> str:
        return f"/dev/char/{self.major}:{self.minor}"


@dataclass(frozen=True)
class Difference:
    """One thing about a node that is not as it must be."""

    path: str
    kind: str
    current: str
    expected: str
    remedy: str = "`sudo systemctl start baremetal-gpu-device-nodes` on the host, or run `gpuops up --tags driver`"

    def as_dict(self) -> dict[str, str]:
        return {
            "path": self.path,
            "kind": self.kind,
            "current": self.current,
            "expected": self.expected,
            "remedy": self.remedy,
        }


def _under(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _read(root: str, path: str) -> str:
    try:
        with open(_under(root, path), encoding="utf-8", errors="replace") as stream:
            return stream.read()
    except OSError:
        return ""


def parse_majors(text: str) -> dict[str, int]:
    """Name -> major of the character devices in /proc/devices. The first of a name counts."""
    majors: dict[str, int] = {}
    for line in text.split("Block devices:")[0].splitlines():
        fields = line.split()
        if len(fields) == 2 and fields[0].isdigit():
            majors.setdefault(fields[1], int(fields[0]))
    return majors


def parse_fields(text: str) -> dict[str, str]:
    """'Key: value' lines, as the files under /proc/driver/nvidia have them."""
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _number(fields: dict[str, str], key: str, default: int) -> int:
    value = fields.get(key, "")
    return int(value) if value.isdigit() else default


def gpu_minors(root: str = "/") -> dict[str, int]:
    """PCI address -> minor number, which need not be the index of the GPU."""
    minors = {}
    for path in sorted(glob.glob(_under(root, "proc/driver/nvidia/gpus/*/information"))):
        address = os.path.basename(os.path.dirname(path)).lower()
        minor = parse_fields(_read("/", path)).get("Device Minor", "")
        if minor.isdigit() and not _is_given_away(root, address):
            minors[address] = int(minor)
    return minors


def _is_given_away(root: str, address: str) -> bool:
    """Whether a GPU is a virtual function, or bound for somebody else since the driver has listed it."""
    device = _under(root, f"sys/bus/pci/devices/{address}")
    try:
        driver = os.path.basename(os.readlink(os.path.join(device, "driver")))
    except OSError:
        driver = ""
    name = driver.lower().replace("_", "-")
    return os.path.lexists(os.path.join(device, "physfn")) or "vfio" in name or name in GIVING_AWAY


def may_modify(root: str = "/") -> bool:
    """Whether the driver's parameters leave the nodes to user space; if not, something else makes them."""
    return _number(parse_fields(_read(root, "proc/driver/nvidia/params")), "ModifyDeviceFiles", 1) != 0


def expected_nodes(root: str = "/") -> list[Node]:
    """Every node that the loaded modules ask for."""
    majors = parse_majors(_read(root, "proc/devices"))
    gpu_major = next((majors[name] for name in GPU_MAJOR_NAMES if name in majors), None)
    if gpu_major is None:
        raise DriverNotLoaded("the nvidia module is not loaded: /proc/devices names no character device 'nvidia'")
    params = parse_fields(_read(root, "proc/driver/nvidia/params"))
    mode = _number(params, "DeviceFileMode", DEFAULT_MODE)
    uid = _number(params, "DeviceFileUID", 0)
    gid = _number(params, "DeviceFileGID", 0)
    nodes = [Node("/dev/nvidiactl", gpu_major, MINOR_CONTROL, mode, uid, gid)]
    nodes += [
        Node(f"/dev/nvidia{minor}", gpu_major, minor, mode, uid, gid) for minor in sorted(gpu_minors(root).values())
    ]
    if "nvidia-modeset" in majors or os.path.isdir(_under(root, "sys/module/nvidia_modeset")):
        nodes.append(
            Node("/dev/nvidia-modeset", majors.get("nvidia-modeset", gpu_major), MINOR_MODESET, mode, uid, gid)
        )
    if "nvidia-uvm" in majors:
        # nvidia-modprobe makes these two for everybody, whatever the parameters of the nvidia module say.
        nodes.append(Node("/dev/nvidia-uvm", majors["nvidia-uvm"], MINOR_UVM))
        nodes.append(Node("/dev/nvidia-uvm-tools", majors["nvidia-uvm"], MINOR_UVM_TOOLS))
    switches = len(glob.glob(_under(root, "proc/driver/nvidia-nvswitch/devices/*")))
    # The module registers its number on every host, also where nothing would open a node of it.
    if "nvidia-nvswitch" in majors and switches:
        major = majors["nvidia-nvswitch"]
        nodes.append(Node("/dev/nvidia-nvswitchctl", major, MINOR_NVSWITCH_CONTROL, for_jobs=False))
        nodes += [Node(f"/dev/nvidia-nvswitch{minor}", major, minor, for_jobs=False) for minor in range(switches)]
    if "nvidia-caps" in majors:
        nodes += _capability_nodes(root, majors["nvidia-caps"])
    return nodes


def _capability_nodes(root: str, major: int) -> list[Node]:
    nodes = {}
    top = _under(root, "proc/driver/nvidia/capabilities")
    for directory, _subdirectories, files in os.walk(top):
        # Below gpu0 and its like are the instances of MIG; beside them what administers MIG and IMEX.
        for_jobs = os.path.relpath(directory, top).startswith("gpu")
        for name in files:
            fields = parse_fields(_read("/", os.path.join(directory, name)))
            minor = fields.get("DeviceFileMinor", "")
            if minor.isdigit():
                path = f"/dev/nvidia-caps/nvidia-cap{minor}"
                mode = _number(fields, "DeviceFileMode", 0o400)
                nodes[int(minor)] = Node(path, major, int(minor), mode, for_jobs=for_jobs)
    return [nodes[minor] for minor in sorted(nodes)]


def instance_nodes(minor: int, gpu_instance: int, compute_instance: int, root: str = "/") -> list[str]:
    """The capability nodes that a process needs for an instance of MIG, beside those of the GPU; none if not known."""
    top = f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{gpu_instance}"
    paths = []
    for name in (f"{top}/access", f"{top}/ci{compute_instance}/access"):
        number = parse_fields(_read(root, name)).get("DeviceFileMinor", "")
        if number.isdigit():
            paths.append(f"/dev/nvidia-caps/nvidia-cap{number}")
    return paths


def module_differences(root: str = "/") -> list[Difference]:
    """CUDA needs the module nvidia-uvm, which nothing loads by itself."""
    if "nvidia-uvm" in parse_majors(_read(root, "proc/devices")):
        return []
    remedy = "run 'sudo modprobe nvidia-uvm' and read what the kernel says; at boot the unit loads it"
    return [Difference("/dev/nvidia-uvm", "module_not_loaded", "nvidia-uvm not loaded", "nvidia-uvm loaded", remedy)]


def registered(root: str = "/") -> tuple[str, tuple[str, ...]]:
    """Changes whenever expected_nodes may answer something else, but for capabilities of MIG. Asks no GPU."""
    return _read(root, "proc/devices"), tuple(sorted(glob.glob(_under(root, "proc/driver/nvidia/gpus/*"))))


def is_right(node: Node, root: str = "/") -> bool:
    """Whether the node is there and leads to its device; whoever may use it is not asked."""
    try:
        status = os.stat(_under(root, node.path))
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(node.major, node.minor)


def compare(nodes: list[Node], root: str = "/") -> list[Difference]:
    """The differences between the nodes and what is under `root`."""
    differences = []
    for node in nodes:
        numbers = f"character device {node.major}:{node.minor}"
        path = _under(root, node.path)
        try:
            status = os.lstat(path)
        except OSError:
            differences.append(Difference(node.path, "missing", "nothing", numbers))
            differences += _link_difference(node, root)
            continue
        if not stat.S_ISCHR(status.st_mode):
            differences.append(Difference(node.path, "not_a_device", stat.filemode(status.st_mode), numbers))
        elif (os.major(status.st_rdev), os.minor(status.st_rdev)) != (node.major, node.minor):
            found = f"character device {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
            differences.append(Difference(node.path, "wrong_number", found, numbers))
        else:
            mode = stat.S_IMODE(status.st_mode)
            if mode != node.mode:
                differences.append(Difference(node.path, "wrong_mode", f"{mode:04o}", f"{node.mode:04o}"))
            if (status.st_uid, status.st_gid) != (node.uid, node.gid):
                found, expected = f"{status.st_uid}:{status.st_gid}", f"{node.uid}:{node.gid}"
                differences.append(Difference(node.path, "wrong_owner", found, expected))
        differences += _link_difference(node, root)
    return differences


def _link_difference(node: Node, root: str) -> list[Difference]:
    """runc with the systemd cgroup driver finds a device by its link in /dev/char; without it a container loses its
    GPUs at the next `systemctl daemon-reload`."""
    try:
        target = os.readlink(_under(root, node.link))
    except FileNotFoundError:
        return [Difference(node.link, "link_missing", "nothing", f"link to {node.path}")]
    except OSError:
        return [Difference(node.link, "link_wrong", "no link", f"link to {node.path}")]
    if os.path.normpath(os.path.join("/dev/char", target)) != node.path:
        return [Difference(node.link, "link_wrong", f"link to {target}", f"link to {node.path}")]
    return []


def create(nodes: list[Node], root: str = "/") -> None:
    """Make every node and its link as it must be. What is right already is not touched."""
    wrong = {difference.path for difference in compare(nodes, root)}
    for node in nodes:
        path = _under(root, node.path)
        if node.path in wrong:
            os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
            numbers = os.makedev(node.major, node.minor)
            try:
                status = os.lstat(path)
                right = stat.S_ISCHR(status.st_mode) and status.st_rdev == numbers
            except FileNotFoundError:
                right = False
            if right:
                os.chown(path, node.uid, node.gid)
                os.chmod(path, node.mode)
            else:
                # Made beside and moved into place: nobody ever finds it missing or with another mode.
                temporary = f"{path}.new{os.getpid()}"
                os.mknod(temporary, stat.S_IFCHR | 0o600, numbers)
                try:
                    os.chown(temporary, node.uid, node.gid)
                    os.chmod(temporary, node.mode)
                    os.rename(temporary, path)
                except OSError:
                    os.unlink(temporary)
                    raise
        if node.link in wrong:
            link = _under(root, node.link)
            os.makedirs(os.path.dirname(link), mode=0o755, exist_ok=True)
            temporary = f"{link}.new{os.getpid()}"
            os.symlink(os.path.relpath(node.path, "/dev/char"), temporary)
            os.rename(temporary, link)


def describe(differences: list[Difference]) -> tuple[str, str]:
    """Before and after, for a diff: one line for each node or link with a difference."""
    before = "".join(f"{difference.path}: {difference.current}\n" for difference in differences)
    after = "".join(f"{difference.path}: {difference.expected}\n" for difference in differences)
    return before, after


def loaded_modules(root: str = "/") -> set[str]:
    """The NVIDIA modules in the kernel."""
    text = _read(root, "proc/modules")
    if text:
        return {line.split(" ", 1)[0] for line in text.splitlines() if line.startswith("nvidia")}
    # In a container of the whole system the list may be hidden. A directory without a state is a built-in module.
    return {os.path.basename(os.path.dirname(path)) for path in glob.glob(_under(root, "sys/module/nvidia*/initstate"))}


def boot_modules(root: str = "/") -> set[str]:
    """The NVIDIA modules that systemd loads at boot because a package of the driver, or an operator, lists them."""
    files = {
        os.path.basename(path): path
        for directory in reversed(MODULES_LOAD)
        for path in glob.glob(_under(root, f"{directory}/*.conf"))
    }
    lines = {line.strip() for path in files.values() for line in _read("/", path).splitlines()}
    return {line.replace("-", "_") for line in lines if line.startswith("nvidia")}


def load_modules() -> list[str]:
    """Load what is not loaded; what went wrong comes back as text."""
    errors = []
    if not any(name in parse_majors(_read("/", "/proc/devices")) for name in GPU_MAJOR_NAMES):
        errors += _call("modprobe", "nvidia")
    if not errors and module_differences():
        errors += _call("modprobe", "nvidia-uvm")
    return errors


def load_boot_modules() -> None:
    """Load what the next boot will load, or containers would get further device nodes then.

    Debian's driver lists nvidia-drm. It may fail as it would at boot, because a kernel for clouds has no DRM, and
    computing does not need it.
    """
    for name in sorted(boot_modules() - loaded_modules()):
        _call("modprobe", "--use-blacklist", name)


def call_nvidia_modprobe() -> None:
    """Let NVIDIA's own program make what a driver newer than this file may want beyond what is known here.

    Its failure is no failure: what counts is how the nodes compare afterwards.
    """
    program = shutil.which("nvidia-modprobe", path="/usr/bin:/usr/sbin:/bin:/sbin")
    if program and may_modify():
        _call(program, "-u", "-c", "0")


def _call(*command: str) -> list[str]:
    environment = {**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"{' '.join(command)}: {error}"]
    if done.returncode:
        return [f"{' '.join(command)}: {(done.stderr or done.stdout).strip() or done.returncode}"]
    return []


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the device nodes of the NVIDIA driver, or check them.")
    parser.add_argument("--check", action="store_true", help="change nothing; status 1 where something is wrong")
    parser.add_argument("--json", action="store_true", help="print what is wrong as JSON")
    args = parser.parse_args(argv)
    errors = []
    if not args.check:
        errors = load_modules()
        call_nvidia_modprobe()
    try:
        nodes = expected_nodes()
    except DriverNotLoaded as error:
        sys.stderr.write("\n".join([*errors, str(error), ""]))
        return 1
    if not args.check and may_modify():
        create(nodes)
    differences: list[Any] = module_differences() + compare(nodes)
    if args.json:
        sys.stdout.write(json.dumps([difference.as_dict() for difference in differences], indent=1) + "\n")
    else:
        for difference in differences:
            errors.append(
                f"{difference.path}: {difference.current}, must be {difference.expected}; {difference.remedy}"
            )
    sys.stderr.write("".join(f"{line}\n" for line in errors))
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
