# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated libnvidia-cfg, asked as nvidia-persistenced asks it."""

from __future__ import annotations

import ctypes

import pytest

from tests.unit.simulators.conftest import load_copy


class PciDevice(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("domain", "bus", "slot", "function")]


@pytest.fixture
def listed(built, tmp_path):
    library = load_copy(built / "libnvidia-cfg.so.1", tmp_path)

    def ask():
        count, devices = ctypes.c_int(), ctypes.POINTER(PciDevice)()
        answered = library.nvCfgGetPciDevices(ctypes.byref(count), ctypes.byref(devices))
        return library, [(devices[i].domain, devices[i].bus) for i in range(count.value)] if answered else None

    return ask


def test_the_gpus_are_listed_and_opened(listed, scenario):
    scenario("a100-sxm4-40gb-x2")
    library, listed_gpus = listed()
    assert listed_gpus == [(0, 0x3B), (0, 0xAF)]
    handle = ctypes.c_void_p()
    assert library.nvCfgOpenPciDevice(0, 0xAF, 0, 0, ctypes.byref(handle)) == 1
    assert library.nvCfgCloseDevice(handle) == 1
    assert library.nvCfgOpenPciDevice(0, 0x11, 0, 0, ctypes.byref(handle)) == 0


def test_gpus_that_the_driver_does_not_have_are_not_listed(listed, scenario):
    scenario("lost-one-of-eight")
    assert len(listed()[1]) == 7
    chosen = scenario("k20c-x1")
    chosen.document["driver"]["version"] = "550.163.01"
    chosen.write()
    assert listed()[1] == []


def test_without_a_driver_there_is_no_answer(listed, scenario):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.document["driver"]["version"] = None
    chosen.write()
    assert listed()[1] is None
