# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ready-made apps: what is deployed for the settings, and what is refused before anything is sent."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app
from ansible_collections.baremetal.gpu.plugins.module_utils.verify import cuda_driver
from ansible_collections.baremetal.gpu.plugins.plugin_utils import marathon_apps

# A pair that was made for these tests and opens nothing.
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB7Sx0TTb0Tmr3bYv2Qv1b7nq6y3G7JkW1w3c2Kf0M9r alice@laptop"
SMOKE: dict[str, Any] = {
    "host": "ctl1",
    "id": "/smoke",
    "models": [],
    "gpus": 1,
    "cpus": 0.5,
    "mem": 512.0,
    "image": "",
    "command": "",
    "program": "print('query')",
}
NOTEBOOK: dict[str, Any] = {
    "host": "ctl1",
    "user": "alice",
    "ssh_keys": [KEY],
    "home": "",
    "image": "",
    "of_catalogue": False,
    "program": "serve $NOTEBOOK_SOCKET",
    "model": "",
    "gpus": 1,
    "cpus": 2,
    "mem": 4096,
}
SWEEP: dict[str, Any] = {
    "host": "ctl1",
    "name": "rates",
    "command": "train",
    "parameters": {"LR": [0.1, 0.01], "BATCH": [32, 64, 128]},
    "env": {},
    "parallel": 2,
    "image": "",
    "model": "",
    "gpus": 1,
    "cpus": 1,
    "mem": 1024,
}
BUILD = {"smoke": marathon_apps.smoke, "notebook": marathon_apps.notebook, "sweep": marathon_apps.sweep}
PARAMS = {"smoke": SMOKE, "notebook": NOTEBOOK, "sweep": SWEEP}


def agent(name: str, model: str = "", gpus: int = 0) -> dict[str, Any]:
    attributes = {"gpu_model": model} if model else {}
    return {
        "hostname": name,
        "attributes": attributes,
        "resources": {"cpus": 16.0, "mem": 64000.0, **({"gpus": float(gpus)} if gpus else {})},
    }


AGENTS = [agent("gpu1", "a100-sxm4-40gb", 4), agent("gpu2", "a100-sxm4-40gb", 3), agent("gpu3", "Tesla_K20c", 1)]
AGENTS.append(agent("cpu1"))


def made(kind: str, agents: list[dict[str, Any]] | None = None, **changes: Any) -> list[dict[str, Any]]:
    found = BUILD[kind]({**PARAMS[kind], **changes}, AGENTS if agents is None else agents)
    assert found["problems"] == []
    for app in found["apps"]:
        assert marathon_app.problems(app) == []
    return list(found["apps"])


def refused(kind: str, **changes: Any) -> str:
    found = BUILD[kind]({**PARAMS[kind], **changes}, AGENTS)
    assert found["apps"] == []
    assert all(problem.subject == "ctl1" and "To do: " in str(problem) for problem in found["problems"])
    return "; ".join(map(str, found["problems"]))


@pytest.mark.parametrize("kind", BUILD)
def test_every_app_has_its_limits(kind):
    for app in made(kind):
        params = PARAMS[kind]
        assert (app["cpus"], app["mem"], app["gpus"]) == (params["cpus"], params["mem"], params["gpus"])
        assert app["container"]["type"] == "MESOS"


@pytest.mark.parametrize("kind", BUILD)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpus": 0}, "_cpus is 0. To do: give a number of at least 0.01"),
        ({"mem": 1}, "_mem is 1. To do: give a number of at least 32 MiB"),
        ({"mem": "lots"}, "_mem is 'lots'"),
        ({"gpus": -1}, "_gpus is -1"),
        ({"gpus": 9}, "_gpus is 9, and no agent"),
        ({"cpus": 64}, "_cpus is 64, and no agent"),
        ({"mem": 65000}, "has more than 64000 MiB"),
        ({"image": "not an image"}, "_image is 'not an image'"),
    ],
)
def test_limits_that_make_no_sense_or_fit_nowhere_are_refused(kind, changes, words):
    assert words in refused(kind, **changes)


# The smoke job.


def test_each_model_that_agents_give_out_gets_an_app_of_its_own():
    apps = made("smoke")
    assert {app["id"]: app["constraints"] for app in apps} == {
        "/smoke/a100-sxm4-40gb": [["gpu_model", "IS", "a100-sxm4-40gb"]],
        "/smoke/tesla-k20c": [["gpu_model", "IS", "Tesla_K20c"]],
    }
    assert [app["id"] for app in made("smoke", models=["Tesla_K20c"])] == ["/smoke/tesla-k20c"]
    # Where the masters are not known, the models that are named are taken as they are.
    assert [app["id"] for app in made("smoke", agents=[], models=["h100"])] == ["/smoke/h100"]


def test_an_image_brings_its_own_query():
    (app,) = made("smoke", models=["a100-sxm4-40gb"], gpus=2, image="nvidia/cuda:12.4.1-base-ubuntu22.04")
    assert app["container"]["docker"] == {"image": "nvidia/cuda:12.4.1-base-ubuntu22.04"}
    assert "nvidia-smi -L" in app["cmd"]
    assert "-eq 2" in app["cmd"]
    assert "env" not in app
    (app,) = made("smoke", models=["a100-sxm4-40gb"], image="own", command="my-query --all")
    assert app["cmd"].startswith("my-query --all && ")


@pytest.mark.parametrize(("status", "passed"), [(0, True), (3, False)])
def test_the_check_of_a_smoke_job_tells_whether_its_query_passed(tmp_path, status, passed):
    (app,) = made("smoke", models=["a100-sxm4-40gb"], program=f"import sys; sys.exit({status})")
    env = {"PATH": "/usr/bin:/bin", "MESOS_SANDBOX": str(tmp_path), **app["env"]}
    # The job without its wait.
    subprocess.run(["/bin/sh", "-c", app["cmd"].replace("sleep 3600", "exit")], env=env, check=False, timeout=60)
    check = app["healthChecks"][0]["command"]["value"]
    done = subprocess.run(["/bin/sh", "-c", check], env=env, check=False)
    assert (done.returncode == 0) is passed


def test_the_query_runs_from_what_the_job_brings_along(tmp_path):
    program = Path(cuda_driver.__file__).read_text()
    (app,) = made("smoke", models=["a100-sxm4-40gb"], gpus=2, program=program)
    env = {"PATH": "/usr/bin:/bin", "MESOS_SANDBOX": str(tmp_path), **app["env"]}
    command = ["/bin/sh", "-c", app["cmd"].replace("sleep 3600", "exit")]
    done = subprocess.run(command, env=env, check=False, timeout=60, capture_output=True, text=True)
    told = json.loads(done.stdout)
    assert told["source"] == "driver_api"
    assert (tmp_path / "passed").exists() == told["ok"]


def test_a_smoke_job_that_no_gpu_could_run_is_refused():
    assert "no agent has GPUs of the model 'h100'. To do: choose among Tesla_K20c, a100" in refused(
        "smoke", models=["h100"]
    )
    assert "_gpus is 0" in refused("smoke", gpus=0)
    assert "has 'a 100'" in refused("smoke", models=["a 100"])
    assert "_id is 'Smoke'" in refused("smoke", id="Smoke")
    bare = marathon_apps.smoke(SMOKE, [agent("cpu1")])
    assert str(bare["problems"][0]).startswith("no agent gives out GPUs. To do: ")


# The notebook.


def test_a_notebook_has_the_home_the_keys_and_no_password():
    (app,) = made("notebook", image="site/notebook:1", model="a100-sxm4-40gb")
    assert app["id"] == "/notebooks/alice"
    assert app["user"] == "alice"
    assert app["container"]["volumes"] == [{"hostPath": "/home/alice", "containerPath": "/home/alice", "mode": "RW"}]
    assert app["env"]["NOTEBOOK_KEYS"] == KEY
    assert "PasswordAuthentication=no" in app["cmd"]
    (app,) = made("notebook", home="/ceph/alice", user="a_b")
    assert app["id"] == "/notebooks/a-b"
    assert app["env"]["NOTEBOOK_HOME"] == "/ceph/alice"


def test_an_image_of_the_catalogue_makes_the_account_and_gives_up_the_rights_of_root():
    (own,) = made("notebook", image="site/notebook:1")
    (app,) = made("notebook", image="registry1:5000/catalogue/notebook@sha256:1", of_catalogue=True)
    assert app["user"] == "root"
    assert app["env"] == {**own["env"], "SESSION_USER": "alice", "NOTEBOOK": own["cmd"]}
    assert app["cmd"].splitlines()[-1] == 'exec /usr/local/bin/session sh -c "$NOTEBOOK"'


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ssh_keys": []}, "ssh_keys is empty, so no user could log in. To do: give a public key"),
        ({"ssh_keys": [KEY, "ssh-rsa"]}, "ssh_keys[1] is not a public key"),
        ({"ssh_keys": [f'command="x" {KEY}']}, "without options"),
        ({"ssh_keys": [KEY.replace("AAAAC3Nza", "AAAAB3Nza")]}, "says ssh-ed25519 and holds something else"),
        ({"ssh_keys": ["ssh-ed25519 AAAAC"]}, "a public key that was cut"),
        ({"user": "root"}, "_user is 'root'"),
        ({"user": ""}, "_user is ''"),
        ({"user": "a b"}, "_user is 'a b'"),
        ({"home": "../x"}, "_home is '../x'"),
        ({"home": "/home/../etc"}, "_home is '/home/../etc'"),
        ({"program": " "}, "_program is empty"),
        ({"model": "h 100"}, "_model is 'h 100'"),
    ],
)
def test_a_notebook_that_nobody_or_everybody_could_open_is_refused(changes, words):
    assert words in refused("notebook", **changes)


def test_a_private_key_is_refused_and_not_shown():
    text = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\n-----END OPENSSH PRIVATE KEY-----"
    told = refused("notebook", ssh_keys=[text])
    assert "is a private key. To do: give the public one" in told
    assert "b3BlbnNz" not in told


def test_a_notebook_without_a_key_ends_at_once(tmp_path):
    (app,) = made("notebook")
    env = {"PATH": "/usr/bin:/bin", **app["env"], "NOTEBOOK_KEYS": "", "NOTEBOOK_HOME": str(tmp_path), "PORT0": "0"}
    done = subprocess.run(
        ["/bin/sh", "-c", app["cmd"]], env=env, check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "no SSH key was given" in done.stderr
    assert list(tmp_path.iterdir()) == []


# The sweep.


def test_a_sweep_has_one_app_for_each_point_under_a_name_that_stays():
    apps = made("sweep", env={"DATA": "/data"})
    points = [(app["env"]["LR"], app["env"]["BATCH"]) for app in apps]
    assert points == [(rate, batch) for rate in ("0.1", "0.01") for batch in ("32", "64", "128")]
    assert {app["env"]["DATA"] for app in apps} == {"/data"}
    ids = {point: app["id"] for point, app in zip(points, apps, strict=True)}
    assert len(set(ids.values())) == 6
    more = made("sweep", parameters={"BATCH": [256, 32], "LR": [0.01, 1]})
    again = {(app["env"]["LR"], app["env"]["BATCH"]): app["id"] for app in more}
    assert again["0.01", "32"] == ids["0.01", "32"]
    assert set(again.values()) - set(ids.values()) == {again[point] for point in again if point not in ids}


@pytest.mark.parametrize(("command", "finished"), [("true", True), ("exit 3", False), ("test $LR = 0.1", True)])
def test_the_check_of_a_point_tells_whether_its_command_ended_well(tmp_path, command, finished):
    app = made("sweep", command=command, parameters={"LR": [0.1]})[0]
    env = {"PATH": "/usr/bin:/bin", "MESOS_SANDBOX": str(tmp_path), **app["env"]}
    script = app["cmd"].replace("sleep 3600", "exit")
    ended = subprocess.run(["/bin/sh", "-c", script], env=env, check=False, timeout=60)
    assert (ended.returncode == 0) is finished
    done = subprocess.run(["/bin/sh", "-c", app["healthChecks"][0]["command"]["value"]], env=env, check=False)
    assert (done.returncode == 0) is finished


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "Rates"}, "_name is 'Rates'"),
        ({"name": ""}, "_name is ''"),
        ({"command": ""}, "_command is empty"),
        ({"parallel": 0}, "_parallel is 0"),
        ({"parameters": {}}, "_parameters is empty"),
        ({"parameters": {"LR": 0.1}}, "_parameters.LR is 0.1. To do: give a list"),
        ({"parameters": {"LR": []}}, "_parameters.LR is []"),
        ({"parameters": {"LR": [1, 1]}}, "each once"),
        ({"parameters": {"LR": [[1]]}}, "give numbers or text"),
        ({"parameters": {"learning rate": [1]}}, "has 'learning rate'"),
        ({"env": {"LR": "1"}}, "_env has 'LR'"),
        ({"env": {"X": 1}}, "quote text"),
        ({"model": "h100"}, "no agent has GPUs of the model 'h100'"),
    ],
)
def test_a_sweep_that_is_no_grid_is_refused(changes, words):
    assert words in refused("sweep", **changes)
