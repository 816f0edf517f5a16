# SPDX-License-Identifier: GPL-3.0-or-later
"""The portal with the real JupyterHub, and the stand-ins for Mesos and Marathon as processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import marathon_backend
from tests.unit.roles.portal_browser import Browser
from tests.unit.roles.portal_site import PEOPLE, Portal, server_of, stop
from tests.unit.simulators.mesos_cluster import until
from tests.unit.simulators.mesos_daemons import Daemon, Site

pytestmark = pytest.mark.slow

LOGIN = ("operator", "s3cret-of-marathon")
STARTS_S = 240
MODEL = "A100-SXM4-40GB"


class Cluster:
    """A portal whose sessions are apps of Marathon, and all that it needs."""

    def __init__(self, base: Path) -> None:
        self.portal = Portal(base, [], scheduler="marathon")
        self.site = Site(base / "mesos", 1, QUORUM="1")
        self.site.before_agents = ("unshare", "--mount", "bash", str(base / "enter"))
        self.marathon: Daemon = self.site.marathon(HTTP_CREDENTIALS=":".join(LOGIN))
        for number, name in enumerate(("gpu1", "gpu2")):
            first = 23000 + 100 * number
            resources = f"cpus:8;mem:16384;gpus:2;ports:[{first}-{first + 99}]"
            self.site.agent(name, 2, RESOURCES=resources, ATTRIBUTES=f"gpu_model:{MODEL}", SWITCH_USER="true")
        private = {
            "urls": [f"http://127.0.0.1:{self.marathon.port}"],
            "user": LOGIN[0],
            "password": LOGIN[1],
            "masters": [f"http://127.0.0.1:{one.port}" for one in self.site.masters],
        }
        self.private = base / "marathon.json"
        self.private.write_text(json.dumps(private))
        self.private.chmod(0o600)

    def start(self) -> None:
        until(lambda: all(self.site.slave(name) for name in ("gpu1", "gpu2")))
        until(lambda: marathon_backend.orders(str(self.private)).look()["agents"])
        self.portal.start_proxy()
        self.portal.start_helper()
        self.portal.start_login()
        self.portal.start_hub()

    def close(self) -> None:
        self.portal.close()
        self.site.stop()

    def apps(self, user: str) -> list[dict[str, Any]]:
        """What Marathon itself tells of a user's sessions."""
        return [app for app in marathon_backend.orders(str(self.private))._marathon.apps() if app["user"] == user]

    def pid(self, user: str) -> int:
        """The process of the only session of a user."""
        (app,) = self.apps(user)
        return self.site.pids()[app["tasks"][0]["id"]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("portal"))
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def alice(cluster: Cluster) -> Browser:
    browser = Browser(cluster.portal)
    assert browser.log_in("alice").status == 200
    return browser


@pytest.fixture(scope="module")
def bob(cluster: Cluster) -> Browser:
    browser = Browser(cluster.portal)
    assert browser.log_in("bob").status == 200
    return browser


def ready(cluster: Cluster, browser: Browser, name: str, server: str = "") -> dict[str, Any]:
    row: dict[str, Any] = cluster.portal.until(
        lambda: (row := server_of(browser, name, server)).get("ready") and row,
        STARTS_S,
        f"the session of {name} does not start",
    )
    assert browser.get(f"{row['url']}lab").status == 200
    return row


@pytest.fixture(scope="module")
def session(cluster: Cluster, alice: Browser) -> dict[str, Any]:
    alice.start(gpus="1", memory_gib="2", model=MODEL)
    return ready(cluster, alice, "alice")


def test_the_form_says_what_the_agents_have(alice: Browser) -> None:
    assert f"{MODEL}: 4 of 4 free, 2 on one node" in alice.get("/hub/spawn").text
    asked = f"gpus=2&cpus=4&memory_gib=8&hours=1&model={MODEL}&environment=default"
    assert alice.get(f"/hub/now/forecast?{asked}").json()["answer"] == "now"


def test_a_session_is_an_app_of_its_user_without_a_secret(cluster: Cluster, session: dict[str, Any]) -> None:
    (app,) = cluster.apps("alice")
    assert (app["gpus"], app["mem"], app["cpus"], app["instances"]) == (1, 2048, 1, 1)
    assert Path(f"/proc/{cluster.pid('alice')}").stat().st_uid == PEOPLE["alice"]
    script = cluster.portal.base / "home/alice/gpuops-jobs/portal-session/script"
    assert "JUPYTERHUB_API_TOKEN" in script.read_text()
    assert (script.stat().st_mode & 0o777, script.stat().st_uid) == (0o600, PEOPLE["alice"])
    assert "TOKEN" not in json.dumps(app)


def test_the_hub_knows_no_login_of_marathon(cluster: Cluster, session: dict[str, Any]) -> None:
    assert LOGIN[1] not in (cluster.portal.base / "settings.json").read_text()
    assert LOGIN[1] not in cluster.portal.log()


def test_its_user_reaches_it_and_nobody_else_does(session: dict[str, Any], alice: Browser, bob: Browser) -> None:
    assert alice.get("/user/alice/api/status").status == 200
    assert bob.get("/user/alice/api/status").status in (403, 404)


def test_everybody_sees_who_has_the_gpu_since_when(session: dict[str, Any], bob: Browser) -> None:
    told = bob.get("/hub/now/data").json()
    (lease,) = [lease for node in told["nodes"] for lease in node["leases"]]
    assert (lease["user"], lease["what"], lease["gpus"]) == ("alice", "session", 1)
    assert 0 < told["now"] - lease["since"] < 600
    assert lease["until"] == pytest.approx(lease["since"] + 3600)
    assert [(one["model"], one["free"]) for one in told["models"]] == [(MODEL, 3)]


def test_a_hub_that_is_killed_finds_the_session_again(
    cluster: Cluster, session: dict[str, Any], alice: Browser
) -> None:
    before = cluster.pid("alice")
    cluster.portal.kill("hub")
    assert alice.get("/user/alice/api/status").status == 200
    cluster.portal.start_hub()
    ready(cluster, alice, "alice")
    assert cluster.pid("alice") == before
    assert alice.get("/user/alice/api/status").status == 200


def test_a_second_session_without_gpus_runs_beside_the_first(
    cluster: Cluster, session: dict[str, Any], alice: Browser
) -> None:
    alice.start("second", gpus="0")
    ready(cluster, alice, "alice", "second")
    assert alice.get("/user/alice/second/api/status").status == 200
    assert alice.get("/user/alice/api/status").status == 200
    stop(cluster.portal, alice, "alice", "second")
    cluster.portal.until(lambda: len(cluster.apps("alice")) == 1, 60, "its app is still there")


def test_a_marathon_that_does_not_answer_ends_nothing(
    cluster: Cluster, session: dict[str, Any], alice: Browser
) -> None:
    os.kill(cluster.marathon.process.pid, signal.SIGKILL)
    cluster.marathon.process.wait()
    try:
        told = cluster.portal.until(
            lambda: (told := alice.get("/hub/now/data").json())["failure"] and told, 60, "no failure"
        )
        assert "no Marathon answers" in told["failure"]
        assert told["nodes"]
        assert server_of(alice, "alice")["ready"]
        assert alice.get("/user/alice/api/status").status == 200
    finally:
        cluster.marathon.start()
    cluster.portal.until(lambda: not alice.get("/hub/now/data").json()["failure"], 60, "it does not answer again")
    assert server_of(alice, "alice")["ready"]


def test_a_session_that_waits_says_for_what_and_can_be_cancelled(
    cluster: Cluster, session: dict[str, Any], bob: Browser
) -> None:
    # alice has one GPU; with these two no node has two together.
    bob.start(gpus="2")
    ready(cluster, bob, "bob")
    bob.start("more", gpus="2")
    cluster.portal.until(lambda: len(cluster.apps("bob")) == 2, 60, "it is not submitted")
    token = bob.token(bob.get("/hub/home").text)
    event = bob.first_event(f"/hub/api/users/bob/servers/more/progress?_xsrf={token}", "waits")
    assert "no node has" in event["message"]
    waiting = bob.get("/hub/now/data").json()["waiting"]
    assert [(row["user"], row["what"], row["gpus"]) for row in waiting] == [("bob", "session", 2)]
    stop(cluster.portal, bob, "bob", "more")
    cluster.portal.until(lambda: len(cluster.apps("bob")) == 1, 60, "its app is still there")
    stop(cluster.portal, bob, "bob")
    cluster.portal.until(lambda: not cluster.apps("bob"), 60, "its app is still there")


def test_a_session_whose_program_dies_says_so_and_does_not_begin_again(cluster: Cluster, bob: Browser) -> None:
    bob.start(gpus="1")
    ready(cluster, bob, "bob")
    os.killpg(cluster.pid("bob"), signal.SIGKILL)
    cluster.portal.until(lambda: not server_of(bob, "bob").get("ready"), 60, "the hub does not notice")
    cluster.portal.until(lambda: not cluster.apps("bob"), 60, "its app is still there")
    told = "its task failed: Command terminated with"
    cluster.portal.until(lambda: told in bob.get("/hub/spawn").text, 60, "the form does not say so")


def test_an_environment_without_jupyterhub_is_told_at_once(cluster: Cluster, bob: Browser) -> None:
    bob.start(environment="~/nothing", gpus="1")
    page = cluster.portal.until(
        lambda: (page := bob.get("/hub/spawn/bob").text) and "has no jupyterhub-singleuser" in page and page,
        90,
        "nobody tells",
    )
    assert "To do:" in page
    cluster.portal.until(lambda: not cluster.apps("bob"), 60, "its app is still there")


def test_a_session_on_a_node_that_is_drained_ends_and_says_so(
    cluster: Cluster, session: dict[str, Any], alice: Browser
) -> None:
    (app,) = cluster.apps("alice")
    agent = cluster.site.slave(app["tasks"][0]["host"])
    assert cluster.site.operate("DRAIN_AGENT", agent["id"], max_grace_period={"seconds": 0}) == 200
    told = "its node was taken out of service"
    cluster.portal.until(lambda: told in alice.get("/hub/spawn").text, 90, "the form does not say so")
    cluster.portal.until(lambda: not cluster.apps("alice"), 60, "its app is still there")
    problems = {node["name"]: node["problem"] for node in alice.get("/hub/now/data").json()["nodes"]}
    assert problems[agent["hostname"]].startswith("its agent is drain")
