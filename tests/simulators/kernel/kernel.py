#!/usr/bin/python3 -I
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stand-in for what the Linux kernel and kmod show of NVIDIA GPUs and their modules. No real module is ever loaded.

For the modules named nvidia* and nouveau, and nothing else, it imitates the PCI bus in sysfs, /sys/module,
/proc/modules, /proc/devices and /proc/driver/nvidia, and what modprobe, rmmod and insmod do to them. A module is
loaded only if a real one, built for a kernel that is installed here, lies in /lib/modules; its version is that
file's version. What the scenario file says of the GPUs decides whether the module finds any.

    kernel.py boot          lay the views over /proc and /sys; load what a booting machine would load
    kernel.py show          show the GPUs of a changed scenario and write its new lines of the log; loaded modules stay
    kernel.py log           hold the pipe open that the log is, until stopped
    kernel.py reset ADDRESS what `nvidia-smi --gpu-reset` brings about: a GPU in use is refused
    kernel.py libraries     put the stand-ins in the place of NVIDIA's libraries that are installed, and take them
                            away where the package is gone
    kernel.py modules-load  systemd-modules-load for our modules

    kernel.py modprobe|rmmod|insmod|modinfo ARGUMENT...
                            that command of kmod's, for our modules; everything else is passed on to kmod
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

HOME = Path("/usr/lib/baremetal-gpu-simulators")
SCENARIO = HOME / "scenario.json"
RUN = HOME / "run"
STATE = RUN / "state.json"
# A pipe: the real /dev/kmsg is the lab host's and is not shown to its machines.
LOG = RUN / "kernel-log"
FABRIC_MANAGER = Path("/run/nvidia-fabricmanager/nv-fabricmanager.pid")
KMOD = "/usr/bin/kmod"
MODULES = Path("/lib/modules")
MARKER = b"baremetal-gpu simulator: a stand-in"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Module -> the modules that it needs.
NEEDS: dict[str, list[str]] = {
    "nvidia": [],
    "nvidia_uvm": ["nvidia"],
    "nvidia_modeset": ["nvidia"],
    "nvidia_drm": ["nvidia_modeset"],
    "nvidia_peermem": ["nvidia"],
    "nouveau": [],
}
# Debian builds several branches side by side: nvidia-current.ko, nvidia-current-uvm.ko, nvidia-tesla-470.ko ...
FILE_NAME = re.compile(
    r"(?P<base>nvidia)(?P<flavour>-current-open|-open|-current|-tesla-\d+|-tesla|-legacy-\d+xx)?"
    r"(?P<part>-uvm|-modeset|-drm|-peermem)?"
)
PARAMETERS = {
    "ResmanDebugLevel": "4294967295",
    "RmLogonRC": "1",
    "ModifyDeviceFiles": "1",
    "DeviceFileUID": "0",
    "DeviceFileGID": "0",
    "DeviceFileMode": "438",
    "InitializeSystemMemoryAllocations": "1",
    "UsePageAttributeTable": "4294967295",
    "EnableMSI": "1",
    "EnablePCIeGen3": "0",
    "MemoryPoolSize": "0",
    "EnableStreamMemOPs": "0",
    "EnableGpuFirmware": "18",
    "NvLinkDisable": "0",
    "PreserveVideoMemoryAllocations": "0",
    "DynamicPowerManagement": "3",
}
SPEEDS = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
# Module parameters have a prefix that /proc/driver/nvidia/params leaves out.
PREFIX = "NVreg_"
CONFIGURATION = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d")
LIBRARIES = {
    "libnvidia-ml.so": "libnvidia-ml.so.1",
    "libcuda.so": "libcuda.so.1",
    "libnvidia-cfg.so": "libnvidia-cfg.so.1",
}
LIBRARY_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu/nvidia/*", "/usr/lib64", "/usr/lib")


class Refused(Exception):
    """What the kernel or kmod answers to a request that is not granted."""


# The scenario


def read_scenario() -> dict[str, Any]:
    document = json.loads(SCENARIO.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise SystemExit(f"{SCENARIO}: not an object")
    # What NVML has set of MIG lies beside it: what a boot finds, and what was changed since.
    for path in (HOME / "mig-at-boot", RUN / "mig"):
        over = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for gpu in document.get("devices", []):
            if gpu.get("mig"):
                gpu["mig"].update(over.get(gpu["uuid"], {}))
    return document


def forget_instances(address: str) -> None:
    """A GPU that is reset loses its instances, and the mode that was pending is its mode."""
    states = {}
    for gpu in read_scenario()["devices"]:
        mig = gpu.get("mig")
        if mig:
            keys = ("current", "pending", "serials", "instances")
            states[gpu["uuid"]] = {key: mig[key] for key in keys if key in mig}
            if gpu["pci"]["address"] == address:
                states[gpu["uuid"]].update(current=mig["pending"], instances=[])
    fresh = RUN / "mig.reset"
    fresh.write_text(json.dumps(states), encoding="utf-8")
    fresh.replace(RUN / "mig")


def gpus(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that answer on the bus."""
    return [gpu for gpu in scenario.get("devices", []) if gpu.get("state", "ok") != "gone"]


def driven(scenario: dict[str, Any], module: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that a driver of this version and flavour takes."""
    branch = int(module["version"].split(".")[0])
    taken = []
    for gpu in gpus(scenario):
        oldest, newest = gpu.get("driver_branches") or (0, None)
        flavours = gpu.get("kernel_module", "any")
        if branch >= oldest and (newest is None or branch <= newest) and flavours in ("any", module["flavour"]):
            taken.append(gpu)
    return taken


# Real modules that were built here, and modprobe's configuration


def canonical(name: str) -> str:
    return name.replace("-", "_")


def _module_of(name: str) -> str | None:
    """Our name of a module that is requested: nvidia-current-uvm and nvidia_uvm are both nvidia_uvm."""
    if canonical(name) in NEEDS:
        return canonical(name)
    match = FILE_NAME.fullmatch(name.replace("_", "-"))
    return canonical(match["base"] + (match["part"] or "")) if match else None


def kernels() -> list[Path]:
    """Directories of the installed kernels' modules, the newest first."""
    directories = [path for path in MODULES.glob("*") if path.is_dir()]
    return sorted(directories, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)], reverse=True)


def module_file(name: str) -> Path | None:
    """The file of a module, for the newest kernel that has one. The plain name takes any flavour's file."""
    exact = name.replace("_", "-")
    module = _module_of(name)
    for kernel in kernels():
        places = [kernel / "updates", kernel / "extra", kernel / "weak-updates", kernel / "kernel/drivers/video"]
        if module == "nouveau":
            places = [kernel / "kernel/drivers/gpu/drm/nouveau"]
        flavours = []
        for place in places:
            for path in sorted(place.rglob("*.ko*")):
                stem = path.name.split(".ko")[0].replace("_", "-")
                if stem == exact:
                    return path
                if canonical(exact) == module and _module_of(stem) == module:
                    flavours.append(path)
        if flavours:
            return flavours[0]
    return None


def modinfo_field(path: Path, field: str) -> str:
    done = subprocess.run(
        ["modinfo", "-F", field, str(path)], executable=KMOD, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines()
    return lines[0] if lines else ""


def configuration() -> Iterator[list[str]]:
    """The lines of modprobe.d in words. A file hides those of the same name in later directories."""
    seen: set[str] = set()
    for directory in CONFIGURATION:
        for path in sorted(glob.glob(f"{directory}/*.conf")):
            if os.path.basename(path) in seen:
                continue
            seen.add(os.path.basename(path))
            with contextlib.suppress(OSError):
                text = Path(path).read_text(encoding="utf-8", errors="replace").replace("\\\n", " ")
                for line in text.splitlines():
                    words = line.split()
                    if words and not words[0].startswith("#"):
                        yield words


def blacklisted(name: str) -> bool:
    """Whether modprobe.d forbids loading the module by what it can drive; loading it by its name remains possible."""
    for words in configuration():
        if words[0] == "blacklist" and len(words) > 1 and _module_of(words[1]) == name:
            return True
        # What is installed as /bin/false or /bin/true is not loaded either.
        if words[0] == "install" and words[1:2] == [name] and words[2:3] in (["/bin/false"], ["/bin/true"]):
            return True
    return False


def command_for(action: str, name: str) -> str | None:
    """The command that modprobe.d sets in the place of installing or removing a module."""
    for words in configuration():
        if words[0] == action and len(words) > 2 and canonical(words[1]) == canonical(name):
            return " ".join(words[2:])
    return None


def options_for(names: set[str]) -> dict[str, str]:
    options = {}
    for words in configuration():
        if words[0] == "options" and len(words) > 2 and canonical(words[1]) in names:
            options.update(word.split("=", 1) for word in words[2:] if "=" in word)
    return options


# What is loaded


def state() -> dict[str, Any]:
    """{"modules": {name: {"version", "flavour", "size", "parameters"}}} in the order of loading."""
    current: dict[str, Any] = json.loads(STATE.read_text(encoding="utf-8"))
    return current


def keep(now: dict[str, Any]) -> None:
    temporary = STATE.with_suffix(".new")
    temporary.write_text(json.dumps(now), encoding="utf-8")
    temporary.replace(STATE)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    with open(RUN / "lock", "w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def holders(modules: dict[str, Any], name: str) -> list[str]:
    return [other for other in modules if name in NEEDS[other]]


def users_of_devices(name: str) -> list[str]:
    """Processes that hold a device file of the module open. Opening as a path only is what the stand-ins can do."""
    patterns = {
        "nvidia": r"/dev/nvidia(\d+|ctl)$",
        "nvidia_uvm": r"/dev/nvidia-uvm(-tools)?$",
        "nvidia_modeset": r"/dev/nvidia-modeset$",
    }
    return users_of(patterns[name]) if name in patterns else []


def users_of(pattern: str) -> list[str]:
    processes = set()
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if re.match(pattern, os.readlink(link)):
                processes.add(link.split("/")[2])
    return sorted(processes)


def load(name: str, parameters: dict[str, str], path: Path | None = None) -> None:
    """Load a module and what it needs. `path` is the file that insmod was given; insmod loads nothing else."""
    module = _module_of(name)
    assert module is not None
    now = state()
    if module in now["modules"]:
        if path is not None:
            raise Refused(f"ERROR: could not insert module {path}: File exists")
        return
    file = path or module_file(name)
    if file is None:
        raise Refused(f"FATAL: Module {name} not found in directory /lib/modules/{os.uname().release}")
    for need in NEEDS[module]:
        if need not in now["modules"]:
            if path is not None:
                raise Refused(f"ERROR: could not insert module {path}: Unknown symbol in module")
            # Of the same flavour: nvidia-current-uvm needs nvidia-current.
            part = module[len("nvidia") :].replace("_", "-")
            sibling = name.replace("_", "-").replace(part, need[len("nvidia") :].replace("_", "-"))
            load(sibling if module_file(sibling) else need, {})
    now = state()
    scenario = read_scenario()
    fresh: dict[str, Any] = {"size": file.stat().st_size}
    if module != "nouveau":
        if scenario.get("secure_boot") == "on":
            raise Refused(f"ERROR: could not insert '{canonical(name)}': Key was rejected by service")
        license_ = modinfo_field(file, "license")
        fresh["version"] = modinfo_field(file, "version") or now["modules"].get("nvidia", {}).get("version", "")
        fresh["flavour"] = "open" if "GPL" in license_ else "proprietary"
        if module == "nvidia" and ("nouveau" in now["modules"] or not driven(scenario, fresh)):
            raise Refused(f"ERROR: could not insert '{canonical(name)}': No such device")
        if module != "nvidia" and fresh["version"] != now["modules"]["nvidia"]["version"]:
            raise Refused(f"ERROR: could not insert '{canonical(name)}': Invalid argument")
    names = {module, canonical(name), canonical(file.name.split(".ko")[0])}
    fresh["parameters"] = {**options_for(names), **parameters}
    now["modules"][module] = fresh
    keep(now)
    show()


def unload(name: str) -> None:
    """Take a module out, as rmmod does."""
    now = state()
    modules = now["modules"]
    if name not in modules:
        raise Refused(f"ERROR: Module {name} is not currently loaded")
    held = holders(modules, name)
    if held:
        raise Refused(f"ERROR: Module {name} is in use by: {' '.join(held)}")
    if users_of_devices(name) or _in_use(name):
        raise Refused(f"ERROR: Module {name} is in use")
    del modules[name]
    keep(now)
    if name == "nvidia":
        # With the driver goes what it knows of MIG.
        (RUN / "mig").unlink(missing_ok=True)
    show()


def _in_use(name: str) -> bool:
    """Whether the scenario says that something in the kernel uses the module."""
    scenario = read_scenario()
    if name == "nouveau":
        return bool((scenario.get("nouveau") or {}).get("in_use"))
    return name in scenario.get("modules_in_use", [])


# What is shown


def write(path: Path, text: str) -> None:
    """In place: a view that is laid over a file of /proc shows this very file."""
    path.write_text(text, encoding="utf-8")


def show() -> None:
    """Write all views anew."""
    scenario = read_scenario()
    modules = state()["modules"]
    _show_modules(modules)
    _show_character_devices(modules, scenario)
    _show_proc_driver(modules, scenario)
    _show_bus(modules, scenario)
    _show_firmware(scenario)
    _show_fabric_manager(scenario)


def _real(name: str) -> Path:
    return RUN / "real" / name


def _clear(directory: Path, kept: str = "") -> None:
    for path in directory.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif not kept or not path.is_symlink():
            path.unlink()


def _show_modules(modules: dict[str, Any]) -> None:
    lines = []
    views = RUN / "sys-module"
    _clear(views, kept="links")
    for name, module in modules.items():
        held = holders(modules, name)
        # Without the processes that hold a GPU: a file cannot follow them, and a stale count would mislead.
        count = len(held) + _in_use(name)
        directory = views / name
        (directory / "holders").mkdir(parents=True)
        (directory / "parameters").mkdir()
        for other in held:
            (directory / "holders" / other).symlink_to(f"../../{other}")
        write(directory / "initstate", "live\n")
        write(directory / "refcnt", f"{count}\n")
        write(directory / "coresize", f"{module['size']}\n")
        taint = "" if name == "nouveau" else "OE" if module["flavour"] == "open" else "POE"
        write(directory / "taint", f"{taint}\n")
        if "version" in module:
            write(directory / "version", f"{module['version']}\n")
        for key, value in module["parameters"].items():
            write(directory / "parameters" / key, f"{value}\n")
        users = "".join(f"{other}," for other in held) or "-"
        lines.append(f"{name} {module['size']} {count} {users} Live 0x0000000000000000\n")
    real = _real("proc-modules")
    write(RUN / "proc-modules", "".join(reversed(lines)) + (real.read_text(encoding="utf-8") if real.exists() else ""))


def _version(modules: dict[str, Any]) -> list[int]:
    return [int(part) for part in modules["nvidia"]["version"].split(".")]


def _show_character_devices(modules: dict[str, Any], scenario: dict[str, Any]) -> None:
    characters, _, blocks = _real("proc-devices").read_text(encoding="ascii").partition("\nBlock devices:")
    added = []
    if "nvidia" in modules:
        added.append((195, "nvidia" if _version(modules) >= [550, 40] else "nvidia-frontend"))
        # Registered where there is no NVSwitch, too.
        added += [(508, "nvidia-nvswitch"), (509, "nvidia-nvlink")]
        if _version(modules) >= [450]:
            added.append((510, "nvidia-caps"))
        if _version(modules) >= [550]:
            added.append((507, "nvidia-caps-imex-channels"))
    if "nvidia_modeset" in modules:
        added.append((195, "nvidia-modeset"))
    if "nvidia_uvm" in modules:
        added.append((511, "nvidia-uvm"))
    lines = [*characters.rstrip("\n").splitlines(), *(f"{number:3d} {name}" for number, name in sorted(added))]
    write(RUN / "proc-devices", "\n".join(lines) + "\n\nBlock devices:" + blocks)


def _show_proc_driver(modules: dict[str, Any], scenario: dict[str, Any]) -> None:
    views = RUN / "proc-driver"
    for name in ("nvidia", "nvidia-caps", "nvidia-nvswitch"):
        shutil.rmtree(views / name, ignore_errors=True)
    if "nvidia" not in modules:
        return
    module = modules["nvidia"]
    nvidia = views / "nvidia"
    (nvidia / "gpus").mkdir(parents=True)
    kind = "Open Kernel Module for x86_64" if module["flavour"] == "open" else "x86_64 Kernel Module"
    version = f"NVRM version: NVIDIA UNIX {kind}  {module['version']}  Thu Jan  1 00:00:00 UTC 1970\n"
    write(nvidia / "version", version + "GCC version:  gcc version 12.2.0 (simulated)\n")
    given = {key[len(PREFIX) :]: str(int(value, 0)) for key, value in module["parameters"].items() if _is_number(value)}
    write(nvidia / "params", "".join(f"{key}: {value}\n" for key, value in {**PARAMETERS, **given}.items()))
    for gpu in driven(scenario, module):
        directory = nvidia / "gpus" / gpu["pci"]["address"]
        directory.mkdir()
        fields = {
            "Model": gpu["name"],
            "IRQ": gpu["pci"]["irq"],
            "GPU UUID": gpu["uuid"],
            "Video BIOS": gpu["vbios"].lower(),
            "Bus Type": "PCIe",
            "DMA Size": "47 bits",
            "DMA Mask": "0x7fffffffffff",
            "Bus Location": gpu["pci"]["address"],
            "Device Minor": gpu["minor"],
            "GPU Firmware": module["version"] if gpu["architecture"] >= 6 else "N/A",
            "GPU Excluded": "No",
        }
        write(directory / "information", "".join(f"{key}: \t {value}\n" for key, value in fields.items()))
    if _version(modules) >= [450]:
        _show_capabilities(nvidia / "capabilities", driven(scenario, module), _version(modules))
    if scenario.get("switches"):
        (views / "nvidia-nvswitch" / "devices").mkdir(parents=True)
        write(views / "nvidia-nvswitch" / "permissions", "DeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n")
        for switch in scenario["switches"]:
            (views / "nvidia-nvswitch" / "devices" / switch["pci"]["address"]).mkdir()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"0[xX][0-9a-fA-F]+|\d+", text) is not None


def _show_capabilities(directory: Path, taken: list[dict[str, Any]], version: list[int]) -> None:
    def capability(path: Path, minor: int, mode: int = 0o400) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n")

    if version >= [550]:
        capability(directory / "fabric-imex-mgmt", 4323)
    if not any(gpu.get("mig") for gpu in taken):
        return
    capability(directory / "mig" / "config", 1)
    capability(directory / "mig" / "monitor", 2, 0o444)
    for gpu in taken:
        mig = gpu.get("mig") or {}
        for instance in mig["instances"] if mig.get("current") else ():
            base = 3 + 135 * gpu["minor"] + 9 * instance["id"]
            where = directory / f"gpu{gpu['minor']}" / "mig" / f"gi{instance['id']}"
            capability(where / "access", base, 0o444)
            for compute in instance["compute"]:
                capability(where / f"ci{compute['id']}" / "access", base + 1 + compute["id"], 0o444)


def _show_bus(modules: dict[str, Any], scenario: dict[str, Any]) -> None:
    bus, drivers = RUN / "pci-devices", RUN / "pci-drivers"
    _clear(bus, kept="links")
    _clear(drivers, kept="links")
    for driver in ("nouveau", "nvidia"):
        if driver in modules:
            (drivers / driver).mkdir()
    taken = [gpu["pci"]["address"] for gpu in driven(scenario, modules["nvidia"])] if "nvidia" in modules else []
    for item in [*gpus(scenario), *scenario.get("switches", [])]:
        directory = bus / item["pci"]["address"]
        directory.mkdir()
        _show_function(directory, item["pci"])
        driver = "nvidia" if item["pci"]["address"] in taken else ""
        if "nouveau" in modules and item in gpus(scenario):
            driver = "nouveau"
        if driver:
            (directory / "driver").symlink_to(f"../../drivers/{driver}")
            (drivers / driver / item["pci"]["address"]).symlink_to(f"../../devices/{item['pci']['address']}")
            write(directory / "uevent", f"DRIVER={driver}\n" + (directory / "uevent").read_text(encoding="ascii"))


def _show_function(directory: Path, pci: dict[str, Any]) -> None:
    vendor, device, class_code = 0x10DE, int(pci["device"], 16), int(pci["class"], 16)
    sub_vendor, sub_device = int(pci["subsystem_vendor"], 16), int(pci["subsystem_device"], 16)
    alias = (
        f"pci:v{vendor:08X}d{device:08X}sv{sub_vendor:08X}sd{sub_device:08X}"
        f"bc{class_code >> 16:02X}sc{class_code >> 8 & 0xFF:02X}i{class_code & 0xFF:02X}"
    )
    values = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{device:04x}",
        "subsystem_vendor": f"0x{sub_vendor:04x}",
        "subsystem_device": f"0x{sub_device:04x}",
        "class": f"0x{class_code:06x}",
        "revision": "0xa1",
        "irq": pci.get("irq", 0),
        "enable": 1,
        "numa_node": pci["numa_node"],
        "local_cpulist": pci["cpus"],
        "current_link_speed": f"{SPEEDS[pci['generation']]} GT/s PCIe",
        "max_link_speed": f"{SPEEDS[pci['generation_max']]} GT/s PCIe",
        "current_link_width": pci["width"],
        "max_link_width": pci["width_max"],
        "modalias": alias,
        "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
        "uevent": f"PCI_CLASS={class_code:X}\nPCI_ID={vendor:04X}:{device:04X}\nPCI_SUBSYS_ID={sub_vendor:04X}:"
        f"{sub_device:04X}\nPCI_SLOT_NAME={pci['address']}\nMODALIAS={alias}",
    }
    for name, value in values.items():
        write(directory / name, f"{value}\n")
    space = bytearray(256)
    space[0:4] = vendor.to_bytes(2, "little") + device.to_bytes(2, "little")
    space[4:8] = (0x0406).to_bytes(2, "little") + (0x0010).to_bytes(2, "little")
    space[8:12] = bytes([0xA1]) + class_code.to_bytes(3, "little")
    space[44:48] = sub_vendor.to_bytes(2, "little") + sub_device.to_bytes(2, "little")
    (directory / "config").write_bytes(bytes(space))


def _show_firmware(scenario: dict[str, Any]) -> None:
    """Secure Boot, as far as the variable that says whether it is on."""
    shutil.rmtree(RUN / "sys-firmware" / "efi", ignore_errors=True)
    if scenario.get("secure_boot") in ("on", "enrolled", "off"):
        variables = RUN / "sys-firmware" / "efi" / "efivars"
        variables.mkdir(parents=True)
        value = b"\6\0\0\0" + (b"\0" if scenario["secure_boot"] == "off" else b"\1")
        (variables / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(value)


# What the driver writes into the kernel's log, and the daemon that a scenario says runs


def _log(scenario: dict[str, Any]) -> None:
    """Write the scenario's lines that were not written yet, as records of /dev/kmsg."""
    counter = RUN / "kernel-log.json"
    written = json.loads(counter.read_text(encoding="ascii")) if counter.exists() else {"sequence": 0}
    if written.get("scenario") != scenario.get("name"):
        written.update(scenario=scenario.get("name"), id=0)
    records = []
    for entry in sorted(scenario.get("kernel_log", []), key=lambda entry: entry["id"]):
        if entry["id"] > written["id"]:
            for line in entry["lines"]:
                written["sequence"] += 1
                records.append(f"4,{written['sequence']},{int(time.monotonic() * 1e6)},-;{line}\n")
            written["id"] = entry["id"]
    if records:
        with open(os.open(LOG, os.O_RDWR | os.O_NONBLOCK), "wb", buffering=0) as pipe:
            for record in records:
                pipe.write(record.encode())
    write(counter, json.dumps(written))


def log() -> None:
    """Hold the pipe open, so that what is written waits for its reader, until the unit is stopped."""
    with open(os.open(LOG, os.O_RDWR | os.O_CLOEXEC), "rb"):
        _log(read_scenario())
        signal.pause()


def reset(address: str) -> int:
    """As `nvidia-smi --gpu-reset -i ADDRESS`, but for siblings on one board, which a real reset may take along."""
    gpu = next((one for one in gpus(read_scenario()) if one["pci"]["address"] == address), None)
    if gpu is None:
        print(f"reset: there is no GPU at {address}", file=sys.stderr)
        return 2
    users = [*users_of(rf"/dev/nvidia{gpu['minor']}$"), *(str(one["pid"]) for one in gpu["processes"])]
    if users:
        print(f"GPU {address} is in use by processes {', '.join(users)}; it is not reset", file=sys.stderr)
        return 1
    with locked():
        forget_instances(address)
        show()
    return 0


def changed() -> None:
    """The scenario is another one."""
    show()
    _log(read_scenario())


def _show_fabric_manager(scenario: dict[str, Any]) -> None:
    """The PID file that the daemon would write; the process in it is one that lives."""
    if scenario.get("fabric_manager") == "running":
        FABRIC_MANAGER.parent.mkdir(parents=True, exist_ok=True)
        write(FABRIC_MANAGER, "1\n")
    elif scenario.get("fabric_manager") == "stopped":
        FABRIC_MANAGER.unlink(missing_ok=True)


# Boot


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True, env={"PATH": PATH})


def boot() -> None:
    """Once per boot: the tmpfs with the views, and the views over /proc and /sys."""
    RUN.mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", "mode=0755,size=64m", "baremetal-gpu-simulators", RUN)
    real = RUN / "real"
    real.mkdir()
    keep({"modules": {}})
    os.mkfifo(LOG)
    views = {
        "sys-module": "/sys/module",
        "sys-firmware": "/sys/firmware",
        "proc-driver": "/proc/driver",
        "pci-devices": "/sys/bus/pci/devices",
        "pci-drivers": "/sys/bus/pci/drivers",
    }
    for name, target in views.items():
        (RUN / name).mkdir()
        # A container's /sys has only some of the directories.
        Path(target).mkdir(exist_ok=True)
        # What is really there stays visible, but for NVIDIA's: links into a second view of the directory.
        (real / name).mkdir()
        mount("--bind", target, real / name)
        mount("--make-private", real / name)
        for entry in sorted(Path(target).iterdir()):
            vendor = entry / "vendor"
            if vendor.exists() and vendor.read_text(encoding="ascii").strip() == "0x10de":
                continue
            if _module_of(entry.name) is None:
                way = entry.resolve() if name == "pci-devices" else real / name / entry.name
                (RUN / name / entry.name).symlink_to(way)
    # Listed, not looked for: on a second boot the preloaded library would find the file that is not there.
    in_proc = os.listdir("/proc")
    for name in ("devices", "modules"):
        if name in in_proc:
            text = Path(f"/proc/{name}").read_text(encoding="ascii").splitlines(keepends=True)
            write(real / f"proc-{name}", "".join(line for line in text if not re.search(r"\bnvidia|nouveau", line)))
    show()
    for name, target in views.items():
        mount("--bind", RUN / name, target)
    mount("--bind", RUN / "proc-devices", "/proc/devices")
    if "modules" in in_proc:
        mount("--bind", RUN / "proc-modules", "/proc/modules")
    elif not Path("/etc/ld.so.preload").exists():
        # A kernel without modules has no /proc/modules, and none can be added: whoever opens it is given ours.
        Path("/etc/ld.so.preload").write_text(f"{HOME}/lib/libproc-modules.so\n", encoding="ascii")
    libraries()
    _load_what_the_bus_asks_for()


def _load_what_the_bus_asks_for() -> None:
    """What udev loads for the GPUs it finds: nouveau, which every kernel has, or else a driver that was built."""
    scenario = read_scenario()
    try:
        if (scenario.get("nouveau") or {}).get("at_boot") and not blacklisted("nouveau") and module_file("nouveau"):
            load("nouveau", {})
        elif gpus(scenario) and module_file("nvidia") and not blacklisted("nvidia"):
            modprobe_one("nvidia", {}, ignore_commands=False)
    except Refused as refused:
        print(f"simulated kernel: {refused}", file=sys.stderr)


def modules_load() -> None:
    """Load what modules-load.d lists; what is not ours cannot be loaded into the kernel of the lab's host."""
    for directory in ("/usr/lib/modules-load.d", "/etc/modules-load.d", "/run/modules-load.d"):
        for path in sorted(glob.glob(f"{directory}/*.conf")):
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                name = line.split("#")[0].split(";")[0].strip()
                if name and _module_of(name):
                    try:
                        modprobe_one(name, {}, ignore_commands=False)
                    except Refused as refused:
                        print(f"modules-load: {refused}", file=sys.stderr)
                elif name:
                    print(f"modules-load: {name} left out: the kernel is the lab host's", file=sys.stderr)


# NVIDIA's libraries


def libraries() -> None:
    """Every installed libcuda.so.550.163.01 and its like becomes a stand-in; the real file waits under real/."""
    kept = HOME / "real"
    for stem, stand_in in LIBRARIES.items():
        pattern = re.compile(re.escape(stem) + r"\.\d{3}\.\d+(\.\d+)?")
        for place in LIBRARY_PLACES:
            for path in glob.glob(f"{place}/{stem}.*"):
                if pattern.fullmatch(os.path.basename(path)) and not os.path.islink(path):
                    _replace(Path(path), kept / path[1:], HOME / "lib" / stand_in)
    for path in Path("/").glob("usr/lib/baremetal-gpu-simulators/diverted/*"):
        original, real = path.read_text(encoding="ascii").split("\n")[:2]
        if not os.path.exists(real):
            if _is_stand_in(Path(original)):
                os.unlink(original)
            _divert("--remove", original, real)
            path.unlink()


def _is_stand_in(path: Path) -> bool:
    return path.is_file() and path.stat().st_size < 4 << 20 and MARKER in path.read_bytes()


def _divert(action: str, original: str, real: str) -> None:
    """For dpkg, so that the next version of the package finds the real file where it waits."""
    words = ["dpkg-divert", "--quiet", "--local", "--no-rename", "--divert", real, action, original]
    subprocess.run(words, check=False, env={"PATH": PATH}, stdout=subprocess.DEVNULL)


def _replace(path: Path, real: Path, stand_in: Path) -> None:
    if _is_stand_in(path):
        if path.read_bytes() != stand_in.read_bytes() and real.exists():
            _copy(stand_in, path)
        return
    owned = subprocess.run(["dpkg", "-S", path], capture_output=True, check=False, env={"PATH": PATH}).returncode == 0
    real.parent.mkdir(parents=True, exist_ok=True)
    if owned:
        (HOME / "diverted").mkdir(exist_ok=True)
        note = HOME / "diverted" / str(path)[1:].replace("/", "%")
        write(note, f"{path}\n{real}\n")
        _divert("--add", str(path), str(real))
    shutil.move(path, real)
    _copy(stand_in, path)


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o644)
    temporary.replace(target)


# kmod's commands


def pass_on(command: str, arguments: list[str]) -> NoReturn:
    os.execv(KMOD, [command, *arguments])


def modprobe_one(name: str, parameters: dict[str, str], ignore_commands: bool) -> None:
    command = None if ignore_commands else command_for("install", name)
    if command:
        _run_configured(command, " ".join(f"{key}={value}" for key, value in parameters.items()))
    else:
        with locked():
            load(name, parameters)


def remove_one(name: str, ignore_commands: bool) -> None:
    """modprobe -r: the module and then those it needed, if nothing else needs them. Not loaded is no failure."""
    command = None if ignore_commands else command_for("remove", name)
    if command:
        _run_configured(command, "")
        return
    with locked():
        module = _module_of(name)
        assert module is not None
        if module not in state()["modules"]:
            return
        try:
            unload(module)
        except Refused as refused:
            raise Refused(str(refused).replace("ERROR:", "FATAL:").split(" by:")[0].rstrip(".") + ".") from None
        for need in _unused_needs(module):
            unload(need)


def _unused_needs(module: str) -> Iterator[str]:
    for need in NEEDS[module]:
        if need in state()["modules"] and not holders(state()["modules"], need) and not users_of_devices(need):
            yield need
            yield from _unused_needs(need)


def _run_configured(command: str, options: str) -> None:
    done = subprocess.run(command, shell=True, check=False, env={"PATH": PATH, "CMDLINE_OPTS": options})
    if done.returncode:
        raise Refused(f"ERROR: Error running command '{command}'")


LONG = {
    "--all": "a", "--remove": "r", "--quiet": "q", "--silent": "q", "--verbose": "v", "--use-blacklist": "b",
    "--force": "f", "--ignore-install": "i", "--ignore-remove": "i", "--dry-run": "n", "--show": "n", "--syslog": "s",
    "--first-time": "1", "--wait": "w",
}  # fmt: skip


def _split(arguments: list[str]) -> tuple[set[str], list[str]]:
    flags: set[str] = set()
    names: list[str] = []
    for word in arguments:
        if word.startswith("--"):
            flags.add(LONG.get(word, "?"))
        elif word.startswith("-") and len(word) > 1:
            flags.update(word[1:])
        else:
            names.append(word)
    return flags, names


def modprobe(arguments: list[str]) -> int:
    flags, names = _split(arguments)
    several = bool(flags & {"r", "a"})
    requested = names if several else names[:1]
    if not requested or flags - set("arqvbifns1w") or not all(_module_of(name) for name in requested):
        pass_on("modprobe", arguments)
    parameters = dict(word.split("=", 1) for word in names[1:] if "=" in word) if not several else {}
    status = 0
    for name in requested:
        try:
            module = _module_of(name)
            assert module is not None
            is_loaded = module in state()["modules"]
            if "1" in flags and is_loaded != ("r" in flags):
                raise Refused(f"ERROR: could not {'remove' if 'r' in flags else 'insert'} '{module}': "
                              + ("Module is not loaded" if "r" in flags else "Module already in kernel"))  # fmt: skip
            if "n" in flags:
                if module_file(name) is None:
                    raise Refused(f"FATAL: Module {name} not found in directory /lib/modules/{os.uname().release}")
            elif "r" in flags:
                remove_one(name, "i" in flags)
            elif "b" not in flags or not blacklisted(module):
                modprobe_one(name, parameters, "i" in flags)
        except Refused as refused:
            if "q" not in flags or "FATAL: Module" not in str(refused):
                print(f"modprobe: {refused}", file=sys.stderr)
            status = 1
    return status


def rmmod(arguments: list[str]) -> int:
    flags, names = _split(arguments)
    stems = [os.path.basename(name).split(".ko")[0] for name in names]
    if not names or flags - set("fsvw") or not all(_module_of(name) for name in stems):
        pass_on("rmmod", arguments)
    status = 0
    for name in stems:
        try:
            with locked():
                unload(_module_of(name) or name)
        except Refused as refused:
            print(f"rmmod: {refused}", file=sys.stderr)
            status = 1
    return status


def insmod(arguments: list[str]) -> int:
    _flags, names = _split(arguments)
    name = os.path.basename(names[0]).split(".ko")[0] if names else ""
    if not name or _module_of(name) is None or not os.path.isfile(names[0]):
        pass_on("insmod", arguments)
    try:
        with locked():
            load(name, dict(word.split("=", 1) for word in names[1:] if "=" in word), Path(names[0]))
    except Refused as refused:
        print(f"insmod: {refused}", file=sys.stderr)
        return 1
    return 0


def modinfo(arguments: list[str]) -> int:
    """The running kernel is the lab host's; where ours is requested by name, kmod gets the file."""
    given = []
    for word in arguments:
        file = module_file(word) if _module_of(word) and "/" not in word else None
        given.append(str(file) if file and "-k" not in arguments else word)
    pass_on("modinfo", given)


def main(words: list[str]) -> int:
    commands = {"modprobe": modprobe, "rmmod": rmmod, "insmod": insmod, "modinfo": modinfo}
    actions = {"boot": boot, "show": changed, "log": log, "libraries": libraries, "modules-load": modules_load}
    name, arguments = (words or [""])[0], words[1:]
    if name in commands:
        if not STATE.exists():
            pass_on(name, arguments)
        return commands[name](arguments)
    if name == "reset" and len(arguments) == 1:
        return reset(arguments[0])
    if name not in actions or arguments:
        print(__doc__, file=sys.stderr)
        return 2
    actions[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
