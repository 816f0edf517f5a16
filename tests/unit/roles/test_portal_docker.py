# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal with the real JupyterHub, and a stand-in for the command `docker` whose containers are plain processes.

They share the network of this machine, so one session runs at a time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import docker_backend
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import container
from tests.unit.project.tree import ROOT
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, free_ports, server_of, stop

pytestmark = pytest.mark.slow

IMAGE = f"reg1:5000/catalogue/notebook@sha256:{'a' * 64}"
STARTS_S = 240
# The stand-in as a program, which keeps its state in a file and runs what a container runs.
PROGRAM = """#!{python}
import fcntl, json, os, signal, subprocess, sys
sys.path.insert(0, {root!r})
from tests.unit.plugins.module_utils.portal.stand_in_docker import StandInDocker

base = {base!r}
with open(base + "/lock", "w") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    docker = StandInDocker([{image!r}])
    if os.path.exists(base + "/state"):
        kept = json.load(open(base + "/state"))
        docker.images, docker.containers = kept["images"], kept["containers"]
    for name, row in docker.containers.items():
        if row["State"]["Status"] == "running" and os.path.exists(base + "/" + name + ".exit"):
            docker.ends(name, int(open(base + "/" + name + ".exit").read() or 1))
    pids = {{name: row.get("Pid") for name, row in docker.containers.items()}}
    status, out, error = docker(["/usr/bin/docker", *sys.argv[1:]], None, 1.0)
    if sys.argv[1] == "run" and not status:
        (row,) = [row for name, row in docker.containers.items() if name not in pids]
        asked = row["Asked"]
        row["NetworkSettings"]["Networks"]["bridge"]["IPAddress"] = "127.0.0.1"
        uid, gid = asked["user"].split(":")
        become = ["setpriv", "--reuid=" + uid, "--regid=" + gid, "--groups=" + ",".join([gid, *asked["group_add"]])]
        words = [*become, asked["entrypoint"], *asked["words"]]
        told = base + row["Name"] + ".exit"
        env = dict(one.split("=", 1) for one in asked["env"])
        row["Pid"] = subprocess.Popen(
            ["sh", "-c", '"$@"; echo $? >"$0.new"; mv "$0.new" "$0"', told, *words],
            env={{"PATH": {environment!r} + "/bin:/usr/bin:/bin", **env}},
            cwd=asked["workdir"],
            start_new_session=True,
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL),
        ).pid
    for name in set(pids) - set(docker.containers):
        try:
            os.killpg(pids[name], signal.SIGKILL)
        except ProcessLookupError:
            pass
    with open(base + "/state.new", "w") as file:
        json.dump({{"images": docker.images, "containers": docker.containers}}, file)
    os.replace(base + "/state.new", base + "/state")
sys.stdout.write(out)
sys.stderr.write(error)
sys.exit(status)
"""


class Site:
    """A portal whose sessions are containers of Docker."""

    def __init__(self, base: Path) -> None:
        environments = [{"name": "notebook", "image": IMAGE}]
        self.portal = Portal(base, [], scheduler="docker", environments=environments, registry="")
        self.docker = base / "docker"
        self.docker.mkdir()
        values = {"python": sys.executable, "root": str(ROOT), "base": str(self.docker), "image": IMAGE}
        program = PROGRAM.format(**values, environment=str(self.portal.environment))
        (base / "bin" / "docker").write_text(program)
        (base / "bin" / "docker").chmod(0o755)
        devices = [
            {"name": str(number), "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}]}}
            for number in range(2)
        ]
        (base / "cdi.json").write_text(json.dumps({"devices": devices}))
        (port,) = free_ports(1)
        changes = {
            docker_backend.LOCK: str(base / "docker.lock"),
            f"PORT = {docker_backend.PORT}": f"PORT = {port}",
        }
        own = {container.SPECIFICATION: str(base / "cdi.json")}
        module = base / "python" / f"{docker_backend.__name__.replace('.', '/')}.py"
        for path, changed in ((base / "helper", {**changes, **own}), (module, changes)):
            text = path.read_text()
            for before, after in changed.items():
                assert before in text
                text = text.replace(before, after)
            path.write_text(text)

    def containers(self, user: str) -> dict[str, Any]:
        path = self.docker / "state"
        rows = json.loads(path.read_text())["containers"] if path.exists() else {}
        return {name: row for name, row in rows.items() if row["Config"]["Labels"][docker_backend.USER] == user}

    def ends(self, user: str, **state: Any) -> None:
        """What becomes of the only session of a user."""
        (name,) = self.containers(user)
        whole = json.loads((self.docker / "state").read_text())
        whole["containers"][name]["State"].update(Status="exited", Running=False, **state)
        (self.docker / "state").write_text(json.dumps(whole))
        os.killpg(whole["containers"][name]["Pid"], signal.SIGKILL)

    def close(self) -> None:
        self.portal.close()
        for user in PEOPLE:
            for row in self.containers(user).values():
                try:
                    os.killpg(row["Pid"], signal.SIGKILL)
                except ProcessLookupError:
                    continue


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("portal"))
    try:
        made.portal.start_proxy()
        made.portal.start_helper()
        made.portal.start_login()
        made.portal.start_hub()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def alice(site: Site) -> Browser:
    browser = Browser(site.portal)
    assert browser.log_in("alice").status == 200
    return browser


@pytest.fixture(scope="module")
def bob(site: Site) -> Browser:
    browser = Browser(site.portal)
    assert browser.log_in("bob").status == 200
    return browser


def ready(site: Site, browser: Browser, name: str) -> dict[str, Any]:
    row: dict[str, Any] = site.portal.until(
        lambda: (row := server_of(browser, name)).get("ready") and row,
        STARTS_S,
        f"the session of {name} does not start",
    )
    assert browser.get(f"{row['url']}lab").status == 200
    return row


@pytest.fixture(scope="module")
def session(site: Site, alice: Browser) -> dict[str, Any]:
    alice.start(gpus="1", environment="notebook")
    return ready(site, alice, "alice")


def test_the_form_offers_images_alone_and_says_that_it_starts_at_once(alice: Browser) -> None:
    page = alice.get("/hub/spawn").text
    assert 'value="notebook"' in page
    assert "~/envs" not in page
    asked = "gpus=2&cpus=1&memory_gib=1&hours=1&environment=notebook"
    assert alice.get(f"/hub/now/forecast?{asked}").json()["answer"] == "now"
    assert alice.get("/hub/images").status == 404


def test_its_user_reaches_it_and_nobody_else_does(
    site: Site, session: dict[str, Any], alice: Browser, bob: Browser
) -> None:
    assert alice.get("/user/alice/api/status").status == 200
    assert bob.get("/user/alice/api/status").status in (403, 404)
    (row,) = site.containers("alice").values()
    assert Path(f"/proc/{row['Pid']}").exists()
    assert row["Config"]["User"] == f"{PEOPLE['alice']}:{PEOPLE['alice']}"
    script = Path(row["Asked"]["words"][0])
    assert (script.stat().st_mode & 0o777, script.stat().st_uid) == (0o600, PEOPLE["alice"])
    assert "JUPYTERHUB_API_TOKEN" in script.read_text()
    assert "TOKEN" not in json.dumps(row)


def test_everybody_sees_who_has_the_gpu_until_when(session: dict[str, Any], bob: Browser) -> None:
    told = bob.get("/hub/now/data").json()
    (lease,) = [lease for node in told["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["what"], lease["gpus"]) == ("alice", "session", 1)
    assert lease["until"] == pytest.approx(lease["since"] + 3600, abs=60)


def test_who_wants_a_gpu_that_is_held_is_refused_before_and_after(
    site: Site, session: dict[str, Any], bob: Browser
) -> None:
    asked = "gpus=2&cpus=1&memory_gib=1&hours=1&environment=notebook"
    told = bob.get(f"/hub/now/forecast?{asked}").json()["text"]
    assert told.startswith("It cannot start now, and nothing waits here, for 2 GPUs")
    assert "They are back at" in told
    bob.start(gpus="2", environment="notebook")
    told = "1 of 2 GPUs are free"
    site.portal.until(lambda: told in bob.get("/hub/spawn-pending/bob").text, 60, "nobody tells why")
    assert site.containers("bob") == {}


def test_a_hub_that_is_killed_finds_the_session_again(site: Site, session: dict[str, Any], alice: Browser) -> None:
    before = list(site.containers("alice"))
    site.portal.kill("hub")
    assert alice.get("/user/alice/api/status").status == 200
    site.portal.start_hub()
    ready(site, alice, "alice")
    assert list(site.containers("alice")) == before


def test_a_session_that_is_stopped_leaves_no_container(site: Site, session: dict[str, Any], alice: Browser) -> None:
    stop(site.portal, alice, "alice")
    site.portal.until(lambda: not site.containers("alice"), 60, "its container is still there")


def test_a_session_out_of_memory_says_so_and_is_taken_away(site: Site, bob: Browser) -> None:
    bob.start(gpus="1", environment="notebook")
    ready(site, bob, "bob")
    site.ends("bob", ExitCode=137, OOMKilled=True)
    told = "it needed more memory than it had asked for"
    site.portal.until(lambda: told in bob.get("/hub/spawn").text, 90, "the form does not say so")
    site.portal.until(lambda: not site.containers("bob"), 60, "its container is still there")
