# SPDX-License-Identifier: GPL-3.0-or-later
"""The batch script of a job that continues where it was: who gets which signal, and what becomes of its output.

The scripts really run; what Slurm does is done here with kill.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Task, Wanted
from tests.unit.plugins.service_account import needs_root

# Stands in for srun and what it has started: SIGTERM would be its end, SIGUSR1 makes it save.
SAVES = """python3 -c '
import os, signal, time
told = []
signal.signal(signal.SIGUSR1, lambda *words: told.append(1))
print("ready", flush=True)
while not told:
    time.sleep(0.05)
time.sleep(float(os.environ.get("SAVES_S", "0")))
print("saved", flush=True)
raise SystemExit(119)'
"""

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def job(tmp_path: Path) -> Wanted:
    return Wanted("train", "alice", SAVES, str(tmp_path), resumable=True)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    begun = []

    def started(job: Wanted, restarts: int = 0, **variables: str) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "SLURM_RESTART_COUNT": str(restarts), **variables}
        with (tmp_path / "output.log").open("ab") as output:
            process = subprocess.Popen(
                ["/bin/bash", "-c", submission.script(job, range(len(job.tasks)))],
                cwd=job.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        begun.append(process)
        return process

    yield started
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def says(path: Path, wanted: str) -> None:
    end = time.monotonic() + 60
    while not path.exists() or wanted not in path.read_text():
        assert time.monotonic() < end, path.read_text() if path.exists() else "nothing"
        time.sleep(0.05)


def tell(process: subprocess.Popen[bytes], how: str) -> None:
    if how == "all of its group":  # scancel --full
        os.killpg(process.pid, signal.SIGTERM)
    elif how == "the script":  # scontrol requeue
        process.send_signal(signal.SIGTERM)
    else:  # --signal=B:USR1
        process.send_signal(signal.SIGUSR1)


@pytest.mark.parametrize("how", ["all of its group", "the script", "its time is over"])
def test_a_job_that_is_to_end_saves_and_is_queued_again(job: Wanted, start: Start, tmp_path: Path, how: str) -> None:
    process = start(job)
    says(tmp_path / "output.log", "ready")
    tell(process, how)
    assert process.wait(timeout=60) == 119
    assert (tmp_path / "output.log").read_text() == "ready\nsaved\n"
    assert (tmp_path / "result").read_text().split()[1] == "119"


def test_more_signals_than_one_change_nothing(job: Wanted, start: Start, tmp_path: Path) -> None:
    process = start(job, SAVES_S="1")
    says(tmp_path / "output.log", "ready")
    for _number in range(5):
        tell(process, "all of its group")
        time.sleep(0.1)
    assert process.wait(timeout=60) == 119
    assert (tmp_path / "output.log").read_text() == "ready\nsaved\n"


def test_the_output_stays_when_it_starts_again_and_not_when_it_is_new(
    job: Wanted, start: Start, tmp_path: Path
) -> None:
    once = dataclasses.replace(job, command="echo run; exit 119")
    for restarts in range(3):
        assert start(once, restarts).wait(timeout=60) == 119
    assert (tmp_path / "output.log").read_text() == "run\n" * 3
    assert start(dataclasses.replace(job, command="echo new")).wait(timeout=60) == 0
    assert (tmp_path / "output.log").read_text() == "new\n"


def test_nothing_but_what_the_command_prints_is_in_the_output(job: Wanted, start: Start, tmp_path: Path) -> None:
    # On a busy host bash added how the command had ended, about once in ten times.
    once = dataclasses.replace(job, command="echo out; echo error >&2; exit 119", tasks=(Task("only", {}),))
    jobs = [dataclasses.replace(once, directory=str(tmp_path / str(number))) for number in range(60)]
    for one in jobs:
        Path(one.directory).mkdir()
    for process in [start(one, SLURM_ARRAY_TASK_ID="0") for one in jobs]:
        assert process.wait(timeout=60) == 119
    assert {(Path(one.directory) / "only/output.log").read_text() for one in jobs} == {"out\nerror\n"}


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("echo 'open", "unexpected EOF"),
        ("echo closed )", "syntax error near unexpected token"),
        ("no-such-program", "no-such-program: command not found"),
        ("python3 -c 'import os; os.kill(os.getpid(), 9)'", "Killed"),
        ("kill -KILL $BASHPID", "Killed"),
    ],
)
def test_what_is_wrong_with_the_command_is_in_the_output(
    job: Wanted, start: Start, tmp_path: Path, command: str, told: str
) -> None:
    assert start(dataclasses.replace(job, command=command), 1).wait(timeout=60) != 0
    assert told in (tmp_path / "output.log").read_text()


def test_a_task_of_an_array_does_the_same_in_its_directory(job: Wanted, start: Start, tmp_path: Path) -> None:
    array = dataclasses.replace(job, tasks=(Task("LR=1", {"LR": "1"}), Task("LR=2", {"LR": "2"})))
    process = start(array, SLURM_ARRAY_TASK_ID="1")
    output = tmp_path / "LR=2" / "output.log"
    says(output, "ready")
    tell(process, "all of its group")
    assert process.wait(timeout=60) == 119
    quick = dataclasses.replace(array, command='echo "rate $LR"')
    assert start(quick, 1, SLURM_ARRAY_TASK_ID="1").wait(timeout=60) == 0
    assert output.read_text() == "ready\nsaved\nrate 2\n"


def open_to_all(directory: Path) -> None:
    directory.chmod(0o777)


def of_another(directory: Path) -> None:
    os.chown(directory, 65534, 65534)


@pytest.mark.parametrize("resumable", [True, False])
@pytest.mark.parametrize("of_task", [False, True])
@pytest.mark.parametrize("taken", [open_to_all, pytest.param(of_another, marks=needs_root)])
def test_nothing_is_run_in_a_directory_that_others_write_to(
    start: Start, tmp_path: Path, taken: Callable[[Path], None], of_task: bool, resumable: bool
) -> None:
    tasks = (Task("LR=1", {}),) if of_task else ()
    job = Wanted("train", "alice", "touch was-run", str(tmp_path / "jobs"), tasks=tasks, resumable=resumable)
    theirs = Path(job.parts[0])
    theirs.mkdir(parents=True)
    (theirs / "output.log").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("kept")
    taken(theirs)
    process = start(job, SLURM_ARRAY_TASK_ID="0")
    assert process.wait(timeout=60) == 1
    assert [path.name for path in theirs.iterdir()] == ["output.log"]
    assert (tmp_path / "precious").read_text() == "kept"
    assert "is not a directory to which only you write" in (tmp_path / "output.log").read_text()


def test_the_script_asks_for_nodes_and_processes_and_to_be_queued_again(job: Wanted) -> None:
    wide = dataclasses.replace(job, gpus=2, nodes=4, least_nodes=2, processes=2)
    lines = submission.script(wide).splitlines()
    for line in ("--nodes=2-4", "--ntasks-per-node=2", "--gres=gpu:2", "--requeue", "--signal=B:USR1@120"):
        assert f"#SBATCH {line}" in lines
    assert "#SBATCH --open-mode=append" in lines
    assert "#SBATCH --nodes=1-1" in submission.script(dataclasses.replace(wide, nodes=1, least_nodes=0))
    assert "#SBATCH --nodes=4-4" in submission.script(dataclasses.replace(wide, least_nodes=0))


def test_a_job_without_all_that_has_the_script_that_it_had() -> None:
    text = submission.script(Wanted("train", "alice", "true", "/jobs/train"))
    assert not any(word in text for word in ("nodes", "ntasks", "requeue", "signal", "trap", "append"))


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"nodes": 0}, "nodes is 0"),
        ({"processes": 0}, "processes is 0"),
        ({"nodes": 2, "least_nodes": 3}, "least_nodes is 3, and nodes is 2"),
    ],
)
def test_numbers_that_cannot_be_are_refused(job: Wanted, changes: dict[str, Any], cause: str) -> None:
    assert cause in [problem.cause for problem in submission.problems(dataclasses.replace(job, **changes))]
