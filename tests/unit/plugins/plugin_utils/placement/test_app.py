# SPDX-License-Identifier: GPL-3.0-or-later
"""Marathon apps that are pinned. What Marathon takes is by its 1.10 documentation; nothing here asks a Marathon."""

from __future__ import annotations

import re

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import app as placement_app
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.place import Request

APP = {"id": "/train", "cpus": 2.5, "mem": 4096, "gpus": 2, "cmd": "train"}


def test_what_an_app_asks_for():
    assert placement_app.request(APP) == (Request(2, 1000, 2500, 4096), 1)
    assert placement_app.request({"id": "/small", "instances": 3}) == (Request(0, 1000, 1000, 128), 3)


def test_one_host_is_compared_exactly_and_other_constraints_stay():
    app = {**APP, "constraints": [["rack", "IS", "r1"], ["@hostname", "IS", "old"], ["hostname", "LIKE", "o.*"]]}
    pinned = placement_app.pinned(app, ["gpu1.example"])
    assert pinned == {**APP, "constraints": [["rack", "IS", "r1"], ["@hostname", "IS", "gpu1.example"]]}
    assert placement_app.pinned(pinned, ["gpu1.example"]) == pinned


def test_several_hosts_take_as_many_instances_as_were_planned():
    hosts = ["gpu1.example", "gpu2.example", "gpu1.example"]
    like, most = placement_app.pinned(APP, hosts)["constraints"]
    assert like[:2] == ["@hostname", "LIKE"]
    assert [name for name in (*hosts, "gpu1xexample", "gpu1.example2", "gpu3") if re.fullmatch(like[2], name)] == hosts
    assert most == ["@hostname", "MAX_PER", "2"]


def test_instances_that_stay_apart_stay_apart():
    app = {**APP, "constraints": [["@hostname", "UNIQUE"]]}
    assert placement_app.apart(app)
    assert placement_app.pinned(app, ["a", "b"])["constraints"] == [
        ["@hostname", "UNIQUE"],
        ["@hostname", "LIKE", "a|b"],
    ]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"gpus": 1.5}, "whole numbers"),
        ({"gpus": -1}, "gpus is -1"),
        ({"cpus": "2"}, "cpus is '2'"),
        ({"instances": 0}, "nothing to place"),
        ({"id": 7}, "an id is expected"),
        ({"container": {"type": "DOCKER"}}, "type MESOS"),
    ],
)
def test_an_app_that_cannot_be_placed(more, problem):
    with pytest.raises(placement_app.BrokenApp, match=problem):
        placement_app.request({**APP, **more})


@pytest.mark.parametrize(
    "constraints", [[["@hostname", "GROUP_BY", "2"]], [["hostname", "CLUSTER", "gpu1"]], ["rack"], "rack"]
)
def test_constraints_that_contradict_a_plan(constraints):
    with pytest.raises(placement_app.BrokenApp, match="constraint"):
        placement_app.apart({**APP, "constraints": constraints})


def test_a_host_that_marathon_does_not_take():
    with pytest.raises(placement_app.BrokenApp, match="'gpu 1'"):
        placement_app.pinned(APP, ["gpu 1"])


def test_fields_that_are_null_and_operators_in_small_letters_are_as_marathon_takes_them():
    app = {"id": "/a", "gpus": 2, "cpus": None, "mem": None, "instances": None, "container": None}
    asked, instances = placement_app.request({**app, "constraints": None})
    assert (asked.gpus, asked.cpu, asked.memory_mib, instances) == (2, 1000, 128, 1)
    assert placement_app.apart({**app, "constraints": [["@hostname", "unique"]]})
    pinned = placement_app.pinned(
        {**app, "constraints": [["@hostname", "is", "old"], ["rack_id", "GROUP_BY"]]}, ["new"]
    )
    assert pinned["constraints"] == [["rack_id", "GROUP_BY"], ["@hostname", "IS", "new"]]
