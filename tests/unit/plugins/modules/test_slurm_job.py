# SPDX-License-Identifier: GPL-3.0-or-later
"""slurm_job submits a job once, repeats what failed, and touches no job that it has not submitted.

The stand-in of Slurm takes only the commands and options that it knows, and really runs the scripts.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.modules import slurm_job

Result = dict[str, Any]
Ask = Callable[..., Result]

USER = pwd.getpwuid(os.getuid()).pw_name
HOME = pwd.getpwnam(USER).pw_dir
OPTIONS = {
    "account",
    "array",
    "chdir",
    "comment",
    "constraint",
    "cpus-per-task",
    "gres",
    "job-name",
    "mem",
    "nodes",
    "ntasks-per-node",
    "open-mode",
    "output",
    "partition",
    "qos",
    "requeue",
    "signal",
    "time",
}
AS_USER = ["/usr/sbin/runuser", "-u", USER, "--", "/usr/bin/env", "-i", "--chdir=/"]


class Slurm:
    """Stands in for the commands of Slurm. Jobs wait until `end` runs them."""

    def __init__(self, is_new: bool) -> None:
        self.is_new = is_new
        self.rows: list[dict[str, Any]] = []
        self.scripts: dict[int, str] = {}
        self.cancelled: list[int] = []
        self.runs_at_once = False
        self.said = ""
        self._number = 10

    def run(self, argv: list[str], stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[: len(AS_USER)] == AS_USER:
            return self._of_user(argv[len(AS_USER) :], stdin)
        if argv[0] == "/usr/bin/squeue":
            given = ["--json", "--all", "--states=all", f"--user={USER}"]
            assert argv[1:5] == given
            assert argv[5].startswith("--name=")
            assert len(argv) == 6
            told = json.dumps({"jobs": self.rows})
            if self.runs_at_once:
                self.end()
            return 0, told, ""
        if argv[0] == "/usr/bin/scancel":
            assert argv[1] == f"--user={USER}"
            self.cancelled.append(int(argv[2]))
            self._set(int(argv[2]), "CANCELLED")
            return 0, "", ""
        assert argv[:3] == ["/usr/bin/scontrol", "write", "batch_script"], argv
        assert argv[4] == "-"
        return 0, self.scripts[int(argv[3])], ""

    def _of_user(self, argv: list[str], stdin: str | None) -> tuple[int, str, str]:
        environment = dict(word.split("=", 1) for word in argv[:6])
        assert set(environment) == {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG"}
        assert environment["HOME"] == HOME
        program, *words = argv[6:]
        if program == "/usr/bin/sbatch":
            assert words == ["--parsable"]
            assert stdin is not None
            return self._submit(stdin)
        assert program in ("/usr/bin/mkdir", "/usr/bin/find", "/usr/bin/tail")
        done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    def _submit(self, script: str) -> tuple[int, str, str]:
        assert script.startswith("#!/bin/bash -l\n")
        options = dict(re.findall(r"^#SBATCH --([a-z-]+)(?:=(\S+))?$", script, re.MULTILINE))
        assert len(options) == script.count("#SBATCH")
        assert set(options) <= OPTIONS
        if self.said:
            return 1, "", self.said
        self._number += 1
        self.scripts[self._number] = script
        self.add(self._number, options["job-name"], options["comment"], options.get("array"))
        return 0, f"{self._number}\n", ""

    def add(self, number: int, name: str, comment: str, array: str | None = None) -> None:
        words = (array or "0").split("%")[0].split(",")
        tasks = [one for word in words for one in range(int(word.split("-")[0]), int(word.split("-")[-1]) + 1)]
        for task in tasks:
            row = {
                "job_id": number + (task if array else 0),
                "array_job_id": number if array else 0,
                "array_task_id": task if array else None,
                "name": name,
                "user_name": USER,
                "comment": comment,
                "job_state": "PENDING",
                "state_reason": "Resources",
                "batch_host": "",
            }
            if self.is_new:
                for key in ("job_id", "array_job_id", "array_task_id"):
                    row[key] = {"set": row[key] is not None, "infinite": False, "number": row[key] or 0}
                row["job_state"] = ["PENDING"]
            self.rows.append(row)

    def _set(self, number: int, word: str, task: int | None = None) -> None:
        for row in self.rows:
            if submission.number_of(row) == number and (task is None or self._task(row) == task):
                row["job_state"] = [word] if self.is_new else word
                row["batch_host"] = "n1"

    def _task(self, row: dict[str, Any]) -> int:
        return submission.queue.number(row, "array_task_id")

    def waiting(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if "PENDING" in row["job_state"]]

    def start(self) -> None:
        for row in self.waiting():
            self._set(submission.number_of(row), "RUNNING", self._task(row))

    def end(self) -> None:
        """Run what waits."""
        for row in self.waiting():
            number, task = submission.number_of(row), self._task(row)
            script = self.scripts[number]
            output = re.search(r"^#SBATCH --output=(\S+)$", script, re.MULTILINE)
            directory = re.search(r"^#SBATCH --chdir=(\S+)$", script, re.MULTILINE)
            assert output
            assert directory
            with Path(output[1]).open("w") as file:
                done = subprocess.run(
                    ["/bin/bash"],
                    input=script,
                    text=True,
                    stdout=file,
                    stderr=file,
                    cwd=directory[1],
                    env={"PATH": os.environ["PATH"], "SLURM_ARRAY_TASK_ID": str(task)},
                    check=False,
                )
            self._set(number, "FAILED" if done.returncode else "COMPLETED", task)


@pytest.fixture(params=[False, True], ids=["22.05", "24.11"])
def slurm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(request.param)
    monkeypatch.setattr(slurm_job, "run", made.run)
    monkeypatch.setattr(submission, "POLL_S", 0.0)
    return made


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(failed: bool = False, check: bool = False, **options: Any) -> Result:
        given = {
            "name": "train",
            "user": USER,
            "directory": str(tmp_path / "job"),
            "command": "echo hello",
            "_ansible_check_mode": check,
            **options,
        }
        with patch_module_args(given), pytest.raises(SystemExit) as ended:
            slurm_job.main()
        told: Result = json.loads(capsys.readouterr().out)
        assert ended.value.code == int(failed), told
        return told

    return asked


def problem(told: Result) -> dict[str, str]:
    (only,) = told["problems"]
    return dict(only)


def points(*values: str) -> list[dict[str, Any]]:
    return [{"name": f"LR={value}", "environment": {"LR": value}} for value in values]


def test_a_job_is_submitted_once_and_not_again_after_it_ended_well(slurm: Slurm, ask: Ask) -> None:
    told = ask(gpus=2, gpu_type="a100", minutes=90)
    assert (told["changed"], told["action"], told["job"]) == (True, "submit", 11)
    assert "#SBATCH --gres=gpu:a100:2\n" in slurm.scripts[11]
    assert "#SBATCH --time=90\n" in slurm.scripts[11]
    assert ask(gpus=2, gpu_type="a100", minutes=90)["changed"] is False
    slurm.end()
    slurm.rows.clear()
    told = ask(gpus=2, gpu_type="a100", minutes=90, wait="ended")
    assert (told["changed"], told["job"], told["output"]) == (False, None, "hello\n")
    assert told["tasks"][0]["state"] == "done"
    assert len(slurm.scripts) == 1


def test_a_job_is_submitted_again_where_that_is_asked_for(slurm: Slurm, ask: Ask) -> None:
    slurm.runs_at_once = True
    for number in (11, 12):
        told = ask(again=True, wait="ended")
        assert (told["changed"], told["job"], told["output"], told["hosts"]) == (True, number, "hello\n", ["n1"])


def test_check_mode_tells_the_same_difference_and_does_nothing(slurm: Slurm, ask: Ask, tmp_path: Path) -> None:
    announced = ask(check=True, wait="ended")
    assert (announced["changed"], announced["job"], slurm.scripts) == (True, None, {})
    assert not (tmp_path / "job").exists()
    done = ask()
    assert announced["diff"] == done["diff"]
    assert announced["diff"]["before"] == ""
    assert announced["diff"]["after"] == slurm.scripts[11]
    for options in ({"command": "echo other"}, {"state": "absent"}):
        announced = ask(check=True, **options)
        assert slurm.cancelled == ([] if len(slurm.scripts) == 1 else [11])
        done = ask(**options)
        assert announced["diff"] == done["diff"]
        assert announced["changed"] is done["changed"] is True


def test_another_content_replaces_the_job_that_is_there(slurm: Slurm, ask: Ask) -> None:
    ask()
    told = ask(command="echo other")
    assert (told["action"], told["job"], slurm.cancelled) == ("replace", 12, [11])
    assert "echo hello" in told["diff"]["before"]
    assert "echo other" in told["diff"]["after"]


def test_a_job_of_that_name_that_was_submitted_otherwise_is_left(slurm: Slurm, ask: Ask) -> None:
    slurm.add(7, "train", "")
    for state in ("present", "absent"):
        told = problem(ask(failed=True, state=state))
        assert told["code"] == "foreign_job"
        assert "scancel 7" in told["remedy"]
    assert (slurm.cancelled, slurm.scripts) == ([], {})


def test_jobs_of_others_in_the_answer_are_not_looked_at(slurm: Slurm, ask: Ask) -> None:
    slurm.add(7, "train", "")
    slurm.rows[0]["user_name"] = "somebody"
    assert ask()["job"] == 11


def test_a_job_is_cancelled_once_and_its_directory_stays(slurm: Slurm, ask: Ask, tmp_path: Path) -> None:
    ask()
    told = ask(state="absent", command=None)
    assert (told["changed"], told["action"], slurm.cancelled) == (True, "cancel", [11])
    assert ask(state="absent", command=None)["changed"] is False
    assert (tmp_path / "job").is_dir()


def test_a_job_that_fails_is_named_with_what_it_said_and_is_tried_again(slurm: Slurm, ask: Ask) -> None:
    slurm.runs_at_once = True
    told = ask(failed=True, command="echo no such file; exit 3", wait="ended")
    assert problem(told)["code"] == "job_failed"
    assert problem(told)["cause"] == "train: it ended with exit status 3, and said last: no such file"
    assert told["output"] == "no such file\n"
    assert ask(failed=True, command="echo no such file; exit 3", wait="ended")["job"] == 12


def test_each_task_has_its_environment_and_a_directory_of_its_own(slurm: Slurm, ask: Ask, tmp_path: Path) -> None:
    slurm.runs_at_once = True
    quoted = {"name": "odd", "environment": {"LR": "a'b $(touch x) \n c"}}
    told = ask(command='printf %s "$LR"; touch model', tasks=[*points("0.1"), quoted], parallel=2, wait="ended")
    assert [row["state"] for row in told["tasks"]] == ["done", "done"]
    assert "#SBATCH --array=0-1%2\n" in told["script"]
    assert (tmp_path / "job/LR=0.1/output.log").read_text() == "0.1"
    assert (tmp_path / "job/odd/output.log").read_text() == "a'b $(touch x) \n c"
    assert sorted(path.name for path in (tmp_path / "job/odd").iterdir()) == ["model", "output.log", "result"]


def test_only_tasks_that_failed_and_new_ones_run_again(slurm: Slurm, ask: Ask, tmp_path: Path) -> None:
    slurm.runs_at_once = True
    command = 'test "$LR" != 2 || test -e ../mended'
    told = ask(failed=True, command=command, tasks=points("1", "2", "3"), wait="ended")
    assert problem(told)["subject"] == "LR=2"
    (tmp_path / "job/mended").touch()
    told = ask(command=command, tasks=points("1", "2", "3", "4"), wait="ended")
    assert "#SBATCH --array=1,3\n" in told["script"]
    assert ask(command=command, tasks=points("1", "2", "3", "4"), wait="ended")["changed"] is False


def test_what_slurm_says_counts_where_the_directory_is_not_shared(slurm: Slurm, ask: Ask, tmp_path: Path) -> None:
    ask(command="true", tasks=points("1", "2"))
    slurm.end()
    slurm.rows[1]["job_state"] = ["TIMEOUT"] if slurm.is_new else "TIMEOUT"
    shutil.rmtree(tmp_path / "job")
    job = submission.with_tasks(submission.Wanted("train", USER, "true", str(tmp_path / "job")), points("1", "2"))
    told = submission.ended(job, slurm.rows, {})
    assert [(row["state"], row["why"]) for row in told] == [("done", ""), ("failed", "TIMEOUT")]
    said = submission.failures(job, told, lambda _directory: "")
    assert [row.remedy for row in said] == [
        f"check that {tmp_path}/job is the same on all hosts, and that {USER} may write there"
    ]


def test_a_start_is_waited_for_and_one_that_takes_too_long_says_why(slurm: Slurm, ask: Ask) -> None:
    told = problem(ask(failed=True, wait="started", timeout=0))
    assert told["code"] == "job_late"
    assert "has not started within 0 s: no node has enough free resources (Resources)" in told["cause"]
    slurm.start()
    told = ask(wait="started", timeout=0)
    assert (told["changed"], told["job"], told["hosts"]) == (False, 11, ["n1"])


def test_a_job_that_is_queued_again_has_not_ended(slurm: Slurm, ask: Ask) -> None:
    ask(resumable=True)
    slurm.rows[0]["job_state"] = ["FAILED", "COMPLETING", "REQUEUED"] if slurm.is_new else "REQUEUED"
    assert ask(resumable=True)["changed"] is False
    told = problem(ask(failed=True, resumable=True, wait="ended", timeout=0))
    assert told["code"] == "job_late"
    slurm.rows[0]["job_state"] = ["PENDING"] if slurm.is_new else "PENDING"
    slurm.runs_at_once = True
    told = ask(resumable=True, wait="ended")
    assert (told["job"], told["output"], told["tasks"][0]["state"]) == (11, "hello\n", "done")


def test_what_sbatch_refuses_is_told(slurm: Slurm, ask: Ask) -> None:
    slurm.said = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination"
    told = problem(ask(failed=True))
    assert told["cause"].startswith("sbatch: sbatch: error: Batch job submission failed: Invalid account")
    assert told["remedy"]


@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        ({"name": "a b"}, "name is 'a b'"),
        ({"name": "x\n#SBATCH --uid=0"}, "name is"),
        ({"directory": "/home/a b"}, "directory is '/home/a b'"),
        ({"directory": "/home/../etc"}, "directory is"),
        ({"directory": "/home/%u"}, "directory is"),
        ({"user": "-x"}, "user is '-x'"),
        ({"gpu_type": "a100:8"}, "gpu_type is"),
        ({"partition": "all --uid=0"}, "partition is"),
        ({"gpus": -1}, "gpus is -1"),
        ({"command": " \n"}, "command is empty"),
        ({"tasks": points("1", "1")}, "a task is called 'LR=1'"),
        ({"tasks": [{"name": "../x"}]}, "a task is called '../x'"),
        ({"tasks": [{"name": "x", "environment": {"A B": "1"}}]}, "has the variable 'A B'"),
        ({"tasks": points(*map(str, range(1001)))}, "it has 1001 tasks"),
    ],
)
def test_what_is_no_job_is_refused_before_anything_is_asked(
    monkeypatch: pytest.MonkeyPatch, ask: Ask, wrong: dict[str, Any], cause: str
) -> None:
    monkeypatch.setattr(slurm_job, "run", lambda *_call: pytest.fail("something was run"))
    told = ask(failed=True, **wrong)
    assert any(cause in row["cause"] for row in told["problems"])
    assert all(row["remedy"] for row in told["problems"])


def test_a_directory_may_be_in_the_home_of_the_user(slurm: Slurm, ask: Ask) -> None:
    told = ask(check=True, directory="~/some/job")
    assert told["tasks"][0]["directory"] == f"{HOME}/some/job"
    assert f"#SBATCH --chdir={HOME}/some/job\n" in told["script"]


def test_an_account_that_is_not_there_is_named(slurm: Slurm, ask: Ask) -> None:
    assert problem(ask(failed=True, user="nobody-of-that-name"))["code"] == "no_account"


@pytest.mark.parametrize(("numbers", "words"), [([], ""), ([3], "3"), ([0, 1, 2, 5, 7, 8], "0-2,5,7-8")])
def test_numbers_of_an_array(numbers: list[int], words: str) -> None:
    assert submission.ranges(numbers) == words
