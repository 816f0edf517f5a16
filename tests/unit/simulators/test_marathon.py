# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon refuses, fills in and locks as mesosphere/marathon 1.10.26 is written to do."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest

from tests.unit.simulators.marathon_site import APP, Site
from tests.unit.simulators.mesos_cluster import PROGRAMS, Program, free_port, until

FLAGS = json.loads((PROGRAMS / "flags.json").read_text(encoding="utf-8"))["marathon"]
SHAPES = json.loads((PROGRAMS / "marathon_app.json").read_text(encoding="utf-8"))["app"]
MASTER = "--master=http://127.0.0.1:5050"
# A value that a field of that type cannot have.
BAD = {"string": 7, "integer": "1", "number": "1", "boolean": "true", "array": "a", "object": "a"}


@pytest.fixture
def site():
    one = Site()
    yield one
    one.stop()


def refused(*flags: str, **env: str) -> tuple[int, str]:
    return Program("marathon", list(flags), env).ended()


@pytest.mark.parametrize(
    ("flags", "env", "told"),
    [
        ([MASTER, "--nosuch", "1"], {}, "Unknown option 'nosuch'"),
        ([MASTER, "--disable_zk"], {}, "Unknown option 'disable_zk'"),
        ([MASTER, "--mesos_offer_constraints"], {}, "Unknown option 'mesos_offer_constraints'"),
        ([], {}, "Required option 'master' not found"),
        ([MASTER], {"MARATHON_NOSUCH": "1"}, "Unknown option 'nosuch'"),
        ([MASTER], {"MARATHON_KILLSPERBATCH": "1"}, "Unknown option 'killsperbatch'"),
        ([MASTER], {"MARATHON_CHECKPOINT": "true"}, "Excess arguments"),
        ([MASTER], {"MARATHON_MASTER": "http://a:5050"}, "exactly one argument"),
        ([MASTER, "--http_port"], {}, "exactly one argument"),
        ([MASTER, "--ha=true"], {}, "too many arguments for flag option"),
        ([MASTER, "stray"], {}, "Excess arguments"),
        (["--master=127.0.0.1:5050"], {}, "Bad arguments for option 'master'"),
        ([MASTER, "--zk=127.0.0.1:2181"], {}, "Bad arguments for option 'zk'"),
    ],
)
def test_flags_are_refused(flags, env, told):
    code, said = refused(*flags, **env)
    assert code == 1
    assert told in said


def test_every_flag_with_numbers_or_choices_is_refused_with_another_value():
    strict = [name for name, row in FLAGS.items() if row["kind"] == "int" or "values" in row]
    strict = [name for name in strict if not name.startswith("min_mesos_offer")]
    assert len(strict) > 70
    # One process says it of one flag only, so a few stand for all of their kind.
    for name in strict[:: len(strict) // 6]:
        code, said = refused(MASTER, f"--{name}=nosuch")
        assert (code, f"'{name}'" in said) == (1, True)


def test_variables_are_flags_and_an_empty_one_is_a_toggle():
    port = str(free_port())
    variables = {
        "STAND_IN_ALONE": "1",
        "MARATHON_CHECKPOINT": "",
        "MARATHON_HTTP_PORT": port,
        "MARATHON_APP_ID": "/outer",
    }
    program = Program("marathon", ["--http_address=127.0.0.1", MASTER], variables)
    other = Site()
    other.url = f"http://127.0.0.1:{port}"
    try:
        assert until(lambda: other.ask("GET", "/ping")) == (200, "pong")
    finally:
        program.stop()
        other.stop()


@pytest.mark.parametrize("field", sorted(name for name, rule in SHAPES.items() if rule.get("type") in BAD))
def test_every_field_is_refused_with_a_value_of_another_type(site, field):
    status, told = site.ask("POST", "/v2/apps", {**APP, field: BAD[SHAPES[field]["type"]]})
    assert (status, told["message"]) == (422, "Invalid JSON")
    assert told["details"][0]["path"].startswith(f"/{field}")
    assert site.ask("GET", "/v2/apps") == (200, {"apps": []})


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"gpus": 1, "container": {"docker": {"image": "x"}}}, "/"),
        ({"args": ["a"]}, "/"),
        ({"cmd": None}, "/"),
        ({"id": "/jobs/tasks"}, "/id"),
        ({"constraints": [["a", "NEAR"]]}, "/constraints(0)"),
        ({"constraints": [["a", "UNIQUE", "b"]]}, "/constraints(0)"),
        ({"constraints": [["a", "MAX_PER", "few"]]}, "/constraints(0)"),
        ({"constraints": [["a", "LIKE", "("]]}, "/constraints(0)"),
        ({"constraints": [["a", "IS", "b c"]]}, "/constraints(0)"),
        ({"env": {"A": {"secret": "s"}}, "secrets": {"s": {"source": "s"}}}, "/env"),
        ({"networks": [{"mode": "container/bridge"}], "portDefinitions": [{"port": 80}]}, "/portDefinitions"),
        (
            {"healthChecks": [{"protocol": "COMMAND", "command": {"value": "a"}}, {"protocol": "MESOS_TCP"}]},
            "/healthChecks",
        ),
        (
            {"unreachableStrategy": {"inactiveAfterSeconds": 9, "expungeAfterSeconds": 1}},
            "/unreachableStrategy/inactiveAfterSeconds",
        ),
        ({"labels": {"GPU_SCHEDULING_BEHAVIOR": "maybe"}}, "/labels"),
    ],
)
def test_apps_are_refused(site, change, path):
    status, told = site.ask("POST", "/v2/apps", {**APP, **change})
    assert (status, told["message"], told["details"][0]["path"]) == (422, "Object is not valid", path)


def test_bounds_and_choices_of_the_data_hold(site):
    bounded = [(name, rule) for name, rule in SHAPES.items() if "minimum" in rule]
    assert len(bounded) >= 8
    for name, rule in bounded:
        assert site.ask("POST", "/v2/apps", {**APP, name: rule["minimum"] - 1})[0] == 422
    assert site.ask("POST", "/v2/apps", {**APP, "killSelection": "ANY"})[0] == 422
    assert site.ask("POST", "/v2/apps", {**APP, "id": "/Jobs"})[0] == 422


def test_gpus_need_the_feature():
    site = Site(features="vips")
    try:
        status, told = site.ask("POST", "/v2/apps", {**APP, "gpus": 1})
        assert (status, told["details"][0]["path"]) == (422, "/gpus")
    finally:
        site.stop()


def test_what_is_no_json_or_not_said_to_be_is_refused(site):
    assert site.ask("POST", "/v2/apps", "{")[0] == 400
    assert site.ask("POST", "/v2/apps", "[]")[0] == 422
    assert site.ask("POST", "/v2/apps", APP, {"Content-Type": "text/plain"})[0] == 415
    assert site.ask("GET", "/v2/nosuch")[0] == 404
    assert site.ask("GET", "/v2/pods")[0] == 501


def test_defaults_are_filled_in_and_unknown_fields_are_passed_over(site):
    status, told = site.ask("POST", "/v2/apps", {**APP, "gpu": 4, "user": None})
    assert (status, len(told["deployments"])) == (201, 1)
    app = site.app()
    assert {"gpu", "user", "uris", "ports", "ipAddress"} & set(app) == set()
    for name, rule in SHAPES.items():
        if "default" in rule and name not in APP:
            assert app[name] == rule["default"]
    assert app["networks"] == [{"mode": "host"}]
    assert app["portDefinitions"][0]["port"] >= 10000
    assert app["role"] == "*"
    assert app["upgradeStrategy"] == {"maximumOverCapacity": 1, "minimumHealthCapacity": 1}
    assert app["version"] == app["versionInfo"]["lastConfigChangeAt"]


def test_deprecated_fields_come_back_as_what_took_their_place(site):
    docker = {"image": "x", "network": "BRIDGE", "portMappings": [{"containerPort": 80}]}
    old = {"uris": ["http://a/b.tgz"], "container": {"type": "DOCKER", "docker": docker}}
    site.ask("POST", "/v2/apps", {**APP, **old})
    app = site.app()
    assert app["fetch"] == [{"uri": "http://a/b.tgz", "extract": True, "executable": False, "cache": False}]
    assert app["networks"] == [{"mode": "container/bridge", "labels": {}}]
    mapping = app["container"]["portMappings"][0]
    assert (mapping["containerPort"], mapping["hostPort"]) == (80, 0)
    assert mapping["servicePort"] >= 10000
    assert {"network", "portMappings"} & set(app["container"]["docker"]) == set()


def test_a_running_deployment_locks_the_app_and_force_cancels_it(site):
    site.next({"polls": 100})
    first = site.ask("POST", "/v2/apps", APP)[1]["deployments"][0]["id"]
    assert site.ask("POST", "/v2/apps", APP)[1] == {"message": "An app with id [/jobs/smoke] already exists."}
    for method, path, body in (
        ("PUT", "/v2/apps/jobs/smoke", {"cmd": "b"}),
        ("DELETE", "/v2/apps/jobs/smoke?force=false", None),
    ):
        status, told = site.ask(method, path, body)
        assert (status, told["deployments"]) == (409, [{"id": first}])
    status, told = site.ask("PUT", "/v2/apps/jobs/smoke?force=true", {"cmd": "b"})
    assert status == 200
    assert [row["id"] for row in site.ask("GET", "/v2/deployments")[1]] == [told["deploymentId"]]
    # Nothing to change needs no lock.
    assert site.ask("PUT", "/v2/apps/jobs/smoke", {"cmd": "b"})[0] == 200


def test_delete_forces_unless_it_is_told_not_to(site):
    site.next({"polls": 100})
    site.ask("POST", "/v2/apps", APP)
    assert site.ask("DELETE", "/v2/apps/jobs/smoke")[0] == 200
    assert site.app() is None


def test_put_is_partial_unless_it_is_told_not_to_be(site):
    site.ask("POST", "/v2/apps", {**APP, "instances": 3, "labels": {"a": "b"}})
    site.settle()
    site.ask("PUT", "/v2/apps/jobs/smoke", {"mem": 512})
    site.settle()
    assert (site.app()["instances"], site.app()["labels"], site.app()["mem"]) == (3, {"a": "b"}, 512)
    site.ask("PUT", "/v2/apps/jobs/smoke?partialUpdate=false", {"cmd": "x"})
    site.settle()
    assert (site.app()["instances"], site.app()["labels"], site.app()["mem"]) == (1, {}, 128)
    assert site.ask("PUT", "/v2/apps/new", {"cmd": "x"})[0] == 201
    assert site.ask("PATCH", "/v2/apps/other", {"cmd": "x"})[0] == 404


def test_a_deployment_is_rolled_back_or_left(site):
    site.ask("POST", "/v2/apps", APP)
    site.settle()
    version = site.app()["version"]
    for query, status, cmd in (("", 200, APP["cmd"]), ("?force=true", 202, "b")):
        site.next({"polls": 100})
        deployment = site.ask("PUT", "/v2/apps/jobs/smoke", {"cmd": "b"})[1]["deploymentId"]
        assert site.ask("DELETE", f"/v2/deployments/{deployment}{query}")[0] == status
        site.settle()
        assert site.app()["cmd"] == cmd
    assert site.ask("PUT", "/v2/apps/jobs/smoke", {"version": version})[0] == 200
    assert site.app()["cmd"] == APP["cmd"]
    assert site.ask("GET", "/v2/apps/jobs/smoke/versions")[1]["versions"][-1] == version
    assert site.ask("GET", f"/v2/apps/jobs/smoke/versions/{version}")[1]["cmd"] == APP["cmd"]
    assert site.ask("DELETE", "/v2/deployments/nosuch")[0] == 404


def test_a_rolled_back_start_takes_the_app_away(site):
    site.next({"polls": 100})
    deployment = site.ask("POST", "/v2/apps", APP)[1]["deployments"][0]["id"]
    assert site.ask("DELETE", f"/v2/deployments/{deployment}")[0] == 200
    assert site.app() is None


def test_deployments_go_as_the_test_says(site):
    check = {"healthChecks": [{"protocol": "MESOS_TCP"}]}
    site.next({"health": "fail"})
    site.ask("POST", "/v2/apps", {**APP, **check})
    assert (site.app()["tasksHealthy"], site.app()["tasksUnhealthy"]) == (0, 1)
    site.next({"fails": "exited with status 1"})
    site.ask("PUT", "/v2/apps/jobs/smoke?force=true", {"cmd": "b"})
    assert site.app()["lastTaskFailure"]["message"] == "exited with status 1"
    site.next({"fits": ["InsufficientGpus"]})
    site.ask("PUT", "/v2/apps/jobs/smoke?force=true", {"cmd": "c"})
    for _ in range(5):
        assert len(site.ask("GET", "/v2/deployments")[1]) == 1
    steps = site.ask("GET", "/v2/queue")[1]["queue"][0]["processedOffersSummary"]["rejectSummaryLastOffers"]
    assert [row["reason"] for row in steps if row["declined"]] == ["InsufficientGpus"]
    site.ask("PUT", "/v2/apps/jobs/smoke?force=true", {"instances": 2})
    site.settle()
    assert (site.app()["tasksRunning"], site.app()["tasksHealthy"]) == (2, 2)
    assert len(site.ask("GET", "/v2/apps/jobs/smoke/tasks")[1]["tasks"]) == 2


def test_apps_are_selected_by_label_and_id(site):
    site.ask("POST", "/v2/apps", {**APP, "labels": {"team": "vision"}})
    site.ask("POST", "/v2/apps", {**APP, "id": "/jobs/other"})

    def ids(query: str) -> list[str]:
        return [app["id"] for app in site.ask("GET", f"/v2/apps?{query}")[1]["apps"]]

    assert ids("") == ["/jobs/other", "/jobs/smoke"]
    assert ids("label=team%3D%3Dvision") == ids("label=team") == ids("id=smoke") == ["/jobs/smoke"]
    assert ids("label=team!%3Dvision") == ["/jobs/other"]


@pytest.mark.parametrize(
    ("flags", "variables"),
    [(["--http_credentials=op:s3cret"], {}), ([], {"MESOSPHERE_HTTP_CREDENTIALS": "op:s3cret"})],
)
def test_a_login_is_wanted_everywhere(flags, variables):
    site = Site(*flags, env=variables)
    try:
        login = {"Authorization": f"Basic {b64encode(b'op:s3cret').decode()}"}
        for path in ("/ping", "/v2/info", "/v2/apps"):
            assert site.ask("GET", path)[0] == 401
            assert site.ask("GET", path, None, login)[0] == 200
    finally:
        site.stop()


def test_one_that_does_not_lead_asks_the_leader_and_one_without_a_leader_says_so(site):
    follower = Site(env={"STAND_IN_LEADER": site.url.removeprefix("http://")})
    lonely = Site(env={"STAND_IN_LEADER": ""})
    lost = Site(env={"STAND_IN_LEADER": f"127.0.0.1:{free_port()}"})
    try:
        assert follower.ask("POST", "/v2/apps", APP)[0] == 201
        assert site.app()["cmd"] == APP["cmd"]
        assert follower.ask("GET", "/v2/leader")[1] == {"leader": site.url.removeprefix("http://")}
        assert lonely.ask("GET", "/v2/apps")[0] == 503
        assert lost.ask("GET", "/v2/apps")[0] == 502
    finally:
        for one in (follower, lonely, lost):
            one.stop()
