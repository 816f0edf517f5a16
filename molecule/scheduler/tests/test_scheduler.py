# SPDX-License-Identifier: GPL-3.0-or-later
"""What who brings jobs to the cluster notices, through Marathon's API; and what the reconciler tells an operator."""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.site.plays import lab, ssh, until

MACHINES = ("gpu1", "cpu1", "cpu2")
SECRETS = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"], "scenario", "secrets", "mesos.json")
APP = "/verify"
# The indices of the GPUs that the job got, in a file that only it writes. The stand-in for Mesos tells them; a real
# agent would put their device files into the job's container.
GOT = "/var/tmp/gpus-of-the-job"
COMMAND = f"echo indices=$STAND_IN_GPU_INDICES >{GOT}; exec sleep 3601"


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    hosts = json.loads(lab("inventory"))["_meta"]["hostvars"]
    return {name: hosts[name]["ansible_host"] for name in MACHINES}


def request(url: str, body: Any = None, *, method: str = "GET", login: bool = True) -> tuple[int, Any]:
    """Status and JSON of an answer; 0 where nothing answers."""
    data = None if body is None else json.dumps(body).encode()
    message = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    if login:
        pair = f"operator:{json.loads(SECRETS.read_text())['http:operator']}"
        message.add_header("Authorization", "Basic " + base64.b64encode(pair.encode()).decode())
    try:
        with urllib.request.urlopen(message, timeout=10) as answer:
            return answer.status, json.loads(answer.read() or b"{}")
    except urllib.error.HTTPError as error:
        return error.code, None
    except OSError:
        return 0, None


@pytest.fixture(scope="module")
def marathon(addresses: dict[str, str]) -> str:
    return f"http://{addresses['cpu1']}:8080"


@pytest.fixture(scope="module")
def job(marathon: str) -> Iterator[dict[str, Any]]:
    """A job that asks for a GPU of a model, running."""
    app_spec = {
        "id": APP,
        "cmd": COMMAND,
        "cpus": 0.1,
        "mem": 32,
        "gpus": 1,
        "container": {"type": "MESOS"},
        "constraints": [["gpu_model", "IS", "a100-sxm4-40gb"]],
    }
    assert request(f"{marathon}/v2/apps", app_spec, method="POST")[0] == 201

    def app() -> dict[str, Any]:
        return dict((request(f"{marathon}/v2/apps{APP}")[1] or {"app": {}})["app"])

    until(lambda: app().get("tasksRunning") == 1, 120, app)
    yield app()
    assert request(f"{marathon}/v2/apps{APP}", method="DELETE")[0] == 200
    until(lambda: not ssh("gpu1", "pgrep -f '^sleep 3601' || true").strip(), 120, lambda: "the job's process is there")


def test_who_has_no_password_brings_no_job(marathon: str) -> None:
    assert request(f"{marathon}/v2/apps", {"id": "/stranger", "cmd": "true"}, method="POST", login=False)[0] == 401


def test_a_job_with_a_gpu_runs_where_the_gpus_are(job: dict[str, Any]) -> None:
    (task,) = job["tasks"]
    assert (task["host"], task["state"], job["gpus"]) == ("gpu1", "TASK_RUNNING", 1)
    assert ssh("gpu1", "pgrep -f '^sleep 3601'").strip()


def test_a_job_gets_exactly_the_one_gpu_that_it_asks_for(job: dict[str, Any]) -> None:
    def told() -> str:
        return ssh("gpu1", f"sudo cat {GOT} 2>/dev/null || true").strip()

    until(told, 60, lambda: "the job has written nothing")
    assert re.fullmatch("indices=[01]", told())


def test_no_job_gets_a_gpu_that_is_not_there(job: dict[str, Any], marathon: str) -> None:
    """One GPU is taken, so two more have no place; the job waits and nothing of it runs."""
    app_spec = {
        "id": "/too-many",
        "cmd": "exec sleep 3602",
        "cpus": 0.1,
        "mem": 32,
        "gpus": 2,
        "container": {"type": "MESOS"},
    }
    assert request(f"{marathon}/v2/apps", app_spec, method="POST")[0] == 201
    queue = f"{marathon}/v2/queue"

    def waits() -> bool:
        return any(row["app"]["id"] == "/too-many" for row in (request(queue)[1] or {"queue": []})["queue"])

    until(waits, 60, lambda: request(queue))
    for name in MACHINES:
        assert ssh(name, "pgrep -f '^sleep 3602' || true") == ""
    assert request(f"{marathon}/v2/apps/too-many?force=true", method="DELETE")[0] == 200


def test_the_reconciler_leads_and_knows_that_the_gpus_are_well() -> None:
    def status() -> Any:
        return json.loads(ssh("cpu2", "sudo gpuops-reconciler status --json", check=False) or "{}")

    def is_well() -> bool:
        state = status()
        verdicts = {name: row["verdict"] for name, row in state.get("nodes", {}).items()}
        return bool(state.get("leader")) and verdicts == {"gpu1": "ok"}

    until(is_well, 120, status)


def test_nothing_failed_to_start() -> None:
    for name in MACHINES:
        assert ssh(name, "systemctl list-units --failed --plain --no-legend") == ""
