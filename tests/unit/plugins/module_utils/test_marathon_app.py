# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Apps that Marathon would refuse are refused before they are sent, and defaults of the server are no difference.

The apps are made up, in the shape of Marathon's RAML types; so is the server's answer.
"""

from __future__ import annotations

import copy

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils import marathon_app

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
        ({"gpu": 1}, ["gpu is no field"]),
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
        ({"constraints": [["rack", "GROUP_BY"]]}, ["number of at least 1"]),
        ({"constraints": [["rack", "MAX_PER", "0"]]}, ["number of at least 1"]),
        ({"constraints": [["rack", "LIKE", "("]]}, ["no regular expression"]),
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
    told = "\n".join(marathon_app.problems({**APP, **change}))
    assert told.startswith("app /")
    assert "To do: " in told
    for word in words:
        assert word in told


def test_gpus_need_the_feature_and_an_app_needs_an_id_and_something_to_run():
    assert "enable its feature gpu_resources" in marathon_app.problems(APP, features=())[0]
    assert "nothing is there to run" in marathon_app.problems({"id": "/a"})[0]
    assert "id is missing" in marathon_app.problems({"cmd": "x"})[0]


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
