# SPDX-License-Identifier: GPL-3.0-or-later
"""What the unit of an agent asks before every start, with the simulated NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.simulators.conftest import SIMULATORS, Scenario

PROGRAM = Path(__file__).parents[3] / "roles/mesos_agent/files/agent_cards.py"
UUIDS = [row["uuid"] for row in json.loads((SIMULATORS / "scenarios/a100-sxm4-40gb-x2.json").read_text())["devices"]]


@pytest.fixture(scope="module")
def library() -> Path:
    """The directory of the simulated NVML."""
    subprocess.run(["make", "--silent", "-C", SIMULATORS], check=True)
    return SIMULATORS / "build"


def ask(library: Path | None, scenario: Path, uuids: list[str], indices: str) -> subprocess.CompletedProcess[str]:
    env = {
        "PATH": os.environ["PATH"],
        "NVML_SIMULATOR_SCENARIO": str(scenario),
        "BAREMETAL_GPU_UUIDS": ",".join(uuids),
        "MESOS_NVIDIA_GPU_DEVICES": indices,
        **({"LD_LIBRARY_PATH": str(library)} if library else {}),
    }
    return subprocess.run([sys.executable, PROGRAM], env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path / "scenario.json", "a100-sxm4-40gb-x2")


def test_cards_at_their_indices_are_fine(library: Path, scenario: Scenario) -> None:
    assert ask(library, scenario.path, UUIDS, "0,1").returncode == 0
    assert ask(library, scenario.path, UUIDS[1:], "1").returncode == 0


def test_another_card_at_an_index_keeps_the_agent_from_starting(library: Path, scenario: Scenario) -> None:
    done = ask(library, scenario.path, UUIDS[1:], "0")
    assert done.returncode == 1
    assert f"index 0 is {UUIDS[0]}, and {UUIDS[1]} was meant. To do: run" in done.stderr


def test_a_card_before_it_that_is_gone_moves_the_index(library: Path, scenario: Scenario) -> None:
    del scenario.devices[0]
    scenario.write()
    # Index 1 is nobody's, which the agent says itself; index 0 is the other card.
    assert ask(library, scenario.path, UUIDS, "0,1").returncode == 1


@pytest.mark.parametrize("code", ["no library", "no driver"])
def test_what_nvml_cannot_tell_is_left_to_the_agent(library: Path, scenario: Scenario, code: str) -> None:
    scenario.fault(call="nvmlInit*", error=9)
    assert ask(None if code == "no library" else library, scenario.path, UUIDS[::-1], "0,1").returncode == 0
