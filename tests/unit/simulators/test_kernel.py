# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated kernel's files and kmod's commands, in a directory of the test. What needs a machine is not here."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators import generate
from tests.unit.simulators.conftest import SIMULATORS

KERNEL = "6.12.48+deb13-amd64"
# Hand-made: what modinfo says of the files that Debian's packages build.
FIELDS = {
    "nvidia-current.ko": {"version": "550.163.01", "license": "NVIDIA"},
    "nvidia-current-uvm.ko": {"version": "550.163.01", "license": "Dual MIT/GPL"},
    "nvidia-current-modeset.ko": {"version": "550.163.01", "license": "NVIDIA"},
    "nvidia-current-drm.ko": {"version": "550.163.01", "license": "MIT"},
    "nvidia-tesla-470.ko": {"version": "470.256.02", "license": "NVIDIA"},
    "nvidia-current-open.ko": {"version": "550.163.01", "license": "Dual MIT/GPL"},
    "nvidia.ko": {"version": "580.95.05", "license": "NVIDIA"},
}


class Machine:
    """kernel/kernel.py with its directories elsewhere."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = importlib.util.spec_from_file_location("simulated_kernel", SIMULATORS / "kernel" / "kernel.py")
        assert spec is not None
        assert spec.loader is not None
        self.kernel = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.kernel)
        self.root, self.run = root, root / "run"
        self.passed_on: list[list[str]] = []
        self.configuration = root / "modprobe.d"
        self.configuration.mkdir()
        for name in ("sys-module", "sys-firmware", "proc-driver", "pci-devices", "pci-drivers", "real"):
            (self.run / name).mkdir(parents=True)
        (self.run / "real" / "proc-devices").write_text("Character devices:\n  1 mem\n\nBlock devices:\n  7 loop\n")
        for name, value in {
            "HOME": root,
            "SCENARIO": root / "scenario.json",
            "RUN": self.run,
            "STATE": self.run / "state.json",
            "LOG": self.run / "kernel-log",
            "FABRIC_MANAGER": root / "run-of-host" / "nv-fabricmanager.pid",
            "MODULES": root / "modules",
            "CONFIGURATION": (str(self.configuration),),
            "modinfo_field": lambda path, field: FIELDS.get(path.name, {}).get(field, ""),
            "pass_on": self.pass_on,
            "users_of_devices": lambda name: self.users.get(name, []),
            "users_of": lambda pattern: self.users.get(pattern, []),
        }.items():
            monkeypatch.setattr(self.kernel, name, value)
        self.users: dict[str, list[str]] = {}
        os.mkfifo(self.run / "kernel-log")
        self.kernel.keep({"modules": {}})
        self.scenario("a100-sxm4-40gb-x2")

    def pass_on(self, command: str, arguments: list[str]) -> None:
        self.passed_on.append([command, *arguments])
        raise SystemExit(77)

    def scenario(self, name: str, **changes) -> None:
        document = generate.scenario(name) | changes
        (self.root / "scenario.json").write_text(json.dumps(document), encoding="utf-8")
        self.kernel.show()

    def build(self, *names: str, kernel: str = KERNEL) -> None:
        for name in names:
            where = "kernel/drivers/gpu/drm/nouveau" if name.startswith("nouveau") else "updates/dkms"
            path = self.root / "modules" / kernel / where / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\0" * 100)

    def configure(self, text: str) -> None:
        (self.configuration / "test.conf").write_text(text)

    def __call__(self, *words: str) -> int:
        return self.kernel.main(list(words))

    def modules(self) -> list[str]:
        return [line.split()[0] for line in self.text("proc-modules").splitlines()]

    def text(self, name: str) -> str:
        return (self.run / name).read_text(encoding="utf-8")

    def character_devices(self) -> dict[str, int]:
        lines = self.text("proc-devices").partition("\n\n")[0].splitlines()[1:]
        return {line.split()[1]: int(line.split()[0]) for line in lines}

    def driver(self, address: str = "0000:3b:00.0") -> str | None:
        link = self.run / "pci-devices" / address / "driver"
        return os.path.basename(os.readlink(link)) if link.is_symlink() else None


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_no_module_is_loaded_that_was_not_built(machine, capsys):
    assert machine("modprobe", "nvidia") == 1
    assert capsys.readouterr().err == (
        f"modprobe: FATAL: Module nvidia not found in directory /lib/modules/{os.uname().release}\n"
    )
    assert machine.modules() == []
    assert not (machine.run / "proc-driver" / "nvidia").exists()


def test_a_loaded_driver_shows_itself_and_its_gpus(machine):
    machine.build("nvidia-current.ko")
    assert machine("modprobe", "nvidia") == 0
    assert machine.modules() == ["nvidia"]
    assert "Kernel Module  550.163.01 " in machine.text("proc-driver/nvidia/version")
    assert machine.text("sys-module/nvidia/version") == "550.163.01\n"
    assert machine.text("sys-module/nvidia/refcnt") == "0\n"
    assert machine.character_devices() == {
        "mem": 1,
        "nvidia": 195,
        "nvidia-caps": 510,
        "nvidia-caps-imex-channels": 507,
        "nvidia-nvlink": 509,
        "nvidia-nvswitch": 508,
    }
    assert machine.text("proc-devices").endswith("Block devices:\n  7 loop\n")
    information = machine.text("proc-driver/nvidia/gpus/0000:af:00.0/information")
    assert "Device Minor: \t 1\n" in information
    assert "Model: \t NVIDIA A100-SXM4-40GB\n" in information
    assert machine.driver() == "nvidia"
    assert machine.driver("0000:af:00.0") == "nvidia"


def test_needed_modules_come_along_and_hold(machine, capsys):
    machine.build(*(name for name in FIELDS if name.startswith("nvidia-current") and "open" not in name))
    assert machine("modprobe", "nvidia-drm") == 0
    assert machine("modprobe", "nvidia_uvm") == 0
    assert machine.modules() == ["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia"]
    assert machine.text("sys-module/nvidia/refcnt") == "2\n"
    assert sorted(os.listdir(machine.run / "sys-module/nvidia/holders")) == ["nvidia_modeset", "nvidia_uvm"]
    assert machine.character_devices()["nvidia-uvm"] == 511
    assert machine("rmmod", "nvidia") == 1
    assert capsys.readouterr().err == "rmmod: ERROR: Module nvidia is in use by: nvidia_modeset nvidia_uvm\n"
    assert machine("rmmod", "nvidia-drm") == 0
    assert machine("modprobe", "-r", "nvidia_uvm") == 0
    # What is no longer needed goes along, what another one holds stays.
    assert machine.modules() == ["nvidia_modeset", "nvidia"]
    assert machine("modprobe", "-r", "nvidia-modeset") == 0
    assert machine.modules() == []
    assert machine.driver() is None


def test_a_process_that_holds_a_gpu_keeps_the_module(machine, capsys):
    machine.build("nvidia-current.ko")
    machine("modprobe", "nvidia")
    machine.users["nvidia"] = ["4711"]
    assert machine("rmmod", "nvidia") == 1
    assert machine("modprobe", "-r", "nvidia") == 1
    assert capsys.readouterr().err.splitlines() == [
        "rmmod: ERROR: Module nvidia is in use",
        "modprobe: FATAL: Module nvidia is in use.",
    ]
    machine.users.clear()
    assert machine("rmmod", "nvidia") == 0
    assert machine("rmmod", "nvidia") == 1
    assert "is not currently loaded" in capsys.readouterr().err
    assert machine("modprobe", "-r", "nvidia") == 0


def test_without_gpus_the_module_is_refused(machine, capsys):
    machine.build("nvidia-current.ko")
    machine.scenario("no-gpu")
    assert machine("modprobe", "nvidia") == 1
    assert capsys.readouterr().err == "modprobe: ERROR: could not insert 'nvidia': No such device\n"


@pytest.mark.parametrize(
    ("scenario", "file", "loads"),
    [
        ("k20c-x1", "nvidia-tesla-470.ko", True),
        ("k20c-x1", "nvidia-current.ko", False),
        ("gtx1080-x2", "nvidia-current.ko", True),
        ("gtx1080-x2", "nvidia-current-open.ko", False),
        ("a100-sxm4-40gb-x2", "nvidia-current-open.ko", True),
        ("a100-sxm4-40gb-x2", "nvidia.ko", True),
    ],
)
def test_which_driver_takes_which_gpu(machine, scenario, file, loads):
    machine.scenario(scenario)
    machine.build(file)
    assert machine("modprobe", "nvidia") == (0 if loads else 1)
    assert machine.modules() == (["nvidia"] if loads else [])


def test_an_old_driver_names_its_major_differently(machine):
    machine.scenario("k20c-x1")
    machine.build("nvidia-tesla-470.ko")
    machine("modprobe", "nvidia")
    devices = {"nvidia-frontend": 195, "nvidia-caps": 510, "nvidia-nvlink": 509, "nvidia-nvswitch": 508}
    assert machine.character_devices() == {"mem": 1, **devices}


def test_the_open_module_says_so(machine):
    machine.build("nvidia-current-open.ko")
    machine("modprobe", "nvidia")
    assert "NVIDIA UNIX Open Kernel Module for x86_64  550.163.01 " in machine.text("proc-driver/nvidia/version")


def test_nouveau_and_the_driver_exclude_each_other(machine, capsys):
    machine.build("nvidia-current.ko", "nouveau.ko.xz")
    assert machine("modprobe", "nouveau") == 0
    assert machine.driver() == "nouveau"
    assert machine("modprobe", "nvidia") == 1
    assert "No such device" in capsys.readouterr().err
    assert machine("modprobe", "-r", "nouveau") == 0
    assert machine.driver() is None
    assert machine("modprobe", "nvidia") == 0
    assert machine.driver() == "nvidia"


def test_nouveau_that_is_in_use_stays(machine, capsys):
    machine.build("nouveau.ko.xz")
    machine.scenario("nouveau-in-use")
    machine("modprobe", "nouveau")
    assert machine.text("sys-module/nouveau/refcnt") == "1\n"
    assert machine("modprobe", "-r", "nouveau") == 1
    assert capsys.readouterr().err == "modprobe: FATAL: Module nouveau is in use.\n"


@pytest.mark.parametrize(
    ("scenario", "configuration", "built", "loaded"),
    [
        ("nouveau-bound", "", ["nouveau.ko.xz"], ["nouveau"]),
        ("nouveau-bound", "", ["nouveau.ko.xz", "nvidia-current.ko"], ["nouveau"]),
        ("nouveau-bound", "blacklist nouveau\n", ["nouveau.ko.xz"], []),
        ("nouveau-bound", "install nouveau /bin/false\n", ["nouveau.ko.xz"], []),
        ("nouveau-bound", "blacklist nouveau\n", ["nouveau.ko.xz", "nvidia-current.ko"], ["nvidia"]),
        ("a100-sxm4-40gb-x2", "", ["nouveau.ko.xz"], []),
        ("a100-sxm4-40gb-x2", "", ["nvidia-current.ko"], ["nvidia"]),
        ("a100-sxm4-40gb-x2", "blacklist nvidia\n", ["nvidia-current.ko"], []),
        ("a100-sxm4-40gb-x2", "# blacklist nvidia\n", ["nvidia-current.ko"], ["nvidia"]),
        ("no-gpu", "", ["nvidia-current.ko"], []),
    ],
)
def test_what_a_booting_machine_loads(machine, scenario, configuration, built, loaded):
    machine.scenario(scenario)
    machine.configure(configuration)
    machine.build(*built)
    machine.kernel._load_what_the_bus_asks_for()
    assert machine.modules() == loaded


def test_a_blacklisted_module_is_loaded_by_its_name_only(machine):
    machine.build("nvidia-current.ko")
    machine.configure("blacklist nvidia\n")
    assert machine("modprobe", "-b", "nvidia") == 0
    assert machine.modules() == []
    assert machine("modprobe", "nvidia") == 0
    assert machine.modules() == ["nvidia"]


def test_parameters_come_from_modprobe_d_and_the_command_line(machine):
    machine.build("nvidia-current.ko")
    machine.configure("options nvidia NVreg_DeviceFileMode=0x180 NVreg_DeviceFileGID=44\n")
    machine("modprobe", "nvidia", "NVreg_ModifyDeviceFiles=0")
    parameters = machine.text("proc-driver/nvidia/params")
    for line in ("DeviceFileMode: 384\n", "DeviceFileGID: 44\n", "ModifyDeviceFiles: 0\n", "DeviceFileUID: 0\n"):
        assert line in parameters


def test_the_newest_kernel_and_the_plain_name_count(machine):
    machine.build("nvidia-tesla-470.ko", kernel="6.1.0-9-amd64")
    machine.build("nvidia-current.ko", kernel="6.1.0-40-amd64")
    assert machine.kernel.module_file("nvidia").name == "nvidia-current.ko"
    assert machine.kernel.module_file("nvidia-tesla-470").name == "nvidia-tesla-470.ko"
    assert machine.kernel.module_file("nvidia-uvm") is None


def test_insmod_loads_one_file_and_nothing_else(machine, capsys):
    machine.build("nvidia-current.ko", "nvidia-current-uvm.ko")
    where = machine.root / "modules" / KERNEL / "updates/dkms"
    assert machine("insmod", str(where / "nvidia-current-uvm.ko")) == 1
    assert "Unknown symbol in module" in capsys.readouterr().err
    assert machine("insmod", str(where / "nvidia-current.ko")) == 0
    assert machine("insmod", str(where / "nvidia-current.ko")) == 1
    assert "File exists" in capsys.readouterr().err
    assert machine("insmod", str(where / "nvidia-current-uvm.ko")) == 0
    assert machine.modules() == ["nvidia_uvm", "nvidia"]


def test_secure_boot_refuses_modules(machine, capsys):
    machine.build("nvidia-current.ko")
    machine.scenario("a100-sxm4-40gb-x2", secure_boot="on")
    variable = machine.run / "sys-firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    assert variable.read_bytes() == b"\6\0\0\0\1"
    assert machine("modprobe", "nvidia") == 1
    assert "Key was rejected by service" in capsys.readouterr().err
    machine.scenario("a100-sxm4-40gb-x2", secure_boot="off")
    assert variable.read_bytes() == b"\6\0\0\0\0"
    assert machine("modprobe", "nvidia") == 0


def test_what_is_not_ours_is_passed_on(machine):
    for words in (
        ["modprobe", "overlay"],
        ["modprobe", "-a", "nvidia", "overlay"],
        ["modprobe", "--show-depends", "-S", KERNEL, "nvidia"],
        ["modprobe", "-c"],
        ["rmmod", "br_netfilter"],
        ["insmod", "/tmp/other.ko"],
    ):
        with pytest.raises(SystemExit):
            machine(*words)
    assert machine.passed_on[0] == ["modprobe", "overlay"]
    assert len(machine.passed_on) == 6


def test_modinfo_is_told_the_file_of_an_installed_kernel(machine):
    machine.build("nvidia-current.ko")
    with pytest.raises(SystemExit):
        machine("modinfo", "-F", "version", "nvidia")
    path = machine.root / "modules" / KERNEL / "updates/dkms/nvidia-current.ko"
    assert machine.passed_on == [["modinfo", "-F", "version", str(path)]]


def test_the_bus_is_shown_with_its_switches(machine):
    machine.scenario("h100-sxm-x8")
    bus = machine.run / "pci-devices"
    classes = [(path / "class").read_text().strip() for path in sorted(bus.iterdir())]
    assert (classes.count("0x030200"), classes.count("0x068000")) == (8, 4)
    gpu = bus / "0000:07:00.0"
    assert (gpu / "device").read_text() == "0x2330\n"
    assert (gpu / "current_link_speed").read_text() == "32.0 GT/s PCIe\n"
    space = (gpu / "config").read_bytes()
    assert space[:4] == b"\xde\x10\x30\x23"
    assert space[9:12] == b"\x00\x02\x03"
    assert len(space) == 256


def test_switches_and_capabilities_of_a_loaded_driver(machine):
    machine.scenario("a100-sxm4-40gb-x8-mig")
    machine.build("nvidia-current.ko")
    machine("modprobe", "nvidia")
    assert machine.character_devices()["nvidia-nvswitch"] == 508
    assert len(list((machine.run / "proc-driver/nvidia-nvswitch/devices").iterdir())) == 6
    minors = {
        str(path.relative_to(machine.run / "proc-driver/nvidia/capabilities")): int(path.read_text().split()[1])
        for path in (machine.run / "proc-driver/nvidia/capabilities").rglob("*")
        if path.is_file()
    }
    assert minors["mig/config"] == 1
    assert minors["gpu0/mig/gi1/access"] == 12
    assert minors["gpu1/mig/gi2/ci0/access"] == 3 + 135 + 18 + 1
    assert len(set(minors.values())) == len(minors)


def capabilities(machine):
    top = machine.run / "proc-driver/nvidia/capabilities"
    return sorted(str(path.parent.relative_to(top)) for path in top.rglob("access"))


def test_instances_that_nvml_made_are_capabilities_and_are_forgotten(machine, capsys):
    machine.scenario("a100-sxm4-40gb-x8-mig")
    machine.build("nvidia-current.ko")
    machine("modprobe", "nvidia")
    gpus = json.loads((machine.root / "scenario.json").read_text())["devices"]
    keys = ("current", "pending", "instances")
    states = {gpu["uuid"]: {key: gpu["mig"][key] for key in keys} for gpu in gpus}
    states[gpus[0]["uuid"]]["instances"] = gpus[0]["mig"]["instances"][:1]
    (machine.run / "mig").write_text(json.dumps(states))
    machine.kernel.show()
    assert capabilities(machine)[:3] == ["gpu0/mig/gi1", "gpu0/mig/gi1/ci0", "gpu1/mig/gi1"]
    machine.users["/dev/nvidia0$"] = ["4242"]
    assert machine("reset", gpus[0]["pci"]["address"]) == 1
    assert "in use by processes 4242" in capsys.readouterr().err
    machine.users.clear()
    assert machine("reset", gpus[0]["pci"]["address"]) == 0
    assert capabilities(machine)[0] == "gpu1/mig/gi1"
    assert machine("reset", "0000:ff:00.0") == 2
    assert "there is no GPU at 0000:ff:00.0" in capsys.readouterr().err
    # What the next boot finds is written with every change.
    (machine.root / "mig-at-boot").write_text(json.dumps({uuid: {"instances": []} for uuid in states}))
    machine("rmmod", "nvidia")
    machine("modprobe", "nvidia")
    assert capabilities(machine) == []


def test_a_gpu_that_is_gone_leaves_the_bus(machine):
    document = json.loads((machine.root / "scenario.json").read_text())
    document["devices"][1]["state"] = "gone"
    (machine.root / "scenario.json").write_text(json.dumps(document))
    assert machine("show") == 0
    assert os.listdir(machine.run / "pci-devices") == ["0000:3b:00.0"]


def test_lines_of_the_kernels_log_are_written_once(machine):
    """Read as /dev/kmsg is: priority, sequence, microseconds and flags before the text."""
    with open(os.open(machine.run / "kernel-log", os.O_RDWR | os.O_NONBLOCK), "rb", buffering=0) as log:
        machine.scenario("log-off-bus-three-lines")
        machine("show")
        machine("show")
        machine.scenario("xid-31")
        machine("show")
        records = log.read(65536).decode().splitlines()
    assert [record.partition(";")[2] for record in records[:3]] == [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2901) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ]
    assert records[3].partition(";")[2].startswith("NVRM: Xid (PCI:0000:03:00): 31,")
    assert len(records) == 4
    heads = [record.partition(";")[0].split(",") for record in records]
    assert [head[1] for head in heads] == ["1", "2", "3", "4"]
    assert {(head[0], head[3]) for head in heads} == {("4", "-")}


def test_fabric_manager_runs_where_the_scenario_says_so(machine):
    file = machine.root / "run-of-host" / "nv-fabricmanager.pid"
    machine.scenario("h100-sxm-x8")
    assert Path(f"/proc/{file.read_text().strip()}").exists()
    machine.scenario("fabric-not-ready")
    assert not file.exists()


def test_a_command_that_is_none(machine, capsys):
    assert machine("frobnicate") == 2
    assert machine() == 2
    assert "kernel.py boot" in capsys.readouterr().err


def test_the_dispatcher_knows_whose_a_call_is(built, tmp_path):
    """It is tried with two programs in the place of its own two."""
    source = (SIMULATORS / "kernel" / "dispatch.c").read_text(encoding="utf-8")
    for name, path in (("kmod", "/usr/bin/kmod"), ("ours", "/usr/lib/baremetal-gpu-simulators/kernel.py")):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        program.chmod(0o755)
        assert path in source
        source = source.replace(path, str(program))
    (tmp_path / "dispatch.c").write_text(source)
    subprocess.run(["cc", "-D_GNU_SOURCE", "-o", tmp_path / "dispatch", tmp_path / "dispatch.c"], check=True)

    def call(name: str, *words: str) -> str:
        link = tmp_path / name
        if not link.exists():
            link.symlink_to("dispatch")
        return subprocess.run([link, *words], capture_output=True, text=True, check=True).stdout.strip()

    assert call("modprobe", "nvidia-uvm") == "ours modprobe nvidia-uvm"
    assert call("modprobe", "-r", "nouveau") == "ours modprobe -r nouveau"
    assert call("modprobe", "overlay") == "kmod overlay"
    assert call("insmod", "/lib/modules/x/nvidia-current.ko") == "ours insmod /lib/modules/x/nvidia-current.ko"
    assert call("modinfo", "-F", "firmware", "/x/nouveau.ko") == "kmod -F firmware /x/nouveau.ko"
    assert call("modinfo", "nvidia") == "ours modinfo nvidia"


def test_the_preloaded_library_passes_on_that_there_is_no_path(built: Path) -> None:
    """As Rust's standard library does, to learn whether the kernel knows statx()."""
    program = (
        "import ctypes, errno, sys; library = ctypes.CDLL(sys.argv[1], use_errno=True); "
        "status = library.statx(0, None, 0, 0xfff, None); sys.exit(0 if (status, ctypes.get_errno()) == "
        "(-1, errno.EFAULT) else 1)"
    )
    done = subprocess.run([sys.executable, "-c", program, built / "libproc-modules.so"], check=False)
    assert done.returncode == 0
