# SPDX-License-Identifier: GPL-3.0-or-later
"""How faults begin, last, end and grow over restarts, reboots and jumps of the clock."""

from __future__ import annotations

import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import codes as health_codes
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from tests.unit.plugins.health_host import Host, address, error, uuid
from tests.unit.plugins.module_utils.health.health_cases import CASES

DEVICE_CASES = [case for case in CASES if case.scope == "device"]


@pytest.fixture
def host():
    host = Host(gpus=2)
    host.look(2)
    return host


def xids(host):
    return {(row["pci_address"], row["xid"]): row["count"] for row in health.xid_counts(host.history)}


# --- Xids -------------------------------------------------------------------------------------------------------------


def test_a_fatal_xid_counts_at_once(host):
    host.uptime += 1
    report = host.xid(79, gpu=1, rest="GPU has fallen off the bus.")
    assert report["verdict"] == "fatal"
    assert host.codes(0) == []
    reason = host.reason("xid_fatal", 1)
    assert reason["evidence"] == {"value": 79, "threshold": None, "since": host.time, "xids": {"79": 1}}
    assert reason["action"] == "reboot"
    assert "Xid 79" in reason["text"]


def test_an_xid_of_an_application_is_only_counted(host):
    for _time in range(5):
        host.uptime += 20
        host.xid(31)
    assert host.look()["verdict"] == "ok"
    assert xids(host) == {(address(0), 31): 5}


def test_several_xids_are_one_reason_with_the_strongest_action(host):
    host.xid(48)
    host.xid(79)
    host.xid(48)
    reason = host.reason("xid_fatal")
    assert (reason["evidence"]["value"], reason["action"]) == (79, "reboot")
    assert reason["evidence"]["xids"] == {"48": 2, "79": 1}


@pytest.mark.parametrize(
    "line",
    [
        ["NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."],
        [
            "NVRM: The NVIDIA GPU 0000:3b:00.0",
            "NVRM: (PCI ID: 10de:20b0) installed in this system has",
            "NVRM: fallen off the bus and is not responding to commands.",
        ],
    ],
)
def test_a_fall_off_the_bus_without_an_xid(host, line):
    assert host.log(*line)["verdict"] == "fatal"
    assert host.codes() == ["gpu_off_bus"]
    assert host.reason("gpu_off_bus")["action"] == "reboot"
    host.look(20)
    assert host.codes() == ["gpu_off_bus"]


def test_lines_that_are_read_again_do_not_count_again(host):
    records = host.lines("NVRM: Xid (PCI:0000:3b:00): 48, x", "NVRM: Xid (PCI:0000:3b:00): 31, x")
    for _restart in range(5):
        host.replay(records)
        host.restart()
    host.look(10)
    host.replay([*records, *host.lines("NVRM: Xid (PCI:0000:3b:00): 48, x")])
    assert xids(host) == {(address(0), 31): 1, (address(0), 48): 2}


def test_lines_of_an_earlier_boot_do_nothing(host):
    """As when a log is replayed that outlived the boot."""
    old = host.boot_id
    event = {
        "kind": "xid",
        "pci_address": address(0),
        "uuid": None,
        "xid": 79,
        "text": "old",
        "sequence": 900,
        "uptime": 5.0,
        "boot_id": old,
    }
    host.reboot()
    host.look(2)
    assert host.tell([event])["verdict"] == "ok"
    assert host.history["boots"][-1] == host.boot_id


def test_the_first_lines_of_a_new_boot_count_before_its_first_look(host):
    host.reboot()
    host.sequence = 3
    assert host.xid(48)["verdict"] == "fatal"
    assert host.gpu()["uuid"] == uuid(0)


def test_an_xid_that_nvml_tells_too_counts_once(host):
    host.xid(48)
    told = {"kind": "nvml_xid", "pci_address": address(0), "uuid": uuid(0), "xid": 48, "text": "", "sequence": None}
    told.update(uptime=host.uptime + 1.5, boot_id=host.boot_id)
    host.tell([told])
    assert xids(host) == {(address(0), 48): 1}
    host.tell([{**told, "uptime": host.uptime + 2}])
    assert xids(host) == {(address(0), 48): 2}


def test_xids_before_the_gpu_is_known_become_the_gpus_own():
    host = Host(gpus=1)
    host.xid(48)
    assert host.report["devices"][0]["uuid"] is None
    host.look(4)
    assert [row["uuid"] for row in host.report["devices"]] == [uuid(0)]
    assert host.codes() == ["xid_fatal"]
    assert xids(host) == {(address(0), 48): 1}


def test_the_driver_may_take_its_recommendation_back(host):
    host.xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    assert host.reason("xid_fatal")["action"] == "reset_gpu"
    host.xid(154, rest="GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    assert host.report["verdict"] == "ok"


def test_the_driver_taking_one_back_leaves_the_others(host):
    host.xid(79)
    host.xid(154, rest="GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)")
    host.xid(154, rest="GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)")
    assert host.reason("xid_fatal")["evidence"]["xids"] == {"79": 1}


def test_what_nvml_tells_with_a_flag_is_not_told_by_its_xid_as_well(host):
    """Xid 63 is on the record; the pending flag says when a reset has dealt with it."""
    host.xid(63)
    assert host.report["verdict"] == "ok"
    assert xids(host) == {(address(0), 63): 1}
    for reading in ("remapped_rows", "retired_pages"):
        host.devices[1]["readings"][reading] = {"state": "not_applicable", "code": 3, "text": "MIG"}
    host.look()
    host.xid(63, gpu=1)
    assert host.codes(1) == ["xid_degraded"]


def test_the_sites_own_meaning_of_an_xid():
    host = Host(policy={"xids": {"13": {"verdict": "degraded", "action": "inspect"}, "79": {"verdict": "none"}}})
    host.look()
    host.xid(79)
    host.xid(13)
    assert host.codes() == ["xid_degraded"]
    assert host.reason("xid_degraded")["action"] == "inspect"


# --- recovery ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", DEVICE_CASES, ids=lambda case: case.code)
def test_a_fault_ends_by_good_looks_or_by_a_boot(case):
    host = Host()
    # So that every check has an answer, also once the fault is over.
    host.read("retired_pages", {"single_bit": 0, "double_bit": 0, "pending": False})
    host.read("fabric", {"state": "completed", "status": 0, "unhealthy": []})
    host.change("pcie", generation=4)
    host.look(2)
    well = (host.snapshot(), {**host.policy})
    case.change(host)
    host.look(44)
    assert host.report["verdict"] == case.verdict
    for part in ("driver", "devices", "pci", "device_files"):
        setattr(host, part, well[0][part])
    host.policy = well[1]
    host.look(2)
    assert case.code in host.codes(), "one or two good looks are not enough"
    host.look(44)
    by_looks = health_codes.CODES[case.code].ends == health_codes.BY_LOOKS
    assert (host.codes() == []) == by_looks
    host.reboot()
    host.look(2)
    assert (host.codes() == []) == by_looks
    host.look(2)
    assert host.codes() == []
    assert host.report["verdict"] == "ok"


@pytest.mark.parametrize("number", [79, 48, 62])
def test_an_xid_ends_only_after_a_boot_in_which_the_gpu_is_well(host, number):
    host.xid(number)
    host.look(100)
    assert host.codes() == ["xid_fatal"]
    host.reboot()
    host.look(2)
    assert host.codes() == ["xid_fatal"]
    host.look(1)
    assert host.codes() == []


def test_a_boot_in_which_the_gpu_is_not_seen_ends_nothing(host):
    host.xid(79)
    host.reboot()
    host.fail(error(9))
    host.look(20)
    assert host.codes() == ["xid_fatal"]
    assert host.report["verdict"] == "fatal"


def test_a_boot_in_which_the_gpu_is_sick_ends_nothing(host):
    host.xid(48)
    host.reboot()
    host.change("ecc_volatile", uncorrected=3)
    host.look(20)
    assert host.codes() == ["xid_fatal", "ecc_uncorrected"]


def test_good_looks_are_counted_in_a_row(host):
    host.change("pcie", width=8)
    host.look(3)
    for _round in range(5):
        host.change("pcie", width=16)
        host.look(2)
        host.change("pcie", width=8)
        host.look(1)
    assert host.codes() == ["pcie_width"]


def test_bad_looks_are_counted_in_a_row(host):
    for _round in range(10):
        host.change("pcie", width=8)
        host.look(2)
        host.change("pcie", width=16)
        host.look(1)
    assert host.report["verdict"] == "ok"


def test_an_idle_link_does_not_end_what_was_found_under_load(host):
    host.change("pcie", generation=2)
    host.change("utilization_percent", gpu=99)
    host.look(3)
    assert host.codes() == ["pcie_generation"]
    host.change("utilization_percent", gpu=0)
    host.look(20)
    assert host.codes() == ["pcie_generation"]


def test_what_is_asked_hourly_keeps_its_state_in_between(host):
    reading = host.devices[0]["readings"].pop("inforom_valid")
    host.look(20)
    assert host.gpu()["checks"]["inforom_corrupt"] == "ok"
    for _hour in range(2):
        host.devices[0]["readings"]["inforom_valid"] = {**reading, "value": False}
        host.look()
        del host.devices[0]["readings"]["inforom_valid"]
        host.look(20)
    assert host.codes() == ["inforom_corrupt"]


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (12, 9, ["driver_not_loaded"]),
        (12, 18, ["driver_library_mismatch"]),
        (9, 18, ["driver_library_mismatch"]),
        # This says nothing of the module.
        (9, 12, ["driver_library_missing", "driver_not_loaded"]),
    ],
)
def test_a_failure_that_comes_later_on_the_way_ends_the_ones_before(host, before, after, left):
    host.fail(error(before))
    host.look(4)
    host.fail(error(after))
    host.look(4)
    assert sorted(host.codes(None)) == left


# --- operators --------------------------------------------------------------------------------------------------------


def test_an_operator_lifts_a_fault(host):
    host.xid(79, gpu=0)
    host.xid(48, gpu=1)
    assert host.clear(uuid(0), "xid_degraded") == []
    assert host.clear(uuid(0), "xid_fatal") == [{"device": uuid(0), "code": "xid_fatal"}]
    assert host.codes(0) == []
    assert host.codes(1) == ["xid_fatal"]
    assert host.clear("00000000:3C:00.0") == [{"device": uuid(1), "code": "xid_fatal"}]
    assert host.report["verdict"] == "ok"


def test_what_is_wrong_still_is_found_again(host):
    host.fail(error(9))
    host.look()
    assert host.clear() == [{"device": None, "code": "driver_not_loaded"}]
    assert host.codes(None) == []
    assert host.look()["verdict"] == "fatal"


def test_a_gpu_that_was_taken_out_is_forgotten(host):
    host.reboot()
    del host.devices[1], host.pci[1]
    host.look(10)
    assert host.codes(1) == ["gpu_missing"]
    host.clear(uuid(1))
    assert host.look(2)["verdict"] == "ok"
    assert [row["uuid"] for row in host.report["devices"]] == [uuid(0)]


# --- escalation -------------------------------------------------------------------------------------------------------


def test_a_reset_that_did_not_help_is_followed_by_a_reboot(host):
    host.xid(48)
    assert host.reason("xid_fatal")["action"] == "reset_gpu"
    host.clear(uuid(0))
    host.look()
    host.xid(48)
    assert host.reason("xid_fatal")["action"] == "reboot"


def test_the_same_fault_after_two_reboots_is_the_hardwares(host):
    actions = []
    for _boot in range(3):
        host.xid(48)
        actions.append(host.reason("xid_fatal")["action"])
        host.restart()
        host.look(4)
        host.reboot()
        host.look(4)
    assert actions == ["reset_gpu", "reset_gpu", "rma"]
    # Only somebody who says that it was mended ends this.
    host.look(10)
    assert host.codes() == ["xid_fatal"]
    host.clear(uuid(0))
    assert host.codes() == []


def test_the_remedy_is_that_of_the_action_when_it_has_grown(host):
    """An operator who reads the remedy does what the scheduler is told, and not the reset that has not helped."""
    host.read("recovery_action", 3)
    host.look()
    reason = host.reason("gpu_recovery_action")
    assert (reason["action"], reason["remedy"].split(" and ")[0]) == ("reset_gpu", "drain the GPU")
    host.read("recovery_action", 0)
    host.look(10)
    assert host.codes() == []
    host.read("recovery_action", 3)
    host.look()
    reason = host.reason("gpu_recovery_action")
    assert (reason["action"], reason["remedy"]) == ("reboot", "drain the host and reboot it")


def test_a_driver_that_asks_for_more_while_a_fault_lasts_is_followed(host):
    host.read("recovery_action", 1)
    host.look()
    assert host.reason("gpu_recovery_action")["action"] == "reset_gpu"
    host.read("recovery_action", 2)
    host.look()
    reason = host.reason("gpu_recovery_action")
    assert (reason["action"], reason["remedy"]) == ("reboot", "drain the host and reboot it")
    # And one that asks for less afterwards is not: the reboot is still due.
    host.read("recovery_action", 1)
    host.look()
    reason = host.reason("gpu_recovery_action")
    assert (reason["action"], reason["remedy"]) == ("reboot", "drain the host and reboot it")


def test_a_boot_without_the_fault_begins_anew(host):
    for fault in (True, True, False, True):
        if fault:
            host.xid(48)
            assert host.reason("xid_fatal")["action"] == "reset_gpu"
        host.reboot()
        host.look(4)


def test_a_gpu_that_stays_lost_over_reboots_is_the_hardwares(host):
    host.lose(0)
    actions = []
    for _boot in range(3):
        host.look(3)
        actions.append(host.reason("gpu_lost")["action"])
        remedy = host.reason("gpu_lost")["remedy"]
        host.reboot()
    assert actions == ["reboot", "reboot", "rma"]
    assert remedy.startswith("have the GPU replaced")


def test_faults_of_two_kinds_do_not_add_up(host):
    for number in (48, 62, 95):
        host.xid(number)
        assert host.reason("xid_fatal")["action"] == "reset_gpu"
        host.reboot()
        host.look(4)


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jump", [-10 * 365 * 86400.0, -3600.0, 3600.0, 86400.0 * 400])
def test_a_jump_of_the_wall_clock_changes_no_verdict(host, jump):
    host.read("clocks_event_reasons", 0x40)
    host.look(12)
    host.wall_offset += jump
    host.look(2)
    assert host.report["verdict"] == "ok"
    host.look(30)
    assert host.codes() == ["thermal_slowdown"]
    host.wall_offset -= jump
    host.read("clocks_event_reasons", 0)
    host.look(4)
    assert host.codes() == ["thermal_slowdown"]
    host.look(60)
    assert host.report["verdict"] == "ok"


def test_since_is_the_time_of_the_line_and_not_of_its_reading(host):
    records = host.lines("NVRM: Xid (PCI:0000:3b:00): 79, x")
    logged = host.time
    host.uptime += 3600
    host.replay(records)
    assert host.reason("xid_fatal")["evidence"]["since"] == logged


def test_the_verdict_says_since_when(host):
    begun = host.report["since"]
    host.look(5)
    assert host.report["since"] == begun
    host.uptime += 7
    host.xid(79)
    assert host.report["since"] == host.gpu()["since"] == host.time
    assert host.gpu(1)["since"] == begun


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_history_does_not_grow_for_ever():
    host = Host(gpus=2)

    def boots(count):
        for _boot in range(count):
            for number in (13, 31, 48, 79):
                host.xid(number)
            host.read("clocks_event_reasons", 0x40)
            host.look(6, interval=110.0)
            host.clear()
            host.reboot()
        return len(json.dumps(host.history))

    grown = boots(60)
    assert boots(60) < grown * 1.02
