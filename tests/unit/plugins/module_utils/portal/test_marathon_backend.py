# SPDX-License-Identifier: GPL-3.0-or-later
"""Sessions as apps of Marathon. What Marathon and the masters tell is made up here, in their words."""

from __future__ import annotations

import copy
import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Operator, Reply
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    accounts,
    backend,
    helper,
    marathon_backend,
    session,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Limits, Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.marathon_backend import MarathonOrders
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Wanted
from baremetal_gpu_portal import offers as portal_offers

STARTED, START = "2026-01-01T10:00:00.250Z", 1767261600.25
TOKEN = {"JUPYTERHUB_API_TOKEN": "s3cret", "JUPYTERHUB_SERVICE_PREFIX": "/user/alice/"}


def agent(name: str, gpus: int = 2, used: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "id": f"id-of-{name}",
        "hostname": name,
        "pid": "slave(1)@192.0.2.7:5051",
        "active": True,
        "resources": {"cpus": 8, "mem": 16384, "gpus": gpus},
        "used_resources": {"cpus": 1, "mem": 1024, "gpus": used},
        "attributes": {"gpu_model": "a100"},
        **more,
    }


def app(name: str = "/portal/alice-1", user: str = "alice", **more: Any) -> dict[str, Any]:
    task = {"id": f"t-{name}", "host": "gpu1", "slaveId": "id-of-gpu1", "state": "TASK_RUNNING"}
    task.update(ports=[31001], startedAt=STARTED)
    labels = {marathon_backend.SESSION: "", marathon_backend.HOURS: "8", "OTHER": "x"}
    return {"id": name, "user": user, "gpus": 1, "env": {"A": "hidden"}, "labels": labels, "tasks": [task], **more}


def master_task(name: str, gpus: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "name": "n",
        "slave_id": "id-of-gpu1",
        "state": "TASK_RUNNING",
        "resources": {"gpus": gpus},
        **more,
    }


def told(
    *apps: dict[str, Any],
    queue: tuple[dict[str, Any], ...] = (),
    agents: tuple[dict[str, Any], ...] = (),
    tasks: tuple[dict[str, Any], ...] = (),
) -> dict[str, Any]:
    state = {
        "slaves": agents or (agent("gpu2"), agent("gpu1", used=1)),
        "frameworks": [{"name": "marathon", "tasks": list(tasks)}],
    }
    # As it comes out of the program that works as root.
    return dict(json.loads(json.dumps(marathon_backend.rows(apps, {"queue": list(queue)}, state))))


def one(app_: dict[str, Any], now: float = START + 60, **more: Any) -> session.Session:
    (found,) = marathon_backend.sessions(told(app_, **more), now).values()
    return found


# --- what the hub is told --------------------------------------------------------------------------------------------


def test_of_apps_the_hub_is_told_no_variable_and_no_label_of_others() -> None:
    assert "hidden" not in json.dumps(told(app()))
    assert "OTHER" not in json.dumps(told(app()))


def test_a_session_runs_where_marathon_has_put_it_until_its_hours_are_over() -> None:
    found = one(app())
    assert (found.state, found.user, found.node, found.port) == (session.RUNS, "alice", "gpu1", 31001)
    assert found.ends == START + 8 * 3600
    over = one(app(), now=START + 8 * 3600 + 1)
    assert (over.state, over.ended.code if over.ended else "") == (session.ENDED, "time_over")


def test_an_agent_with_the_name_of_another_gets_none_of_its_sessions() -> None:
    liar = agent("gpu1", id="liar", pid="slave(1)@192.0.2.66:5051")
    assert one(app(), agents=(agent("gpu1"), liar)).address == "192.0.2.7"


def test_what_cannot_be_read_is_a_scheduler_that_does_not_answer() -> None:
    backend = marathon_backend.MarathonBackend(lambda: {"apps": [7], "agents": []})
    with pytest.raises(CallFailed, match="cannot be read"):
        backend.look()


def test_an_app_that_cannot_be_read_hides_no_other() -> None:
    odd = app("/portal/bob-1", "bob")
    odd["tasks"][0]["ports"] = ["some"]
    assert list(marathon_backend.sessions(told(app(), odd), START)) == ["/portal/alice-1"]


def test_an_app_that_is_no_session_is_none() -> None:
    assert marathon_backend.sessions(told(app(labels={})), START) == {}


def test_a_session_that_waits_says_for_what() -> None:
    summary = [
        {"reason": "InsufficientGpus", "declined": 2, "processed": 3},
        {"reason": "UnfulfilledConstraint", "declined": 1, "processed": 1},
        {"reason": "InsufficientCpus", "declined": 0, "processed": 3},
    ]
    row = {
        "app": {"id": "/portal/alice-1"},
        "since": STARTED,
        "delay": {"timeLeftSeconds": 0},
        "processedOffersSummary": {"rejectSummaryLastOffers": summary},
    }
    found = one(app(tasks=[]), queue=(row,))
    assert found.state == session.WAITS
    assert "2 with too few free GPUs, 1 with GPUs of another model" in found.why
    assert "none has offered" in one(app(tasks=[]), queue=({**row, "processedOffersSummary": {}},)).why
    assert "about to start" in one(app(tasks=[])).why
    (job,) = marathon_backend.document(told(app(tasks=[]), queue=(row,)))["jobs"]
    assert (job["waits"], job["user"], job["name"], job["submitted"]) == (True, "alice", session.JOB, START)


@pytest.mark.parametrize(
    ("state", "message", "code", "cause"),
    [
        ("TASK_FAILED", "Memory limit exceeded: Requested: 64MB Maximum Used: 64MB", "out_of_memory", "more memory"),
        ("TASK_FAILED", "Command exited with status 75", "ended", "by itself"),
        ("TASK_FAILED", "Command exited with status 76", "node_failed", "out of service"),
        ("TASK_FAILED", "Command exited with status 127", "failed", "no jupyterhub-singleuser"),
        ("TASK_FAILED", "Command exited with status 3", "failed", "status 3"),
        ("TASK_FAILED", "Command terminated with signal Killed", "failed", "signal Killed"),
        ("TASK_FAILED", "Failed to get user information for 'alice'", "failed", "user information for 'alice'"),
        ("TASK_LOST", "", "node_failed", "its node failed"),
        ("TASK_GONE_BY_OPERATOR", "", "node_failed", "its node failed"),
    ],
)
def test_a_session_that_ended_says_why_even_where_marathon_begins_it_again(
    state: str, message: str, code: str, cause: str
) -> None:
    failure = {"state": state, "message": message, "host": "gpu1", "taskId": "t"}
    for tasks in ([], app()["tasks"]):
        found = one(app(lastTaskFailure=failure, tasks=tasks))
        assert found.state == session.ENDED
        assert found.ended
        assert found.ended.code == code
        assert cause in found.ended.cause
        assert found.ended.remedy


def test_what_is_free_and_who_has_it() -> None:
    given = told(
        app(), app("/jobs/x", "bob", labels={}), tasks=(master_task("t-/portal/alice-1"), master_task("t-/jobs/x", 1))
    )
    found = marathon_backend.document(given)
    assert [node["name"] for node in found["nodes"]] == ["gpu1", "gpu2"]
    assert portal_offers.offers(found["nodes"]) == [portal_offers.Offer("a100", 3, 4, 2, 2)]
    leases = {lease.job: lease for lease in found["leases"]}
    mine, other = leases["/portal/alice-1"], leases["/jobs/x"]
    assert (mine.user, mine.name, mine.host, mine.started) == ("alice", session.JOB, "gpu1", START)
    assert mine.expected_end == START + 8 * 3600
    assert (other.user, other.name, other.expected_end) == ("bob", "/jobs/x", None)


def test_a_forecast_knows_when_gpus_of_sessions_are_back() -> None:
    given = told(app(gpus=2), agents=(agent("gpu1", used=2),), tasks=(master_task("t-/portal/alice-1", 2),))
    found = marathon_backend.document(given)
    answer = portal_offers.forecast(Request(2, "a100", 1, 1), found["nodes"], found["jobs"], START)
    assert (answer.answer, answer.at) == (portal_offers.WAITS, START + 8 * 3600)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"deactivated": True}, "its agent is deactivated"),
        ({"active": False, "deactivated": False}, "its agent is disconnected"),
        ({"drain_info": {"state": "DRAINING"}}, "its agent is draining"),
    ],
)
def test_an_agent_that_takes_nothing_offers_nothing_and_says_why(more: dict[str, Any], problem: str) -> None:
    (node,) = marathon_backend.document(told(agents=(agent("gpu1", **more),)))["nodes"]
    assert (portal_offers.free_gpus(node), node["problem"]) == (0, problem)


def test_an_agent_that_lies_hides_no_other() -> None:
    liar = agent("liar\n<b>", attributes={"gpu_model": "<script>"}, resources={"gpus": 2, "cpus": 1, "mem": 1})
    agents = (liar, {"hostname": "half"}, agent("x", resources={"gpus": "many"}), agent("good"))
    found = marathon_backend.document(told(agents=agents))["nodes"]
    assert found[0]["name"] == "good"
    assert not [node for node in found if "\n" in node["name"] or "<script>" in node["models"]]


# --- what is sent ----------------------------------------------------------------------------------------------------


def wanted(**more: Any) -> Wanted:
    given: dict[str, Any] = {
        "name": session.JOB,
        "user": "alice",
        "command": "exit 0",
        "directory": "/home/a1/gpuops-jobs/portal-session",
        "gpus": 1,
        "gpu_type": "a100",
        "cpus": 2,
        "memory_mib": 2048,
        "minutes": 480,
    }
    return Wanted(**{**given, **more})


@pytest.mark.parametrize("user", ["alice", "a_b", "_x", "a.b-", "x" * 32])
@pytest.mark.parametrize("server", ["", "train", "a" * 30])
@pytest.mark.parametrize("gpus", [0, 2])
def test_marathon_takes_the_app_of_every_user(user: str, server: str, gpus: int) -> None:
    made = marathon_backend.app(wanted(user=user, gpus=gpus, gpu_type="a100" if gpus else ""), server, "0123456789ab")
    assert marathon_app.problems(made) == []
    assert marathon_backend.APP.fullmatch(made["id"])
    assert made["user"] == user


def test_a_session_may_be_started_once_and_an_end_is_a_failure(tmp_path: Path) -> None:
    """Marathon starts anew what has ended well, and what was killed with its agent."""
    directory = tmp_path / "gpuops-jobs" / "portal-session"
    directory.mkdir(parents=True)
    job = wanted(directory=str(directory), command='echo "$JUPYTERHUB_SERVICE_URL $HOME"')
    (directory / "script-0123").write_text(marathon_backend.script(job, TOKEN))
    cmd = marathon_backend.app(job, "", "0123")["cmd"]
    runs = [subprocess.run(["sh", "-c", cmd], env={"PORT0": "31005"}, check=False).returncode for _number in range(2)]
    assert runs == [marathon_backend.WELL, marathon_backend.AGAIN]
    said = (directory / "output.log").read_text()
    assert said == f"https://0.0.0.0:31005/user/alice/ {tmp_path}\n"


def test_a_prefix_that_is_more_than_a_word_is_refused() -> None:
    with pytest.raises(Refused):
        marathon_backend.script(wanted(), {"JUPYTERHUB_SERVICE_PREFIX": "/user/$(id)/"})


# --- the program -----------------------------------------------------------------------------------------------------


class Web:
    """Marathon and a master, with what they were asked."""

    def __init__(self, *apps: dict[str, Any]) -> None:
        self.apps, self.asked = {row["id"]: row for row in apps}, list[tuple[str, str, Any]]()

    def __call__(self, method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        path = re.sub(r"^http://[^/]+", "", url)
        self.asked.append((method, path, json.loads(body) if body else None))
        if path == "/redirect":
            return Reply(307, {"location": "//m1:5050"}, b"")
        if path.startswith("/v2/apps/"):
            row = self.apps.get(path.removeprefix("/v2/apps").partition("?")[0])
            if row is None:
                return Reply(404, {}, b'{"message": "App does not exist"}')
            answer: Any = {"app": row} if method == "GET" else {"deploymentId": "d"}
        elif method == "POST":
            answer = {"deployments": [{"id": "d"}]}
        else:
            answer = {"apps": list(self.apps.values()), "queue": [], "slaves": [agent("gpu1")]}
        return Reply(200, {}, json.dumps(answer).encode())

    @property
    def changes(self) -> list[tuple[str, str, Any]]:
        return [row for row in self.asked if row[0] != "GET"]


class Program:
    """The program that works as root, with Marathon as its scheduler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
        self.calls: list[tuple[list[str], str | None]] = []
        self.status = 0
        monkeypatch.setattr(
            accounts,
            "find",
            lambda name, groups, least: Account(name, 2000, 2000, f"/home/{name}", "/bin/bash", ("lab",)),
        )
        monkeypatch.setattr(submission.Submitter, "as_user", lambda self, user: ["as", user])
        made = MarathonOrders(Marathon(["http://m1:8080"], web), Operator(["http://m1:5050"], web), self.run)
        monkeypatch.setattr(marathon_backend, "orders", lambda run: made)

    def run(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append((argv, stdin))
        return self.status, "", "no space left" if self.status else ""

    def do(self, **order: Any) -> Mapping[str, Any]:
        known = Settings(limits=Limits(2, 8, 64, 24), environments={"default": "/opt/notebook"}, scheduler="marathon")
        return helper.do(json.dumps(order).encode(), known, self.run)


REQUEST = {"gpus": 1, "model": "a100", "cpus": 1, "memory_gib": 1, "hours": 2, "environment": "default"}


def test_an_order_is_an_app_as_the_user_and_the_token_is_in_a_script_of_the_users_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    web = Web()
    program = Program(monkeypatch, web)
    variables = {**TOKEN, "JUPYTERHUB_SERVICE_URL": "https://0.0.0.0:0/user/alice/"}
    answer = program.do(do="submit", user="alice", server="train", request=REQUEST, variables=variables)
    ((argv, script),) = program.calls
    assert argv[:2] == ["as", "alice"]
    assert "s3cret" in str(script)
    # The port is Marathon's.
    assert ":0/user" not in str(script)
    ((method, _path, sent),) = web.changes
    assert (method, sent["id"], sent["user"]) == ("POST", answer["job"], "alice")
    assert sent["labels"][marathon_backend.SESSION] == "train"
    assert "s3cret" not in json.dumps([sent, argv])
    # What the cmd starts is the file that was written.
    assert argv[-1] in sent["cmd"]


def test_a_home_without_room_is_told_and_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web()
    program = Program(monkeypatch, web)
    program.status = 1
    with pytest.raises(CallFailed, match="no space left"):
        program.do(do="submit", user="alice", request=REQUEST, variables=TOKEN)
    assert web.changes == []


@pytest.mark.parametrize(
    ("user", "job", "deleted"),
    [("alice", "/portal/alice-1", True), ("alice", "/portal/gone-1", False), ("bob", "/portal/alice-1", None)],
)
def test_a_user_ends_sessions_of_that_user_alone(
    monkeypatch: pytest.MonkeyPatch, user: str, job: str, deleted: bool | None
) -> None:
    web = Web(app())
    program = Program(monkeypatch, web)
    if deleted is None:
        with pytest.raises(Refused, match="not a session of bob"):
            program.do(do="cancel", user=user, job=job)
    else:
        program.do(do="cancel", user=user, job=job)
    assert [row[:2] for row in web.changes] == ([("DELETE", f"/v2/apps{job}?force=true")] if deleted else [])


def test_an_app_of_the_user_that_is_no_session_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    web = Web({**copy.deepcopy(app()), "labels": {}})
    with pytest.raises(Refused):
        Program(monkeypatch, web).do(do="cancel", user="alice", job="/portal/alice-1")
    assert web.changes == []


def test_the_hub_is_told_what_it_makes_the_page_of(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Program(monkeypatch, Web(app())).do(do="look")
    assert [row["id"] for row in answer["apps"]] == ["/portal/alice-1"]
    backend = marathon_backend.MarathonBackend(lambda: answer, lambda: START)
    found, sessions = backend.look()
    assert [node["name"] for node in found["nodes"]] == ["gpu1"]
    assert list(sessions) == ["/portal/alice-1"]
    assert backend.address(sessions["/portal/alice-1"]) == "192.0.2.7"


def test_a_program_that_does_not_answer_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CallFailed, match="journalctl"):
        backend.asked(str(tmp_path / "none"))()


def test_settings_of_another_shape_are_refused_without_their_secret(tmp_path: Path) -> None:
    path = tmp_path / "marathon.json"
    path.write_text('{"urls": [], "password": "s3cret", "x": 1}')
    with pytest.raises(Refused) as why:
        marathon_backend.orders(str(path))
    assert "s3cret" not in str(why.value)
