# SPDX-License-Identifier: GPL-3.0-or-later
"""The ready-made apps on a cluster: stand-ins of Mesos and Marathon over a real ZooKeeper, whose tasks really run."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import marathon_sweep
from tests.local_zookeeper import NotHere, classpath
from tests.unit.project.tree import BIN, ROOT, try_run
from tests.unit.simulators.mesos_cluster import free_port, until
from tests.unit.simulators.mesos_daemons import Site

pytestmark = pytest.mark.slow

ISOLATION = "cgroups/devices,filesystem/linux,gpu/nvidia,docker/runtime"
CHECK = {"delaySeconds": 0, "intervalSeconds": 1, "gracePeriodSeconds": 0, "maxConsecutiveFailures": 1000000}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Masters, an agent with two GPUs that takes images, and Marathon."""
    try:
        classpath()
    except NotHere as why:
        pytest.skip(str(why))
    one = Site(tmp_path_factory.mktemp("apps"))
    try:
        until(one.leader)
        one.agent("gpu1", gpus=2, ATTRIBUTES="gpu_model:A100", IMAGE_PROVIDERS="DOCKER", ISOLATION=ISOLATION)
        one.marathon()
        until(lambda: one.slave("gpu1"))
        until(lambda: one.state()["frameworks"])
        yield one
    finally:
        one.stop()


@pytest.fixture(autouse=True)
def empty(site: Site) -> Iterator[None]:
    yield
    marathon = site.marathons[0]
    for app in marathon.ask("/v2/apps")[1]["apps"]:
        marathon.ask(f"/v2/apps{app['id']}", method="DELETE")
    site.settle(marathon)


def apps(site: Site) -> dict[str, Any]:
    return {app["id"]: app for app in site.marathons[0].ask("/v2/apps?embed=apps.failures")[1]["apps"]}


class Play:
    """A playbook of playbooks/apps, run as an operator does."""

    def __init__(self, site: Site, base: Path) -> None:
        self.base = base
        self.variables = {
            "marathon_apps_urls": [f"http://127.0.0.1:{site.marathons[0].port}"],
            "marathon_apps_timeout": 60,
        }
        (base / "hosts").write_text(
            f"[marathon]\nctl1 ansible_connection=local ansible_python_interpreter={sys.executable}\n"
        )

    def run(self, kind: str, *options: str, **variables: Any) -> tuple[int, int, str]:
        """Status, how many tasks changed something, and what was said."""
        named = {f"marathon_apps_{name}": value for name, value in variables.items()}
        (self.base / "extra.json").write_text(json.dumps({**self.variables, **named}))
        command = (BIN / "ansible-playbook", "-i", self.base / "hosts", "-e", f"@{self.base}/extra.json", *options)
        done = try_run((*command, ROOT / "playbooks" / "apps" / f"{kind}.yml"))
        changed = done.stdout.rpartition("changed=")[2].split()[0] if "changed=" in done.stdout else "-1"
        return done.returncode, int(changed), done.stdout + done.stderr

    def passes(self, kind: str, *options: str, changes: int, **variables: Any) -> str:
        status, changed, said = self.run(kind, *options, **variables)
        assert (status, changed) == (0, changes), said
        return said


@pytest.fixture
def play(site: Site, tmp_path: Path) -> Play:
    return Play(site, tmp_path)


def test_the_smoke_job_is_deployed_healthy_left_alone_and_taken_away(site: Site, play: Play) -> None:
    asked = {"smoke_models": ["A100"], "smoke_image": "cuda:12", "smoke_command": "test $STAND_IN_GPU_INDICES = 0"}
    said = play.passes("smoke", "--check", "--diff", **asked, changes=1)
    assert '"gpus": 1' in said
    assert apps(site) == {}
    said = play.passes("smoke", **asked, changes=1)
    told = apps(site)["/smoke/a100"]
    assert (told["tasksHealthy"], told["tasks"][0]["host"]) == (1, "gpu1")
    before = site.pids()
    play.passes("smoke", **asked, changes=0)
    assert site.pids() == before
    play.passes("smoke", state="absent", **asked, changes=1)
    assert apps(site) == {}
    play.passes("smoke", state="absent", **asked, changes=0)


def test_a_smoke_job_whose_query_fails_is_no_success(play: Play) -> None:
    status, _, said = play.run("smoke", smoke_models=["A100"], smoke_image="cuda:12", smoke_command="exit 7", timeout=5)
    assert status != 0
    assert "Command exited with status 7" in said


@pytest.mark.parametrize(
    ("kind", "asked", "words"),
    [
        ("smoke", {"smoke_models": ["A100"], "smoke_mem": 1}, "ctl1: marathon_apps_smoke_mem is 1.0. To do: "),
        ("smoke", {"smoke_gpus": "two"}, "smoke_gpus"),
        ("notebook", {"notebook_user": "alice"}, "ctl1: marathon_apps_notebook_ssh_keys is empty"),
        ("sweep", {"sweep_name": "x", "sweep_command": "true"}, "ctl1: marathon_apps_sweep_parameters is empty"),
    ],
)
def test_bad_input_is_refused_before_anything_is_sent(
    site: Site, play: Play, kind: str, asked: dict[str, Any], words: str
) -> None:
    status, changed, said = play.run(kind, **asked)
    assert status != 0
    assert changed == 0
    assert words in " ".join(said.split())
    assert apps(site) == {}


@pytest.mark.skipif(not Path("/usr/sbin/sshd").exists(), reason="no SSH server (/usr/sbin/sshd) is here")
def test_a_notebook_lets_in_its_key_alone_and_is_reached_through_its_socket(
    site: Site, play: Play, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir(0o700)
    shutil.chown(home, "nobody", "nogroup")
    for name in ("own", "other"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    asked = {
        "notebook_user": "nobody",
        "notebook_home": str(home),
        "notebook_ssh_keys": [(tmp_path / "own.pub").read_text().strip()],
        "notebook_mem": 256,
        "notebook_program": "python3 -c 'import os,socket,time; s=socket.socket(socket.AF_UNIX); "
        's.bind(os.environ["NOTEBOOK_SOCKET"]); time.sleep(3600)\'',
    }
    said = play.passes("notebook", **asked, changes=1)
    assert f"{home}/.local/share/baremetal-gpu/notebook/notebook.sock nobody@gpu1" in " ".join(said.split())
    (task,) = apps(site)["/notebooks/nobody"]["tasks"]
    told = [auth(tmp_path / name, task["ports"][0]) for name in ("own", "other")]
    assert "Authenticated to" in told[0]
    assert "Authentications that can continue: publickey\n" in told[1]
    assert "Permission denied (publickey)" in told[1]
    socket = home / ".local/share/baremetal-gpu/notebook/notebook.sock"
    assert socket.stat().st_mode & 0o077 == 0
    play.passes("notebook", **asked, changes=0)
    play.passes("notebook", state="absent", **asked, changes=1)


def auth(key: Path, port: int) -> str:
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "IdentitiesOnly=yes")
    words = [part for option in options for part in ("-o", option)]
    command = ["ssh", "-v", *words, "-i", str(key), "-p", str(port), "nobody@127.0.0.1", "true"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr.replace("\r", "")


def point(name: str, command: str) -> dict[str, Any]:
    return {
        "id": f"/sweeps/x/{name}",
        "cmd": f"({command}) && touch finished && sleep 3600",
        "cpus": 0.1,
        "mem": 32,
        "gpus": 1,
        "container": {"type": "MESOS"},
        "healthChecks": [{"protocol": "COMMAND", "command": {"value": "test -e finished"}, **CHECK}],
    }


@pytest.fixture
def sweep(site: Site, capsys: pytest.CaptureFixture[str]) -> Any:
    urls = [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{site.marathons[0].port}"]

    def run(check: bool = False, **more: Any) -> dict[str, Any]:
        given = {"urls": urls, "name": "x", "timeout": 90, "poll_interval": 0.2, **more}
        with patch_module_args({**given, "_ansible_check_mode": check}), pytest.raises(SystemExit):
            marathon_sweep.main()
        return dict(json.loads(capsys.readouterr().out))

    return run


def states(told: dict[str, Any]) -> list[str]:
    return [row["state"] for row in told["points"]]


def test_a_sweep_runs_all_points_and_never_more_than_asked_at_a_time(site: Site, sweep: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    points = [point(f"p{number}", f"echo + >>{log}; sleep 1; echo - >>{log}") for number in range(5)]
    told = sweep(check=True, apps=points, parallel=2)
    assert (told["changed"], states(told)) == (True, ["waiting"] * 5)
    assert apps(site) == {}
    told = sweep(apps=points, parallel=2)
    assert (told["changed"], states(told)) == (True, ["finished"] * 5), told
    lines = log.read_text().split()
    running = [lines[: end + 1].count("+") - lines[: end + 1].count("-") for end in range(len(lines))]
    assert lines.count("+") == lines.count("-") == 5
    assert max(running) <= 2
    # Nothing is held any more, and what was done is known.
    assert all(app["instances"] == 0 for app in apps(site).values())
    told = sweep(apps=points, parallel=2)
    assert (told["changed"], states(told)) == (False, ["finished"] * 5)
    # A point that is wanted otherwise is run anew, and only that.
    told = sweep(apps=[*points[:4], point("p4", f"echo again >>{log}")], parallel=2)
    assert (told["changed"], states(told)) == (True, ["finished"] * 5)
    assert log.read_text().split()[len(lines) :] == ["again"]
    told = sweep(state="absent")
    assert (told["changed"], len(told["removed"])) == (True, 5)
    assert sweep(state="absent")["changed"] is False


def test_a_point_that_fails_is_told_and_run_again_by_the_next_run(site: Site, sweep: Any, tmp_path: Path) -> None:
    there = tmp_path / "there"
    points = [point("good", "true"), point("bad", f"test -e {there} || exit 3")]
    told = sweep(apps=points, parallel=2)
    assert told["failed"]
    assert states(told) == ["finished", "failed"]
    assert "/sweeps/x/bad failed: Command exited with status 3 (on gpu1). To do: " in told["msg"]
    assert {app["instances"] for app in apps(site).values()} == {0}
    told = sweep(apps=points, parallel=2, retry=False)
    assert (told["failed"], told["changed"], states(told)) == (True, False, ["finished", "failed"])
    there.touch()
    told = sweep(apps=points, parallel=2)
    assert (told["changed"], states(told)) == (True, ["finished", "finished"]), told


def test_a_sweep_that_runs_out_of_time_is_gone_on_with(sweep: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    points = [point("p0", f"echo x >>{log}; sleep 6"), point("p1", f"echo y >>{log}")]
    told = sweep(apps=points, timeout=2)
    assert told["failed"]
    assert "2 of 2 apps have not ended after 2 s. To do: run it again to go on" in told["msg"]
    told = sweep(apps=points)
    assert states(told) == ["finished", "finished"]
    # The one that ran was not begun anew.
    assert log.read_text().split() == ["x", "y"]


def test_the_playbook_of_a_sweep_gives_each_point_its_parameters(site: Site, play: Play, tmp_path: Path) -> None:
    asked = {
        "sweep_name": "rates",
        "sweep_command": f"echo $LR/$BATCH >>{tmp_path}/log",
        "sweep_parameters": {"LR": [0.1, 0.01], "BATCH": [32]},
        "sweep_parallel": 2,
        "sweep_mem": 64,
        "sweep_cpus": 0.1,
        "sweep_timeout": 120,
    }
    play.passes("sweep", **asked, changes=1)
    assert sorted((tmp_path / "log").read_text().split()) == ["0.01/32", "0.1/32"]
    play.passes("sweep", **asked, changes=0)
    play.passes("sweep", state="absent", **asked, changes=1)
    assert apps(site) == {}
