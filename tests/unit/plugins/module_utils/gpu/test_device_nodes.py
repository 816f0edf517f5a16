# SPDX-License-Identifier: GPL-3.0-or-later
"""Which device nodes there must be, and making them in a tree of its own."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import device_nodes, pci
from tests.unit.plugins.driver_host import driver_loaded, needs_nodes

SOURCE = Path(device_nodes.__file__)
__all__ = ["needs_nodes"]


def by_path(nodes):
    return {node.path: node for node in nodes}


def test_nodes_of_two_gpus(fake_host):
    driver_loaded(fake_host)
    nodes = by_path(device_nodes.expected_nodes(fake_host.path))
    assert sorted(nodes) == [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-caps/nvidia-cap4323",
        "/dev/nvidia-modeset",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia0",
        "/dev/nvidia1",
        "/dev/nvidiactl",
    ]
    assert nodes["/dev/nvidiactl"] == device_nodes.Node("/dev/nvidiactl", 195, 255, 0o666, 0, 0)
    assert nodes["/dev/nvidia-modeset"].minor == 254
    # The major of the character device, not that of the block device of the same name below it.
    assert nodes["/dev/nvidia-uvm"] == device_nodes.Node("/dev/nvidia-uvm", 511, 0)
    assert nodes["/dev/nvidia-uvm-tools"] == device_nodes.Node("/dev/nvidia-uvm-tools", 511, 1)
    monitor = device_nodes.Node("/dev/nvidia-caps/nvidia-cap2", 238, 2, 0o444, for_jobs=False)
    assert nodes["/dev/nvidia-caps/nvidia-cap2"] == monitor
    assert nodes["/dev/nvidia1"].link == "/dev/char/195:1"


def test_the_node_is_numbered_by_the_minor_not_by_the_place_on_the_bus(fake_host):
    driver_loaded(fake_host, gpus={"0000:3b:00.0": 3, "0000:af:00.0": 1})
    nodes = by_path(device_nodes.expected_nodes(fake_host.path))
    assert "/dev/nvidia0" not in nodes
    assert nodes["/dev/nvidia3"].minor == 3
    assert device_nodes.gpu_minors(fake_host.path) == {"0000:3b:00.0": 3, "0000:af:00.0": 1}


def test_drivers_before_550_have_another_name_in_proc_devices(fake_host):
    driver_loaded(fake_host)
    fake_host.write("proc/devices", "Character devices:\n195 nvidia-frontend\n510 nvidia-uvm\n\nBlock devices:\n")
    (fake_host.root / "sys/module/nvidia_modeset").mkdir(parents=True)
    nodes = by_path(device_nodes.expected_nodes(fake_host.path))
    assert nodes["/dev/nvidia0"].major == 195
    assert nodes["/dev/nvidia-modeset"].major == 195
    assert nodes["/dev/nvidia-uvm"].major == 510


def test_mode_and_group_come_from_the_parameters_but_not_for_uvm(fake_host):
    driver_loaded(fake_host, mode=0o660, gid=44)
    nodes = by_path(device_nodes.expected_nodes(fake_host.path))
    assert (nodes["/dev/nvidia0"].mode, nodes["/dev/nvidia0"].gid) == (0o660, 44)
    assert (nodes["/dev/nvidia-uvm"].mode, nodes["/dev/nvidia-uvm"].gid) == (0o666, 0)


def test_nvswitches(fake_host):
    driver_loaded(fake_host)
    # The number is registered where there is no switch, too.
    assert not [path for path in by_path(device_nodes.expected_nodes(fake_host.path)) if "nvswitch" in path]
    for address in ("0000:06:00.0", "0000:07:00.0"):
        fake_host.write(f"proc/driver/nvidia-nvswitch/devices/{address}/information", "")
    nodes = by_path(device_nodes.expected_nodes(fake_host.path))
    assert nodes["/dev/nvidia-nvswitchctl"].minor == 255
    assert [nodes[f"/dev/nvidia-nvswitch{number}"].minor for number in (0, 1)] == [0, 1]
    assert not any(node.for_jobs for path, node in nodes.items() if "nvswitch" in path)


def test_jobs_open_instances_of_mig_and_nothing_that_administers(fake_host):
    driver_loaded(fake_host)
    access = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    for minor, path in ((12, "gi1/access"), (13, "gi1/ci0/access")):
        fake_host.write(f"proc/driver/nvidia/capabilities/gpu0/mig/{path}", access.format(minor))
    nodes = device_nodes.expected_nodes(fake_host.path)
    numbers = {node.minor for node in nodes if node.for_jobs and "nvidia-caps" in node.path}
    assert numbers == {12, 13}
    assert {node.path for node in nodes if not node.for_jobs} == {
        f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in (1, 2, 4323)
    }


def test_without_the_driver_no_node_can_be_told(fake_host):
    fake_host.write("proc/devices", "Character devices:\n  1 mem\n\nBlock devices:\n195 nvidia\n")
    with pytest.raises(device_nodes.DriverNotLoaded, match="names no character device 'nvidia'"):
        device_nodes.expected_nodes(fake_host.path)


def test_the_uvm_module_is_missed(fake_host):
    driver_loaded(fake_host, uvm=None)
    assert "/dev/nvidia-uvm" not in by_path(device_nodes.expected_nodes(fake_host.path))
    (difference,) = device_nodes.module_differences(fake_host.path)
    assert (difference.path, difference.kind) == ("/dev/nvidia-uvm", "module_not_loaded")
    assert "modprobe nvidia-uvm" in difference.remedy


@pytest.mark.usefixtures("needs_nodes")
def test_made_nodes_are_right_and_making_them_again_changes_nothing(fake_host):
    driver_loaded(fake_host, mode=0o640, gid=12)
    nodes = device_nodes.expected_nodes(fake_host.path)
    missing = device_nodes.compare(nodes, fake_host.path)
    assert {difference.kind for difference in missing} == {"missing", "link_missing"}
    assert len(missing) == 2 * len(nodes)
    device_nodes.create(nodes, fake_host.path)
    assert device_nodes.compare(nodes, fake_host.path) == []
    status = os.lstat(fake_host.root / "dev/nvidia1")
    assert stat.S_ISCHR(status.st_mode)
    assert (os.major(status.st_rdev), os.minor(status.st_rdev)) == (195, 1)
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o640, 12)
    assert os.readlink(fake_host.root / "dev/char/511:0") == "../nvidia-uvm"
    assert os.readlink(fake_host.root / "dev/char/238:1") == "../nvidia-caps/nvidia-cap1"
    device_nodes.create(nodes, fake_host.path)
    assert os.lstat(fake_host.root / "dev/nvidia1").st_ctime_ns == status.st_ctime_ns


@pytest.mark.usefixtures("needs_nodes")
def test_what_is_wrong_is_told_and_mended(fake_host):
    driver_loaded(fake_host)
    nodes = device_nodes.expected_nodes(fake_host.path)
    device_nodes.create(nodes, fake_host.path)
    dev = fake_host.root / "dev"
    (dev / "nvidia0").unlink()
    os.mknod(dev / "nvidia0", stat.S_IFCHR | 0o666, os.makedev(195, 7))
    (dev / "nvidia1").unlink()
    (dev / "nvidia1").write_text("what a redirection to a missing device leaves")
    os.chmod(dev / "nvidiactl", 0o600)
    os.chown(dev / "nvidia-uvm", 0, 5)
    (dev / "char/195:254").unlink()
    (dev / "char/195:255").unlink()
    (dev / "char/195:255").symlink_to("../nvidia0")
    differences = {
        (difference.path, difference.kind): difference for difference in device_nodes.compare(nodes, fake_host.path)
    }
    assert set(differences) == {
        ("/dev/nvidia0", "wrong_number"),
        ("/dev/nvidia1", "not_a_device"),
        ("/dev/nvidiactl", "wrong_mode"),
        ("/dev/nvidia-uvm", "wrong_owner"),
        ("/dev/char/195:254", "link_missing"),
        ("/dev/char/195:255", "link_wrong"),
    }
    assert differences["/dev/nvidia0", "wrong_number"].current == "character device 195:7"
    before, after = device_nodes.describe(list(differences.values()))
    assert "/dev/nvidiactl: 0600\n" in before
    assert "/dev/nvidiactl: 0666\n" in after
    device_nodes.create(nodes, fake_host.path)
    assert device_nodes.compare(nodes, fake_host.path) == []
    assert not [path for path in dev.rglob("*") if ".new" in path.name]


@pytest.mark.usefixtures("needs_nodes")
def test_an_absolute_link_is_as_good(fake_host):
    driver_loaded(fake_host)
    nodes = device_nodes.expected_nodes(fake_host.path)
    device_nodes.create(nodes, fake_host.path)
    link = fake_host.root / "dev/char/195:0"
    link.unlink()
    link.symlink_to("/dev/nvidia0")
    assert device_nodes.compare(nodes, fake_host.path) == []


@pytest.mark.parametrize(("modify", "expected"), [(1, True), (0, False)])
def test_the_driver_may_be_told_to_leave_nodes_alone(fake_host, modify, expected):
    driver_loaded(fake_host, modify=modify)
    assert device_nodes.may_modify(fake_host.path) is expected


def test_loaded_modules_where_the_list_is_hidden(fake_host):
    fake_host.write("sys/module/nvidia/initstate", "live\n")
    fake_host.write("sys/module/nvidia_drm/parameters/modeset", "N\n")
    assert device_nodes.loaded_modules(fake_host.path) == {"nvidia"}
    fake_host.write(
        "proc/modules", "nvidia_uvm 4960256 0 - Live 0x0\nnvidia 62767104 1 nvidia_uvm, Live 0x0\next4 1 1 - Live\n"
    )
    assert device_nodes.loaded_modules(fake_host.path) == {"nvidia", "nvidia_uvm"}


def test_modules_that_a_boot_loads(fake_host):
    fake_host.write("etc/modules-load.d/nvidia.conf", "# of the driver\nnvidia-drm\n\nloop\n")
    fake_host.write("usr/lib/modules-load.d/nvidia.conf", "nvidia-peermem\n")
    fake_host.write("usr/lib/modules-load.d/other.conf", "  nvidia_fs\n; nvidia-uvm\n")
    assert device_nodes.boot_modules(fake_host.path) == {"nvidia_drm", "nvidia_fs"}, "a file in /etc hides its namesake"


def test_the_file_runs_by_itself_without_the_collection(tmp_path):
    """As the boot unit runs it: isolated, from another place."""
    program = tmp_path / "device-nodes"
    program.write_bytes(SOURCE.read_bytes())
    done = subprocess.run(
        [sys.executable, "-I", str(program), "--check", "--json"], capture_output=True, text=True, check=False
    )
    if "is not loaded" in done.stderr:
        assert done.returncode == 1
    else:
        assert isinstance(json.loads(done.stdout), list)


def test_a_gpu_that_is_given_away_has_no_node(fake_host):
    driver_loaded(fake_host)
    assert device_nodes.gpu_minors(fake_host.path) == {"0000:3b:00.0": 0, "0000:af:00.0": 1}
    fake_host.pci("0000:3b:00.0", "20b0", driver="vfio-pci")
    assert device_nodes.gpu_minors(fake_host.path) == {"0000:af:00.0": 1}
    assert "/dev/nvidia0" not in [node.path for node in device_nodes.expected_nodes(fake_host.path)]
    fake_host.link("sys/bus/pci/devices/0000:af:00.0/physfn", "../0000:3b:00.0")
    assert device_nodes.gpu_minors(fake_host.path) == {}


@pytest.mark.parametrize("driver", [*pci.GIVING_AWAY, "uio_pci_generic", "nvgrace_gpu_vfio_pci", "nvidia"])
def test_the_program_that_stands_alone_gives_away_what_all_others_do(fake_host, driver):
    driver_loaded(fake_host)
    fake_host.pci("0000:3b:00.0", "20b0", driver=driver)
    assert ("0000:3b:00.0" not in device_nodes.gpu_minors(fake_host.path)) == pci.gives_away(driver)
