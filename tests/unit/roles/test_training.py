# SPDX-License-Identifier: GPL-3.0-or-later
"""The training with real PyTorch in real processes: one that was killed or stopped at any step ends as if it had not.

It needs PyTorch and scikit-learn, such as Debian's python3-torch and python3-sklearn, in the Python that
GPUOPS_TORCH_PYTHON names, or in /usr/bin/python3.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.roles.training_programs import PROGRAMS, PYTHON, skip_without_torch

# 23 steps in each epoch.
EPOCHS, EVERY = 6, 20
TOLERANCE = 1e-4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module", autouse=True)
def has_torch() -> None:
    skip_without_torch()


class Run:
    """The processes of one start of a training, as srun starts them."""

    def __init__(self, directory: Path, processes: int, *options: str, meeting: Path | None = None) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        meeting = meeting or Path(tempfile.mkdtemp(dir=directory))
        words = [f"--epochs={EPOCHS}", f"--every={EVERY}", "--report=1", *options]
        self._log = directory / "output.log"
        self.processes = []
        for rank in range(processes):
            environment = {
                **os.environ,
                "SLURM_PROCID": str(rank),
                "SLURM_NTASKS": str(processes),
                "SLURM_NODEID": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "PEER_ADDR": "127.0.0.1",
                "MEETING": f"{meeting}/processes",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            with self._log.open("ab") as output:
                self.processes.append(
                    subprocess.Popen(
                        [PYTHON, PROGRAMS / "train.py", *words],
                        cwd=directory,
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                    )
                )

    def said(self) -> str:
        return self._log.read_text()

    def until_step(self, step: int) -> None:
        begun = len(re.findall(r"begins on", self.said()))
        end = time.monotonic() + 600
        while f"step {step} of" not in self.said().split("begins on")[-1] or not begun:
            begun = len(re.findall(r"begins on", self.said()))
            assert time.monotonic() < end, self.said()
            assert all(process.poll() is None for process in self.processes), self.said()
            time.sleep(0.02)

    def ends(self) -> list[int]:
        return [process.wait(timeout=600) for process in self.processes]

    def kill(self, rank: int) -> None:
        """As a lost host does, or a GPU; the others end by themselves, or srun ends them."""
        self.processes[rank].kill()
        for process in self.processes:
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def outcome(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "training.json").read_text())
        return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    run = Run(tmp_path_factory.mktemp("undisturbed"), 2)
    assert run.ends() == [0, 0], run.said()
    outcome = run.outcome()
    assert outcome["steps"] == EPOCHS * 23
    assert outcome["accuracy"] > 0.9
    return outcome


def last_begin(said: str) -> int:
    return int(re.findall(r"step (\d+) of \d+: begins on", said)[-1])


def test_a_run_that_is_killed_at_random_steps_ends_with_the_same_weights(
    tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    dice = random.Random()
    for _number in range(2):
        run = Run(tmp_path, 2)
        run.until_step(at := dice.randrange(1 if not _number else 100, EPOCHS * 23 - 5))
        run.kill(dice.randrange(2))
        print(f"killed at step {at}")
    run = Run(tmp_path, 2)
    assert run.ends() == [0, 0], run.said()
    done = max(int(step) for step in re.findall(r"step (\d+) of \d+: loss", run.said().rpartition("begins on")[0]))
    assert done - last_begin(run.said()) <= EVERY + 5
    assert run.outcome() == undisturbed


def test_one_that_is_told_to_end_loses_no_step(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    run = Run(tmp_path, 2)
    run.until_step(30)
    # Only one of them is told.
    run.processes[1].send_signal(signal.SIGTERM)
    assert run.ends() == [119, 0], run.said()
    stopped = int(re.findall(r"step (\d+): stopped", run.said())[-1])
    run = Run(tmp_path, 2)
    assert run.ends() == [0, 0], run.said()
    assert last_begin(run.said()) == stopped
    assert run.outcome() == undisturbed


def test_it_ends_the_same_on_fewer_processes_and_on_more(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    for processes, step in ((2, 25), (1, 70)):
        run = Run(tmp_path, processes)
        run.until_step(step)
        run.processes[0].send_signal(signal.SIGUSR1)
        assert run.ends() == [119, 0][:processes], run.said()
    run = Run(tmp_path, 3)
    assert run.ends() == [0, 0, 0], run.said()
    outcome = run.outcome()
    assert outcome["loss"] == pytest.approx(undisturbed["loss"], abs=TOLERANCE)
    assert outcome["accuracy"] == pytest.approx(undisturbed["accuracy"], abs=0.01)


def test_a_torn_checkpoint_is_named_and_other_settings_are_refused(tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    run = Run(tmp_path, 1, "--epochs=3")
    assert run.ends() == [0], run.said()
    newest = max((tmp_path / "checkpoints").glob("*.pt"))
    newest.write_bytes(newest.read_bytes()[:-100])
    run = Run(tmp_path, 2, "--epochs=3", "--rate=0.2")
    assert run.ends() == [2, 2]
    assert "rate was 0.1, is 0.2" in run.said()
    run = Run(tmp_path, 1)
    assert run.ends() == [0], run.said()
    assert f"torn checkpoint, not used: checkpoints/{newest.name[:12]}.json: {newest.name} has" in run.said()
    assert last_begin(run.said()) == 60
    assert run.outcome()["loss"] == pytest.approx(undisturbed["loss"], abs=TOLERANCE)
