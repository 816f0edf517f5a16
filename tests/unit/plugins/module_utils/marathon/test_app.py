# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apps that Marathon would refuse are refused before they are sent, and defaults of the server are no difference.

The apps are made up, in the shape of Marathon's RAML types; so is the server's answer.
"""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon import app as marathon_app
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.canonical import canonical

APP = {
    "id": "/jobs/smoke",
    "cmd": "nvidia-smi -L",
    "cpus": 1,
    "mem": 256,
    "gpus": 1,
    "constraints": [["gpu_model", "is", "a100"], ["@hostname", "UNIQUE"]],
    "container": {"type": "MESOS", "docker": {"image": "cuda:12"}},
    "labels": {"team": "vision"},
    "healthChecks": [{"protocol": "COMMAND", "command": {"value": "true"}}],
}
# What a GET of the app gives: every default filled in, and fields of the server's own.
SERVER = {
    **copy.deepcopy(APP),
    "backoffFactor": 1.15,
    "backoffSeconds": 1,
    "constraints": [["gpu_model", "IS", "a100"], ["@hostname", "UNIQUE"]],
    "container": {
        "type": "MESOS",
        "docker": {"image": "cuda:12", "forcePullImage": False, "privileged": False, "parameters": []},
        "volumes": [],
    },
    "cpus": 1.0,
    "dependencies": [],
    "disk": 0.0,
    "env": {},
    "executor": "",
    "fetch": [],
    "healthChecks": [
        {
            "protocol": "COMMAND",
            "command": {"value": "true"},
            "gracePeriodSeconds": 300,
            "intervalSeconds": 60,
            "maxConsecutiveFailures": 3,
            "timeoutSeconds": 20,
            "delaySeconds": 15,
            "ipProtocol": "IPv4",
        }
    ],
    "instances": 1,
    "killSelection": "YOUNGEST_FIRST",
    "maxLaunchDelaySeconds": 300,
    "networks": [{"mode": "host"}],
    "portDefinitions": [],
    "requirePorts": False,
    "unreachableStrategy": {"inactiveAfterSeconds": 0, "expungeAfterSeconds": 0},
    "upgradeStrategy": {"maximumOverCapacity": 1, "minimumHealthCapacity": 1},
    "version": "2026-01-01T00:00:00.000Z",
    "tasksRunning": 1,
    "deployments": [],
}


def test_a_good_app_is_not_refused():
    assert marathon_app.problems(APP) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"container": {"docker": {"image": "x"}}}, ["gpus is 1", "DOCKER", "MESOS"]),
        ({"container": {"type": "DOCKER", "docker": {"image": "x"}}}, ["gpus is 1"]),
        ({"gpu": 1}, ["gpu is not a field"]),
        ({"gpus": "1"}, ["gpus is '1'", "whole number"]),
        ({"gpus": 0.5}, ["whole number"]),
        ({"cpus": 0}, ["at least 0.001"]),
        ({"instances": True}, ["whole number"]),
        ({"env": {"A": 1}}, ["env.A is 1", "quote"]),
        ({"env": {"A": {"secret": "s"}}}, ["feature secrets"]),
        ({"args": ["x"]}, ["cmd and args"]),
        ({"id": "/Jobs/x"}, ["id is '/Jobs/x'"]),
        ({"container": {"type": "MESOS", "docker": {}}}, ["container.docker.image is missing"]),
        ({"container": {"type": "MESOS", "docker": {"image": "x", "network": "HOST"}}}, ["container.docker.network"]),
        ({"container": {"type": "OCI"}}, ["MESOS, DOCKER"]),
        ({"constraints": [["@hostname", "NEAR", "x"]]}, ["constraints[0]", "'NEAR'", "UNIQUE"]),
        ({"constraints": [["@hostname"]]}, ["give a field"]),
        ({"constraints": [["@hostname", "UNIQUE", "x"]]}, ["take it out"]),
        ({"constraints": [["rack", "GROUP_BY", "many"]]}, ["a whole number", "or none"]),
        ({"constraints": [["rack", "MAX_PER"]]}, ["number of at least 1"]),
        ({"constraints": [["rack", "LIKE"]]}, ["no value"]),
        ({"labels": {"team": None}}, ["labels.team is None", "text"]),
        ({"instances": 1.5}, ["whole number"]),
        ({"cmd": None, "container": None}, ["nothing is there to run"]),
        ({"constraints": [["rack", "MAX_PER", "0"]]}, ["number of at least 1"]),
        ({"constraints": [["rack", "LIKE", "("]]}, ["not a regular expression"]),
        ({"constraints": [["rack", "IS", "a b"]]}, ["letters"]),
        ({"constraints": [["a", "UNIQUE"], ["a", "UNIQUE"]]}, ["twice"]),
        ({"labels": {"GPU_SCHEDULING_BEHAVIOR": "shared"}}, ["restricted, unrestricted"]),
        ({"unreachableStrategy": {"inactiveAfterSeconds": 5, "expungeAfterSeconds": 1}}, ["expunge"]),
        ({"unreachableStrategy": "never"}, ["disabled"]),
        ({"version": "1"}, ["the server's to set"]),
        ({"healthChecks": [{"protocol": "COMMAND"}, {"protocol": "MESOS_TCP"}]}, ["one at most"]),
        ({"resourceLimits": {"mem": "lots"}}, ["unlimited"]),
        ({"networks": [{"mode": "container", "name": "n"}], "portDefinitions": [{"port": 0}]}, ["portDefinitions"]),
    ],
)
def test_an_app_that_marathon_would_refuse_is_refused_with_a_remedy(change, words):
    told = "\n".join(str(one) for one in marathon_app.problems({**APP, **change}))
    assert told.startswith("app /")
    assert "To do: " in told
    for word in words:
        assert word in told


# As Marathon gives an app back: fields that are null wherever there are fields, and those of its own.
EXPORTED = {
    "id": "/jobs/smoke",
    "acceptedResourceRoles": None,
    "args": [],
    "backoffFactor": 1.15,
    "cmd": "sleep 1000",
    "constraints": [["rack_id", "GROUP_BY"]],
    "container": {
        "type": "MESOS",
        "docker": {"image": "cuda:12", "credential": None, "network": None, "portMappings": None, "parameters": None},
        "volumes": [{"containerPath": "/data", "hostPath": "/srv", "mode": "RW", "persistent": None, "external": None}],
    },
    "cpus": 1.0,
    "deployments": [],
    "env": {},
    "executor": "",
    "fetch": [{"uri": "http://mirror.example/a.tgz", "destPath": None}],
    "gpus": 0,
    "healthChecks": [{"protocol": "TCP", "port": 80, "command": None, "path": None, "portIndex": None}],
    "instances": 1.0,
    "ipAddress": None,
    "labels": {},
    "lastTaskFailure": None,
    "networks": [{"mode": "host", "name": None}],
    "residency": None,
    "resourceLimits": {"cpus": None, "mem": "unlimited"},
    "secrets": None,
    "storeUrls": [],
    "tasksRunning": 1,
    "unreachableStrategy": {"inactiveAfterSeconds": 300, "expungeAfterSeconds": 600},
    "upgradeStrategy": {"maximumOverCapacity": 1, "minimumHealthCapacity": 1},
    "uris": None,
    "user": None,
    "versionInfo": {"lastScalingAt": "2026-01-01T00:00:00.000Z"},
    "version": None,
}


def nulls(value):
    if isinstance(value, dict):
        return sum(one is None or nulls(one) for one in value.values())
    return sum(map(nulls, value)) if isinstance(value, list) else 0


def test_what_marathon_exports_is_accepted_and_compared_by_what_it_says():
    assert marathon_app.problems(EXPORTED) == []
    sent = canonical(EXPORTED)
    assert nulls(sent) == 0
    assert not {"tasksRunning", "versionInfo", "deployments", "storeUrls"} & set(sent)
    assert marathon_app.differences(sent, {**EXPORTED, "gpus": 0}) == {}


@pytest.mark.parametrize(
    "constraint",
    [
        ["rack_id", "GROUP_BY"],
        ["rack_id", "group_by"],
        ["rack_id", "GROUP_BY", "0"],
        ["rack_id", "GROUP_BY", "3"],
        ["rack_id", "MAX_PER", "+2"],
        ["rack_id", "LIKE", ""],
        # Java's own forms.
        ["rack_id", "LIKE", r"rack-\p{Digit}+"],
        ["rack_id", "UNLIKE", r"(?<row>a|b)-[a-z&&[^q]]"],
        ["rack_id", "LIKE", r"\Qa.b\E"],
        ["rack_id", "CLUSTER"],
    ],
)
def test_a_constraint_that_marathon_takes_is_taken(constraint):
    assert marathon_app.problems({**APP, "constraints": [constraint]}) == []


def test_gpus_need_the_feature_and_an_app_needs_an_id_and_something_to_run():
    assert "enable its feature gpu_resources" in marathon_app.problems(APP, features=())[0].remedy
    assert "nothing is there to run" in marathon_app.problems({"id": "/a"})[0].cause
    assert "id is missing" in marathon_app.problems({"cmd": "x"})[0].cause


def test_what_the_server_fills_in_is_no_difference():
    assert marathon_app.differences(APP, SERVER) == {}


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"instances": 2}, ["instances"]),
        ({"labels": {}}, ["labels"]),
        ({"labels": {"team": "vision", "more": "1"}}, ["labels"]),
        ({"container": {"type": "MESOS", "docker": {"image": "cuda:13"}}}, ["container"]),
        ({"constraints": []}, ["constraints"]),
        ({"healthChecks": []}, ["healthChecks"]),
        ({"networks": [{"mode": "container/bridge"}]}, ["networks"]),
        ({"taskKillGracePeriodSeconds": 5}, ["taskKillGracePeriodSeconds"]),
    ],
)
def test_what_would_change_is_told_by_field(change, fields):
    assert list(marathon_app.differences({**APP, **change}, SERVER)) == fields


def test_a_field_left_out_goes_back_to_its_default():
    app = {key: value for key, value in APP.items() if key != "labels"}
    assert marathon_app.differences(app, SERVER) == {"labels": ({"team": "vision"}, {})}
    assert marathon_app.differences(APP, {**SERVER, "instances": 3}) == {"instances": (3, 1)}
