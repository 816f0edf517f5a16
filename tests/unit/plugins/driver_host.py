# SPDX-License-Identifier: GPL-3.0-or-later
"""A host with the NVIDIA driver: the driver's files under /proc, hand-made after driver 550."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.unit.plugins.fake_host import FakeHost

PROC_DEVICES = """Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
237 nvidia-nvswitch
{uvm}238 nvidia-caps
239 nvidia-nvlink

Block devices:
195 nvidia-uvm
259 blkext
"""
PARAMS = """ResmanDebugLevel: 4294967295
ModifyDeviceFiles: {modify}
DeviceFileUID: 0
DeviceFileGID: {gid}
DeviceFileMode: {mode}
"""
INFORMATION = """Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 40
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.19.00.13
Bus Type: \t PCIe
Bus Location: \t {address}
Device Minor: \t {minor}
"""
UUIDS = ("GPU-c18f9569-83a8-5313-9d05-77b2d6e79883", "GPU-5a3f1c20-1111-4222-8333-944455556666")


def driver_loaded(
    host: FakeHost,
    gpus: dict[str, int] | None = None,
    uvm: int | None = 511,
    modify: int = 1,
    mode: int = 0o666,
    gid: int = 0,
    uuids: tuple[str, ...] = UUIDS,
) -> None:
    """The driver's view of GPUs, given as PCI address -> minor."""
    gpus = {"0000:3b:00.0": 0, "0000:af:00.0": 1} if gpus is None else gpus
    host.loaded("550.163.01")
    host.write("proc/devices", PROC_DEVICES.format(uvm=f"{uvm} nvidia-uvm\n" if uvm else ""))
    host.write("proc/driver/nvidia/params", PARAMS.format(modify=modify, mode=mode, gid=gid))
    for number, (address, minor) in enumerate(sorted(gpus.items())):
        text = INFORMATION.format(uuid=uuids[number], address=address, minor=minor)
        host.write(f"proc/driver/nvidia/gpus/{address}/information", text)
        host.pci(address, "20b0", driver="nvidia")
    capability = "DeviceFileMinor: {}\nDeviceFileMode: {}\nDeviceFileModify: 1\n"
    host.write("proc/driver/nvidia/capabilities/mig/config", capability.format(1, 256))
    host.write("proc/driver/nvidia/capabilities/mig/monitor", capability.format(2, 292))
    host.write("proc/driver/nvidia/capabilities/fabric-imex-mgmt", capability.format(4323, 256))


def can_make_nodes(directory: Path) -> bool:
    path = directory / "probe"
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except OSError:
        return False
    path.unlink()
    return True


@pytest.fixture
def needs_nodes(tmp_path: Path) -> None:
    if not can_make_nodes(tmp_path):
        pytest.skip("device nodes cannot be made here: not root, or a container without CAP_MKNOD")
