# SPDX-License-Identifier: GPL-3.0-or-later
"""The forms in which NVIDIA's drivers print what went wrong, up to the verdict.

The lines are hand-made after the formats of the open kernel modules (kernel_rc.c, common_nvswitch.h, error_nvswitch.c).
"""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import records as kernel_log
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid
from tests.unit.plugins.health_host import Host, address, uuid

BOOT = "00000000-0000-4000-8000-000000000001"
SWITCH = "0000:c1:00.0"


def event(line: str) -> dict:
    (found,) = kernel_log.Parser(BOOT).events([f"4,1,1,-;{line}"])
    return found


@pytest.fixture
def host() -> Host:
    host = Host(gpus=2)
    host.pci.append({"address": SWITCH, "kind": "nvswitch", "driver": "nvidia-nvswitch"})
    host.fabric_manager = {"needed": True, "running": True}
    host.look()
    return host


# --- MIG --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "instance"),
    [
        ("GPU-I:03", {"instance": 3, "compute_instance": None}),
        ("GPU-I:03 GPU-CI:01", {"instance": 3, "compute_instance": 1}),
        (" GPU-I:12", {"instance": 12, "compute_instance": None}),
    ],
)
def test_an_xid_of_an_instance_is_one_of_its_gpu(host: Host, place: str, instance: dict) -> None:
    host.log(f"NVRM: Xid (PCI:{address(1)[:-2]} {place}): 95, pid=4711, name=python3, Uncontained: SM")
    assert host.codes(0) == []
    reason = host.reason("xid_fatal", 1)
    assert (reason["verdict"], reason["evidence"]["value"]) == ("fatal", 95)
    assert reason["evidence"]["instances"] == [instance]


def test_each_instance_is_named_once(host: Host) -> None:
    line = f"NVRM: Xid (PCI:{address(0)[:-2]} GPU-I:%02d): 95, x"
    host.log(line % 3, line % 3, line % 5)
    assert [row["instance"] for row in host.reason("xid_fatal")["evidence"]["instances"]] == [3, 5]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM:  Xid  (PCI:0000:3b:00): 95, x",
        "NVRM: Xid (PCI:0000:3b:00 ) : 95, x",
        "NVRM: Xid (PCI:0000:3b:00  GPU-I:03) :  95, x",
    ],
)
def test_further_blanks_hide_no_xid(line: str) -> None:
    assert (event(line)["xid"], event(line)["pci_address"]) == (95, "0000:3b:00.0")


def test_what_a_later_driver_adds_beside_the_address_hides_no_xid() -> None:
    found = event("NVRM: Xid (PCI:0000:3b:00 GPU-I:03 DIE:1 new): 95, x")
    assert (found["xid"], found["pci_address"], found["detail"]["instance"]) == (95, "0000:3b:00.0", 3)


# --- NVLink 5 ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "unit", "fatal", "link"),
    [
        ("NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000)", "NETIR_LINK_EVT", True, 1),
        ("RLW_RXPIPE      Nonfatal XC1 i0 Link 12 (0x040980c2)", "RLW_RXPIPE", False, 12),
        ("TLW_RX_PIPE1 Nonfatal XC0 i0 Link 03 (0x00000010 0x00000020 0x00000030)", "TLW_RX_PIPE1", False, 3),
        ("SAW_MVB2 Non-fatal XC0 i1 Link 00 (0x1) new=field, and more", "SAW_MVB2", False, 0),
        ("MSE9 FATAL XC0 i0 x2 Link 17", "MSE9", True, 17),
        ("RLW_CTRL Critical XC0 i0 Link 00 (0x3)", "RLW_CTRL", None, 0),
        ("pid=7, name=a b, TREX1  Fatal  XC0  i0  Link  -1", "TREX1", True, -1),
    ],
)
def test_the_columns_of_an_nvlink_error(rest: str, unit: str, fatal: bool | None, link: int) -> None:
    told = event(f"NVRM: Xid (PCI:0018:01:00): 145, {rest}")["detail"]
    assert (told["unit"], told["fatal"], told["link"]) == (unit, fatal, link)


@pytest.mark.parametrize("number", [144, 145, 146, 147, 148, 149])
@pytest.mark.parametrize(
    "rest", ["RLW Critical XC0 i0 Link 00", "a form that nobody knows yet", "RLW Uncontained XC0 Link 1"]
)
def test_a_severity_that_is_not_known_is_not_a_milder_one(number: int, rest: str) -> None:
    told = event(f"NVRM: Xid (PCI:0018:01:00): {number}, {rest}")["detail"]
    assert xid.judge(number, told, {})[0] == "fatal"


@pytest.mark.parametrize("action", [3, 4, 9, 255])
def test_each_recovery_action_but_none_is_fatal(action: int) -> None:
    told = event(f"NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to {action:#x} (x)")
    assert told["detail"]["recovery_to"] == action
    assert xid.judge(154, told["detail"], {})[0] == "fatal"


# --- off the bus ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:18:00.0:  GPU has fallen off the bus.",
        "NVRM: The NVIDIA GPU 0000:18:00.0 installed in this system has fallen off the bus and is not responding.",
        "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2901) installed in this system has fallen off the bus and x",
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:2901) installed in this system has\\x0a"
        "NVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_a_gpu_off_the_bus_in_one_record(line: str) -> None:
    found = event(line)
    assert (found["kind"], found["pci_address"]) == ("off_bus", "0000:18:00.0")


@pytest.mark.parametrize(
    "lines",
    [
        [
            "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:1e07) installed in this",
            "NVRM: system has fallen off the bus x",
        ],
        [
            "NVRM: The NVIDIA GPU 0000:18:00.0",
            "NVRM: (PCI ID: 10de:2901) installed in this system has",
            "NVRM:  fallen off the bus",
        ],
        [
            "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2901)",
            "NVRM: installed in this system has fallen off the bus and",
        ],
    ],
)
def test_a_gpu_off_the_bus_in_a_record_for_each_line(lines: list[str]) -> None:
    (found,) = kernel_log.Parser(BOOT).events([f"3,{n},{n},-;{line}" for n, line in enumerate(lines)])
    assert (found["kind"], found["pci_address"]) == ("off_bus", "0000:18:00.0")


# --- NVSwitches -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "severity", "links"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "fatal", [30]),
        ("20009, Non-fatal, Link 04 RX Short Error Rate", "nonfatal", [4]),
        ("20009, Nonfatal,  Link  04  RX Short Error Rate (First), new field", "nonfatal", [4]),
        ("12028, NON-FATAL, Link 32 egress non-posted PRIV error (First)", "nonfatal", [32]),
        ("11001, Fatal, ingress invalid command", "fatal", []),
        ("10001, Correctable, Link 02 NCISOC", "correctable", [2]),
        ("23001, Always-fatal, Link 12 x", "unknown", [12]),
        ("10003, IO failure", "unknown", []),
        ("30001, SOE init Failed(0)", "unknown", []),
        ("20034, Severity 1 Engine instance 30 Sub-engine instance 00", "fatal", []),
        ("20034, Severity 7 Engine instance 30 Sub-engine instance 00", "unknown", []),
        ("20034", "unknown", []),
    ],
)
def test_the_forms_of_an_sxid(rest: str, severity: str, links: list[int]) -> None:
    found = event(f"nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): {rest}")
    assert (found["kind"], found["pci_address"], found["sxid"]) == ("sxid", SWITCH, int(rest.split(",")[0]))
    assert found["detail"] == {"switch": "nvswitch1", "severity": severity, "links": links}


@pytest.mark.parametrize(
    "rest",
    ["20009, Severity 0 Engine instance 04 Sub-engine instance 00", "20034, Data {0x50610002, 0x10100030}", "x, Fatal"],
)
def test_what_only_adds_to_an_sxid_is_none_of_its_own(rest: str) -> None:
    assert kernel_log.Parser(BOOT).events([f"4,1,1,-;nvidia-nvswitch1: SXid (PCI:0000:c1:00.0): {rest}"]) == []


def test_a_fatal_sxid_is_the_hosts(host: Host) -> None:
    host.log(
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Fatal, Link 30 LTSSM Fault Up",
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Data {{0x50610002, 0x10100030}}",
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 22013, Fatal, Link 31 Minion Link DLREQ interrupt",
    )
    assert host.report["verdict"] == "fatal"
    assert [row["verdict"] for row in host.report["devices"]] == ["ok", "ok"]
    reason = host.reason("sxid_fatal", None)
    assert reason["evidence"]["links"] == {SWITCH: [30, 31]}
    assert set(reason["evidence"]["sxids"]) == {"20034", "22013"}
    assert reason["action"] == "reboot"
    assert "SXid" in reason["text"]


def test_an_sxid_that_is_not_fatal_degrades_the_host(host: Host) -> None:
    host.log(
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20009, Non-fatal, Link 04 RX Short Error Rate",
        f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20009, Severity 0 Engine instance 04 Sub-engine instance 00",
    )
    assert host.report["verdict"] == "degraded"
    assert host.reason("sxid_degraded", None)["evidence"]["links"] == {SWITCH: [4]}


def test_a_corrected_error_of_an_nvswitch_is_no_fault(host: Host) -> None:
    host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 10001, Correctable, Link 02 x")
    assert host.report["verdict"] == "ok"


def test_an_sxid_lasts_until_the_host_was_booted_and_is_well(host: Host) -> None:
    host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Fatal, Link 30 LTSSM Fault Up")
    host.look(10)
    host.restart()
    host.look(10)
    assert host.codes(None) == ["sxid_fatal"]
    host.reboot()
    host.look(2)
    assert host.codes(None) == ["sxid_fatal"]
    host.look()
    assert host.report["verdict"] == "ok"


def test_an_sxid_that_is_back_after_each_boot_is_the_hardwares(host: Host) -> None:
    for _boot in range(3):
        host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Fatal, Link 30 LTSSM Fault Up")
        action = host.reason("sxid_fatal", None)["action"]
        host.reboot()
        host.look()
    assert action == "rma"


def test_an_sxid_can_be_cleared(host: Host) -> None:
    host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert host.clear() == [{"device": None, "code": "sxid_fatal"}]
    assert host.report["verdict"] == "ok"


@pytest.mark.parametrize("where", ["0000:c2:00.0", address(0)])
def test_an_sxid_of_what_is_no_nvswitch_on_the_bus_changes_nothing(host: Host, where: str) -> None:
    host.log(*(f"nvidia-nvswitch1: SXid (PCI:{where}): {number}, Fatal, Link 30 x" for number in range(300)))
    assert host.report["verdict"] == "ok"
    assert uuid(0) in host.history["devices"]


def test_many_sxids_are_bounded(host: Host) -> None:
    host.log(
        *(
            f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): {number}, Fatal, Link {number % 1000} x"
            for number in range(20000, 23000)
        )
    )
    evidence = host.reason("sxid_fatal", None)["evidence"]
    assert len(evidence["sxids"]) <= 64
    assert len(evidence["links"][SWITCH]) <= 1000


def test_a_site_may_leave_sxids_out() -> None:
    host = Host(
        gpus=1, policy={"checks": {"sxid_degraded": {"verdict": "ignore"}, "sxid_fatal": {"verdict": "degraded"}}}
    )
    host.pci.append({"address": SWITCH, "kind": "nvswitch", "driver": "nvidia-nvswitch"})
    host.fabric_manager = {"needed": True, "running": True}
    host.look()
    host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20009, Non-fatal, Link 04 RX Short Error Rate")
    assert host.report["verdict"] == "ok"
    host.log(f"nvidia-nvswitch1: SXid (PCI:{SWITCH}): 20034, Fatal, Link 30 LTSSM Fault Up")
    assert host.report["verdict"] == "degraded"
