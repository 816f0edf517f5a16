# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a host bears on its acceptance, read from a file tree."""

from __future__ import annotations

import json
import struct

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import node as judge
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import FAIL, NOT_APPLICABLE, NOT_TESTABLE, PASS


@pytest.fixture
def tree(tmp_path):
    def write(path, content):
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())

    write.root = str(tmp_path)
    return write


def no_program(_argv, _stdin, _timeout):
    return 127, "", "not found"


def bridge(control):
    """The configuration of a PCIe bridge with AER and then ACS."""
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x148 << 20)
    struct.pack_into("<IHH", config, 0x148, node.ACS | 1 << 16, 0x1F, control)
    return bytes(config)


def test_an_empty_tree_says_nothing_and_breaks_nothing(tmp_path):
    found = node.gather(str(tmp_path), no_program)
    assert found["versions"] == {"kernel": None, "os": None, "bios": None, "board": None}
    assert (found["numa_nodes"], found["acs_redirects"], found["disks"], found["limits"]) == (None, None, [], {})


def test_what_a_node_has(tree):
    tree("proc/sys/kernel/osrelease", "6.12.1\n")
    tree("etc/os-release", 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\n')
    tree("proc/cmdline", "quiet iommu=pt\n")
    tree("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    tree("sys/class/net/eth0/device/x", "")
    tree("sys/class/net/eth0/operstate", "up\n")
    tree("sys/class/net/eth0/speed", "25000\n")
    tree("sys/class/net/lo/operstate", "unknown\n")
    tree("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n")
    tree("sys/class/infiniband/mlx5_0/fw_ver", "28.39.1002\n")
    tree("sys/block/sda/device/model", "DISK\n")
    tree("sys/block/loop0/size", "0\n")
    for number in range(2):
        tree(f"sys/devices/system/node/node{number}/cpulist", "0\n")
    asked = []

    def smart(argv, _stdin, _timeout):
        asked.append(argv)
        return 0, json.dumps({"smart_status": {"passed": False}}), ""

    found = node.gather(tree.root, smart)
    assert found["versions"]["kernel"] == "6.12.1"
    assert found["versions"]["os"] == "Debian GNU/Linux 13 (trixie)"
    assert found["command_line"] == ["quiet", "iommu=pt"]
    assert found["hugepages"]["transparent"] == "madvise"
    assert found["numa_nodes"] == 2
    assert [(row["name"], row["speed_mb_s"]) for row in found["interfaces"]] == [("eth0", 25000)]
    assert [(row["name"], row["state"], row["firmware"]) for row in found["infiniband"]] == [
        ("mlx5_0/1", "4: ACTIVE", "28.39.1002")
    ]
    assert found["dmabuf"] == {"built": None, "peermem": False}
    assert found["disks"] == [{"name": "sda", "model": "DISK", "passed": False}]
    assert [argv[-1] for argv in asked if argv[0] == "smartctl"] == ["/dev/sda"]


def outcomes(tree, id, facts=None):
    """What comes of what the host is read to be: outcome, evidence and remedy of each item."""
    host = {"gpu": facts or {"devices": []}, "accept": node.gather(tree.root, lambda *_words: (127, "", ""))}
    return [item for item in judge.items({"n1": host}) if item.id == id]


@pytest.mark.parametrize(
    ("command_line", "types", "outcome"),
    [
        # The kernel's word counts, whichever words its command line has.
        ("iommu.passthrough=1", ["identity", "identity"], PASS),
        ("quiet", ["identity"], PASS),
        ("iommu=pt", ["identity"], PASS),
        ("iommu=pt iommu.passthrough=0", ["DMA-FQ", "DMA-FQ"], FAIL),
        ("iommu=pt", ["DMA"], FAIL),
        ("iommu=pt", ["identity", "DMA"], FAIL),
        ("intel_iommu=off", [], PASS),
        ("iommu=pt", [None], NOT_TESTABLE),
    ],
)
def test_an_iommu_that_translates(tree, command_line, types, outcome):
    tree("proc/cmdline", f"{command_line}\n")
    for number, kind in enumerate(types):
        tree(f"sys/kernel/iommu_groups/{number}/devices/0000:0{number}:00.0/x", "")
        if kind:
            tree(f"sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
    (item,) = outcomes(tree, "node.iommu")
    assert item.outcome == outcome
    assert all(kind in item.evidence for kind in types if kind)


@pytest.mark.parametrize(("of_gpu", "outcome"), [("identity", PASS), ("DMA", FAIL)])
def test_the_groups_of_the_gpus_count(tree, of_gpu, outcome):
    for number, (address, kind, device_class) in enumerate(
        (
            ("0000:01:00.0", of_gpu, "0x030200"),
            ("0000:02:00.0", "DMA" if of_gpu == "identity" else "identity", "0x0c03"),
        )
    ):
        tree(f"sys/kernel/iommu_groups/{number}/devices/{address}/x", "")
        tree(f"sys/kernel/iommu_groups/{number}/type", f"{kind}\n")
        tree(f"sys/bus/pci/devices/{address}/class", f"{device_class}\n")
    facts = {"devices": [{"index": 0, "pci_address": "0000:01:00.0"}]}
    assert [item.outcome for item in outcomes(tree, "node.iommu", facts)] == [outcome]


@pytest.mark.parametrize(
    ("state", "phys_state", "link_layer", "outcome", "remedy"),
    [
        ("4: ACTIVE", "5: LinkUp", "InfiniBand", PASS, ""),
        ("4: ACTIVE", "5: LinkUp", "Ethernet", PASS, ""),
        ("4: ACTIVE", None, None, PASS, ""),
        ("1: DOWN", "3: Disabled", "Ethernet", NOT_APPLICABLE, ""),
        ("1: DOWN", "3: Disabled", "InfiniBand", NOT_APPLICABLE, ""),
        ("4: ACTIVE", "3: Disabled", "Ethernet", FAIL, "contradict"),
        ("1: DOWN", "2: Polling", "InfiniBand", FAIL, "cable"),
        ("1: DOWN", "2: Polling", "Ethernet", FAIL, "cable"),
        ("2: INIT", "5: LinkUp", "InfiniBand", FAIL, "subnet manager"),
        ("1: DOWN", "5: LinkUp", "Ethernet", FAIL, "network interface"),
        ("4: ACTIVE", "6: LinkErrorRecovery", "InfiniBand", FAIL, "cable"),
        ("1: DOWN", None, None, FAIL, "cable"),
    ],
)
def test_a_port_of_rdma_is_judged_by_its_state_and_its_link(tree, state, phys_state, link_layer, outcome, remedy):
    for name, told in (("state", state), ("phys_state", phys_state), ("link_layer", link_layer)):
        if told:
            tree(f"sys/class/infiniband/mlx5_0/ports/1/{name}", f"{told}\n")
    (item,) = outcomes(tree, "node.infiniband")
    assert (item.outcome, item.subject) == (outcome, "mlx5_0/1")
    assert remedy in item.remedy
    assert bool(item.remedy) is (outcome == FAIL)


def test_what_a_host_has_many_of_hides_nothing(tree):
    """Hundreds of interfaces of containers, loop devices, processes and PCI devices, and then what matters."""
    for number in range(300):
        tree(f"sys/class/net/cali{number:03}/operstate", "up\n")
        tree(f"sys/block/loop{number}/size", "0\n")
        tree(f"sys/bus/pci/devices/0000:00:{number:02x}.0/class", "0x088000\n")
        tree(f"proc/1{number:03}/comm", "sleep\n")
    tree("sys/class/net/eth9/device/x", "")
    tree("sys/block/sdz/device/model", "DISK\n")
    tree("sys/bus/pci/devices/0000:ff:00.0/class", "0x060400\n")
    tree("sys/bus/pci/devices/0000:ff:00.0/config", bridge(0x04))
    tree("proc/999/comm", "slurmd\n")
    tree("proc/999/limits", "Max open files            1024                 524288               files\n")
    found = node.gather(tree.root, lambda *_words: (127, "", ""))
    assert [row["name"] for row in found["interfaces"]] == ["eth9"]
    assert [row["name"] for row in found["disks"]] == ["sdz"]
    assert found["acs_redirects"] == ["0000:ff:00.0"]
    assert found["limits"] == {"slurmd": {"open_files": 1024}}


@pytest.mark.parametrize(
    ("answer", "passed", "said"),
    [
        ((127, "", ""), None, "smartctl is not installed"),
        ((124, "", ""), None, "smartctl has not answered within 20 s"),
        (
            (2, json.dumps({"smartctl": {"messages": [{"string": "/dev/sda: Permission denied"}]}}), ""),
            None,
            "/dev/sda: Permission denied",
        ),
        ((1, "=======> UNRECOGNIZED OPTION: json\n", ""), None, "=======> UNRECOGNIZED OPTION: json"),
        ((4, "{}", ""), None, "smartctl ended with 4"),
        (
            (
                4,
                json.dumps(
                    {
                        "smart_status": {"passed": True},
                        "smartctl": {"messages": [{"string": "a command \x1b[31mfailed"}]},
                    }
                ),
                "",
            ),
            True,
            "a command \ufffd[31mfailed",
        ),
        ((0, json.dumps({"smart_status": {"passed": True}}), ""), True, None),
        ((0, "[" * 5000, "cannot"), None, "cannot"),
    ],
)
def test_what_smartctl_says_of_a_disk_is_told(tree, answer, passed, said):
    tree("sys/block/sda/device/model", "DISK\n")
    (row,) = node.disks(tree.root, lambda *_: answer)
    assert (row["passed"], row.get("said")) == (passed, said)


@pytest.mark.parametrize(
    ("control", "redirects"), [(0, []), (0x01, []), (0x04, ["0000:3a:00.0"]), (0x1D, ["0000:3a:00.0"])]
)
def test_bridges_that_redirect(tree, control, redirects):
    tree("sys/bus/pci/devices/0000:3a:00.0/class", "0x060400\n")
    tree("sys/bus/pci/devices/0000:3a:00.0/config", bridge(control))
    tree("sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n")
    tree("sys/bus/pci/devices/0000:3b:00.0/config", bridge(0x1D))
    assert node.acs_redirects(tree.root) == redirects


def test_without_root_the_bridges_cannot_be_read(tree):
    tree("sys/bus/pci/devices/0000:3a:00.0/class", "0x060400\n")
    tree("sys/bus/pci/devices/0000:3a:00.0/config", bridge(0x1D)[:64])
    assert node.acs_redirects(tree.root) is None


def test_a_chain_of_capabilities_that_has_no_end_is_left(tree):
    config = bytearray(4096)
    struct.pack_into("<I", config, 0x100, 0x0001 | 1 << 16 | 0x100 << 20)
    tree("sys/bus/pci/devices/0000:3a:00.0/class", "0x060400\n")
    tree("sys/bus/pci/devices/0000:3a:00.0/config", bytes(config))
    assert node.acs_redirects(tree.root) == []


def test_the_limits_of_what_starts_jobs(tree):
    tree("proc/77/comm", "slurmd\n")
    tree(
        "proc/77/limits",
        "Limit                     Soft Limit           Hard Limit           Units     \n"
        "Max open files            1024                 524288               files     \n"
        "Max locked memory         unlimited            unlimited            bytes     \n",
    )
    tree("proc/78/comm", "bash\n")
    assert node.limits(tree.root) == {"slurmd": {"open_files": 1024, "locked_bytes": None}}


def test_errors_of_memory_are_counted_over_all_controllers(tree):
    assert node.memory_errors(tree.root) is None
    for number in range(2):
        tree(f"sys/devices/system/edac/mc/mc{number}/ce_count", "3\n")
        tree(f"sys/devices/system/edac/mc/mc{number}/ue_count", f"{number}\n")
    assert node.memory_errors(tree.root) == {"corrected": 6, "uncorrected": 1}


def test_libraries_are_those_that_the_linker_knows(tree):
    tree("etc/profile.d/lmod.sh", "")
    told = "\tlibnccl.so.2 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnccl.so.2\n"
    assert node.libraries(tree.root, lambda _argv, _stdin, _timeout: (0, told, "")) == ["NCCL", "modules"]
    assert node.libraries(tree.root, no_program) is None


def test_where_users_come_from_and_their_numbers(tree):
    tree("etc/nsswitch.conf", "# passwd: none\npasswd: files [NOTFOUND=continue] sss # more\n")
    answer = "alice:x:2001:2002:Alice:/home/alice:/bin/bash\n\nbroken\nroot:x:0:0::/root:/bin/sh\n"
    found = node.identities(["alice", "bob"], tree.root, lambda _argv, _stdin, _timeout: (2, answer, ""))
    assert found == {"sources": ["files", "sss"], "ids": {"alice": "2001:2002", "bob": None}}


def test_whether_the_kernel_was_built_for_it(tree):
    lines = [f"{option}=y" for option in node.DMABUF_OPTIONS]
    tree("boot/config-6.12.1", "\n".join(lines))
    tree("sys/module/nvidia_peermem/refcnt", "0")
    assert node.dmabuf("6.12.1", tree.root) == {"built": True, "peermem": True}
    tree("boot/config-6.12.1", lines[0])
    assert node.dmabuf("6.12.1", tree.root)["built"] is False
