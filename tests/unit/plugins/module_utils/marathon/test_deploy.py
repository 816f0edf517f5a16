# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whatever apps follow each other: the last one is what Marathon has, and to apply it again changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import canonical as marathon_canonical
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import deploy as marathon_deploy
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.api import Marathon
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.deploy import Options
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import http_transport
from tests.unit.simulators.marathon_site import Site

QUICK = Options(force=True, timeout_s=20, poll_s=0)
NAMES = st.sampled_from(["a", "b", "team"])
TEXTS = st.text("ab1", min_size=1, max_size=3)
CHECKS = st.fixed_dictionaries(
    {"protocol": st.sampled_from(["HTTP", "TCP", "HTTPS"])},
    optional={"path": st.just("/"), "gracePeriodSeconds": st.sampled_from([5, 300]), "portIndex": st.just(0)},
)
CONSTRAINTS = st.sampled_from(
    [["@hostname", "unique"], ["rack", "GROUP_BY", "2"], ["gpu_model", "IS", "A100"], ["zone", "CLUSTER"]]
)
FETCHES = st.fixed_dictionaries({"uri": TEXTS}, optional={"extract": st.booleans(), "destPath": TEXTS})
# Every field that the server does not choose by itself where nobody asks.
FIELDS = {
    "cpus": st.sampled_from([0.1, 1, 1.0, 2]),
    "mem": st.sampled_from([128, 256.0]),
    "gpus": st.integers(0, 2),
    "instances": st.integers(0, 3),
    "env": st.dictionaries(NAMES, TEXTS, max_size=3),
    "labels": st.dictionaries(NAMES, TEXTS, max_size=3),
    "constraints": st.lists(CONSTRAINTS, unique_by=tuple, max_size=4),
    "dependencies": st.lists(st.sampled_from(["/db", "queue", "/x/y"]), unique=True, max_size=3),
    "fetch": st.lists(FETCHES, max_size=2),
    "uris": st.lists(st.sampled_from(["http://a/b.zip", "http://a/c"]), min_size=1, max_size=2),
    "healthChecks": st.lists(CHECKS, unique_by=lambda row: str(sorted(row.items(), key=str)), max_size=3),
    "container": st.sampled_from(
        [
            {"type": "MESOS", "docker": {"image": "x"}},
            {"type": "MESOS", "docker": {"image": "x", "forcePullImage": True}},
            {"type": "MESOS", "volumes": [{"containerPath": "/a", "hostPath": "/a", "mode": "RO"}]},
        ]
    ),
    "user": TEXTS,
    "tty": st.booleans(),
    "taskKillGracePeriodSeconds": st.integers(0, 5),
    "killSelection": st.sampled_from(["YOUNGEST_FIRST", "OLDEST_FIRST"]),
    "secrets": st.dictionaries(NAMES, st.fixed_dictionaries({"source": TEXTS}), max_size=2),
    "resourceLimits": st.fixed_dictionaries({}, optional={"cpus": st.just("unlimited"), "mem": st.just(512)}),
    "readinessChecks": st.lists(st.fixed_dictionaries({"name": TEXTS}, optional={"path": TEXTS}), max_size=1),
}
# `instances` is always there: left out, it would be what the app before had.
APPS = st.fixed_dictionaries(
    {"cmd": TEXTS, "instances": FIELDS["instances"]},
    optional={name: values for name, values in FIELDS.items() if name != "instances"},
).filter(lambda app: not ("uris" in app and app.get("fetch")))
# What differs from one deployment to the next.
OWN = ("id", "version", "versionInfo", "portDefinitions", "tasks", "deployments")


@pytest.fixture(scope="module")
def site():
    one = Site(features="gpu_resources,secrets")
    yield one
    one.stop()


def applied(marathon: Marathon, app: dict[str, Any]) -> set[str]:
    """The fields that it changed."""
    todo = marathon_deploy.plan(marathon, app)
    marathon_deploy.bring(marathon, todo, QUICK)
    return set(todo.changes)


def kept(site: Site, app_id: str) -> dict[str, Any]:
    """What says nothing, such as no labels, counts as not there."""
    told = site.app(app_id).items()
    return {key: value for key, value in told if value and key not in OWN and not key.startswith("tasks")}


def follow(site: Site, *apps: dict[str, Any]) -> None:
    """Applies them one after the other, each twice, and the last one to nothing as well."""
    marathon = Marathon([site.url], http_transport())
    for app in apps:
        applied(marathon, {**app, "id": "/changed"})
        assert applied(marathon, {**app, "id": "/changed"}) == set()
    marathon_deploy.remove(marathon, "/fresh", QUICK)
    applied(marathon, {**apps[-1], "id": "/fresh"})
    assert kept(site, "/changed") == kept(site, "/fresh")


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=APPS, last=APPS)
def test_the_last_app_is_what_there_is_and_again_it_changes_nothing(site, first, last):
    follow(site, first, last)


@pytest.mark.parametrize("field", sorted(set(FIELDS) - {"instances"}))
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(app=APPS, data=st.data())
def test_a_field_alone_that_is_taken_out_is_noticed(site, field, app, data):
    if field in ("fetch", "uris"):
        app = {key: value for key, value in app.items() if key not in ("fetch", "uris")}
    without = {key: value for key, value in app.items() if key != field}
    follow(site, {**app, field: data.draw(FIELDS[field])}, without)


def test_what_is_sent_means_the_same_in_both_forms(site):
    docker = {"image": "x", "network": "USER", "portMappings": [{"containerPort": 80}]}
    old = {
        "id": "/old",
        "cmd": "a",
        "uris": ["http://a/b.tgz"],
        "container": {"type": "DOCKER", "docker": docker},
        "ipAddress": {"networkName": "dcos", "labels": {"a": "b"}},
    }
    assert marathon_canonical.canonical(old) == {
        "id": "/old",
        "cmd": "a",
        "fetch": [{"uri": "http://a/b.tgz", "extract": True}],
        "container": {"type": "DOCKER", "docker": {"image": "x"}, "portMappings": [{"containerPort": 80}]},
        "networks": [{"mode": "container", "name": "dcos", "labels": {"a": "b"}}],
    }
    # The server translates what is sent in the old form to what it is sent in the new one.
    assert site.ask("POST", "/v2/apps", old)[0] == 201
    assert site.ask("POST", "/v2/apps", {**marathon_canonical.canonical(old), "id": "/new"})[0] == 201
    assert kept(site, "/old")["networks"] == kept(site, "/new")["networks"]
    assert kept(site, "/old")["fetch"] == kept(site, "/new")["fetch"]
    both = [kept(site, name)["container"]["portMappings"][0] for name in ("/old", "/new")]
    assert both[0]["containerPort"] == both[1]["containerPort"] == 80
