# SPDX-License-Identifier: GPL-3.0-or-later
"""What the unit of an agent asks before every start, with the simulated NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulators import generate
from tests.unit.simulators.conftest import SIMULATORS, Scenario

PROGRAM = Path(__file__).parents[3] / "roles/mesos_agent/files/agent_gpus.py"
UUIDS = [row["uuid"] for row in generate.scenario("a100-sxm4-40gb-x2")["devices"]]


@pytest.fixture(scope="module")
def library() -> Path:
    """The directory of the simulated NVML."""
    subprocess.run(["make", "--silent", "-C", SIMULATORS], check=True)
    return SIMULATORS / "build"


def ask(
    library: Path | None, scenario: Path, uuids: list[str], indices: str, file: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """As the unit does before a start, or with a `file` as a role does before a restart."""
    gpus = {"BAREMETAL_GPU_UUIDS": ",".join(uuids), "MESOS_NVIDIA_GPU_DEVICES": indices}
    env = {
        "PATH": os.environ["PATH"],
        "NVML_SIMULATOR_SCENARIO": str(scenario),
        **({"LD_LIBRARY_PATH": str(library)} if library else {}),
        **({} if file else gpus),
    }
    if file:
        file.write_text("# Written by Ansible.\n" + "".join(f"{name}={value}\n" for name, value in gpus.items()))
    command = [sys.executable, PROGRAM, *([file] if file else [])]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path / "scenario.json", "a100-sxm4-40gb-x2")


def test_gpus_at_their_indices_are_fine(library: Path, scenario: Scenario) -> None:
    assert ask(library, scenario.path, UUIDS, "0,1").returncode == 0
    assert ask(library, scenario.path, UUIDS[1:], "1").returncode == 0


def test_another_gpu_at_an_index_keeps_the_agent_from_starting(library: Path, scenario: Scenario) -> None:
    done = ask(library, scenario.path, UUIDS[1:], "0")
    assert done.returncode == 1
    assert f"index 0 is {UUIDS[0]}, and {UUIDS[1]} was meant. To do: run" in done.stderr


def test_a_gpu_before_it_that_is_gone_moves_the_index(library: Path, scenario: Scenario) -> None:
    del scenario.devices[0]
    scenario.write()
    # Index 1 is nobody's, which the agent says itself; index 0 is the other GPU.
    assert ask(library, scenario.path, UUIDS, "0,1").returncode == 1


@pytest.mark.parametrize("code", ["no library", "no driver"])
def test_what_nvml_cannot_tell_is_left_to_the_agent(library: Path, scenario: Scenario, code: str) -> None:
    scenario.fault(call="nvmlInit*", error=9)
    assert ask(None if code == "no library" else library, scenario.path, UUIDS[::-1], "0,1").returncode == 0


# --- before a restart ------------------------------------------------------------------------------------------------


def test_an_agent_whose_gpus_all_answer_may_be_restarted(library: Path, scenario: Scenario, tmp_path: Path) -> None:
    file = tmp_path / "agent.env"
    assert ask(library, scenario.path, UUIDS, "0,1", file).returncode == 0
    # One without GPUs needs no driver.
    assert ask(None, scenario.path, [], "", file).returncode == 0


def test_a_lost_gpu_on_the_list_holds_the_restart_and_another_does_not(
    library: Path, scenario: Scenario, tmp_path: Path
) -> None:
    scenario.fault(call="nvmlDeviceGetHandleByIndex_v2", device=1, error=15)
    file = tmp_path / "agent.env"
    held = ask(library, scenario.path, UUIDS, "0,1", file)
    assert held.returncode == 1
    assert f"{UUIDS[1]} at index 1 does not answer: " in held.stderr
    assert "To do: " in held.stderr
    assert ask(library, scenario.path, UUIDS[:1], "0", file).returncode == 0


@pytest.mark.parametrize("what", ["no library", "no driver", "gone from the bus", "moved"])
def test_what_would_end_the_agent_holds_the_restart(
    library: Path, scenario: Scenario, tmp_path: Path, what: str
) -> None:
    uuids = UUIDS[::-1] if what == "moved" else UUIDS
    if what == "no driver":
        scenario.fault(call="nvmlInit*", error=18)
    if what == "gone from the bus":
        del scenario.devices[1]
        scenario.write()
    held = ask(None if what == "no library" else library, scenario.path, uuids, "0,1", tmp_path / "agent.env")
    assert held.returncode == 1
    assert "Traceback" not in held.stderr
    assert held.stderr.strip()
