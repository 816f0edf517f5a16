# SPDX-License-Identifier: GPL-3.0-or-later
"""A session as a job: its script, what becomes of it, and the program that does it as root. Answers are made up."""

from __future__ import annotations

import copy
import json
import pwd
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, backup, helper, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from tests.unit.plugins.slurm_answers import JOBS

ALICE = Account("alice", 2000, 2000, "/home/alice", "/bin/bash", ("lab",))
SETTINGS = Settings(limits=Limits(2, 8, 64, 24), environments={"default": "/opt/notebook"}, partition="gpu")
REQUEST = Request(1, "a100", 4, 16, 8, "default")
ENVIRONMENT = {"JUPYTERHUB_API_TOKEN": "secret", "JUPYTERHUB_HOST": "a'b $(id) `id`"}


def job(request: Request = REQUEST, server: str = "", **more: Any) -> submission.Wanted:
    return session.job(ALICE, server, request, SETTINGS, more.get("environment", ENVIRONMENT), more.get("pem", {}))


def test_the_script_asks_for_what_the_form_says_and_passes_house_rules() -> None:
    wanted = job()
    assert submission.problems(wanted) == []
    text = submission.script(wanted)
    for line in ("--gres=gpu:a100:1", "--cpus-per-task=4", "--mem=16384M", "--time=480", "--partition=gpu"):
        assert f"#SBATCH {line}\n" in text
    assert "/opt/notebook/bin/jupyterhub-singleuser" in text


def test_whatever_a_value_has_in_it_it_is_one_word_of_the_shell(tmp_path: Path) -> None:
    text = submission.script(job())
    export = next(line for line in text.splitlines() if line.startswith("export JUPYTERHUB_HOST="))
    done = subprocess.run(
        ["bash", "-c", f'{export}\nprintf %s "$JUPYTERHUB_HOST"'], capture_output=True, text=True, check=True
    )
    assert done.stdout == ENVIRONMENT["JUPYTERHUB_HOST"]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"PATH": "/x"},
        {"LD_PRELOAD": "x"},
        {"JUPYTERHUB_X": "a\nb"},
        {"JUPYTERHUB_X=1; id": "a"},
        {"JUPYTERHUB_X": "a" * 9000},
    ],
)
def test_other_variables_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(Refused):
        job(environment=environment)


def test_certificates_are_in_files_that_go_with_the_session() -> None:
    pem = dict.fromkeys(session.CERTIFICATES, "-----BEGIN X-----\nAAAA\n-----END X-----\n")
    text = submission.script(job(pem=pem))
    assert "trap 'rm -rf \"$certificates\"' EXIT" in text
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    with pytest.raises(Refused):
        job(pem={**pem, "key": "'; id; '"})


@pytest.mark.parametrize("server", ["A", "a b", "../x", "-a", "a" * 31])
def test_a_server_has_a_plain_name(server: str) -> None:
    with pytest.raises(Refused):
        job(server=server)


def test_more_than_the_limits_is_refused_here_too() -> None:
    with pytest.raises(Refused, match="from 0 to 2"):
        job(Request(3, "a100", 4, 16, 8, "default"))


def test_an_own_environment_is_below_the_home() -> None:
    assert f"{ALICE.home}/envs/torch/bin/jupyterhub-singleuser" in job(Request(environment="~/envs/torch")).command


# --- what becomes of it ----------------------------------------------------------------------------------------------


def row(**changed: Any) -> dict[str, Any]:
    found = copy.deepcopy(next(one for one in JOBS if "RUNNING" in one["job_state"]))
    return {**found, "name": session.JOB, **changed}


@pytest.mark.parametrize(
    ("state", "more", "code"),
    [
        ("OUT_OF_MEMORY", {}, "out_of_memory"),
        ("TIMEOUT", {}, "time_over"),
        ("NODE_FAIL", {}, "node_failed"),
        ("PREEMPTED", {}, "preempted"),
        ("CANCELLED", {}, "cancelled"),
        ("CANCELLED", {"admin_comment": "gpuops: SIGTERM: GPU 0 fell off the bus"}, "gpu_lost"),
        ("FAILED", {"exit_code": {"return_code": {"set": True, "number": 1}}}, "failed"),
        ("COMPLETED", {}, "ended"),
    ],
)
def test_an_end_has_a_reason_and_a_remedy(state: str, more: dict[str, Any], code: str) -> None:
    found = session.session(row(job_state=[state], **more))
    assert found.state == session.ENDED
    assert found.ended is not None
    assert found.ended.code == code
    assert found.ended.remedy


def test_what_the_reconciler_noted_is_told() -> None:
    found = session.session(row(job_state=["CANCELLED"], admin_comment="gpuops: SIGTERM: <b>Xid 79</b>\x1b[2J"))
    assert found.ended is not None
    assert "Xid 79" in found.ended.cause
    assert found.ended.cause.isprintable()


def test_a_session_that_waits_says_why_and_when() -> None:
    found = session.session(
        row(
            job_state=["PENDING"],
            state_reason="Resources",
            state_description="",
            start_time={"set": True, "number": 5000},
        )
    )
    assert (found.state, found.why, found.expected) == (session.WAITS, "no node has enough free resources", 5000.0)


def test_one_question_tells_of_all_sessions_and_leaves_other_jobs_out() -> None:
    asked = []

    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        asked.append(argv)
        # 22.05 lists everybody's, whatever it is asked.
        return 0, json.dumps({"jobs": [row(job_id=1), row(job_id=2, name="train"), {"name": session.JOB}, 7]}), ""

    with pytest.raises(CallFailed):
        session.read(lambda argv, stdin, timeout: (0, "no JSON", ""))
    assert 1 in session.read(lambda *given: (0, json.dumps({"jobs": [row(job_id=1), row(job_id=2, name="train")]}), ""))
    assert len(asked) == 0
    with pytest.raises(CallFailed, match="squeue"):
        session.read(lambda argv, stdin, timeout: (1, "", "Unable to contact slurm controller"))


def test_an_address_is_what_slurmctld_has() -> None:
    assert (
        session.address("n1", lambda *given: (0, "NodeName=n1 NodeAddr=192.0.2.7 NodeHostName=n1 ", "")) == "192.0.2.7"
    )
    with pytest.raises(CallFailed):
        session.address("n1", lambda *given: (0, "NodeName=n1 NodeAddr=$(id) NodeHostName=n1 ", ""))


# --- the program -----------------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str | None]]:
    monkeypatch.setattr(accounts, "find", lambda name, groups, least: ALICE._replace(name=name))
    person = pwd.struct_passwd(("alice", "x", 2000, 2000, "", "/home/alice", "/bin/bash"))
    monkeypatch.setattr(submission.pwd, "getpwnam", lambda name: person)
    return []


def do(calls: list[tuple[list[str], str | None]], **order: Any) -> dict[str, Any]:
    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        calls.append((argv, stdin))
        return 0, "12\n", ""

    return helper.do(json.dumps(order).encode(), SETTINGS, run)


def test_an_order_to_submit_is_a_job_of_the_user_and_no_secret_is_on_a_command_line(calls: Any) -> None:
    request = {"gpus": 1, "model": "a100", "cpus": 1, "memory_gib": 1, "hours": 1, "environment": "default"}
    answer = do(calls, do="submit", user="alice", request=request, variables={"JUPYTERHUB_API_TOKEN": "s3cret"})
    assert answer == {"job": 12}
    argv, script = calls[-1]
    assert argv[:4] == ["/usr/sbin/runuser", "-u", "alice", "--"]
    assert argv[-2:] == ["/usr/bin/sbatch", "--parsable"]
    assert "s3cret" in str(script)
    assert "s3cret" not in str([words for words, _stdin in calls])


def test_an_order_to_cancel_is_for_a_session_of_that_user_alone(calls: Any) -> None:
    assert do(calls, do="cancel", user="alice", job=7) == {"cancelled": 7}
    assert calls == [(["/usr/bin/scancel", "--user=alice", "--jobname=portal-session", "7"], None)]


@pytest.mark.parametrize(
    "order",
    [
        {"do": "shell", "user": "alice"},
        {"do": "submit"},
        {"do": "submit", "user": "root;id"},
        {"do": "submit", "user": "alice", "server": "../x"},
        {"do": "submit", "user": "alice", "request": {"gpus": "1; id"}},
        {"do": "submit", "user": "alice", "variables": {"PATH": "/x"}},
        {"do": "submit", "user": "alice", "certificates": {"key": "'; id"}},
        {"do": "cancel", "user": "alice"},
        {"do": "cancel", "user": "alice", "job": -1},
        {"do": "cancel", "user": "alice", "job": "7 8"},
    ],
)
def test_other_orders_do_nothing(calls: Any, order: dict[str, Any]) -> None:
    with pytest.raises((Malformed, Refused)):
        do(calls, **order)
    assert calls == []


def test_an_order_that_is_no_json_or_too_large_is_refused() -> None:
    for data in (b"", b"[]", b"\xff", b'{"do": "submit", "user": "' + b"a" * (1 << 20) + b'"}'):
        with pytest.raises(Malformed):
            helper.do(data, SETTINGS)


# --- copies ----------------------------------------------------------------------------------------------------------


def test_the_last_copies_of_the_database_are_kept_and_whole(tmp_path: Path) -> None:
    import sqlite3

    database, copies = tmp_path / "hub.sqlite", tmp_path / "copies"
    copies.mkdir()
    (copies / "jupyterhub-1.sqlite.part").touch()
    with sqlite3.connect(database) as made:
        made.execute("create table t (x)")
        made.execute("insert into t values (7)")
    paths = [Path(backup.copy(str(database), str(copies), 2, now)) for now in (1e9, 1e9 + 86400, 1e9 + 2 * 86400)]
    assert sorted(copies.iterdir()) == paths[1:]
    assert sqlite3.connect(paths[2]).execute("select x from t").fetchall() == [(7,)]
    assert paths[2].stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_not_there_is_told_and_costs_no_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backup.main([str(tmp_path / "none"), str(tmp_path), "2"]) == 1
    assert "was not copied" in capsys.readouterr().err
