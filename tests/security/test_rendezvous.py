# SPDX-License-Identifier: GPL-3.0-or-later
"""A user of a node wants to be taken for a process of somebody else's training, or of root's acceptance.

What needs PyTorch takes it, and is skipped without, as tests/unit/roles/test_training.py.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import collective
from tests.unit.plugins.service_account import needs_root
from tests.unit.project.tree import ROOT
from tests.unit.roles.test_training import Run
from tests.unit.roles.training_programs import PYTHON, skip_without_torch

JOB = 4711
# Where trainings once met, which anybody could calculate; and where the acceptance did.
GUESSABLE = (20000 + JOB * 7 % 10000, 29571)
# Whoever may send to them runs code there.
RUNS_CODE = re.compile(r"\bpickle\b|_object_list\b|\bgather_object\b|allow_pickle=True|weights_only=False|\bmarshal\b")


@pytest.fixture(scope="module")
def torch() -> None:
    skip_without_torch()


@pytest.mark.parametrize("part", ["roles", "plugins", "gpuops", "images"])
def test_no_program_reads_objects_of_others(part: str) -> None:
    programs = [path for path in (ROOT / part).rglob("*.py") if path.is_file()]
    assert programs or part == "images"
    assert [str(path) for path in programs if RUNS_CODE.search(path.read_text(encoding="utf-8"))] == []


@pytest.fixture
def squatters() -> Iterator[list[socket.socket]]:
    """Listeners of another user's at the ports that can be guessed."""
    sockets = []
    for port in GUESSABLE:
        sockets.append(socket.create_server(("", port)))
        sockets[-1].setblocking(False)
    yield sockets
    for one in sockets:
        one.close()


def visitors(sockets: list[socket.socket]) -> int:
    count = 0
    for one in sockets:
        try:
            one.accept()[0].close()
            count += 1
        except BlockingIOError:
            pass
    return count


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("torch")
class TestTraining:
    def test_it_meets_nobody_at_a_port(
        self, tmp_path: Path, squatters: list[socket.socket], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SLURM_JOB_ID", str(JOB))
        run = Run(tmp_path, 2, "--epochs=1")
        assert run.ends() == [0, 0], run.said()
        assert visitors(squatters) == 0

    @pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o750])
    def test_it_meets_nowhere_that_others_may_open(self, tmp_path: Path, mode: int) -> None:
        shared = tmp_path / "shared"
        shared.mkdir()
        shared.chmod(mode)
        run = Run(tmp_path / "job", 2, "--epochs=1", meeting=shared)
        assert run.ends() == [2, 2]
        assert f"{shared} is not a directory that you alone may open" in run.said()

    @needs_root
    def test_it_meets_in_nobody_elses_directory(self, tmp_path: Path) -> None:
        theirs = tmp_path / "theirs"
        theirs.mkdir(mode=0o700)
        os.chown(theirs, 65534, 65534)
        run = Run(tmp_path / "job", 2, "--epochs=1", meeting=theirs)
        assert run.ends() == [2, 2]
        assert f"{theirs} is not a directory that you alone may open" in run.said()


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """That of tmp_path is below one that only root enters."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        yield Path(made)


@needs_root
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("torch")
class TestAcceptance:
    def test_its_ranks_are_nobodys_and_read_the_port_from_their_input(
        self, open_directory: Path, squatters: list[socket.socket]
    ) -> None:
        port = collective.PORTS.start + secrets.randbelow(len(collective.PORTS))
        (open_directory / "scontrol").write_text("#!/bin/sh\necho n1\n")
        (open_directory / "scontrol").chmod(0o755)
        own = "import os, sys\nsys.stderr.write(f'{os.getresuid()} {os.getresgid()} {os.getgroups()}\\n')\n"
        ranks = [
            subprocess.Popen(
                [*collective.WITHOUT_RIGHTS, PYTHON, "-c", own + collective.PROGRAM],
                env={
                    **os.environ,
                    "PATH": f"{open_directory}:{os.environ['PATH']}",
                    "SLURM_STEP_NODELIST": "n1",
                    "SLURM_PROCID": str(rank),
                    "SLURM_NTASKS": "2",
                    "USE_LIBUV": "0",
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        for rank in ranks:
            assert rank.stdin is not None
            rank.stdin.write(json.dumps({"addresses": {"n1": "127.0.0.1"}, "port": port, "mib": 1}))
            rank.stdin.close()
            rank.stdin = None
        said = [rank.communicate(timeout=300) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [0, 0], said
        assert all("(65534, 65534, 65534) (65534, 65534, 65534) []" in error for _out, error in said)
        assert '"ranks": 2, "wrong": 0' in said[0][0]
        assert visitors(squatters) == 0
