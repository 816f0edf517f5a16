# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's metrics under the names of NVIDIA's DCGM exporter: every unit, every label, and known dashboards."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command, dcgm
from ansible_collections.baremetal.gpu.plugins.module_utils.agent.publish import METRICS, Textfile, exposition, samples
from tests import debian_programs
from tests.unit.plugins.exposition import Family, parse, style_faults
from tests.unit.plugins.health_host import Host, address, uuid

ROOT = Path(__file__).resolve().parents[5]
DOCS = ROOT / "docs" / "metrics.md"
CHOICES = ("classic", "current", "both")

# A GPU with another number in each reading, so that no two can be mistaken for each other.
READINGS: dict[str, Any] = {
    "temperature_c": 61,
    "memory_temperature_c": 74,
    "temperature_limits_c": {"slowdown": 92, "shutdown": 95, "gpu_max": 85, "memory_max": 105},
    "clocks_event_reasons": 0x44,
    "power_w": 312.5,
    "power_limit_w": 400.0,
    "energy_mj": 987_654_321,
    "clocks_mhz": {"sm": 1410, "memory": 1215},
    "utilization_percent": {"gpu": 87, "memory": 43},
    "engine_utilization_percent": {"encoder": 3, "decoder": 6},
    "memory_bytes": {
        "total": 42_949_672_960,
        "used": 30_064_771_072 + 4096,
        "free": 12_286_164_992,
        "reserved": 598_736_896,
    },
    "ecc_mode": {"enabled": True, "pending": False},
    "ecc_volatile": {"corrected": 11, "uncorrected": 12},
    "ecc_aggregate": {"corrected": 13, "uncorrected": 14},
    "ecc_sram": {"volatile_uncorrected": 0, "aggregate_uncorrected": 0, "threshold_exceeded": True},
    "retired_pages": {"single_bit": 15, "double_bit": 16, "pending": True},
    "remapped_rows": {"correctable": 17, "uncorrectable": 18, "pending": False, "failure": True},
    "recovery_action": 2,
    "pcie": {"generation": 3, "generation_max": 4, "width": 8, "width_max": 16},
    "pcie_replays": 19,
    "nvlinks": [
        {"link": 0, "active": True, "remote": None, "crc_errors": 1, "replay_errors": 20, "recovery_errors": 5},
        {"link": 1, "active": True, "remote": None, "crc_errors": 1, "replay_errors": 1, "recovery_errors": 17},
        {"link": 2, "active": False, "remote": None, "crc_errors": None, "replay_errors": None},
    ],
    "persistence_mode": True,
    "mig": {"enabled": False, "pending": False, "instances": []},
}

# What that GPU is under the names before 4.9, in the units that these have there.
CLASSIC = {
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_MEM_CLOCK": 1215,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 68,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 74,
    "DCGM_FI_DEV_SLOWDOWN_TEMP": 92,
    "DCGM_FI_DEV_SHUTDOWN_TEMP": 95,
    "DCGM_FI_DEV_POWER_USAGE": 312.5,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 400,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 987654321,
    "DCGM_FI_DEV_GPU_UTIL": 87,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 43,
    "DCGM_FI_DEV_ENC_UTIL": 3,
    "DCGM_FI_DEV_DEC_UTIL": 6,
    "DCGM_FI_DEV_FB_TOTAL": 40960,
    "DCGM_FI_DEV_FB_FREE": 11717,
    "DCGM_FI_DEV_FB_USED": 28672,
    "DCGM_FI_DEV_FB_RESERVED": 571,
    "DCGM_FI_DEV_XID_ERRORS": 48,
    "DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION": 2,
    "DCGM_FI_DEV_ECC_CURRENT": 1,
    "DCGM_FI_DEV_ECC_PENDING": 0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 11,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 12,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 13,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 14,
    "DCGM_FI_DEV_THRESHOLD_SRM": 1,
    "DCGM_FI_DEV_RETIRED_SBE": 15,
    "DCGM_FI_DEV_RETIRED_DBE": 16,
    "DCGM_FI_DEV_RETIRED_PENDING": 1,
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": 17,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 18,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 1,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0,
    "DCGM_FI_DEV_PCIE_LINK_GEN": 3,
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": 4,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": 8,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 19,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 21,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 22,
    "DCGM_FI_DEV_PERSISTENCE_MODE": 1,
    "DCGM_FI_DEV_MIG_MODE": 0,
}
# The same under the names since 4.9.
CURRENT = {
    "DCGM_FI_DEV_SM_CLOCK_HERTZ": 1_410_000_000,
    "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ": 1_215_000_000,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 68,
    "DCGM_FI_DEV_GPU_TEMP_CELSIUS": 61,
    "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS": 74,
    "DCGM_FI_DEV_GPU_TEMP_SLOWDOWN_CELSIUS": 92,
    "DCGM_FI_DEV_GPU_TEMP_SHUTDOWN_CELSIUS": 95,
    "DCGM_FI_DEV_BOARD_POWER_WATTS": 312.5,
    "DCGM_FI_DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": 400,
    "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL": 987654.321,
    "DCGM_FI_DEV_GPU_UTIL_RATIO": 0.87,
    "DCGM_FI_DEV_MEMORY_UTIL_RATIO": 0.43,
    "DCGM_FI_DEV_ENC_UTIL_RATIO": 0.03,
    "DCGM_FI_DEV_DEC_UTIL_RATIO": 0.06,
    "DCGM_FI_DEV_FB_CAPACITY_BYTES": 42949672960,
    "DCGM_FI_DEV_FB_FREE_BYTES": 12286164992,
    "DCGM_FI_DEV_FB_USED_BYTES": 30064775168,
    "DCGM_FI_DEV_FB_RESERVED_BYTES": 598736896,
    "DCGM_FI_DEV_XID_ERROR": 48,
    "DCGM_FI_DEV_GPU_RECOVERY_ACTION": 2,
    "DCGM_FI_DEV_ECC_MODE": 1,
    "DCGM_FI_DEV_ECC_PENDING": 0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 11,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 12,
    "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 13,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 14,
    "DCGM_FI_DEV_SRAM_EXCEEDED": 1,
    "DCGM_FI_DEV_PAGE_RETIRED_SBE_TOTAL": 15,
    "DCGM_FI_DEV_PAGE_RETIRED_DBE_TOTAL": 16,
    "DCGM_FI_DEV_PAGE_RETIRED_PENDING": 1,
    "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL": 17,
    "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": 18,
    "DCGM_FI_DEV_ROW_REMAP_FAILED": 1,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 0,
    "DCGM_FI_DEV_PCIE_LINK_GEN": 3,
    "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": 4,
    "DCGM_FI_DEV_PCIE_LINK_WIDTH": 8,
    "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": 16,
    "DCGM_FI_DEV_PCIE_REPLAY_TOTAL": 19,
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_TOTAL": 21,
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_TOTAL": 22,
    "DCGM_FI_DEV_GPU_PERSISTENCE_MODE": 1,
    "DCGM_FI_DEV_MIG_MODE": 0,
}
EXPECTED = {"classic": CLASSIC, "current": CURRENT, "both": {**CLASSIC, **CURRENT}}


def xid(number: int, last: float, gpu: int = 0) -> dict[str, Any]:
    return {"uuid": uuid(gpu), "pci_address": address(gpu), "xid": number, "count": 1, "last": last}


def result(snapshot: dict[str, Any], *xids: dict[str, Any]) -> dict[str, Any]:
    """What the agent publishes; the host booted at 1000."""
    agent = {"probe_error": None, "probe_seconds": 0.01, "probe_time": 9000.0, "stuck": 0, "xids": list(xids)}
    return {"time": 9000.0, "uptime": 8000.0, "agent": agent, "snapshot": snapshot, "health": None}


def busy_host(gpus: int = 1) -> Host:
    host = Host(gpus=gpus)
    for device in host.devices:
        device["readings"] = {key: {"value": value} for key, value in READINGS.items()}
    return host


def families(told: dict[str, Any], choice: str) -> dict[str, Family]:
    return parse(exposition(dcgm.samples(told, choice)))


def values(told: dict[str, Any], choice: str) -> dict[str, float]:
    """By metric, of a host with one GPU."""
    found = {}
    for name, family in families(told, choice).items():
        (found[name],) = family.series.values()
    return found


@pytest.mark.parametrize("choice", CHOICES)
def test_every_metric_has_the_value_in_its_own_unit(choice):
    assert values(result(busy_host().snapshot(), xid(48, 2000.0)), choice) == EXPECTED[choice]


def test_every_row_of_the_table_is_in_the_test_above():
    assert {field.name(dcgm.CLASSIC) for field in dcgm.FIELDS} == set(CLASSIC)
    assert {field.name(dcgm.CURRENT) for field in dcgm.FIELDS} == set(CURRENT)
    assert {field.reading for field in dcgm.FIELDS} == set(dcgm.HELP)
    # A unit of a metric that does not exist is a typing error.
    assert {dcgm.PREFIX + name for name in dcgm.UNITS} <= {*CLASSIC, *CURRENT}


def test_without_the_setting_there_is_no_such_metric(tmp_path):
    Textfile(str(tmp_path / "gpu.prom")).publish(result(busy_host().snapshot()))
    assert "DCGM" not in (tmp_path / "gpu.prom").read_text()


def test_the_textfile_has_them_beside_the_agents_own(tmp_path):
    Textfile(str(tmp_path / "gpu.prom"), "classic").publish(result(busy_host().snapshot()))
    found = parse((tmp_path / "gpu.prom").read_text())
    assert set(found["gpu_power_watts"].series.values()) == set(found["DCGM_FI_DEV_POWER_USAGE"].series.values())


@pytest.mark.parametrize("value", ["Classic", None, ["both"], 1])
def test_a_setting_that_is_none_of_the_choices_is_refused(tmp_path, value):
    (tmp_path / "agent.json").write_text(json.dumps({"dcgm_names": value}))
    with pytest.raises(command.ConfigError, match="dcgm_names"):
        command.read_config(str(tmp_path / "agent.json"))


def test_what_a_gpu_does_not_tell_has_no_series():
    host = busy_host()
    readings = host.devices[0]["readings"]
    readings["temperature_c"] = {"state": "unknown", "code": 999, "text": "Unknown Error"}
    readings["engine_utilization_percent"] = {"value": {"encoder": None, "decoder": 6}}
    readings["memory_bytes"]["value"] = {"total": 1 << 34, "used": 0, "free": 1 << 34, "reserved": None}
    readings["nvlinks"] = {"state": "not_applicable", "code": 3, "text": "Not Supported"}
    gone = {
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_ENC_UTIL",
        "DCGM_FI_DEV_FB_RESERVED",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_XID_ERRORS",
    }
    assert set(CLASSIC) - set(values(result(host.snapshot()), "classic")) == gone


def test_the_xid_is_the_last_one_since_the_boot():
    told = result(busy_host(gpus=2).snapshot(), xid(79, 900.0, gpu=1), xid(13, 3000.0), xid(48, 2000.0))
    series = families(told, "current")["DCGM_FI_DEV_XID_ERROR"].series
    assert [(dict(labels)["gpu"], value) for labels, value in series.items()] == [("0", 13.0)]


def test_an_xid_of_a_gpu_that_was_in_the_same_slot_is_not_the_new_ones():
    former = {**xid(79, 5000.0), "uuid": "GPU-00000000-0000-4000-8000-00000000dead"}
    unnamed = {**xid(13, 2000.0), "uuid": None}
    told = values(result(busy_host().snapshot(), former, unnamed), "classic")
    assert told["DCGM_FI_DEV_XID_ERRORS"] == 13


LABELS = {
    "gpu": "0",
    "UUID": uuid(0),
    "pci_bus_id": "00000000:3B:00.0",
    "device": "nvidia0",
    "modelName": "NVIDIA A100-SXM4-40GB",
    "hostname": os.uname().nodename,
}
BEFORE = {"Hostname": os.uname().nodename, "DCGM_FI_DRIVER_VERSION": "550.163.01"}
SINCE = {"DCGM_FI_SYSTEM_DRIVER_VERSION": "550.163.01"}


@pytest.mark.parametrize(
    ("choice", "metric", "labels"),
    [
        ("classic", "DCGM_FI_DEV_GPU_TEMP", {**LABELS, **BEFORE}),
        ("current", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", {**LABELS, **SINCE}),
        ("both", "DCGM_FI_DEV_GPU_TEMP", {**LABELS, **BEFORE}),
        ("both", "DCGM_FI_DEV_GPU_TEMP_CELSIUS", {**LABELS, **SINCE}),
        ("both", "DCGM_FI_DEV_MIG_MODE", {**LABELS, **BEFORE, **SINCE}),
    ],
)
def test_the_labels_are_those_of_the_exporter(choice, metric, labels):
    (series,) = families(result(busy_host().snapshot()), choice)[metric].series
    assert dict(series) == labels


def test_a_metric_with_one_name_in_both_sets_counts_each_gpu_once():
    found = families(result(busy_host(gpus=3).snapshot(), xid(48, 2000.0)), "both")
    assert {name: len(family.series) for name, family in found.items() if "XID" not in name} == dict.fromkeys(
        {*CLASSIC, *CURRENT} - {"DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"}, 3
    )


# --- MIG --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def cut(simulated_host):
    """The result of an agent on a host with eight A100, of which two are cut by MIG, and the GPUs as simulated."""
    simulated_host.take("a100-sxm4-40gb-x8-mig")
    for gpu in simulated_host.scenario["devices"]:
        for number, instance in enumerate(gpu["mig"]["instances"]):
            instance["memory"]["used_mib"] = 100 + number
    simulated_host.save()
    return result(simulated_host.looking()()), simulated_host.scenario["devices"]


def of_instances(gpus: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [(str(place), one) for place, gpu in enumerate(gpus) for one in gpu["mig"]["instances"]]


@pytest.mark.parametrize(
    ("choice", "names", "mib"),
    [
        ("classic", {"used": "DCGM_FI_DEV_FB_USED", "total": "DCGM_FI_DEV_FB_TOTAL"}, 1),
        ("current", {"used": "DCGM_FI_DEV_FB_USED_BYTES", "total": "DCGM_FI_DEV_FB_CAPACITY_BYTES"}, 1 << 20),
    ],
)
def test_memory_of_a_gpu_that_is_cut_is_told_of_each_instance_and_not_of_the_whole(cut, choice, names, mib):
    told, gpus = cut
    found = families(told, choice)
    for part, name in names.items():
        rows = {}
        for labels, value in found[name].series.items():
            label = dict(labels)
            rows[label["gpu"], label.get("GPU_I_ID"), label.get("GPU_I_PROFILE")] = value
        expected = {
            (gpu, str(one["id"]), one["name"]): one["memory"][f"{part}_mib"] * mib for gpu, one in of_instances(gpus)
        }
        assert {place: value for place, value in rows.items() if place[1]} == expected
        # The others are whole.
        assert {gpu for gpu, number, _profile in rows if number is None} == {str(number) for number in range(2, 8)} | {
            str(place) for place, gpu in enumerate(gpus[:2]) if not gpu["mig"]["instances"]
        }


def test_the_agents_own_metrics_name_the_devices_of_mig_and_their_memory(cut):
    told, gpus = cut
    found = parse(exposition(samples(told)))
    info = [dict(labels) for labels in found["gpu_mig_instance_info"].series]
    assert {row["mig_uuid"] for row in info} == {one["compute"][0]["uuid"] for _gpu, one in of_instances(gpus)}
    memory = {
        (row["gpu"], row["gpu_instance"], row["profile"], row["state"]): value
        for labels, value in found["gpu_mig_memory_bytes"].series.items()
        for row in (dict(labels),)
    }
    for gpu, one in of_instances(gpus):
        assert memory[gpu, str(one["id"]), one["name"], "used"] == one["memory"]["used_mib"] << 20
        assert {
            "gpu": gpu,
            "gpu_instance": str(one["id"]),
            "mig_uuid": one["compute"][0]["uuid"],
            "profile": one["name"],
        }.items() <= (next(row for row in info if row["mig_uuid"] == one["compute"][0]["uuid"]).items())
    assert len(memory) == 2 * len(of_instances(gpus))


def test_compute_instances_share_the_memory_of_their_gpu_instance():
    memory = {"used": 5 << 20, "free": 95 << 20}
    host = busy_host()
    row = {"profile": "1c.3g.20gb", "memory_mib": 100, "gpu_instance": 3, "memory_bytes": memory}
    instances = [{**row, "uuid": "MIG-a"}, {**row, "uuid": "MIG-b"}]
    host.devices[0]["readings"]["mig"] = {"value": {"enabled": True, "pending": True, "instances": instances}}
    told = result(host.snapshot())
    (labels,) = families(told, "classic")["DCGM_FI_DEV_FB_USED"].series
    assert {"GPU_I_ID": "3", "GPU_I_PROFILE": "3g.20gb"}.items() <= dict(labels).items()
    assert len(parse(exposition(samples(told)))["gpu_mig_memory_bytes"].series) == 2
    assert len(parse(exposition(samples(told)))["gpu_mig_instance_info"].series) == 2


# --- dashboards -------------------------------------------------------------------------------------------------------

# The metrics and labels in the expressions of public dashboards, and what the exporter itself has by default.
DASHBOARDS: dict[str, tuple[str, set[str], set[str]]] = {
    "NVIDIA's dashboard, Grafana 12239 (github.com/NVIDIA/dcgm-exporter, grafana/dcgm-exporter-dashboard.json)": (
        "classic",
        {"GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "FB_USED", "FB_FREE", "PROF_GR_ENGINE_ACTIVE"}
        | {"PROF_PIPE_TENSOR_ACTIVE"},
        {"Hostname", "gpu", "UUID", "uuid", "GPU_I_ID", "GPU_I_PROFILE"},
    ),
    "the same, its first edition": (
        "classic",
        {"GPU_TEMP", "POWER_USAGE", "SM_CLOCK", "GPU_UTIL", "FB_USED", "PROF_PIPE_TENSOR_ACTIVE"},
        {"instance", "gpu"},
    ),
    "DeepOps (github.com/NVIDIA/deepops, src/dashboards/gpu-dashboard.json)": (
        "classic",
        {"POWER_USAGE", "GPU_TEMP", "GPU_UTIL", "MEM_COPY_UTIL", "FB_USED", "FB_FREE", "SM_CLOCK", "MEM_CLOCK"}
        | {"NVLINK_BANDWIDTH_TOTAL", "PCIE_TX_THROUGHPUT", "PCIE_RX_THROUGHPUT"},
        {"instance", "gpu"},
    ),
    "the exporter's default metrics before 4.9 (etc/default-counters.csv)": (
        "classic",
        {"SM_CLOCK", "MEM_CLOCK", "MEMORY_TEMP", "GPU_TEMP", "POWER_USAGE", "TOTAL_ENERGY_CONSUMPTION"}
        | {"PCIE_REPLAY_COUNTER", "GPU_UTIL", "MEM_COPY_UTIL", "ENC_UTIL", "DEC_UTIL", "XID_ERRORS"}
        | {"FB_FREE", "FB_USED", "FB_RESERVED", "NVLINK_BANDWIDTH_TOTAL", "VGPU_LICENSE_STATUS"}
        | {"UNCORRECTABLE_REMAPPED_ROWS", "CORRECTABLE_REMAPPED_ROWS", "ROW_REMAP_FAILURE"}
        | {"PROF_GR_ENGINE_ACTIVE", "PROF_PIPE_TENSOR_ACTIVE", "PROF_DRAM_ACTIVE"}
        | {"PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"},
        {"gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname", "hostname", "DCGM_FI_DRIVER_VERSION"},
    ),
    # No public dashboard with these names was found.
    "the exporter's default metrics since 4.9 (release notes of 4.9.0, fields of DCGM 4.7)": (
        "current",
        {"SM_CLOCK_HERTZ", "MEMORY_CLOCK_HERTZ", "MEMORY_TEMP_CELSIUS", "GPU_TEMP_CELSIUS", "BOARD_POWER_WATTS"}
        | {"GPU_ENERGY_JOULES_TOTAL", "PCIE_REPLAY_TOTAL", "GPU_UTIL_RATIO", "MEMORY_UTIL_RATIO", "ENC_UTIL_RATIO"}
        | {"DEC_UTIL_RATIO", "XID_ERROR", "FB_CAPACITY_BYTES", "FB_FREE_BYTES", "FB_USED_BYTES", "FB_RESERVED_BYTES"}
        | {"NVLINK_THROUGHPUT_BYTES_PER_SECOND", "VGPU_LICENSE_STATUS", "ROW_REMAP_UNCORRECTABLE_TOTAL"}
        | {"ROW_REMAP_CORRECTABLE_TOTAL", "ROW_REMAP_FAILED", "PROF_GR_ENGINE_UTIL_RATIO", "PROF_TENSOR_UTIL_RATIO"}
        | {"PROF_DRAM_UTIL_RATIO", "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES"},
        {"gpu", "UUID", "pci_bus_id", "device", "modelName", "hostname", "DCGM_FI_SYSTEM_DRIVER_VERSION"},
    ),
}
PROFILING = "needs the profiling counters, which one program at a time can have"
THROUGHPUT = "is a rate that NVML does not tell"
NO_METRIC = {
    "PROF_GR_ENGINE_ACTIVE": PROFILING,
    "PROF_GR_ENGINE_UTIL_RATIO": PROFILING,
    "PROF_PIPE_TENSOR_ACTIVE": PROFILING,
    "PROF_TENSOR_UTIL_RATIO": PROFILING,
    "PROF_DRAM_ACTIVE": PROFILING,
    "PROF_DRAM_UTIL_RATIO": PROFILING,
    "PROF_PCIE_TX_BYTES": PROFILING,
    "PROF_PCIE_RX_BYTES": PROFILING,
    "PCIE_TX_THROUGHPUT": "NVML measures it for 20 ms each time it is asked",
    "PCIE_RX_THROUGHPUT": "NVML measures it for 20 ms each time it is asked",
    "NVLINK_BANDWIDTH_TOTAL": THROUGHPUT,
    "NVLINK_THROUGHPUT_BYTES_PER_SECOND": THROUGHPUT,
    "VGPU_LICENSE_STATUS": "the hosts are no guests of a vGPU",
}
NO_LABEL = {
    "instance": "Prometheus adds it",
    "uuid": "the exporter has none either: it is UUID",
    "GPU_I_ID": "only MIG instances have it",
    "GPU_I_PROFILE": "only MIG instances have it",
}


def full_name(metric: str) -> str:
    return f"DCGM_FI_{metric}" if metric.startswith("PROF_") else f"DCGM_FI_DEV_{metric}"


@pytest.fixture
def a100(simulated_host):
    """The result of an agent on a host with eight A100, of which the first had an Xid."""
    simulated_host.take("a100-sxm4-40gb-x8")
    look = simulated_host.looking()()
    return result(look, {**xid(48, 2000.0), "uuid": look["devices"][0]["uuid"]})


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_finds_its_metrics_and_labels(a100, name):
    choice, metrics, labels = DASHBOARDS[name]
    for names in (choice, "both"):
        found = families(a100, names)
        missing = {metric for metric in metrics if full_name(metric) not in found}
        assert missing == metrics & set(NO_METRIC)
        for metric in metrics - missing:
            assert labels - found[full_name(metric)].labels() == labels & set(NO_LABEL), metric
            assert len(found[full_name(metric)].series) == (1 if "XID" in metric else 8), metric


def test_the_page_names_what_is_left_out():
    page = DOCS.read_text()
    missing = [full_name(metric) for metric in NO_METRIC if f"`{full_name(metric)}`" not in page]
    assert not missing


def test_the_tables_of_the_page_are_those_of_the_metrics():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "metric_tables.py", "--check"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# --- the format -------------------------------------------------------------------------------------------------------


def everything(told: dict[str, Any], choice: str) -> str:
    return exposition(itertools.chain(samples(told), dcgm.samples(told, choice)))


@pytest.mark.parametrize("choice", ["none", *CHOICES])
def test_the_text_is_what_prometheus_reads(a100, choice):
    found = parse(everything(a100, choice))
    # A sample of a metric that has no help and type would be left out.
    told = itertools.chain(samples(a100), dcgm.samples(a100, choice))
    assert set(found) == {name for name, _labels, _value in told}
    own = {name: family for name, family in found.items() if name.startswith("gpu_")}
    assert style_faults(own) == []
    for name, family in found.items():
        kind, labels, text = {**METRICS, **dcgm.METRICS}[name]
        assert (family.kind, family.help) == (kind, text)
        assert family.labels() <= set(labels), name


def test_a_gpu_with_a_strange_name_does_not_break_the_text():
    host = busy_host()
    host.devices[0]["name"] = 'A "GPU"\\\n'
    (series,) = families(result(host.snapshot()), "current")["DCGM_FI_DEV_MIG_MODE"].series
    assert dict(series)["modelName"] == 'A "GPU"\\\n'


def promtool(text: str) -> list[str]:
    program = debian_programs.path_of("promtool")
    if program is None:
        pytest.skip("promtool is not here: python -m tests.needs fetches it")
    done = subprocess.run([program, "check", "metrics"], input=text, check=False, capture_output=True, text=True)
    assert done.returncode in (0, 3), done.stderr
    return (done.stdout + done.stderr).splitlines()


def test_promtool_finds_nothing_in_the_agents_own_metrics(a100):
    assert promtool(everything(a100, "none")) == []


def test_promtool_finds_in_the_exporters_names_only_what_is_theirs(a100):
    found = promtool(everything(a100, "both"))
    assert found
    assert all(line.startswith("DCGM_FI_DEV_") for line in found)
    words = {re.sub(r"^\S+ ", "", line) for line in found}
    assert words == {
        'counter metrics should have "_total" suffix',
        "label names should be written in 'snake_case' not 'camelCase'",
        "metric name should not include type 'counter'",
    }
