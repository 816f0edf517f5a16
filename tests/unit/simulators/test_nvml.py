# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's own binding pynvml on the simulated library: as strict as the real one, and broken on demand."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from tests.simulators import generate
from tests.unit.plugins.service_account import needs_root
from tests.unit.simulators.conftest import load_copy

NAMES = sorted(generate.PATCHES.keys() - generate.FAULTS.keys())


def code_of(module, question, *arguments):
    """The return code of a question: 0 when it is answered."""
    try:
        question(*arguments)
    except module.NVMLError as error:
        return int(error.value)
    except module.NVMLLibraryMismatchError:
        # pynvml's word for a function that the library does not have.
        return 13
    return 0


@pytest.fixture
def gpus(pynvml, scenario):
    """gpus(name) starts the library with a scenario: (the scenario, handles of all its counted GPUs)."""

    def start(name):
        chosen = scenario(name)
        pynvml.nvmlInit()
        return chosen, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    return start


# Life of the library


def test_nothing_is_answered_before_init_and_after_shutdown(pynvml, scenario):
    scenario("a100-sxm4-40gb-x2")
    count = ctypes.c_uint()
    ask = pynvml.nvmlLib.nvmlDeviceGetCount_v2
    assert ask(ctypes.byref(count)) == 1
    pynvml.nvmlInit()
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()
    assert ask(ctypes.byref(count)) == 0
    assert count.value == 2
    pynvml.nvmlShutdown()
    assert ask(ctypes.byref(count)) == 1
    assert code_of(pynvml, pynvml.nvmlDeviceGetName, handle) == 1
    assert code_of(pynvml, pynvml.nvmlShutdown) == 1


def test_versions_follow_the_driver(pynvml, gpus):
    gpus("k20c-x1")
    assert pynvml.nvmlSystemGetDriverVersion() == "470.256.02"
    assert pynvml.nvmlSystemGetNVMLVersion() == "11.470.256.02"
    assert pynvml.nvmlSystemGetCudaDriverVersion_v2() == 11040


def test_a_library_of_another_version_than_the_module_is_refused(pynvml, scenario):
    scenario("driver-library-mismatch")
    assert code_of(pynvml, pynvml.nvmlInit) == 18


@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia/version"), reason="this machine has a driver of its own")
def test_without_a_loaded_module_there_is_no_driver(pynvml, scenario):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.document["kernel"] = "stand-in"
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlInit) == 9


def test_the_library_takes_its_version_from_its_file_name(built, tmp_path, scenario, pynvml):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.document["driver"]["library_version"] = None
    chosen.document["kernel"] = "stand-in"
    chosen.document["faults"] = []
    chosen.write()
    library = load_copy(built / "libcuda.so.1", tmp_path, "libcuda.so.535.247.01")
    version = ctypes.c_int()
    assert library.cuDriverGetVersion(ctypes.byref(version)) == 0
    assert version.value == 12020


def test_a_scenario_that_is_not_there_is_an_error(pynvml, monkeypatch, tmp_path):
    monkeypatch.setenv("NVML_SIMULATOR_SCENARIO", str(tmp_path / "nothing.json"))
    assert code_of(pynvml, pynvml.nvmlInit) == 999


# Strictness


def test_bad_handles_and_indexes(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x2")
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex, 2) == 2
    assert code_of(pynvml, pynvml.nvmlDeviceGetName, None) == 2
    assert code_of(pynvml, pynvml.nvmlDeviceGetTemperature, handles[0], 1) == 2
    assert code_of(pynvml, pynvml.nvmlDeviceGetNvLinkState, handles[0], 12) == 2


@pytest.mark.parametrize(
    "question",
    [
        "nvmlDeviceGetTemperature(bad, 0)",
        "nvmlDeviceGetTopologyCommonAncestor(h, bad)",
        "nvmlDeviceGetP2PStatus(h, bad, 0)",
    ],
)
@pytest.mark.parametrize("bad", ["c_void_p(0xdead0000)", "c_void_p(cast(h, c_void_p).value + 1)"])
def test_a_handle_that_was_never_given_out_is_followed(scenario, run_python, question, bad):
    scenario("a100-sxm4-40gb-x2")
    start = "import pynvml as n; from ctypes import *; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); "
    assert run_python(f"{start} bad = {bad}; n.{question}", timeout=30).returncode == -signal.SIGSEGV
    assert run_python(f"{start} bad = {bad}; n.nvmlShutdown(); n.{question}", timeout=30).returncode == 1


@pytest.mark.parametrize("function", ["nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetSerial"])
def test_a_short_buffer_is_refused_and_left_alone(pynvml, gpus, function):
    _, handles = gpus("a100-sxm4-40gb-x2")
    text = getattr(pynvml, function)(handles[0])
    exact = ctypes.create_string_buffer(b"#" * len(text), len(text) + 1)
    ask = getattr(pynvml.nvmlLib, function)
    assert ask(handles[0], exact, ctypes.c_uint(len(text))) == 7
    assert exact.value == b"#" * len(text)
    assert ask(handles[0], exact, ctypes.c_uint(len(text) + 1)) == 0
    assert exact.value.decode() == text
    assert ask(handles[0], None, ctypes.c_uint(80)) == 2


def test_a_structure_of_an_unknown_version_is_refused(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x2")
    memory = pynvml.c_nvmlMemory_v2_t()
    memory.version = 0x03000028
    assert pynvml.nvmlLib.nvmlDeviceGetMemoryInfo_v2(handles[0], ctypes.byref(memory)) == 13
    info = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    info.version = 0x02000068
    assert pynvml.nvmlLib.nvmlDeviceGetSramEccErrorStatus(handles[0], ctypes.byref(info)) == 25


NOT_SUPPORTED = [
    ("gtx1080-x2", "nvmlDeviceGetSerial"),
    ("gtx1080-x2", "nvmlDeviceGetEccMode"),
    ("gtx1080-x2", "nvmlDeviceGetRetiredPagesPendingStatus"),
    ("gtx1080-x2", "nvmlDeviceGetRemappedRows"),
    ("gtx1080-x2", "nvmlDeviceGetMigMode"),
    ("gtx1080-x2", "nvmlDeviceGetTotalEnergyConsumption"),
    ("k20c-x1", "nvmlDeviceGetRemappedRows"),
    ("k20c-x1", "nvmlDeviceGetMigMode"),
    ("k20c-x1", "nvmlDeviceGetTotalEnergyConsumption"),
    ("v100-sxm2-16gb-x8", "nvmlDeviceGetFanSpeed"),
    ("v100-sxm2-16gb-x8", "nvmlDeviceGetRowRemapperHistogram"),
    ("a100-sxm4-40gb-x2", "nvmlDeviceGetRetiredPagesPendingStatus"),
    ("gtx1080-x2", "nvmlDeviceGetMaxMigDeviceCount"),
    ("t4-x1", "nvmlDeviceGetModuleId"),
    ("t4-x1", "nvmlDeviceGetFanSpeed"),
]


@pytest.mark.parametrize(("name", "function"), NOT_SUPPORTED)
def test_what_a_gpu_does_not_have(pynvml, gpus, name, function):
    _, handles = gpus(name)
    assert code_of(pynvml, getattr(pynvml, function), handles[0]) == 3


@pytest.mark.parametrize(
    ("function", "arguments", "before", "since"),
    [
        ("nvmlDeviceGetMemoryInfo", (0x02000028,), 470, 550),
        ("nvmlDeviceGetComputeRunningProcesses_v3", (), 470, 550),
        ("nvmlDeviceGetCurrentClocksEventReasons", (), 470, 550),
        ("nvmlDeviceGetNumaNodeId", (), 470, 550),
        ("nvmlDeviceGetMarginTemperature", (), 550, 570),
        ("nvmlDeviceGetUnrepairableMemoryFlag_v1", (), 570, 580),
    ],
)
def test_functions_that_a_branch_does_not_have_yet(pynvml, gpus, function, arguments, before, since):
    chosen, handles = gpus("h100-sxm-x8")
    for gpu in chosen.devices:
        gpu["driver_branches"] = [0, None]
    results = {}
    for branch in (before, since):
        chosen.document["driver"]["version"] = f"{branch}.10.01"
        chosen.write()
        while code_of(pynvml, pynvml.nvmlShutdown) == 0:
            pass
        pynvml.nvmlInit()
        results[branch] = code_of(pynvml, getattr(pynvml, function), handles[0], *arguments)
    assert results == {before: 13, since: 0}


def test_application_clocks_are_gone_in_new_branches(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    assert pynvml.nvmlDeviceGetApplicationsClock(handles[0], pynvml.NVML_CLOCK_SM) == 1095
    chosen.document["driver"]["version"] = "590.48.01"
    chosen.write()
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()
    assert code_of(pynvml, pynvml.nvmlDeviceGetApplicationsClock, handles[0], pynvml.NVML_CLOCK_SM) == 26


def test_a_gpu_that_the_branch_does_not_know_is_not_counted(pynvml, scenario):
    chosen = scenario("k20c-x1")
    chosen.document["driver"]["version"] = "550.163.01"
    chosen.write()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 0


# What is answered


@pytest.mark.parametrize("name", NAMES)
def test_every_gpu_answers_as_its_scenario_says(pynvml, scenario, name):
    chosen = scenario(name)
    if name == "driver-library-mismatch":
        chosen.document["driver"]["library_version"] = None
        chosen.write()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == len(chosen.devices)
    for index, gpu in enumerate(chosen.devices):
        if gpu["state"] == "lost":
            assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex, index) == 15
            continue
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        assert pynvml.nvmlDeviceGetName(handle) == gpu["name"]
        assert pynvml.nvmlDeviceGetUUID(handle) == gpu["uuid"]
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == gpu["minor"]
        assert pynvml.nvmlDeviceGetIndex(handle) == index
        assert list(pynvml.nvmlDeviceGetCudaComputeCapability(handle)) == gpu["compute_capability"]
        assert pynvml.nvmlDeviceGetArchitecture(handle) == gpu["architecture"]
        assert pynvml.nvmlDeviceGetMemoryInfo(handle).total == gpu["memory"]["total_mib"] << 20
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        assert pci.busId == f"0000{gpu['pci']['address']}".upper()
        assert pci.busIdLegacy == gpu["pci"]["address"].upper()
        assert pci.pciDeviceId == int(gpu["pci"]["device"], 16) << 16 | 0x10DE
        assert pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle) == gpu["pci"]["width"]


QUESTIONS = [
    "nvmlDeviceGetVbiosVersion",
    "nvmlDeviceGetSerial",
    "nvmlDeviceGetBoardPartNumber",
    "nvmlDeviceGetBrand",
    "nvmlDeviceGetInforomImageVersion",
    "nvmlDeviceGetEccMode",
    "nvmlDeviceGetRetiredPagesPendingStatus",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetRowRemapperHistogram",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetPowerManagementLimit",
    "nvmlDeviceGetPowerManagementLimitConstraints",
    "nvmlDeviceGetTotalEnergyConsumption",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetPersistenceMode",
    "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetPerformanceState",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetEncoderUtilization",
    "nvmlDeviceGetDecoderUtilization",
    "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetCurrPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetPcieReplayCounter",
    "nvmlDeviceGetPcieSpeed",
    "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
    "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetNumFans",
    "nvmlDeviceGetDisplayActive",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceValidateInforom",
    "nvmlDeviceGetUnrepairableMemoryFlag_v1",
]


@pytest.mark.parametrize("name", ["k20c-x1", "gtx1080-x2", "v100-sxm2-16gb-x8", "a100-sxm4-40gb-x8-mig", "h100-sxm-x8"])
def test_plain_questions_are_answered_or_do_not_apply(pynvml, gpus, name):
    _, handles = gpus(name)
    answered = {question: code_of(pynvml, getattr(pynvml, question), handles[0]) for question in QUESTIONS}
    assert set(answered.values()) <= {0, 3, 13}
    assert list(answered.values()).count(0) >= 25


def test_handles_by_identity(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    gpu = chosen.devices[1]

    def same(handle):
        return ctypes.cast(handle, ctypes.c_void_p).value == ctypes.cast(handles[1], ctypes.c_void_p).value

    assert same(pynvml.nvmlDeviceGetHandleByUUID(gpu["uuid"]))
    assert same(pynvml.nvmlDeviceGetHandleBySerial(gpu["serial"]))
    for address in ("0000:af:00.0", "00000000:AF:00.0", "af:00.0"):
        assert same(pynvml.nvmlDeviceGetHandleByPciBusId(address))
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId, "0000:01:00.0") == 6
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId, "rubbish") == 2
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByUUID, "GPU-0") == 6
    assert same(pynvml.nvmlDeviceGetHandleByUUID(gpu["uuid"].removeprefix("GPU-")))
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{gpu['uuid'][4:].upper()}") == 6


def test_a_gpu_without_a_serial_is_not_found_by_an_empty_one(pynvml, gpus):
    gpus("gtx1080-x2")
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleBySerial, "") == 6


def test_memory_counts_the_reserve_as_used_only_in_its_first_version(pynvml, gpus):
    chosen, handles = gpus("h100-sxm-x8")
    chosen.devices[0]["memory"]["used_mib"] = 1000
    chosen.write()
    first, second = (
        pynvml.nvmlDeviceGetMemoryInfo(handles[0]),
        pynvml.nvmlDeviceGetMemoryInfo(handles[0], pynvml.nvmlMemory_v2),
    )
    assert (second.reserved >> 20, second.used >> 20) == (480, 1000)
    assert first.used == second.used + second.reserved
    assert first.free == second.free == second.total - first.used


def test_ecc_counters_per_place(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.devices[0]["ecc"]["volatile"]["uncorrected"].update(total=3, device=2, sram=1)
    chosen.devices[0]["ecc"]["sram"].update(volatile={"parity": 1}, threshold_exceeded=1)
    chosen.write()
    assert pynvml.nvmlDeviceGetTotalEccErrors(handles[0], 1, 0) == 3
    assert pynvml.nvmlDeviceGetTotalEccErrors(handles[0], 1, 1) == 0
    assert pynvml.nvmlDeviceGetMemoryErrorCounter(handles[0], 1, 0, pynvml.NVML_MEMORY_LOCATION_DRAM) == 2
    assert code_of(pynvml, pynvml.nvmlDeviceGetMemoryErrorCounter, handles[0], 1, 0, 4) == 3
    status = pynvml.c_nvmlEccSramErrorStatus_v1_t()
    pynvml.nvmlDeviceGetSramEccErrorStatus(handles[0], ctypes.byref(status))
    assert (status.volatileUncParity, status.bThresholdExceeded, status.aggregateCor) == (1, 1, 0)
    chosen.devices[0]["ecc"]["enabled"] = 0
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlDeviceGetTotalEccErrors, handles[0], 1, 0) == 3
    assert pynvml.nvmlDeviceGetEccMode(handles[0]) == [0, 1]


def test_ecc_places_of_hopper(pynvml, gpus):
    _, handles = gpus("h100-sxm-x8")
    ask = pynvml.nvmlDeviceGetMemoryErrorCounter
    assert [code_of(pynvml, ask, handles[0], 0, 0, place) for place in range(9)] == [3, 3, 0, 3, 3, 3, 3, 0, 2]
    values = pynvml.nvmlDeviceGetFieldValues(handles[0], [3, 4, 5, 6, 11, 12, 22, 23])
    assert [value.nvmlReturn for value in values] == [0, 0, 0, 0, 3, 3, 3, 3]


def test_limits_of_the_temperature(pynvml, gpus):
    """As temperatures on every GPU, and as degrees below the slowdown on Hopper."""
    _, handles = gpus("h100-sxm-x8")
    ask = pynvml.nvmlDeviceGetTemperatureThreshold
    assert [ask(handles[0], which) for which in range(4)] == [95, 89, 95, 87]
    assert code_of(pynvml, ask, handles[0], 4) == 3
    limits = [193, 194, 195, 196]
    values = pynvml.nvmlDeviceGetFieldValues(handles[0], limits)
    assert [(value.nvmlReturn, value.valueType, value.value.siVal) for value in values] == [
        (0, 5, -8),
        (0, 5, -2),
        (0, 5, 0),
        (0, 5, 0),
    ]


def test_limits_of_the_temperature_before_hopper(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x2")
    values = pynvml.nvmlDeviceGetFieldValues(handles[0], [193, 194, 195, 196])
    assert [(value.nvmlReturn, value.valueType) for value in values] == [(3, 0)] * 4


def test_fans(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    assert pynvml.nvmlDeviceGetNumFans(handles[0]) == 0
    assert code_of(pynvml, pynvml.nvmlDeviceGetFanSpeed_v2, handles[0], 0) == 2
    chosen.devices[0]["fan"] = {"percent": 30, "count": 1}
    chosen.write()
    assert pynvml.nvmlDeviceGetNumFans(handles[0]) == 1
    assert pynvml.nvmlDeviceGetFanSpeed_v2(handles[0], 0) == 30


def test_pcie_speeds(pynvml, gpus):
    """The one of now in Mb/s, the greatest as a number out of a list."""
    _, handles = gpus("a100-sxm4-40gb-x2")
    assert pynvml.nvmlDeviceGetPcieSpeed(handles[0]) == 16000
    assert pynvml.nvmlDeviceGetPcieLinkMaxSpeed(handles[0]) == pynvml.NVML_PCIE_LINK_MAX_SPEED_16000MBPS


def test_the_second_form_of_the_pci_address_has_no_long_one(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x2")
    info = pynvml.nvmlPciInfo_t()
    assert pynvml.nvmlLib.nvmlDeviceGetPciInfo_v2(handles[1], ctypes.byref(info)) == 0
    assert (info.busIdLegacy, info.bus, info.busId) == ("0000:AF:00.0", 0xAF, "")


def test_retired_pages_and_remapped_rows(pynvml, gpus):
    chosen, handles = gpus("v100-sxm2-16gb-x8")
    assert pynvml.nvmlDeviceGetRetiredPages_v2(handles[0], 1) == []
    pages = [{"address": 0x1000 * n, "time": 1700000000 + n} for n in range(1, 9)]
    chosen.devices[0]["retired_pages"].update(double_bit=pages, pending=1)
    chosen.write()
    found = pynvml.nvmlDeviceGetRetiredPages_v2(handles[0], 1)
    assert found == [{"address": page["address"], "timestamp": page["time"]} for page in pages]
    assert pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handles[0]) == 1
    assert pynvml.nvmlDeviceGetRetiredPages_v2(handles[0], 0) == []


def test_row_remapping(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x8-mig")
    chosen.devices[2]["remapped_rows"].update(uncorrectable=2, pending=1)
    chosen.devices[2]["remapped_rows"]["histogram"].update(max=638, high=2)
    chosen.write()
    assert pynvml.nvmlDeviceGetRemappedRows(handles[2]) == (0, 2, 1, 0)
    assert pynvml.nvmlDeviceGetRowRemapperHistogram(handles[2]).high == 2
    # Under MIG only the histogram is answered.
    assert code_of(pynvml, pynvml.nvmlDeviceGetRemappedRows, handles[0]) == 3
    assert pynvml.nvmlDeviceGetRowRemapperHistogram(handles[0]).max == 640


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"]
)
def test_processes(pynvml, gpus, function):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.devices[0]["processes"] = [
        {"pid": 4242, "type": "C", "memory_mib": 300, "name": "train"},
        {"pid": 4243, "type": "C", "memory_mib": None},
        {"pid": 77, "type": "G", "memory_mib": 5},
    ]
    chosen.write()
    found = getattr(pynvml, function)(handles[0])
    assert [(process.pid, process.usedGpuMemory) for process in found] == [(4242, 300 << 20), (4243, None)]
    assert [process.pid for process in pynvml.nvmlDeviceGetGraphicsRunningProcesses(handles[0])] == [77]
    assert getattr(pynvml, function)(handles[1]) == []
    assert pynvml.nvmlSystemGetProcessName(4242) == "train"


def test_the_name_of_any_process(pynvml, gpus):
    gpus("a100-sxm4-40gb-x2")
    with open("/proc/self/cmdline", encoding="utf-8") as file:
        assert pynvml.nvmlSystemGetProcessName(os.getpid()) == file.read().split("\0")[0]
    short = ctypes.create_string_buffer(b"####", 8)
    ask = pynvml.nvmlLib.nvmlSystemGetProcessName
    assert ask(os.getpid(), short, 2) == 0
    assert len(short.value) == 1
    assert [ask(os.getpid(), short, 0), ask(os.getpid(), None, 8), ask(0x7FFFFFFF, short, 8)] == [2, 2, 6]


def test_persistence_follows_the_daemon(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    expected = int(os.path.exists("/run/nvidia-persistenced/socket"))
    assert pynvml.nvmlDeviceGetPersistenceMode(handles[0]) == expected
    chosen.devices[0]["persistence"] = 1
    chosen.write()
    assert pynvml.nvmlDeviceGetPersistenceMode(handles[0]) == 1


def test_mig_instances(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x8-mig")
    assert pynvml.nvmlDeviceGetMigMode(handles[0]) == [1, 1]
    assert pynvml.nvmlDeviceGetMigMode(handles[2]) == [0, 0]
    instances = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handles[1], i) for i in range(3)]
    assert code_of(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handles[1], 3) == 6
    assert code_of(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handles[1], 7) == 2
    assert [pynvml.nvmlDeviceGetName(i) for i in instances] == [
        f"NVIDIA A100-SXM4-40GB MIG {profile}" for profile in ("3g.20gb", "2g.10gb", "1g.5gb")
    ]
    assert [pynvml.nvmlDeviceGetAttributes(i).multiprocessorCount for i in instances] == [42, 28, 14]
    assert [pynvml.nvmlDeviceGetGpuInstanceId(i) for i in instances] == [1, 2, 3]
    assert pynvml.nvmlDeviceGetMemoryInfo(instances[2]).total == 4864 << 20
    uuid = chosen.devices[1]["mig"]["instances"][1]["compute"][0]["uuid"]
    assert pynvml.nvmlDeviceGetUUID(instances[1]) == uuid
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instances[0])
    assert pynvml.nvmlDeviceGetUUID(parent) == chosen.devices[1]["uuid"]
    assert code_of(pynvml, pynvml.nvmlDeviceGetPowerUsage, instances[0]) == 3
    assert code_of(pynvml, pynvml.nvmlDeviceGetUtilizationRates, handles[1]) == 3
    one_slice = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handles[0], 0, version=1)
    assert (one_slice.id, one_slice.instanceCount) == (19, 7)


def test_mig_that_is_off(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x8-mig")
    count, instance = ctypes.c_uint(7), ctypes.c_void_p()
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handles[0]) == 7
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handles[2]) == 0
    for index in (0, 7, 1000):
        assert code_of(pynvml, pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handles[2], index) == 6
    ask = pynvml.nvmlLib.nvmlDeviceGetGpuInstances
    assert ask(handles[2], 19, (ctypes.c_void_p * 8)(), ctypes.byref(count)) == 0
    assert count.value == 0
    assert ask(handles[2], 1000, (ctypes.c_void_p * 8)(), ctypes.byref(count)) == 2
    assert pynvml.nvmlLib.nvmlDeviceGetGpuInstanceById(handles[2], 1, ctypes.byref(instance)) == 6
    codes = [code_of(pynvml, pynvml.nvmlDeviceGetGpuInstanceProfileInfo, handles[2], n, 1) for n in (0, 5, 1000)]
    assert codes == [0, 3, 2]


@pytest.mark.parametrize("name", ["t4-x1", "gtx1080-x2"])
def test_a_gpu_without_nvlink_has_no_link_at_all(pynvml, gpus, name):
    _, handles = gpus(name)
    for link in (0, 17, 18, 1000):
        assert code_of(pynvml, pynvml.nvmlDeviceGetNvLinkState, handles[0], link) == 3
        assert code_of(pynvml, pynvml.nvmlDeviceGetNvLinkErrorCounter, handles[0], link, 1000) == 3
    assert [code_of(pynvml, pynvml.nvmlDeviceGetNvLinkCapability, handles[0], link, 1000) for link in (0, 18)] == [3, 2]
    assert pynvml.nvmlLib.nvmlDeviceGetNvLinkState(handles[0], 0, None) == 2


def test_nvlinks_join_both_ends(pynvml, gpus):
    chosen, handles = gpus("v100-sxm2-16gb-x8")
    joined = {}
    for index, handle in enumerate(handles):
        for link in range(6):
            assert pynvml.nvmlDeviceGetNvLinkState(handle, link) == 1
            remote = pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId
            other = [f"0000{gpu['pci']['address']}".upper() for gpu in chosen.devices].index(remote)
            joined[index, other] = joined.get((index, other), 0) + 1
    assert all(joined[b, a] == count for (a, b), count in joined.items())
    assert joined[0, 3] == 2
    assert (0, 7) not in joined


def test_topology_and_peer_access(pynvml, gpus):
    _, handles = gpus("v100-sxm2-16gb-x8")
    levels = [pynvml.nvmlDeviceGetTopologyCommonAncestor(handles[0], other) for other in handles[1:]]
    assert levels == [20, 40, 40, 50, 50, 50, 50]
    nvlink = [pynvml.nvmlDeviceGetP2PStatus(handles[0], other, 2) for other in handles[1:]]
    assert nvlink == [0, 0, 0, 0, 5, 5, 5]
    assert len(pynvml.nvmlDeviceGetTopologyNearestGpus(handles[0], 50)) == 4
    cpus = pynvml.nvmlDeviceGetCpuAffinity(handles[7], 1)
    assert cpus[0] == 0xFFFF0000
    # A GPU and itself.
    assert code_of(pynvml, pynvml.nvmlDeviceGetTopologyCommonAncestor, handles[0], handles[0]) == 3
    to_itself = [pynvml.nvmlDeviceGetP2PStatus(handles[0], handles[0], capability) for capability in (0, 4, 5, 1000)]
    assert to_itself == [5, 5, 0, 0]


def test_fabric(pynvml, gpus):
    chosen, handles = gpus("fabric-not-ready")
    info = pynvml.c_nvmlGpuFabricInfo_v3_t()
    pynvml.nvmlDeviceGetGpuFabricInfoV(handles[0], ctypes.byref(info))
    assert info.state == 1
    chosen.devices[0]["fabric"].update(state=3, clique=7, health_summary=2, cluster_uuid="0102" + "00" * 14)
    chosen.write()
    for info in (pynvml.c_nvmlGpuFabricInfo_v2_t(), pynvml.c_nvmlGpuFabricInfo_v3_t()):
        pynvml.nvmlDeviceGetGpuFabricInfoV(handles[0], ctypes.byref(info))
        assert (info.state, info.cliqueId, list(info.clusterUuid[:3])) == (3, 7, [1, 2, 0])
    assert info.healthSummary == 2


def test_field_values_are_judged_one_by_one(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.devices[0]["nvlinks"]["links"][3]["errors"] = {"crc_flit": 5}
    chosen.devices[0]["nvlinks"]["links"][4]["errors"] = {"crc_flit": 6}
    chosen.write()
    fields = [
        pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL,
        pynvml.NVML_FI_DEV_RETIRED_DBE,
        pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,
        4000,
    ]
    values = pynvml.nvmlDeviceGetFieldValues(handles[0], fields)
    assert [value.nvmlReturn for value in values] == [0, 3, 0, 3]
    assert (values[0].value.ullVal, values[2].value.uiVal) == (11, 12)
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handles[0], 4, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT) == 6


def test_inforom(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    assert code_of(pynvml, pynvml.nvmlDeviceValidateInforom, handles[0]) == 0
    chosen.devices[0]["inforom"]["valid"] = False
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlDeviceValidateInforom, handles[0]) == 14


# Changing under a process that runs


def test_a_changed_file_is_read_again(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    assert pynvml.nvmlDeviceGetTemperature(handles[1], 0) == 34
    chosen.devices[1]["temperature"]["gpu"] = 91
    chosen.write()
    assert pynvml.nvmlDeviceGetTemperature(handles[1], 0) == 91
    chosen.devices[1]["temperature"] = None
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlDeviceGetTemperature, handles[1], 0) == 3


def test_half_a_file_does_not_count(pynvml, gpus, capfd):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.path.write_text(chosen.path.read_text()[:900])
    assert pynvml.nvmlDeviceGetTemperature(handles[1], 0) == 34
    assert "scenario.json: line 1" in capfd.readouterr().err


def test_a_lost_gpu_leaves_the_others_alone(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x8")
    chosen.devices[5]["state"] = "lost"
    chosen.write()
    assert pynvml.nvmlDeviceGetCount() == 8
    codes = [code_of(pynvml, pynvml.nvmlDeviceGetTemperature, handle, 0) for handle in handles]
    assert codes == [0, 0, 0, 0, 0, 15, 0, 0]
    chosen.devices[5]["state"] = "reset_required"
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlDeviceGetTemperature, handles[5], 0) == 16


def test_a_handle_stays_with_its_gpu_when_another_is_taken_out(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x8")
    last = chosen.devices[7]["uuid"]
    del chosen.devices[2]
    chosen.write()
    assert pynvml.nvmlDeviceGetCount() == 7
    assert pynvml.nvmlDeviceGetUUID(handles[7]) == last
    assert pynvml.nvmlDeviceGetIndex(handles[7]) == 6
    assert code_of(pynvml, pynvml.nvmlDeviceGetUUID, handles[2]) == 15


# Ordered faults


def test_an_error_for_one_call_of_one_gpu(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.fault(call="nvmlDeviceGetPower*", device=1, error=999)
    assert code_of(pynvml, pynvml.nvmlDeviceGetPowerUsage, handles[0]) == 0
    assert code_of(pynvml, pynvml.nvmlDeviceGetPowerUsage, handles[1]) == 999
    assert code_of(pynvml, pynvml.nvmlDeviceGetTemperature, handles[1], 0) == 0


def test_a_fault_of_some_calls_only(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.fault(call="nvmlDeviceGetPowerUsage", after=2, times=1, error=10)
    assert [code_of(pynvml, pynvml.nvmlDeviceGetPowerUsage, handles[0]) for _ in range(5)] == [0, 0, 10, 0, 0]


def test_a_fault_of_the_handle_and_of_init(pynvml, scenario):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.fault(call="nvmlInitWithFlags", error=999)
    assert code_of(pynvml, pynvml.nvmlInit) == 999
    chosen.document["faults"] = []
    chosen.fault(call="nvmlDeviceGetHandleByIndex_v2", device=1, error=8)
    pynvml.nvmlInit()
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex, 0) == 0
    assert code_of(pynvml, pynvml.nvmlDeviceGetHandleByIndex, 1) == 8


def test_a_delay_holds_one_caller_only(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.fault(call="nvmlDeviceGetPowerUsage", delay_ms=400)
    took = {}

    def ask(question, *arguments):
        start = time.monotonic()
        question(*arguments)
        took[question.__name__] = time.monotonic() - start

    slow = threading.Thread(target=ask, args=(pynvml.nvmlDeviceGetPowerUsage, handles[0]))
    slow.start()
    time.sleep(0.1)
    ask(pynvml.nvmlDeviceGetTemperature, handles[0], 0)
    slow.join()
    assert took["nvmlDeviceGetPowerUsage"] >= 0.4
    assert took["nvmlDeviceGetTemperature"] < 0.25


def test_garbage_is_a_success_with_a_senseless_value(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.fault(call="nvmlDeviceGet*", device=0, garbage=True)
    temperatures = {pynvml.nvmlDeviceGetTemperature(handles[0], 0) for _ in range(4)}
    assert max(temperatures) > 1000
    assert pynvml.nvmlDeviceGetTemperature(handles[1], 0) == 34
    name = ctypes.create_string_buffer(96)
    assert pynvml.nvmlLib.nvmlDeviceGetName(handles[0], name, 96) == 0
    assert name.raw[:21] != b"NVIDIA A100-SXM4-40GB"


ASK = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); print('asking', flush=True); " + (
    "print(n.nvmlDeviceGetTemperature(h, 0))"
)


def test_a_call_that_never_returns(scenario, run_python):
    scenario("a100-sxm4-40gb-x2").fault(call="nvmlDeviceGetTemperature", hang=True)
    with pytest.raises(subprocess.TimeoutExpired) as hung:
        run_python(ASK, timeout=3)
    assert hung.value.stdout == b"asking\n"


def test_a_call_that_ends_the_process(scenario, run_python):
    scenario("a100-sxm4-40gb-x2").fault(call="nvmlDeviceGetTemperature", crash=True)
    done = run_python(ASK, timeout=30)
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "asking\n")


def test_the_real_binding_finds_the_library_by_itself(scenario, run_python):
    scenario("a100-sxm4-40gb-x2")
    assert run_python(ASK, timeout=30).stdout == "asking\n34\n"


def test_a_forked_child_can_ask(pynvml, gpus):
    _, handles = gpus("a100-sxm4-40gb-x2")
    pid = os.fork()
    if pid == 0:
        os._exit(pynvml.nvmlDeviceGetTemperature(handles[0], 0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 34


# Events


@pytest.fixture
def watched(pynvml, gpus):
    """A scenario whose past holds one Xid, its handles, and an event set with its first two GPUs."""
    chosen, handles = gpus("a100-sxm4-40gb-x8")
    chosen.document["events"] = [{"id": 1, "device": 0, "xid": 13}]
    chosen.write()
    events = pynvml.nvmlEventSetCreate()
    for handle in handles[:2]:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    return chosen, handles, events


def test_an_xid_wakes_the_waiter(pynvml, watched):
    chosen, _handles, events = watched

    def inject():
        time.sleep(0.2)
        chosen.document["events"] += [{"id": 2, "device": 5, "xid": 31}, {"id": 3, "device": 1, "xid": 79}]
        chosen.write()

    injector = threading.Thread(target=inject)
    injector.start()
    event = pynvml.nvmlEventSetWait_v2(events, 5000)
    injector.join()
    assert (event.eventType, event.eventData) == (pynvml.nvmlEventTypeXidCriticalError, 79)
    assert pynvml.nvmlDeviceGetUUID(event.device) == chosen.devices[1]["uuid"]
    assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, events, 50) == 10


def test_events_come_one_by_one_in_order(pynvml, watched):
    chosen, _handles, events = watched
    chosen.document["events"] += [{"id": 9, "device": 0, "xid": 62}, {"id": 4, "device": 1, "xid": 48}]
    chosen.write()
    assert [pynvml.nvmlEventSetWait_v2(events, 100).eventData for _ in range(2)] == [48, 62]


def test_the_past_is_no_event(pynvml, watched):
    assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, watched[2], 50) == 10


def test_a_lost_gpu_ends_the_wait(pynvml, watched):
    chosen, _handles, events = watched
    chosen.devices[1]["state"] = "lost"
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, events, 5000) == 15


def test_an_event_may_come_a_while_after_the_registration(pynvml, scenario):
    scenario("xid-31")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    for _each in range(2):
        events = pynvml.nvmlEventSetCreate()
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
        assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, events, 0) == 10
        assert pynvml.nvmlEventSetWait_v2(events, 5000).eventData == 31
        assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, events, 0) == 10
        pynvml.nvmlEventSetFree(events)


def test_counters_may_grow_with_time(pynvml, scenario):
    chosen = scenario("nvlink-errors")
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(1)
    flit = pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT
    counted = [pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, flit)]
    assert counted[0] >= 100
    time.sleep(0.3)
    counted.append(pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, flit))
    assert counted[1] > counted[0]
    assert pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, 2, flit) == 0
    chosen.devices[1]["pci"].update(replays=7, replays_per_minute=60000)
    chosen.write()
    before = pynvml.nvmlDeviceGetPcieReplayCounter(handle)
    time.sleep(0.05)
    assert pynvml.nvmlDeviceGetPcieReplayCounter(handle) > before


def test_event_sets_are_handles_too(pynvml, watched):
    _chosen, handles, events = watched
    assert code_of(pynvml, pynvml.nvmlDeviceRegisterEvents, handles[0], 1 << 40, events) == 3
    assert code_of(pynvml, pynvml.nvmlDeviceRegisterEvents, handles[0], 0, events) == 0
    pynvml.nvmlEventSetFree(events)
    assert code_of(pynvml, pynvml.nvmlEventSetFree, events) == 2
    assert code_of(pynvml, pynvml.nvmlEventSetWait_v2, events, 10) == 2


def test_event_types_of_hopper(pynvml, gpus):
    chosen, handles = gpus("h100-sxm-x8")
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handles[0]) == 31
    pynvml.nvmlShutdown()
    chosen.document["driver"]["version"] = "580.159.04"
    chosen.write()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetSupportedEventTypes(handles[0]) == 65439


def test_json_with_escapes_and_numbers(pynvml, scenario):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.devices[0]["name"] = 'Tab\t "quoted" \\ ö'
    chosen.devices[0]["power"]["energy_mj"] = 2**53 + 1
    chosen.path.write_text(json.dumps(chosen.document, ensure_ascii=True))
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    assert pynvml.nvmlDeviceGetName(handle) == 'Tab\t "quoted" \\ ö'
    assert pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 2**53 + 1


# What can be set. Assumed of the real library, whose documentation has the codes but not their order.


@needs_root
def test_what_one_process_has_set_every_process_sees(pynvml, gpus, run_python):
    _chosen, handles = gpus("a100-sxm4-40gb-x2")
    start = "import pynvml as n; n.nvmlInit(); h = n.nvmlDeviceGetHandleByIndex(0); "
    done = run_python(
        f"{start} n.nvmlDeviceSetComputeMode(h, 3); n.nvmlDeviceSetPowerManagementLimit(h, 250000); "
        "n.nvmlDeviceSetApplicationsClocks(h, 1215, 1410)",
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert [pynvml.nvmlDeviceGetComputeMode(handle) for handle in handles] == [3, 0]
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handles[0]) == 250000
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(handles[0]) == 250000
    assert pynvml.nvmlDeviceGetApplicationsClock(handles[0], pynvml.NVML_CLOCK_SM) == 1410
    pynvml.nvmlDeviceResetApplicationsClocks(handles[0])
    assert pynvml.nvmlDeviceGetApplicationsClock(handles[0], pynvml.NVML_CLOCK_SM) == 1095
    assert pynvml.nvmlDeviceGetApplicationsClock(handles[0], pynvml.NVML_CLOCK_MEM) == 1215


@needs_root
@pytest.mark.parametrize(
    ("function", "arguments", "code"),
    [
        ("nvmlDeviceSetComputeMode", (4,), 2),
        ("nvmlDeviceSetComputeMode", (1,), 3),
        ("nvmlDeviceSetPowerManagementLimit", (99999,), 2),
        ("nvmlDeviceSetPowerManagementLimit", (400001,), 2),
        ("nvmlDeviceSetApplicationsClocks", (1000, 1095), 2),
        ("nvmlDeviceSetApplicationsClocks", (1215, 1411), 2),
    ],
)
def test_values_that_the_gpu_does_not_have_are_refused(pynvml, gpus, function, arguments, code):
    _chosen, handles = gpus("a100-sxm4-40gb-x2")
    assert code_of(pynvml, getattr(pynvml, function), handles[0], *arguments) == code
    assert pynvml.nvmlDeviceGetComputeMode(handles[0]) == 0
    assert pynvml.nvmlDeviceGetPowerManagementLimit(handles[0]) == 400000


@needs_root
def test_what_a_gpu_does_not_have_cannot_be_set(pynvml, gpus):
    chosen, handles = gpus("a100-sxm4-40gb-x2")
    chosen.devices[0]["power"].update(min_mw=None, max_mw=None)
    chosen.devices[0]["clocks"]["graphics"]["application"] = None
    chosen.write()
    assert code_of(pynvml, pynvml.nvmlDeviceSetPowerManagementLimit, handles[0], 250000) == 3
    assert code_of(pynvml, pynvml.nvmlDeviceSetApplicationsClocks, handles[0], 1215, 1095) == 3


@needs_root
def test_nobody_but_root_sets_anything(scenario, run_python, tmp_path):
    chosen = scenario("a100-sxm4-40gb-x2")
    chosen.path.with_name("scenario.json.settings").touch(mode=0o666)
    code = """
import pynvml as n, os
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
os.seteuid(65534)
for name, words in (("ComputeMode", (3,)), ("PowerManagementLimit", (250000,)), ("ApplicationsClocks", (1215, 1410))):
    try:
        getattr(n, "nvmlDeviceSet" + name)(h, *words)
    except n.NVMLError as failure:
        print(int(failure.value))
"""
    assert run_python(code, timeout=30).stdout.split() == ["4", "4", "4"]
