# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs on the PCI bus of a hand-made sysfs."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.models import (
    ARCHITECTURE_RANGES,
    BRIDGED_MODELS,
    MODELS,
    NVSWITCH_RANGES,
    TOO_OLD_RANGES,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.releases import ARCHITECTURES
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address


def test_gpus_and_switches_are_found_by_class_and_vendor(fake_host):
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
        ("2e12", "blackwell", "GB10"),
        ("2e2a", "blackwell", None),  # in no table, but among the ids of its generation
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
    assert normal_address(nvml) == normal_address(kernel) == kernel


def test_numa_node(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", numa=1)
    fake_host.pci("0000:3c:00.0", "20b0", numa=-1)
    assert pci.numa_node("0000:3b:00.0", fake_host.path) == 1
    assert pci.numa_node("0000:3c:00.0", fake_host.path) is None
    assert pci.numa_node("0000:3d:00.0", fake_host.path) is None


def addresses(rows):
    return [row["address"] for row in rows]


@pytest.mark.parametrize("driver", ["vfio-pci", "nvgrace-gpu-vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback"])
def test_a_gpu_that_is_handed_through_is_there_and_not_ours(fake_host, driver):
    fake_host.pci("0000:3b:00.0", "20b0", driver="nvidia")
    fake_host.pci("0000:86:00.0", "1022", driver=driver)
    rows = pci.scan(fake_host.path)
    assert addresses(rows) == ["0000:3b:00.0", "0000:86:00.0"]
    assert addresses(pci.gpus(rows)) == ["0000:3b:00.0"]
    (other,) = pci.others(rows)
    assert pci.why_not_ours(other) == (
        f"0000:86:00.0 (Tesla K20c) is bound to {driver}, so it is another's, such as a virtual machine's"
    )


@pytest.mark.parametrize("driver", [None, "nvidia", "nouveau", "some-other"])
def test_a_gpu_that_nobody_gives_away_is_ours(fake_host, driver):
    fake_host.pci("0000:3b:00.0", "20b0", driver=driver)
    fake_host.attribute("0000:3b:00.0", "driver_override", "(null)\n")
    assert addresses(pci.gpus(pci.scan(fake_host.path))) == ["0000:3b:00.0"]


def test_a_gpu_that_is_set_aside_for_vfio_and_waits_for_it_is_not_ours(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0")
    fake_host.attribute("0000:3b:00.0", "driver_override", "vfio-pci\n")
    rows = pci.scan(fake_host.path)
    assert pci.gpus(rows) == []
    assert pci.why_not_ours(pci.others(rows)[0]) == "0000:3b:00.0 (A100 SXM4 40GB) is set aside for vfio-pci"
    # The driver that has it is what counts: the next one is another matter.
    fake_host.link("sys/bus/pci/devices/0000:3b:00.0/driver", "../../../bus/pci/drivers/nvidia")
    assert addresses(pci.gpus(pci.scan(fake_host.path))) == ["0000:3b:00.0"]


@pytest.mark.parametrize("driver", [None, "nvidia", "vfio-pci"])
def test_virtual_functions_are_no_gpus(fake_host, driver):
    """An A16 and an L40S with SR-IOV: the virtual functions have the ids and the class of whole ones."""
    fake_host.pci("0000:3b:00.0", "25b6", driver="nvidia")
    fake_host.pci("0000:af:00.0", "26b9", driver="nvidia")
    for number in range(4, 8):
        fake_host.virtual_function(f"0000:3b:00.{number}", "0000:3b:00.0", "25b6", driver=driver)
        fake_host.virtual_function(f"0000:af:00.{number}", "0000:af:00.0", "26b9", driver=driver)
    assert addresses(pci.scan(fake_host.path)) == ["0000:3b:00.0", "0000:af:00.0"]


@pytest.mark.parametrize(
    ("device", "is_switch"),
    [
        ("1ac2", True),  # V100, HGX-2
        ("1af1", True),  # A100
        ("22a3", True),  # H100
        ("0373", False),  # an nForce board's Ethernet, which calls itself a bridge
        ("03f3", False),
        ("22a8", False),  # the PCI bridge in front of an NVSwitch
        ("2330", False),
    ],
)
def test_only_known_ids_are_nvswitches(fake_host, device, is_switch):
    fake_host.pci("0000:00:08.0", device, pci_class="068000")
    rows = pci.scan(fake_host.path)
    assert [row["kind"] for row in rows] == (["nvswitch"] if is_switch else [])
    assert pci.needs_fabric_manager(rows) is is_switch
    assert pci.needs_subnet_manager(rows) is False


def test_switches_that_are_handed_through_need_nothing_here(fake_host):
    fake_host.pci("0000:3b:00.0", "2330", driver="nvidia")
    fake_host.pci("0000:c4:00.0", "22a3", pci_class="068000", driver="vfio-pci")
    assert pci.needs_fabric_manager(pci.scan(fake_host.path)) is False


@pytest.mark.parametrize("device", ["2901", "3182"])
def test_the_bridges_of_an_hgx_board_are_told_from_network_adapters(fake_host, device):
    fake_host.pci("0000:1b:00.0", device, driver="nvidia")
    fake_host.switch_bridge("0000:05:00.0")
    fake_host.switch_bridge("0000:05:00.1")
    fake_host.switch_bridge("0000:06:00.0", serves_switches=False)
    fake_host.virtual_function("0000:05:00.2", "0000:05:00.0", "1021", vendor="15b3", pci_class="020700")
    fake_host.attribute("0000:05:00.2", "vpd", b"SMDL=SW_MNG")
    fake_host.pci("0000:07:00.0", "1021", vendor="15b3", pci_class="020700")  # without vital product data
    rows = pci.scan(fake_host.path)
    assert [(row["address"], row["kind"]) for row in rows] == [
        ("0000:05:00.0", "nvswitch_bridge"),
        ("0000:05:00.1", "nvswitch_bridge"),
        ("0000:1b:00.0", "gpu"),
    ]
    assert rows[0]["model"] == "NVSwitch management bridge"
    assert (pci.needs_fabric_manager(rows), pci.needs_subnet_manager(rows)) == (True, True)
    assert pci.lacks_bridges(rows) is False


def test_a_bridge_may_say_so_in_its_label(fake_host):
    fake_host.pci("0000:1b:00.0", "2901")
    fake_host.switch_bridge("0000:05:00.0", serves_switches=False)
    fake_host.attribute("0000:05:00.0", "label", "SW_MNG 1\n")
    assert pci.needs_subnet_manager(pci.scan(fake_host.path))


def test_an_hgx_board_without_bridges_is_noticed(fake_host):
    fake_host.pci("0000:1b:00.0", "2901")
    assert pci.lacks_bridges(pci.scan(fake_host.path))
    fake_host.switch_bridge("0000:05:00.0", driver="vfio-pci")
    assert pci.needs_fabric_manager(pci.scan(fake_host.path)) is False


def test_a_network_adapter_is_not_asked_where_the_switches_are_pci_devices(fake_host):
    fake_host.pci("0000:3b:00.0", "2330")
    fake_host.pci("0000:c4:00.0", "22a3", pci_class="068000")
    fake_host.switch_bridge("0000:05:00.0")
    assert [row["kind"] for row in pci.scan(fake_host.path)] == ["gpu", "nvswitch"]


def test_the_other_functions_of_a_gpu_are_no_gpus(fake_host):
    """DGX Spark shows its GPU as a VGA controller of another PCI domain; data-centre GPUs are 3D controllers."""
    fake_host.pci("000f:01:00.0", "2e12", pci_class="030000", driver="nvidia")
    fake_host.pci("0000:3b:00.0", "1eb8", pci_class="030200")
    fake_host.pci("0000:01:00.1", "10f0", pci_class="040300")
    fake_host.pci("0000:01:00.2", "1ad6", pci_class="0c0330")
    fake_host.pci("0000:01:00.3", "1ad7", pci_class="0c8000")
    rows = pci.scan(fake_host.path)
    assert addresses(rows) == ["0000:3b:00.0", "000f:01:00.0"]
    assert (rows[1]["model"], rows[1]["architecture"]) == ("GB10", "blackwell")


@pytest.mark.parametrize("device", ["03d0", "0640", "10c3"])
def test_a_gpu_of_before_fermi_is_left_out(fake_host, device):
    """Such as the one on an old board, which no driver of today knows; it must not hinder the others."""
    fake_host.pci("0000:00:0d.0", device, pci_class="030000")
    fake_host.pci("0000:3b:00.0", "20b0")
    rows = pci.scan(fake_host.path)
    assert addresses(pci.gpus(rows)) == ["0000:3b:00.0"]
    assert pci.why_not_ours(pci.others(rows)[0]) == (
        f"0000:00:0d.0 (10de:{device}) is older than anything that computes with a driver of today"
    )


@pytest.mark.parametrize("name", ["vendor", "class", "device"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"0x", b"0x10de\x1b[2J", b"{{ lookup('pipe', 'id') }}", b"0x" + b"1" * 100_000]
)
def test_corrupt_attributes_are_no_reason_to_stop_or_to_tell_them_on(fake_host, name, content):
    fake_host.pci("0000:3b:00.0", "20b0")
    fake_host.pci("0000:86:00.0", "20b0")
    fake_host.attribute("0000:86:00.0", name, content)
    rows = pci.scan(fake_host.path)
    assert rows[0]["address"] == "0000:3b:00.0"
    # Whatever its id, a device of this vendor and class is a GPU.
    assert [(row["address"], row["device"], row["class"]) for row in rows[1:]] == (
        [("0000:86:00.0", "", "0302")] if name == "device" else []
    )


def test_what_has_no_address_for_a_name_is_no_device(fake_host):
    for name in ("..evil", "0000:3b:00.8", "0000:3b:00.0\n", "x"):
        fake_host.pci(name, "20b0")
    fake_host.pci("10000:01:00.0", "20b0")
    assert addresses(pci.scan(fake_host.path)) == ["10000:01:00.0"]


@pytest.mark.parametrize("rows", [None, 5, "text", {"kind": "gpu"}, [None, 5, "x", [], {}]])
def test_facts_of_another_shape_have_no_gpus(rows):
    assert (pci.gpus(rows), pci.others(rows), pci.needs_fabric_manager(rows)) == ([], [], False)


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=9), lambda one: st.lists(one, max_size=3), max_leaves=5
)
KIND = st.sampled_from(["gpu", "nvswitch", "nvswitch_bridge"])


@given(st.lists(st.fixed_dictionaries({"kind": KIND}, optional=dict.fromkeys(("driver", "device", "address"), JSON))))
def test_whatever_facts_say_of_a_device_each_is_ours_or_not(rows):
    gpus = [row for row in rows if row["kind"] == "gpu"]
    assert sorted(map(id, pci.gpus(rows) + pci.others(rows))) == sorted(map(id, gpus))
    assert all(isinstance(pci.why_not_ours(row), str) for row in rows)
    if pci.needs_subnet_manager(rows):
        assert pci.needs_fabric_manager(rows)


def test_a_driver_of_an_odd_name_is_told_in_one_printable_line(fake_host):
    fake_host.pci("0000:3b:00.0", "20b0", driver="x\n\x1b[31m" + "y" * 200)
    (row,) = pci.scan(fake_host.path)
    assert row["driver"].isprintable()
    assert len(row["driver"]) <= 64


def test_tables_of_devices_do_not_overlap():
    for ranges in (ARCHITECTURE_RANGES + TOO_OLD_RANGES, NVSWITCH_RANGES):
        ends = sorted((row[0], row[1]) for row in ranges)
        assert all(first <= last for first, last in ends)
        assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert set(BRIDGED_MODELS) <= set(MODELS)
