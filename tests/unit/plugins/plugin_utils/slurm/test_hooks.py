# SPDX-License-Identifier: GPL-3.0-or-later
"""The scripts that slurm.conf names, as slurmd starts them, and the settings that name them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_node
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import conf
from tests.unit.plugins.plugin_utils.slurm.test_cluster import plan

PARAMS = {"options": [], "kill_left": True, "drain_unclean": False, "adopt": False}
PEERS = {"controllers": ["ctl"], "hostvars": {"ctl": {}}, "wanted": "", "has": ""}
GPUS = {"SLURM_JOB_GPUS": "0", "SLURM_JOB_ID": "17"}


def files(**params: Any) -> dict[str, Any]:
    document = slurm_node.desired({**PARAMS, **params}, {}, PEERS).parts["programs"]
    return {row["path"]: row for row in document["files"]}


class Scripts:
    """The scripts, with a program behind them that says how it was called, and ends as the test wants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.program = directory / "program"
        self.called = directory / "called"

    def run(self, path: str, ends: str = "exit 0", environment: dict[str, str] | None = None, **params: Any) -> Any:
        self.program.write_text(f'#!/bin/sh\necho "$@" >{self.called}\n{ends}\n')
        self.program.chmod(0o755)
        script = self.directory / "script"
        text = files(**params)[path]["content"].replace(conf.PROGRAM, str(self.program))
        script.write_text(text.replace("/run/baremetal-gpu-slurm", str(self.directory)))
        script.chmod(0o755)
        # slurmd gives no PATH.
        return subprocess.run(
            [script], env=GPUS if environment is None else environment, capture_output=True, text=True, check=False
        )

    @property
    def words(self) -> str:
        return self.called.read_text().strip() if self.called.exists() else ""


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)


@pytest.mark.parametrize("ends", ["exit 0", "exit 1", "exit 10", "kill -9 $$", "sleep 60"])
def test_a_prolog_never_fails_however_the_program_ends(scripts: Scripts, ends: str) -> None:
    assert scripts.run(conf.PROLOG, ends).returncode == 0
    assert scripts.words == "prolog"


def test_a_program_that_is_not_there_fails_no_job(scripts: Scripts, tmp_path: Path) -> None:
    for path in (conf.PROLOG, conf.EPILOG):
        text = files()[path]["content"].replace(conf.PROGRAM, str(tmp_path / "nothing"))
        assert subprocess.run(["sh", "-c", text], env=GPUS, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("path", [conf.PROLOG, conf.EPILOG])
def test_a_job_without_gpus_starts_no_program(scripts: Scripts, path: str) -> None:
    assert scripts.run(path, environment={"SLURM_JOB_ID": "17"}).returncode == 0
    assert scripts.words == ""


@pytest.mark.parametrize(
    ("params", "words", "ends", "code"),
    [
        ({}, "epilog", "exit 0", 0),
        ({}, "epilog", "exit 1", 0),
        ({"kill_left": False}, "epilog --keep-left", "exit 0", 0),
        ({"drain_unclean": True}, "epilog --fail-if-unclean", "exit 10", 1),
        ({"drain_unclean": True}, "epilog --fail-if-unclean", "exit 1", 0),
    ],
)
def test_an_epilog_fails_only_where_it_was_asked_to(scripts: Scripts, params, words, ends, code) -> None:
    assert scripts.run(conf.EPILOG, ends, **params).returncode == code
    assert scripts.words == words


def test_a_task_of_a_refused_job_reads_why_and_ends_with_the_code_to_requeue(scripts: Scripts) -> None:
    (scripts.directory / "refused-17").write_text("print no\n")
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": "17", "SLURM_LOCALID": "0"})
    assert (done.stdout, done.returncode) == ("print no\n", conf.REFUSED)
    # One of a node's tasks tells it.
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": "17", "SLURM_LOCALID": "1"})
    assert (done.stdout, done.returncode) == ("", conf.REFUSED)


@pytest.mark.parametrize("number", ["18", "", "../17", "1 7", "$(reboot)"])
def test_a_task_of_any_other_job_starts(scripts: Scripts, number: str) -> None:
    (scripts.directory / "refused-17").write_text("print no\n")
    done = scripts.run(conf.TASK_PROLOG, environment={"SLURM_JOB_ID": number})
    assert (done.stdout, done.returncode) == ("", 0)


def test_everybody_may_run_them_and_only_root_may_change_them() -> None:
    rows = files()
    for path in (conf.PROGRAM, conf.PROLOG, conf.TASK_PROLOG, conf.EPILOG):
        assert {key: rows[path][key] for key in ("mode", "owner", "group")} == {
            "mode": "0755",
            "owner": "root",
            "group": "root",
        }


def test_the_program_runs_with_nothing_installed(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(files()[conf.PROGRAM]["content"])
    environment = {"SLURM_JOB_ID": "17", "SLURM_JOB_UID": "0", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "x"}
    done = subprocess.run(
        ["/usr/bin/python3", "-I", program, "prolog"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Without a log it is said here.
    assert not done.stderr or "SLURM_JOB_GPUS" in json.loads(done.stderr.split(": ", 2)[2])["why"]


@pytest.mark.parametrize(
    ("wanted", "has", "is_behind"), [("a", "b", True), ("a", "a", False), ("", "b", False), ("a", "", False)]
)
def test_a_slurmd_with_an_older_configuration_is_seen(wanted: str, has: str, is_behind: bool) -> None:
    peers = {**PEERS, "wanted": wanted, "has": has}
    assert slurm_node.desired(PARAMS, {}, peers).parts["is_behind"] is is_behind


def test_slurm_conf_names_them_where_nodes_have_gpus() -> None:
    wanted = {f"Prolog={conf.PROLOG}", f"TaskProlog={conf.TASK_PROLOG}", f"Epilog={conf.EPILOG}", "RequeueExit=119"}
    assert wanted <= set(plan().parts["slurm_conf"].splitlines())


def test_slurm_conf_names_none_where_the_operator_wants_none_and_theirs_where_they_have_their_own() -> None:
    assert "Prolog=" not in plan({"prolog": False}).parts["slurm_conf"].replace("PrologFlags=", "")
    text = plan({"options": {"Prolog": "/opt/mine"}}).parts["slurm_conf"]
    assert "Prolog=/opt/mine" in text.splitlines()
    assert text.count("\nProlog=") == 1
