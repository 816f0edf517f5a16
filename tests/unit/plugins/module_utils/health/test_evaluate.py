# SPDX-License-Identifier: GPL-3.0-or-later
"""What the judge says of a host in each state that a look can show. The hosts are hand-made."""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import codes as health_codes
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health
from ansible_collections.baremetal.gpu.plugins.module_utils.health import look_shape, policy, rules, rules_node
from tests.unit.plugins.health_host import READINGS, Host, address, error, uuid
from tests.unit.plugins.module_utils.health.health_cases import CASES, NEEDS_HISTORY

CASE_IDS = [f"{number}-{case.code}" for number, case in enumerate(CASES)]


def part(report, case):
    return report if case.scope == "node" else report["devices"][0]


def reason(report, case):
    found = [row for row in part(report, case)["reasons"] if row["code"] == case.code]
    assert found, f"{case.code} is not among {part(report, case)['reasons']}"
    return found[0]


def test_a_host_that_is_well_is_ok():
    host = Host(gpus=8)
    report = host.look(5)
    assert report["verdict"] == "ok"
    assert [row["verdict"] for row in report["devices"]] == ["ok"] * 8
    assert not [row for row in report["devices"] if row["reasons"] or row["suspected"]]
    assert set(host.gpu()["checks"]) == set(health_codes.DEVICE_CODES)
    assert set(report["checks"]) == set(health_codes.NODE_CODES)
    assert set(host.gpu()["checks"].values()) <= {"ok", "not_applicable", "unknown"}
    # Rates take a minute to be known.
    assert [code for code, state in host.gpu()["checks"].items() if state == "unknown"] == []


def test_a_host_without_gpus_is_ok():
    host = Host(gpus=0)
    host.driver = {"installed": None, "loaded": None, "nvml_error": None}
    host.device_files = {}
    assert host.look()["verdict"] == "ok"
    assert host.report["devices"] == []
    assert host.report["checks"]["driver_not_loaded"] == "not_applicable"


def test_every_code_that_a_look_can_set_has_a_case():
    shown = {case.code for case in CASES} | {"pcie_replays", "nvlink_errors", "check_failed"}
    assert shown | set(health_codes.EVENT_CODES) == set(health_codes.CODES)


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_what_is_wrong_is_found_with_evidence_and_remedy(case):
    host = Host()
    host.look(4)
    case.change(host)
    # 11 minutes are enough for shares of time, too.
    host.look(44)
    found = reason(host.report, case)
    assert (found["verdict"], found["action"], found["state"]) == (case.verdict, case.action, "fail")
    assert found["evidence"]["value"] == case.value
    assert "threshold" in found["evidence"]
    assert found["remedy"]
    assert found["text"]
    assert part(host.report, case)["checks"][case.code] == "fail"
    assert host.report["verdict"] == case.verdict


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_only_what_is_certain_counts_at_the_first_look(case):
    host = Host()
    host.look(4)
    case.change(host)
    host.look()
    at_once = case.code in [row["code"] for row in part(host.report, case)["reasons"]]
    row = health_codes.CODES[case.code]
    assert at_once == (row.looks == 1 and not row.share)
    if not at_once:
        assert case.code in [row["code"] for row in part(host.report, case)["suspected"]]
        assert host.report["verdict"] == "ok"
    since = host.time
    host.look(44)
    assert reason(host.report, case)["evidence"]["since"] == pytest.approx(since)


@pytest.mark.parametrize("case", [case for case in CASES if case.code not in NEEDS_HISTORY], ids=lambda case: case.code)
def test_a_single_look_without_a_history_finds_it_too(case):
    host = Host()
    case.change(host)
    report = health.judge_once(host.snapshot(), [], host.policy)
    assert reason(report, case)["verdict"] == case.verdict


def test_a_single_look_does_not_judge_what_needs_time():
    host = Host()
    host.read("clocks_event_reasons", 0x48)
    report = health.judge_once(host.snapshot(), [])
    assert report["verdict"] == "ok"
    assert [row["code"] for row in report["devices"][0]["suspected"]] == ["thermal_slowdown"]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda h: h.read("clocks_event_reasons", 0x4), id="the power cap of the driver"),
        pytest.param(lambda h: h.read("clocks_event_reasons", 0x20), id="slowdown by the driver"),
        pytest.param(lambda h: h.change("ecc_volatile", corrected=5000), id="corrected errors"),
        pytest.param(lambda h: h.change("ecc_aggregate", uncorrected=7), id="errors of an earlier life"),
        pytest.param(lambda h: h.change("pcie", generation=1), id="an idle link that is slow"),
        pytest.param(lambda h: h.change("remapped_rows", correctable=3, uncorrectable=2), id="rows that were remapped"),
        pytest.param(lambda h: h.fabric_manager.update(needed=False, running=False), id="no Fabric Manager needed"),
        pytest.param(
            lambda h: h.read("processes", [{"pid": 1, "name": "train", "memory_mib": 1, "exists": True}]),
            id="a process at work",
        ),
        pytest.param(lambda h: h.change("mig", enabled=True, pending=True), id="MIG that nobody asked to be off"),
        pytest.param(
            lambda h: h.pci.append({"address": "0000:c0:00.0", "kind": "nvswitch", "driver": "nvidia"}), id="NVSwitch"
        ),
        pytest.param(
            lambda h: h.pci.append({"address": "0000:c1:00.0", "kind": "gpu", "driver": "vfio-pci"}),
            id="a GPU handed through to a virtual machine",
        ),
    ],
)
def test_what_is_no_fault_is_none(change):
    host = Host()
    host.look(2)
    change(host)
    assert host.look(60)["verdict"] == "ok"
    assert host.gpu()["suspected"] == []


def test_geforce_and_kepler_lack_much_and_are_ok():
    host = Host(slug="geforce-gtx-1080")
    ecc = ("ecc_mode", "ecc_volatile", "ecc_aggregate", "ecc_sram", "remapped_rows", "retired_pages", "inforom_valid")
    lacking = (*ecc, "nvlinks", "fabric", "mig", "application_clocks_mhz")
    for key in lacking:
        host.devices[0]["readings"][key] = {"state": "not_applicable", "code": 3, "text": "Not Supported"}
    assert host.look(5)["verdict"] == "ok"
    checks = host.gpu()["checks"]
    lacked = ("ecc_uncorrected", "row_remap_failed", "retired_pages_limit", "nvlink_down", "mig_mode", "fabric_state")
    assert {checks[code] for code in lacked} == {"not_applicable"}


def test_remapped_rows_of_a_geforce_are_not_believed():
    host = Host(slug="geforce-rtx-4090")
    host.change("remapped_rows", failure=True)
    assert host.look(5)["verdict"] == "ok"
    assert host.gpu()["checks"]["row_remap_failed"] == "not_applicable"


def test_mig_is_wanted_and_the_gpu_has_none():
    host = Host(policy={"expected": {"mig": True}})
    host.devices[0]["readings"]["mig"] = {"state": "not_applicable", "code": 3, "text": "Not Supported"}
    host.look(3)
    assert host.codes() == ["mig_mode"]


def test_a_pcie_gpu_without_a_bridge_has_no_links_to_lose():
    host = Host(slug="a100-pcie-40gb")
    for link in host.devices[0]["readings"]["nvlinks"]["value"]:
        link["active"] = False
    assert host.look(10)["verdict"] == "ok"
    assert host.gpu()["checks"]["nvlink_down"] == "not_applicable"


def test_a_pcie_gpu_with_one_bridge_loses_a_link_of_it():
    host = Host(slug="a100-pcie-40gb")
    links = host.devices[0]["readings"]["nvlinks"]["value"]
    for link in links:
        link["active"] = link["link"] < 4
    assert host.look(10)["verdict"] == "ok"
    links[2]["active"] = False
    host.look(3)
    assert host.reason("nvlink_down")["evidence"]["value"] == 3
    assert host.reason("nvlink_down")["evidence"]["threshold"] == 4
    assert "down: 2" in host.reason("nvlink_down")["text"]


def test_an_sxm_gpu_is_compared_with_the_gpus_beside_it():
    host = Host(gpus=2)
    host.devices[1]["readings"]["nvlinks"]["value"][7]["active"] = False
    host.look(3)
    assert host.codes(0) == []
    assert host.codes(1) == ["nvlink_down"]


def test_replays_count_by_the_minute_and_by_the_width_of_the_link():
    """Generation 4 with 16 lanes may repeat ceil(16 * 0.96) = 16 packets in a minute."""
    host = Host()
    count = 0
    for _minute in range(4):
        count += 16
        host.read("pcie_replays", count)
        host.look(4)
    assert host.codes() == []
    for _minute in range(3):
        count += 17
        host.read("pcie_replays", count)
        host.look(4)
    assert host.reason("pcie_replays")["evidence"]["value"] == 17.0
    assert host.reason("pcie_replays")["evidence"]["threshold"] == 16


def test_a_counter_that_a_reset_sets_back_is_no_burst():
    host = Host()
    for count in (90_000, 90_000, 0, 0, 5, 5):
        host.read("pcie_replays", count)
        host.look(5)
    assert host.codes() == []


def test_recoveries_of_nvlinks_count():
    host = Host()
    for count in (0, 2, 4, 6):
        for link in host.devices[0]["readings"]["nvlinks"]["value"]:
            link["recovery_errors"] = count if link["link"] == 3 else 0
        host.look(4)
    assert host.reason("nvlink_errors")["evidence"]["value"] == 2.0


def test_the_fabric_may_take_its_time_after_boot():
    host = Host()
    host.uptime = 60.0
    host.fabric_manager = {"needed": True, "running": False}
    host.read("fabric", {"state": "in_progress", "status": 0, "unhealthy": []})
    host.look(10)
    assert host.report["verdict"] == "ok"
    host.look(10)
    assert host.codes(None) == ["fabric_manager_down"]
    assert host.codes() == ["fabric_state"]


@pytest.mark.parametrize(("minutes_bad", "verdict"), [(3, "ok"), (5, "ok"), (7, "degraded")])
def test_heat_counts_when_it_lasts(minutes_bad, verdict):
    host = Host()
    host.look(40)
    host.read("clocks_event_reasons", 0x40)
    host.look(4 * minutes_bad)
    assert host.report["verdict"] == verdict
    host.read("clocks_event_reasons", 0x0)
    host.look(4 * 12)
    assert host.report["verdict"] == "ok"


def test_heat_that_comes_and_goes_counts_by_its_share():
    host = Host()
    for _round in range(10):
        host.read("clocks_event_reasons", 0x40)
        host.look(3)
        host.read("clocks_event_reasons", 0x0)
        host.look(1)
    assert host.codes() == ["thermal_slowdown"]


def test_time_without_a_look_does_not_count_as_hot():
    host = Host()
    host.read("clocks_event_reasons", 0x40)
    host.look(2)
    readings, host.devices[0]["readings"] = host.devices[0]["readings"], {}
    devices = host.devices
    host.fail(error(4))
    host.look(1, interval=500.0)
    host.driver["nvml_error"], host.devices = None, devices
    devices[0]["readings"] = readings
    host.look(1)
    assert host.codes() == []


def test_a_limit_that_the_gpu_does_not_tell_comes_from_the_policy():
    host = Host(policy={"thresholds": {"temperature_c": 80}})
    host.devices[0]["readings"]["temperature_limits_c"] = {"state": "not_applicable", "code": 3, "text": ""}
    host.read("temperature_c", 81)
    host.look(44)
    assert host.reason("temperature_limit")["evidence"] | {"since": 0} == {"value": 81, "threshold": 80, "since": 0}


# --- which GPU -------------------------------------------------------------------------------------------------------


def test_the_gpu_that_is_missing_is_named():
    host = Host(gpus=8)
    host.look(2)
    del host.devices[5]
    host.look()
    assert host.codes(5) == ["gpu_missing"]
    assert host.gpu(5)["uuid"] == uuid(5)
    assert address(5) in host.reason("gpu_missing", 5)["text"]
    assert [host.codes(n) for n in range(8) if n != 5] == [[]] * 7


def test_a_gpu_that_is_gone_from_the_bus_is_missed():
    host = Host(gpus=2)
    host.look()
    del host.devices[1], host.pci[1]
    host.look()
    assert "no longer on the PCI bus" in host.reason("gpu_missing", 1)["text"]


def test_a_lost_gpu_that_tells_nothing_is_known_by_its_place():
    host = Host(gpus=3)
    host.look()
    host.lose(1)
    del host.devices[1]["pci_address"]
    host.look()
    assert host.codes(1) == ["gpu_lost"]
    assert host.gpu(1)["uuid"] == uuid(1)
    assert len(host.report["devices"]) == 3


def test_a_lost_gpu_that_tells_nothing_is_worked_out_from_the_bus():
    host = Host(gpus=3)
    host.lose(1)
    del host.devices[1]["pci_address"]
    host.look()
    assert [row["pci_address"] for row in host.report["devices"]] == [address(n) for n in range(3)]
    assert host.codes(1) == ["gpu_lost"]


def test_a_bus_that_cannot_be_read_is_no_loss():
    host = Host(gpus=2)
    host.look()
    host.pci = None
    assert host.look(2)["verdict"] == "ok"
    host.fail(error(4))
    host.look()
    assert host.codes(0) == host.codes(1) == []


def test_a_bus_without_gpus_is_a_loss_even_if_nvml_says_nothing():
    host = Host(gpus=1)
    host.look()
    host.pci = []
    host.fail(error(9))
    host.look()
    assert host.codes() == ["gpu_missing"]


def test_a_gpu_put_in_place_of_another_ends_the_old_one():
    host = Host(gpus=1)
    host.look()
    host.change("remapped_rows", failure=True)
    host.look()
    assert host.report["verdict"] == "fatal"
    host.reboot()
    host.change("remapped_rows", failure=False)
    host.devices[0]["uuid"] = uuid(77)
    host.look()
    assert [row["uuid"] for row in host.report["devices"]] == [uuid(77)]
    assert host.report["verdict"] == "ok"


def test_garbage_in_place_of_a_uuid_is_no_other_gpu():
    host = Host(gpus=1)
    host.look()
    host.xid(79)
    host.devices[0]["uuid"] = "\x00\x13garbage"
    host.look()
    assert [row["uuid"] for row in host.report["devices"]] == [uuid(0)]
    assert host.report["verdict"] == "fatal"


@pytest.mark.parametrize("key", sorted(READINGS))
@pytest.mark.parametrize("garbage", [None, -1, "garbage", [], {}, [None], {"pending": "?"}])
def test_garbage_for_a_reading_stops_nothing(key, garbage):
    host = Host(gpus=2)
    host.look(2)
    host.read(key, garbage)
    host.change("ecc_volatile", device=1, uncorrected=4)
    host.look(3)
    assert host.codes(1) == ["ecc_uncorrected"]
    # Where the checks of it are unknown, it is told why.
    told = " ".join(look_shape.senseless(host.snapshot()))
    unknown = set(host.gpu()["checks"].values()) & {"unknown"}
    assert not unknown or f"GPU 0: {key}: {key}" in told


def _misspelt(_gpu):
    return {}["slowdwon"]


@pytest.mark.usefixtures("checks_may_fail")
def test_an_error_of_a_check_is_told_and_the_other_checks_go_on(monkeypatch, capfd):
    monkeypatch.setitem(rules.READ, "pcie_width", _misspelt)
    monkeypatch.setattr(rules_node, "_count", lambda _look, _policy: len(None))
    host = Host(gpus=2)
    host.change("ecc_volatile", uncorrected=4)
    host.look(3)
    assert [host.gpu(number)["verdict"] for number in (0, 1)] == ["fatal", "ok"]
    assert host.gpu(1)["checks"]["pcie_width"] == "unknown"
    reason = host.reason("check_failed", None)
    assert (reason["verdict"], reason["evidence"]["value"]) == ("degraded", 2)
    assert "pcie_width: KeyError: 'slowdwon' (test_evaluate.py:" in reason["text"]
    assert "gpu_count: TypeError:" in reason["text"]
    # With its traceback, and once.
    said = capfd.readouterr().err
    assert said.count("in _misspelt") == said.count("KeyError: 'slowdwon'") == 1


@pytest.mark.usefixtures("checks_may_fail")
def test_an_error_of_a_check_ends_no_fault_and_is_over_when_the_check_is_mended(monkeypatch):
    host = Host()
    host.change("pcie", width=8)
    host.look(3)
    with monkeypatch.context() as broken:
        broken.setitem(rules.READ, "pcie_width", _misspelt)
        host.look(10)
        assert (host.codes(), host.codes(None)) == (["pcie_width"], ["check_failed"])
    host.change("pcie", width=16)
    host.look(3)
    assert host.report["verdict"] == "ok"


def test_an_error_of_a_check_is_an_error_of_its_test(monkeypatch):
    monkeypatch.setitem(rules.READ, "pcie_width", _misspelt)
    with pytest.raises(KeyError, match="slowdwon"):
        Host().look()


def test_a_reading_that_says_lost_loses_the_gpu():
    host = Host()
    host.look()
    host.devices[0]["readings"]["temperature_c"] = {"state": "lost", "code": 15, "text": "GPU is lost"}
    host.look()
    assert host.codes() == ["gpu_lost"]
    assert host.gpu()["checks"]["ecc_uncorrected"] == "unknown"


# --- what is not known ------------------------------------------------------------------------------------------------


def test_nothing_is_ok_before_it_was_looked_at():
    host = Host()
    host.tell([])
    assert host.report["verdict"] == "unknown"
    host.fail(error(4))
    host.look()
    assert host.report["verdict"] == "unknown"
    assert [row["pci_address"] for row in host.report["devices"]] == [address(0)]


def test_a_host_whose_bus_and_library_say_nothing_is_not_called_ok():
    host = Host(gpus=0)
    host.pci = None
    host.fail(error(12))
    assert host.look()["verdict"] == "unknown"


def test_a_look_that_fails_changes_no_verdict_until_it_has_failed_thrice():
    host = Host()
    host.look(2)
    devices = host.devices
    host.fail(error(4))
    verdicts = [host.look()["verdict"] for _look in range(4)]
    assert verdicts == ["ok", "ok", "unknown", "unknown"]
    host.driver["nvml_error"], host.devices = None, devices
    assert host.look()["verdict"] == "ok"


def test_a_look_that_fails_ends_no_fault():
    host = Host()
    host.change("pcie", width=8)
    host.look(3)
    host.fail(error(4))
    # The fault is known, and whether the GPU still works is not.
    assert host.look(20)["verdict"] == "unknown"
    assert host.codes() == ["pcie_width"]


def test_what_is_passed_in_is_not_changed():
    host = Host()
    host.look(2)
    host.xid(31)
    before, look, rules = copy.deepcopy(host.history), host.snapshot(), policy.merge({})
    look_before, rules_before = copy.deepcopy(look), copy.deepcopy(rules)
    health.judge(look, [], host.history, rules)
    health.clear(host.history)
    assert (host.history, look, rules) == (before, look_before, rules_before)


def test_a_history_of_another_version_is_refused():
    with pytest.raises(health.HistoryError, match=r"schema 99.*remove the file"):
        health.judge(Host().snapshot(), [], {"schema": 99})


def test_a_check_can_be_ignored_and_taken_otherwise():
    host = Host(
        policy={"checks": {"pcie_width": {"verdict": "ignore"}, "persistence_mode": {"verdict": "fatal", "looks": 1}}}
    )
    host.change("pcie", width=8)
    host.read("persistence_mode", False)
    host.look()
    assert host.codes() == ["persistence_mode"]
    assert host.report["verdict"] == "fatal"
