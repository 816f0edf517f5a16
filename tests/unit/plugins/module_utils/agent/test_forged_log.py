# SPDX-License-Identifier: GPL-3.0-or-later
"""What a user makes the kernel log reaches neither the agent's verdicts nor its state; what the driver logs does.

The agent is a process of its own on the simulated NVML library, with a pipe in the place of /dev/kmsg.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.plugins.module_utils.agent.test_agent import Running
from tests.unit.plugins.simulated_host import Looker, SimulatedHost

FIRST, SECOND = "0000:02:00", "0000:03:00"
FALLEN = "GPU has fallen off the bus."


@pytest.fixture
def agent(tmp_path: Path, nvml_library: Path) -> Iterator[Running]:
    host = SimulatedHost(tmp_path / "root", Looker(nvml_library, tmp_path))
    host.take("busy")
    one = Running(host, tmp_path, nvml_library)
    one.until(lambda: one.verdicts() == ["ok", "ok"])
    yield one
    one.close()


def raw(agent: Running, header: str, text: str) -> None:
    agent.sequence += 1
    at = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6)
    os.write(agent.writer, f"{header.format(seq=agent.sequence, at=at)};{text}\n".encode())


def devices(agent: Running) -> dict:
    return json.loads((agent.directory / "state.json").read_text())["history"]["devices"]


def test_forged_lines_change_nothing_and_real_ones_do(agent: Running) -> None:
    xid = f"NVRM: Xid (PCI:{SECOND}): 79, {FALLEN}"
    second = agent.told()["health"]["devices"][1]["uuid"]
    kernel, user = "4,{seq},{at},-", "12,{seq},{at},-"
    for line_break in ("\\x0d", "\\x0a", "\\x0b", "\\x1e", "\\xe2\\x80\\xa8"):
        raw(agent, kernel, f"overlayfs: unrecognized mount option 'a{line_break}{xid}'")
        raw(agent, kernel, f"NVRM: Xid (PCI:{FIRST}): 43, pid=1, name=a{line_break}{xid}, Ch 1")
    raw(agent, user, xid)
    raw(agent, "4,{seq},{at},c", xid)
    raw(agent, user, f"NVRM: The NVIDIA GPU {SECOND}.0 has fallen off the bus and is not responding")
    for bus in range(0x40, 0xC0):
        raw(agent, kernel, f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, {FALLEN}")
        raw(agent, kernel, f"NVRM: GPU 0000:{bus:02x}:00.0: {FALLEN}")
        raw(agent, kernel, f"nvidia-nvswitch0: SXid (PCI:0000:{bus:02x}:00.0): 20034, Fatal, Link 30 x")
    # The end of what was written: the agent has read all of it when this one is counted.
    raw(agent, kernel, f"NVRM: Xid (PCI:{FIRST}): 31, pid=1, name=x")
    agent.until(lambda: any(row["xid"] == 31 for row in agent.told()["agent"]["xids"]))
    assert agent.verdicts() == ["ok", "ok"]
    assert agent.told()["health"]["verdict"] == "ok"
    assert {row["xid"] for row in agent.told()["agent"]["xids"]} == {31, 43}
    assert len(devices(agent)) == 2

    # A line of a UUID that another one's address stands in moves nothing.
    raw(agent, kernel, f"NVRM: GPU at PCI:{FIRST}: {second}")
    raw(agent, kernel, f"NVRM: Xid (PCI:{FIRST} GPU-I:03): 95, pid=1, name=x, Uncontained")
    agent.until(lambda: agent.verdicts() == ["fatal", "ok"])
    raw(agent, kernel, f"NVRM: Xid (PCI:{SECOND}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Reboot)")
    agent.until(lambda: agent.verdicts() == ["fatal", "fatal"])
    clear = f"NVRM: Xid (PCI:{SECOND}): 154, GPU recovery action changed from 0x2 (Reboot) to 0x0 (None)"
    raw(agent, kernel, f"tmpfs: Bad value for 'x\\x0d{clear}'")
    raw(agent, user, clear)
    agent.after_looks()
    assert agent.verdicts() == ["fatal", "fatal"]
    raw(agent, kernel, clear)
    agent.until(lambda: agent.verdicts() == ["fatal", "ok"])


def test_a_storm_is_counted_and_leaves_a_small_state(agent: Running) -> None:
    for _line in range(8000):
        agent.write(f"NVRM: Xid (PCI:{FIRST}): 31, pid=1, name=x")
    agent.until(lambda: any(row["count"] == 8000 for row in agent.told()["agent"]["xids"]))
    assert (agent.directory / "state.json").stat().st_size < 50_000
    assert agent.verdicts() == ["ok", "ok"]
