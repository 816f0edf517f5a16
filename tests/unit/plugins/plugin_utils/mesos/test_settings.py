# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings and documents of Mesos from the scheduler feed. The feeds are made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flags as mesos_flags
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import render as mesos_render

CAPACITY = {"cpus": 64, "memory_mib": 512000, "disk_mib": 900000, "reserve": {"cpus": 2, "mem": 8192}}


def feed(*indices: int, left_out: int = 0, **attributes: Any) -> dict[str, Any]:
    return {
        "gpus": [{"uuid": f"GPU-{index}", "index": index, "model": "a100", "links": {}} for index in indices],
        "left_out": [{"uuid": None}] * left_out,
        "attributes": attributes,
    }


def test_a_host_with_gpus_gets_their_count_their_indices_and_the_isolators():
    settings = mesos_render.agent_settings(feed(5, 0, 2, gpu_model="a100", gpu_memory_gib=40), CAPACITY)
    assert settings == {
        "attributes": "gpu_memory_gib:40;gpu_model:a100",
        "resources": "cpus:62;mem:503808;disk:900000;ports:[31000-32000];gpus:3",
        "nvidia_gpu_devices": "0,2,5",
        "isolation": "cgroups/cpu,cgroups/mem,disk/du,filesystem/linux,docker/runtime,cgroups/devices,gpu/nvidia",
        "image_providers": "DOCKER",
    }
    flags = mesos_flags.known("agent", "clusterd", "1.11.0")
    everything = {**settings, "work_dir": "/var/lib/mesos", "master": "zk://zk1:2181/mesos"}
    assert mesos_flags.problems("agent", everything, flags) == []


def test_the_isolator_of_the_gpus_is_behind_those_that_it_needs_whatever_was_listed():
    listed = ["filesystem/linux", "gpu/nvidia", "disk/du"]
    settings = mesos_render.agent_settings(feed(0), CAPACITY, isolation=listed)
    assert settings["isolation"] == "filesystem/linux,disk/du,cgroups/devices,gpu/nvidia"
    in_order = ["cgroups/devices", "filesystem/linux", "gpu/nvidia", "disk/du"]
    assert mesos_render.agent_settings(feed(0), CAPACITY, isolation=in_order)["isolation"] == ",".join(in_order)


def test_a_host_without_gpus_gets_none_of_it():
    settings = mesos_render.agent_settings(feed(), CAPACITY)
    assert "gpu" not in json.dumps(settings)
    assert "nvidia_gpu_devices" not in settings


def test_a_host_whose_gpus_are_all_held_back_looks_for_none():
    settings = mesos_render.agent_settings(feed(left_out=2), CAPACITY)
    assert settings["resources"].endswith(";gpus:0")
    assert "nvidia_gpu_devices" not in settings


def test_gpus_are_found_by_uuid_wherever_their_index_has_moved():
    today = [{"uuid": "GPU-b", "index": 0}, {"uuid": "GPU-a", "index": 3}]
    assert mesos_render.indices(["GPU-a", "GPU-b"], today) == [0, 3]
    with pytest.raises(Refused, match=r"GPUs GPU-c are not on this host"):
        mesos_render.indices(["GPU-c"], today)


@given(st.text(min_size=1, max_size=30))
def test_a_cleaned_attribute_has_nothing_in_it_that_crashes_an_agent(text):
    assert set(mesos_render.attribute(text)) <= set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/.-"
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"m": "Tesla V100 SXM2"}, "m:Tesla-V100-SXM2"),
        ({"m": "x{1}"}, "m:x-1"),
        ({"c": "8.0"}, "c:8.0"),
        ({"n": 8}, "n:8"),
    ],
)
def test_attributes_are_cleaned(values, text):
    assert mesos_render.attributes(values) == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"serial": "0042"}, "another number"),
        ({"serial": 1234567890123456789}, "another number"),
        ({"a": "{}"}, "nothing is left"),
        ({"a b": 1, "a-b": 2}, "given twice"),
    ],
)
def test_attributes_that_would_change_their_meaning_are_refused(values, message):
    with pytest.raises(Refused, match=f".*{message}.*To do: "):
        mesos_render.attributes(values)


@pytest.mark.parametrize(
    "wrong",
    [{"reserve": {"cpus": 64}}, {"reserve": {"gpus": 1}}, {"ports": [(2, 1)]}, {"ports": [(1, 5), (5, 9)]}],
)
def test_reserves_and_ports_that_cannot_be_are_refused(wrong):
    with pytest.raises(Refused, match=r".* To do: "):
        mesos_render.resources(**{**CAPACITY, **wrong})


@pytest.mark.parametrize(("count", "quorum"), [(1, 1), (3, 2), (5, 3)])
def test_the_quorum_is_a_majority(count, quorum):
    assert mesos_render.quorum([f"m{number}" for number in range(count)]) == quorum


@pytest.mark.parametrize(
    ("masters", "quorum", "why"),
    [
        (["m1", "m2"], 2, "2 masters"),
        (["m1", "m2", "m3"], 1, "two halves"),
        (["m1", "m2", "m3"], 3, "loss of one"),
        (["m1", "m1", "m2"], None, "twice"),
        ([], None, "0 masters"),
    ],
)
def test_other_quorums_are_refused(masters, quorum, why):
    with pytest.raises(Refused, match=f"{why}.*To do: "):
        mesos_render.quorum(masters, quorum)


def test_old_masters_know_the_new_quorum_before_a_new_master_starts():
    three, five = ["m1", "m2", "m3"], ["m1", "m2", "m3", "m4", "m5"]
    with pytest.raises(Refused, match="corrupt"):
        mesos_render.membership_change(three, five)
    assert mesos_render.membership_change(three, five, confirmed=True) == [
        "restart m1 with quorum 3",
        "restart m2 with quorum 3",
        "restart m3 with quorum 3",
        "start m4 with quorum 3",
        "start m5 with quorum 3",
    ]
    assert mesos_render.membership_change(five, three, confirmed=True)[:2] == ["stop m4 for good", "stop m5 for good"]
    assert mesos_render.membership_change(three, reversed(three)) == []
    for impossible in (["m1"], ["n1", "n2", "n3"]):
        with pytest.raises(Refused, match="To do: "):
            mesos_render.membership_change(impossible, three, confirmed=True)


def test_zk_urls():
    assert mesos_render.zk_url(["a:2181", "b:2181"], "/mesos") == "zk://a:2181,b:2181/mesos"
    assert mesos_render.zk_url(["a:2181"], "/mesos", "u", "p") == "zk://u:p@a:2181/mesos"
    for wrong in (([], "/m"), (["a"], "/m"), (["a:1"], "/"), (["a:1"], "/m", "u", "p@"), (["a:1"], "/m", "u")):
        with pytest.raises(Refused, match="To do: "):
            mesos_render.zk_url(*wrong)


def test_credentials_have_the_one_shape_that_each_side_takes():
    assert json.loads(mesos_render.credentials({"a": "s"})) == {"credentials": [{"principal": "a", "secret": "s"}]}
    assert json.loads(mesos_render.credential("a", "s")) == {"principal": "a", "secret": "s"}
    for empty in ({}, {"a": ""}):
        with pytest.raises(Refused):
            mesos_render.credentials(empty)


def test_what_an_acl_lists_is_nobody_elses():
    document = json.loads(mesos_render.acls({"drain_agents": ["ops"], "mark_agents_gone": []}))
    assert document == {
        "permissive": False,
        "drain_agents": [
            {"principals": {"values": ["ops"]}, "agents": {"type": "ANY"}},
            {"principals": {"type": "ANY"}, "agents": {"type": "NONE"}},
        ],
        "mark_agents_gone": [{"principals": {"type": "ANY"}, "agents": {"type": "NONE"}}],
    }
    with pytest.raises(Refused, match="no ACL drain_agent"):
        mesos_render.acls({"drain_agent": ["ops"]})
