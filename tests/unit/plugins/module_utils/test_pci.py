# SPDX-License-Identifier: GPL-3.0-or-later
"""Cards on the PCI bus of a hand-made sysfs."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.data_compatibility import ARCHITECTURES
from ansible_collections.baremetal.gpu.plugins.module_utils.data_gpus import ARCHITECTURE_RANGES, MODELS


def test_cards_and_switches_are_found_by_class_and_vendor(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", driver="nvidia")
    fake_host.pci("0000:3b:00.1", "10f0", pci_class="040300")
    fake_host.pci("0000:01:00.0", "1b80", pci_class="030000", driver="nouveau")
    fake_host.pci("0000:c4:00.0", "22a3", pci_class="068000")
    fake_host.pci("0000:02:00.0", "1db6", vendor="1002")
    assert pci.scan(fake_host.path) == [
        {
            "address": "0000:01:00.0",
            "vendor": "10de",
            "device": "1b80",
            "class": "0300",
            "model": "GeForce GTX 1080",
            "architecture": "pascal",
            "driver": "nouveau",
            "kind": "gpu",
        },
        {
            "address": "0000:3b:00.0",
            "vendor": "10de",
            "device": "20b0",
            "class": "0302",
            "model": "A100 SXM4 40GB",
            "architecture": "ampere",
            "driver": "nvidia",
            "kind": "gpu",
        },
        {
            "address": "0000:c4:00.0",
            "vendor": "10de",
            "device": "22a3",
            "class": "0680",
            "model": None,
            "architecture": None,
            "driver": None,
            "kind": "nvswitch",
        },
    ]


def test_a_bus_that_cannot_be_read_is_not_an_empty_one(fake_host):
    assert pci.scan(fake_host.path) == []
    shutil.rmtree(fake_host.root / "sys")
    with pytest.raises(pci.BusUnreadable, match=r"^/sys/bus/pci/devices cannot be read: No such file or directory$"):
        pci.scan(fake_host.path)


@pytest.mark.parametrize(
    ("device", "architecture", "model"),
    [
        ("1022", "kepler", "Tesla K20c"),
        ("1004", "kepler", None),  # GK110, a GeForce that is in no table
        ("13F2", "maxwell", "Tesla M60"),
        ("1db6", "volta", "Tesla V100 PCIe 32GB"),
        ("1eb8", "turing", "Tesla T4"),
        ("2237", "ampere", "A10G"),
        ("2684", "ada", "GeForce RTX 4090"),
        ("2339", "hopper", None),
        ("2bb5", "blackwell", "RTX PRO 6000 Blackwell Server"),
        ("31c2", "blackwell", "GB300"),
        ("0640", None, None),  # older than Fermi
        ("3500", None, None),  # newer than the data
        ("zzzz", None, None),
    ],
)
def test_architecture_by_id(device, architecture, model):
    assert pci.architecture(device) == architecture
    assert pci.model(device) == model


def test_tables_agree_with_each_other():
    ranges = sorted((first, last) for first, last, _name, _source in ARCHITECTURE_RANGES)
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges))
    for device, row in MODELS.items():
        in_range = [name for first, last, name, _ in ARCHITECTURE_RANGES if first <= int(device, 16) <= last]
        assert in_range == [row["architecture"]], device
        assert row["source"], device
    assert {name for _first, _last, name, _source in ARCHITECTURE_RANGES} == set(ARCHITECTURES)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_every_way_to_write_an_address_is_one_address(domain, bus, device, function):
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    nvml = f"{domain:08X}:{bus:02X}:{device:02X}.{function}"
    assert pci.normal_address(nvml) == pci.normal_address(kernel) == kernel


def test_numa_node(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", numa=1)
    fake_host.pci("0000:3c:00.0", "20b0", numa=-1)
    assert pci.numa_node("0000:3b:00.0", fake_host.path) == 1
    assert pci.numa_node("0000:3c:00.0", fake_host.path) is None
    assert pci.numa_node("0000:3d:00.0", fake_host.path) is None
