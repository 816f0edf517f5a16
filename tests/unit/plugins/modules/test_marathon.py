# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules for Marathon over HTTP, against the stand-in for it."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.modules import marathon_app, marathon_app_info
from tests.unit.simulators.marathon_site import APP, Site
from tests.unit.simulators.mesos_cluster import Cluster, free_port

CHECK = {"protocol": "MESOS_TCP", "portIndex": 0}
# As much of an app as one can ask for, in an order that no set keeps.
FULL: dict[str, Any] = {
    **APP,
    "gpus": 1,
    "instances": 2,
    "constraints": [["gpu_model", "is", "A100"], ["@hostname", "max_per", "2"], ["rack", "GROUP_BY", "3"]],
    "container": {
        "type": "MESOS",
        "docker": {"image": "cuda:12", "pullConfig": {"secret": "pull"}},
        "volumes": [{"containerPath": "/home", "hostPath": "/home", "mode": "RW"}],
        "portMappings": [{"containerPort": 8888, "name": "http"}, {"containerPort": 22, "servicePort": 0}],
    },
    "networks": [{"mode": "container/bridge"}],
    "env": {"B": "2", "A": "1", "TOKEN": {"secret": "token"}},
    "secrets": {"token": {"source": "/token"}, "pull": {"source": "/pull"}},
    "labels": {"team": "vision", "GPU_SCHEDULING_BEHAVIOR": "restricted"},
    "dependencies": ["/db", "queue"],
    "fetch": [{"uri": "http://a/b.tgz"}],
    "healthChecks": [{"protocol": "HTTP", "path": "/"}, CHECK],
    "readinessChecks": [{"portName": "http"}],
    "unreachableStrategy": {"inactiveAfterSeconds": 60, "expungeAfterSeconds": 600},
    "upgradeStrategy": {"maximumOverCapacity": 0, "minimumHealthCapacity": 0.5},
    "taskKillGracePeriodSeconds": 30,
    "acceptedResourceRoles": ["*", "gpu"],
    "resourceLimits": {"cpus": "unlimited", "mem": 512},
    "tty": True,
    "user": "nobody",
}
DEPRECATED: dict[str, Any] = {
    **APP,
    "uris": ["http://a/b.tgz", "http://a/c"],
    "container": {
        "type": "DOCKER",
        "docker": {"image": "x", "network": "BRIDGE", "portMappings": [{"containerPort": 80, "labels": {}}]},
    },
}


class Runner:
    """Runs the modules against one Marathon; `urls` begins with one that nobody answers at."""

    def __init__(self, site: Site, capsys) -> None:
        self.site, self.capsys = site, capsys
        self.urls = [f"http://127.0.0.1:{free_port()}", site.url]

    def run(self, module, check=False, **arguments):
        given = {"urls": self.urls, "_ansible_check_mode": check, "_ansible_diff": True, **arguments}
        with patch_module_args(given), pytest.raises(SystemExit):
            module.main()
        self.text = self.capsys.readouterr().out
        return json.loads(self.text)

    def app(self, app=None, check=False, **arguments):
        quick = {"poll_interval": 0.01, "timeout": 5, **arguments}
        return self.run(marathon_app, check, app=APP if app is None else app, **quick)

    def absent(self, check=False, **arguments):
        quick = {"poll_interval": 0.01, "timeout": 5, **arguments}
        return self.run(marathon_app, check, state="absent", id="/jobs/smoke", **quick)

    def info(self, **arguments):
        return self.run(marathon_app_info, **arguments)


@pytest.fixture
def site():
    one = Site(features="gpu_resources,secrets")
    yield one
    one.stop()


@pytest.fixture
def runner(site, capsys):
    return Runner(site, capsys)


def test_an_app_is_foretold_deployed_and_waited_for(runner, site):
    site.next({"polls": 3})
    foretold = runner.app(check=True)
    assert site.app() is None
    done = runner.app()
    assert foretold["diff"] == done["diff"]
    assert (foretold["changed"], foretold["deployment_id"], done["changed"]) == (True, None, True)
    assert json.loads(done["diff"]["after"]) == APP
    assert done["diff"]["before"] == ""
    assert (done["version"], [task["state"] for task in done["tasks"]]) == (site.app()["version"], ["TASK_RUNNING"])
    assert site.ask("GET", "/v2/deployments")[1] == []


@pytest.mark.parametrize("app", [APP, FULL, DEPRECATED, {**APP, "id": "jobs/smoke"}, {**APP, "ports": [0, 9000]}])
def test_what_is_applied_twice_changes_once(runner, site, app):
    assert runner.app(app)["changed"] is True
    version, calls = site.app()["version"], site.changes()
    again = runner.app(app)
    assert (again["changed"], again["changes"], again["diff"]) == (False, [], {"before": "", "after": ""})
    assert (site.app()["version"], site.changes()) == (version, calls)
    # And after a change to it too.
    assert runner.app({**app, "mem": 300})["changes"] == ["mem"]
    assert runner.app({**app, "mem": 300})["changed"] is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cmd", "other"),
        ("cpus", 2),
        ("env", {"A": "1"}),
        ("labels", {"team": "vision"}),
        ("constraints", [["@hostname", "UNIQUE"]]),
        ("healthChecks", [{"protocol": "COMMAND", "command": {"value": "true"}}]),
        ("container", {"type": "MESOS", "docker": {"image": "x"}}),
        ("user", "nobody"),
        ("tty", True),
        ("taskKillGracePeriodSeconds", 5),
        ("resourceLimits", {"mem": 512}),
        ("fetch", [{"uri": "http://a/b"}]),
        ("dependencies", ["/db"]),
        ("portDefinitions", [{"port": 9000, "name": "http"}]),
    ],
)
def test_a_field_is_set_and_taken_out_again(runner, site, field, value):
    runner.app()
    assert runner.app({**APP, field: value})["changes"] == [field]
    if field != "portDefinitions":
        # Ports that nobody asks for are Marathon's own.
        default = {"cmd": APP["cmd"], "cpus": 1}.get(field)
        assert runner.app()["changes"] == [field]
        assert site.app().get(field) in (default, None, {}, [])


def test_the_diff_shows_the_fields_that_change(runner):
    runner.app({**APP, "env": {"A": "1"}})
    diff = runner.app({**APP, "mem": 300, "env": {"A": "2"}})["diff"]
    assert json.loads(diff["before"]) == {"env": {"A": "1"}, "mem": 256}
    assert json.loads(diff["after"]) == {"env": {"A": "2"}, "mem": 300}


def test_instances_are_left_to_others_only_where_the_app_leaves_them_out(runner, site):
    runner.app()
    site.ask("PUT", "/v2/apps/jobs/smoke", {"instances": 3})
    site.settle()
    assert runner.app()["changed"] is False
    assert runner.app({**APP, "mem": 300})["instances"] == 3
    assert runner.app({**APP, "mem": 300, "instances": 1})["changes"] == ["instances"]
    assert site.app()["instances"] == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpus": 1, "container": {"type": "DOCKER", "docker": {"image": "x"}}}, ["gpus is 1", "MESOS"]),
        ({"constraints": [["gpu_model", "NEAR", "A100"]]}, ["NEAR", "UNIQUE"]),
        ({"gpu": 1}, ["gpu is not a field"]),
        ({"env": {"A": 1}}, ["env.A is 1", "quote"]),
        ({"id": "/jobs/tasks"}, ["id ends with tasks"]),
        ({"uris": ["http://a"], "fetch": [{"uri": "http://a"}]}, ["keep fetch"]),
        ({"version": "2026"}, ["version is the server's"]),
    ],
)
def test_an_app_that_marathon_would_refuse_is_not_sent(runner, site, change, words):
    told = runner.app({**APP, **change})
    assert told["failed"]
    for word in ["To do: ", *words]:
        assert word in told["msg"]
    for problem in told["problems"]:
        assert problem["code"] == "invalid_app"
        assert problem["remedy"]
        assert "To do" not in problem["cause"]
    assert site.changes() == []


def test_a_feature_that_marathon_runs_without_is_named(capsys):
    site = Site(features="vips")
    try:
        told = Runner(site, capsys).app({**APP, "gpus": 1})
        assert "enable its feature gpu_resources" in told["msg"]
        assert site.changes() == []
    finally:
        site.stop()


def test_a_refusal_of_the_server_is_told_with_its_path(runner):
    told = runner.app({**APP, "constraints": [["a", "LIKE", "a"]], "labels": {"MARATHON_SINGLE_INSTANCE_APP": "true"}})
    assert told["changed"]
    told = runner.app({**APP, "readinessChecks": [{"name": "a"}, {"name": "b"}]})
    assert "422" in told["msg"]
    assert "/readinessChecks: must have at most 1" in told["msg"]


def test_a_locked_app_names_the_deployment_and_force_cancels_it(runner, site):
    runner.app()
    site.next({"polls": 1000})
    busy = site.ask("PUT", "/v2/apps/jobs/smoke", {"cmd": "b"})[1]["deploymentId"]
    calls = site.changes()
    for told in (runner.app(), runner.app(check=True), runner.absent(), runner.absent(check=True)):
        for word in ("/jobs/smoke", busy, "force"):
            assert word in told["msg"]
    assert site.changes() == calls
    done = runner.app(force=True)
    assert (done["changed"], site.app()["cmd"]) == (True, APP["cmd"])


def test_a_lock_that_comes_between_is_told_in_the_same_words(runner, site, monkeypatch):
    runner.app()
    told = marathon_app.marathon_deploy.plan

    def late(marathon, document):
        found = told(marathon, document)
        site.next({"polls": 1000})
        site.ask("PUT", "/v2/apps/jobs/smoke", {"cmd": "b"})
        return found

    monkeypatch.setattr(marathon_app.marathon_deploy, "plan", late)
    msg = runner.app({**APP, "mem": 300})["msg"]
    assert "app /jobs/smoke is locked by the deployment" in msg
    assert site.ask("GET", "/v2/deployments")[1][0]["id"] in msg


def test_an_app_that_is_still_being_taken_away_is_locked_too(runner, site):
    runner.app()
    site.next({"polls": 1000})
    assert runner.absent(wait=False)["changed"]
    told = runner.app()["msg"]
    assert "app /jobs/smoke is locked by the deployment" in told
    assert site.ask("GET", "/v2/deployments")[1][0]["id"] in told


@pytest.mark.parametrize(
    ("goes", "reason"),
    [
        ({"fails": "Command exited with status 127"}, "ended as TASK_FAILED: Command exited with status 127"),
        ({"health": "fail"}, "is not healthy: ConnectionRefused"),
        ({"fits": ["InsufficientGpus"]}, "2 of 2 offers do not fit: InsufficientGpus"),
    ],
)
def test_a_failed_deployment_is_rolled_back_and_says_why(runner, site, goes, reason):
    app = {**APP, "healthChecks": [CHECK]}
    runner.app(app)
    site.next(goes)
    told = runner.app({**app, "cmd": "bad"}, timeout=0.2)
    assert (told["failed"], told["changed"], told["rolled_back"]) == (True, True, True)
    assert any(reason in one for one in told["reasons"])
    assert reason in told["msg"]
    assert "rolled back to version" in told["msg"]
    assert site.app()["cmd"] == APP["cmd"]
    assert site.ask("GET", "/v2/deployments")[1] == []
    assert runner.app(app)["changed"] is False


def test_a_failed_deployment_is_left_where_no_roll_back_is_wanted(runner, site):
    runner.app()
    site.next({"fits": ["InsufficientCpus"]})
    told = runner.app({**APP, "cmd": "bad"}, timeout=0.1, rollback=False)
    assert (told["rolled_back"], site.app()["cmd"]) == (False, "bad")
    assert len(site.ask("GET", "/v2/deployments")[1]) == 1


@pytest.mark.parametrize(("rollback", "there"), [(None, True), (True, False)])
def test_a_new_app_that_fails_is_left_unless_a_roll_back_is_wanted(runner, site, rollback, there):
    site.next({"fits": ["UnfulfilledConstraint"]})
    told = runner.app(timeout=0.1, **({} if rollback is None else {"rollback": rollback}))
    assert "UnfulfilledConstraint" in told["msg"]
    assert (told["rolled_back"], site.app() is not None) == (not there, there)


def test_a_roll_back_that_does_not_end_is_told(runner, site):
    runner.app()
    site.next({"fits": ["InsufficientCpus"]}, {"fits": ["InsufficientCpus"]})
    told = runner.app({**APP, "cmd": "bad"}, timeout=0.1)
    assert told["rolled_back"] is False
    assert "is being rolled back" in told["msg"]


def test_a_run_that_was_cut_is_taken_up_again(runner, site):
    site.next({"polls": 4})
    assert runner.app(wait=False)["changed"]
    assert site.app()["tasksRunning"] == 0
    again = runner.app()
    assert (again["changed"], site.app()["tasksRunning"]) == (False, 1)


def test_an_app_that_is_not_healthy_fails_without_a_change_or_a_roll_back(runner, site):
    app = {**APP, "healthChecks": [CHECK]}
    runner.app(app)
    site.ask("POST", "/stand-in/unhealthy", {"app": "/jobs/smoke"})
    calls = site.changes()
    told = runner.app(app, timeout=0.1)
    assert "is not healthy" in told["msg"]
    assert (told["changed"], told["rolled_back"]) == (False, False)
    assert runner.app(app, wait=False)["changed"] is False
    assert site.changes() == calls


def test_a_deployment_of_others_in_between_is_not_taken_for_ours(runner, site, monkeypatch):
    runner.app()
    site.next({"polls": 1000}, {"polls": 1})

    def steal(_seconds):
        site.ask("PUT", "/v2/apps/jobs/smoke?force=true", {"cmd": "theirs"})

    monkeypatch.setattr(
        marathon_app, "Options", lambda *given: marathon_app.marathon_deploy.Options(*given, sleep=steal)
    )
    told = runner.app({**APP, "mem": 300})
    assert "changed by another client meanwhile: cmd." in told["msg"]
    assert site.app()["cmd"] == "theirs"


def test_an_election_while_it_waits_is_waited_out(runner, site, monkeypatch):
    site.next({"polls": 3})
    elected = iter(["", "", None])

    def elect(_seconds):
        site.ask("POST", "/stand-in/leader", {"leader": next(elected, None)})

    monkeypatch.setattr(
        marathon_app, "Options", lambda *given: marathon_app.marathon_deploy.Options(*given, sleep=elect)
    )
    assert [task["state"] for task in runner.app()["tasks"]] == ["TASK_RUNNING"]


def test_an_app_is_taken_away_once(runner, site):
    runner.app()
    foretold = runner.absent(check=True)
    assert site.app() is not None
    done = runner.absent()
    assert foretold["diff"] == done["diff"]
    assert json.loads(done["diff"]["before"])["cmd"] == APP["cmd"]
    assert (done["changed"], site.app(), runner.absent()["changed"]) == (True, None, False)
    runner.app()
    assert runner.app(state="absent")["changed"] is True


def test_an_app_whose_tasks_do_not_end_is_told(runner, site):
    runner.app()
    site.next({"polls": 1000})
    assert "its tasks have not ended after 0.1 s" in runner.absent(timeout=0.1)["msg"]


def test_secrets_are_nowhere_to_be_seen(runner, site):
    for secret in ("hunter2-one", "hunter2-two"):
        told = runner.app({**APP, "env": {"A": "1"}}, secret_env={"TOKEN": secret})
        assert told["changed"]
        assert site.app()["env"] == {"A": "1", "TOKEN": secret}
        # The one before is on the server only.
        assert "hunter2" not in runner.text
    assert "(hidden, changed)" in told["diff"]["after"]
    assert runner.app({**APP, "env": {"A": "1"}}, secret_env={"TOKEN": "hunter2-two"})["changed"] is False
    runner.app({**APP, "env": {"A": "1"}}, check=True)
    assert "hunter2" not in runner.text
    runner.info()
    assert "hunter2" not in runner.text
    assert runner.info(show_env=True)["apps"][0]["definition"]["env"]["A"] == "1"
    runner.absent()
    assert "hunter2" not in runner.text
    # Nor in a refusal of the value itself.
    told = runner.app(secret_env={"TOKEN": 987654321})
    assert "env.TOKEN" in told["msg"]
    assert "987654321" not in runner.text


def test_a_login_is_given_and_a_wrong_one_is_named(capsys):
    site = Site("--http_credentials=op:s3cret-word")
    try:
        runner = Runner(site, capsys)
        for login in ({}, {"user": "op", "password": "wrong"}):
            assert "check user and password" in runner.app(**login)["msg"]
        assert runner.app(user="op", password="s3cret-word")["changed"]
        assert "s3cret-word" not in runner.text
        assert "To do: " in runner.app(urls=["http://op:s3cret-word@127.0.0.1"])["msg"]
        assert "s3cret-word" not in json.loads(runner.text)["msg"]
    finally:
        site.stop()


@pytest.fixture
def https(tmp_path):
    """(URL of a web server that answers what an empty Marathon would, file with its certificate)."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run([*made, *names], check=True, capture_output=True)

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self):
            told = {"/v2/deployments": [], "/v2/leader": {"leader": "a:8443"}}.get(self.path, {"apps": []})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_arguments):
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_address[1]}", str(certificate)
    server.shutdown()
    server.server_close()


def test_a_certificate_is_checked_against_the_authority_that_is_given(capsys, https, site):
    url, certificate = https
    runner = Runner(site, capsys)
    runner.urls = [url]
    assert runner.info(ca_file=certificate)["leader"] == "a:8443"
    assert "CERTIFICATE_VERIFY_FAILED" in runner.info()["msg"]
    assert "To do: give a file" in runner.info(ca_file="/nosuch")["msg"]


def test_one_that_does_not_lead_will_do_and_none_is_told_with_all_that_were_tried(runner, site):
    follower = Site(env={"STAND_IN_LEADER": site.url.removeprefix("http://")})
    lonely = Site(env={"STAND_IN_LEADER": ""})
    try:
        runner.urls = [lonely.url, follower.url]
        assert runner.app()["changed"]
        assert runner.info()["leader"] == site.url.removeprefix("http://")
        runner.urls = [f"http://127.0.0.1:{free_port()}", lonely.url]
        told = runner.app()["msg"]
        for word in (*runner.urls, "refused", "503", "To do: "):
            assert word in told
    finally:
        follower.stop()
        lonely.stop()


def test_what_is_not_marathon_is_not_taken_for_one_without_the_app(runner, tmp_path, capsys):
    cluster = Cluster(tmp_path)
    try:
        runner.urls = [cluster.url]
        assert "404" in runner.absent()["msg"]
    finally:
        cluster.stop()


def test_apps_are_told_with_tasks_and_deployments(runner, site):
    runner.app({**APP, "labels": {"team": "vision"}, "healthChecks": [CHECK]})
    runner.app({**APP, "id": "/jobs/other"})
    site.next({"fails": "no such file"})
    runner.app({**APP, "id": "/jobs/other", "cmd": "b"}, wait=False)
    told = runner.info()
    assert [app["id"] for app in told["apps"]] == ["/jobs/other", "/jobs/smoke"]
    other, smoke = told["apps"]
    assert (smoke["running"], smoke["healthy"], smoke["deployments"]) == (1, 1, [])
    assert smoke["tasks"][0]["host"] == "agent1"
    assert "version" not in smoke["definition"]
    assert other["last_failure"]["message"] == "no such file"
    assert other["deployments"] == [row["id"] for row in told["deployments"]]
    assert told["deployments"][0]["actions"] == ["RestartApplication /jobs/other"]
    assert [app["id"] for app in runner.info(label="team==vision")["apps"]] == ["/jobs/smoke"]
    assert [app["id"] for app in runner.info(id="/jobs/smoke")["apps"]] == ["/jobs/smoke"]
    assert runner.info(id="/jobs/nosuch")["apps"] == []
