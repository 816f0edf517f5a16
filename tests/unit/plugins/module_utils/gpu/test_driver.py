# SPDX-License-Identifier: GPL-3.0-or-later
"""The driver as the files of a hand-made host show it."""

from __future__ import annotations

import io
import lzma
import os

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver
from tests.unit.plugins.fake_host import PROC_VERSION, kernel_module

KERNEL = "6.12.48+deb13-amd64"


@pytest.mark.parametrize("flavour", ["open", "proprietary"])
@pytest.mark.parametrize("version", ["550.163.01", "470.256.02", "390.157"])
def test_version_and_flavour_of_the_loaded_module(flavour, version):
    assert driver.parse_proc_version(PROC_VERSION[flavour].format(version=version)) == (version, flavour)


def test_nothing_loaded_and_nothing_installed(fake_host):
    assert driver.read(fake_host.path, KERNEL) == {
        "installed": None,
        "loaded": None,
        "nouveau_loaded": False,
        "branch": None,
        "flavour": None,
    }


def test_nouveau_is_seen_among_the_modules(fake_host):
    fake_host.write("proc/modules", "video 73728 1 nouveau, Live 0x0\nnouveau 3248128 4 - Live 0x0\n")
    assert driver.read(fake_host.path)["nouveau_loaded"] is True
    fake_host.write("proc/modules", "drm_ttm_helper 16384 1 nouveau_like, Live 0x0\n")
    assert driver.read(fake_host.path)["nouveau_loaded"] is False


def test_the_version_file_of_the_module_serves_where_proc_has_none(fake_host):
    fake_host.write("sys/module/nvidia/version", "550.163.01\n")
    assert driver.loaded(fake_host.path) == ("550.163.01", None)


def test_dkms_tells_the_version_without_reading_the_module(fake_host):
    fake_host.kernel(KERNEL)
    fake_host.dkms("nvidia-current", "550.163.01", KERNEL)
    assert driver.modules(fake_host.path) == {
        KERNEL: {
            "version": "550.163.01",
            "flavour": "proprietary",
            "path": f"/lib/modules/{KERNEL}/updates/dkms/nvidia-current.ko.xz",
            "dkms": True,
        }
    }


def test_dkms_flavour_open(fake_host):
    fake_host.kernel(KERNEL)
    fake_host.dkms("nvidia-current-open", "550.163.01", KERNEL)
    assert driver.read(fake_host.path, KERNEL)["flavour"] == "open"


@pytest.mark.parametrize(
    ("license_text", "flavour", "suffix"),
    [("NVIDIA", "proprietary", ".ko"), ("Dual MIT/GPL", "open", ".ko"), ("Dual MIT/GPL", "open", ".ko.xz")],
)
def test_a_module_without_dkms_is_read(fake_host, license_text, flavour, suffix):
    content = kernel_module(license=license_text, version="580.95.05", vermagic="x")
    if suffix.endswith(".xz"):
        content = lzma.compress(content)
    fake_host.kernel(KERNEL)
    fake_host.write(f"lib/modules/{KERNEL}/kernel/nvidia-580srv/nvidia{suffix}", content)
    fake_host.write(f"lib/modules/{KERNEL}/kernel/nvidia-580srv/nvidia-drm{suffix}", b"")
    state = driver.read(fake_host.path, KERNEL)
    assert (state["installed"], state["flavour"], state["branch"]) == ("580.95.05", flavour, 580)
    assert driver.modules(fake_host.path)[KERNEL]["dkms"] is False


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"x" * 200])
def test_a_damaged_module_has_no_version(fake_host, damage):
    fake_host.kernel(KERNEL)
    fake_host.write(f"lib/modules/{KERNEL}/extra/nvidia.ko", damage)
    assert driver.modules(fake_host.path)[KERNEL]["version"] is None


def test_modinfo_stops_at_a_cut_file():
    whole = kernel_module(version="550.163.01")
    assert driver.modinfo(io.BytesIO(whole)) == {"version": "550.163.01"}
    for length in range(0, len(whole), 7):
        assert driver.modinfo(io.BytesIO(whole[:length])) == {}


def test_the_library_names_the_installed_version(fake_host):
    fake_host.kernel(KERNEL)
    fake_host.dkms("nvidia-current", "535.261.03", KERNEL)
    libraries = "usr/lib/x86_64-linux-gnu/nvidia/current"
    fake_host.write(f"{libraries}/libnvidia-ml.so.550.163.01", b"")
    fake_host.link(f"{libraries}/libnvidia-ml.so.1", "libnvidia-ml.so.550.163.01")
    fake_host.loaded("535.261.03")
    state = driver.read(fake_host.path, KERNEL)
    assert (state["installed"], state["loaded"], state["branch"]) == ("550.163.01", "535.261.03", 535)


def test_the_module_of_the_running_kernel_counts_first(fake_host):
    for kernel, version in (("6.1.0-40-amd64", "535.261.03"), (KERNEL, "550.163.01")):
        fake_host.kernel(kernel)
        fake_host.dkms("nvidia-current", version, kernel) if kernel == KERNEL else fake_host.write(
            f"lib/modules/{kernel}/extra/nvidia.ko", kernel_module(version=version, license="NVIDIA")
        )
    assert driver.read(fake_host.path, "6.1.0-40-amd64")["installed"] == "535.261.03"
    assert driver.read(fake_host.path, "none of these")["installed"] == "550.163.01"


def test_on_this_machine_reading_changes_nothing_and_raises_nothing():
    state = driver.read("/", os.uname().release)
    assert set(state) == {"installed", "loaded", "nouveau_loaded", "branch", "flavour"}


@pytest.mark.parametrize(
    ("name", "version", "own"),
    [
        ("nvidia", "580.95.05", True),
        ("nvidia-open", "580.95.05", True),
        ("nvidia-current", "550.163.01", True),
        ("nvidia-current-open", "550.163.01", True),
        ("nvidia-tesla-470", "470.256.02", True),
        ("nvidia-srv", "535.129.03", True),
        ("nvidia-legacy-390xx", "390.157", True),
        ("nvidia-fs", "2.17.5", False),
        ("nvidia-fs", "550.163.01", False),
        ("nvidia-peermem", "1.0", False),
        ("nvidia-peer-memory", "1.3", False),
        ("nvidia", "1.0", False),
        ("nvidiafoo", "550.163.01", False),
    ],
)
def test_which_modules_of_dkms_are_the_driver(name, version, own):
    assert driver.is_dkms_driver(name, version) is own


def test_a_third_partys_module_is_not_the_drivers_version(fake_host):
    fake_host.kernel(KERNEL)
    fake_host.dkms("nvidia-current", "550.163.01", KERNEL)
    fake_host.dkms("nvidia-fs", "2.17.5", KERNEL, "nvidia-fs.ko.xz")
    assert driver.modules(fake_host.path)[KERNEL]["version"] == "550.163.01"
    assert driver.read(fake_host.path, KERNEL)["installed"] == "550.163.01"


@pytest.mark.parametrize(
    ("left", "libraries"), [("390.48", None), ("390.48", "550.163.01"), ("580.95.05", "550.163.01")]
)
def test_what_is_left_of_another_driver_is_not_the_version(fake_host, left, libraries):
    fake_host.kernel(KERNEL)
    fake_host.dkms("nvidia-current", "550.163.01", KERNEL)
    fake_host.link(f"var/lib/dkms/nvidia/kernel-{KERNEL}-x86_64", f"{left}/{KERNEL}/x86_64")
    if libraries:
        fake_host.write(f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{libraries}", "")
    assert driver.modules(fake_host.path)[KERNEL]["version"] == "550.163.01"
