# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's agent, as one file and with the system's log, beside a real GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils import bundle
from tests.simulators.cuda_contract import broken
from tests.unit.plugins.exposition import parse

PATIENCE_S = 120


class Node:
    """An agent that looks every second, with all its files in one directory."""

    def __init__(self, place: Path) -> None:
        self.program = place / "gpu-agent"
        self.program.write_text(bundle.bundle("agent.command"), encoding="utf-8")
        self.published = place / "gpu.json"
        self.config = place / "agent.json"
        settings = {"state_directory": str(place), "socket": str(place / "agent.sock"), "interval_s": 1.0}
        told = {"settings": settings, "result": str(self.published), "textfile": str(place / "gpu.prom")}
        told["dcgm_names"] = "both"
        self.config.write_text(json.dumps(told), encoding="utf-8")
        self.process = subprocess.Popen(self.command("agent"), stderr=subprocess.PIPE, text=True)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-I", str(self.program), "--config", str(self.config), *arguments]

    def result(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads(self.published.read_bytes())
        except FileNotFoundError:
            return None
        return found

    def until(self, true: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self.result()
            if found and true(found):
                return found
            assert self.process.poll() is None, self.process.communicate()[1]
            time.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE_S} s; last: {self.result()}")

    def looked_at(self) -> dict[str, Any]:
        """A result of a look that began after this was called."""
        now = time.time()
        return self.until(lambda found: (found["agent"]["probe_time"] or 0) > now)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    one = Node(tmp_path_factory.mktemp("agent"))
    yield one
    one.stop()


def xids(found: dict[str, Any]) -> dict[int, int]:
    return {row["xid"]: row["count"] for row in found["agent"]["xids"]}


def test_every_gpu_is_judged(node, facts):
    found = node.looked_at()
    assert found["agent"]["probe_error"] is None
    assert [gpu["uuid"] for gpu in found["health"]["devices"]] == [gpu["uuid"] for gpu in facts["devices"]]
    # What NVML and CUDA answer for is well; clocks, links and settings are the machine's own affair.
    well = ("driver_library_missing", "driver_library_mismatch", "driver_not_loaded", "nvml_hang", "nvml_error")
    for code in (*well, "node_device_file_missing"):
        assert found["health"]["checks"][code] == "ok", code
    for gpu in found["health"]["devices"]:
        for code in ("gpu_missing", "gpu_lost", "gpu_off_bus", "gpu_error", "gpu_hang", "device_file_missing"):
            assert gpu["checks"][code] == "ok", code


def test_metrics_name_every_gpu(node, facts):
    node.looked_at()
    lines = (node.published.parent / "gpu.prom").read_text(encoding="utf-8").splitlines()
    for gpu in facts["devices"]:
        (status,) = [line for line in lines if line.startswith("gpu_health_status{") and gpu["uuid"] in line]
        assert status.rsplit(" ", 1)[1] in ("0", "1", "2", "3")
        assert any(line.startswith("gpu_temperature_celsius{") and gpu["uuid"] in line for line in lines)


def test_the_names_of_the_dcgm_exporter_have_their_own_units(node, facts):
    node.looked_at()
    found = parse((node.published.parent / "gpu.prom").read_text(encoding="utf-8"))

    def value(metric: str, uuid: str) -> float:
        (series,) = [labels for labels in found[f"DCGM_FI_DEV_{metric}"].series if ("UUID", uuid) in labels]
        return found[f"DCGM_FI_DEV_{metric}"].series[series]

    for gpu in facts["devices"]:
        uuid = gpu["uuid"]
        assert value("FB_TOTAL", uuid) == gpu["memory_mib"]
        assert value("FB_CAPACITY_BYTES", uuid) // (1 << 20) == gpu["memory_mib"]
        assert value("FB_USED", uuid) + value("FB_FREE", uuid) <= gpu["memory_mib"]
        assert 100 <= value("SM_CLOCK", uuid) <= 5000
        assert value("SM_CLOCK_HERTZ", uuid) == value("SM_CLOCK", uuid) * 1e6
        assert 0 <= value("GPU_UTIL_RATIO", uuid) == value("GPU_UTIL", uuid) / 100 <= 1
        assert value("GPU_ENERGY_JOULES_TOTAL", uuid) == value("TOTAL_ENERGY_CONSUMPTION", uuid) / 1000 > 0
        assert 1 < value("POWER_USAGE", uuid) == value("BOARD_POWER_WATTS", uuid) < 3000


def test_an_operator_reads_the_verdict(node, facts):
    node.looked_at()
    done = subprocess.run(node.command("status"), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    for gpu in facts["devices"]:
        assert gpu["uuid"] in done.stdout


# How a program's own mistake ends: an exception of the shaders, a fault of the memory management, a stopped channel.
OF_PROGRAMS = (13, 31, 43)


def logged(number: int) -> int:
    """How often the kernel's log has an Xid."""
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    found = 0
    try:
        while True:
            try:
                found += bool(re.search(rb"NVRM: Xid \(PCI:[0-9a-f:]+\): %d," % number, os.read(log, 8192)))
            except BlockingIOError:
                return found
    finally:
        os.close(log)


@pytest.mark.faulty
def test_an_error_of_a_program_is_counted_and_is_no_verdict(node):
    """A kernel that leaves its memory makes the driver log real Xids, and NVML tell of them."""
    if not os.access("/dev/kmsg", os.R_OK):
        pytest.skip("the kernel's log cannot be read here: /dev/kmsg")
    before = node.looked_at()
    was = {number: logged(number) for number in OF_PROGRAMS}
    assert broken("libcuda.so.1", "bad_accesses") == []
    node.until(lambda now: sum(xids(now).values()) > sum(xids(before).values()))
    found = node.looked_at()
    more = {number: xids(found).get(number, 0) - xids(before).get(number, 0) for number in OF_PROGRAMS}
    # Both NVML and the log tell of most; whichever told more often is right.
    assert all(more[number] >= logged(number) - was[number] for number in OF_PROGRAMS), more
    assert found["health"]["verdict"] == before["health"]["verdict"]
    for gpu in found["health"]["devices"]:
        assert gpu["checks"]["xid_fatal"] == gpu["checks"]["xid_degraded"] == "ok"
