# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing GPUs. That the filter and the tests reach this through Ansible is in tests/unit/plugins/inventory."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import selection
from tests.bench import made_up_fleet

A100 = made_up_fleet.facts_of(0)  # its first GPU is fatal
T4 = made_up_fleet.facts_of(3)
MIXED = {**T4, "devices": A100["devices"][:2] + T4["devices"][:3], "health": A100["health"]}
LOST = {"index": 7, "error": {"name": "gpu_is_lost"}}


def indexes(gpus) -> list[str]:
    return [f"{gpu.get('slug', 'lost')[:4]}{gpu['index']}" for gpu in gpus]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ({}, ["a1000", "a1001", "tesl0", "tesl1", "tesl2"]),
        ({"model": "a100*"}, ["a1000", "a1001"]),
        ({"model": "A100*"}, ["a1000", "a1001"]),
        ({"model": "*T4"}, ["tesl0", "tesl1", "tesl2"]),
        ({"model": "nvidia a100-sxm4-40gb"}, ["a1000", "a1001"]),
        ({"model": "a100"}, []),
        ({"model": ["a100*", "tesla-t4"]}, ["a1000", "a1001", "tesl0", "tesl1", "tesl2"]),
        ({"memory_mib_min": 40960}, ["a1000", "a1001"]),
        ({"memory_mib_min": "40000"}, ["a1000", "a1001"]),
        ({"memory_mib_min": 40961}, []),
        ({"memory_mib_max": 16384}, ["tesl0", "tesl1", "tesl2"]),
        ({"memory_mib_min": 15360, "memory_mib_max": 15360}, ["tesl0", "tesl1", "tesl2"]),
        ({"verdict": "fatal"}, ["a1000"]),
        ({"verdict": ["ok", "fatal"]}, ["a1000", "a1001"]),
        ({"verdict": "unknown"}, ["tesl0", "tesl1", "tesl2"]),
        ({"architecture": "Ampere"}, ["a1000", "a1001"]),
        ({"model": "a100*", "memory_mib_min": 40000, "verdict": "ok"}, ["a1001"]),
    ],
    ids=str,
)
def test_conditions(conditions, expected):
    assert indexes(selection.select(MIXED, **conditions)) == expected


def test_the_verdict_of_a_list_is_its_own():
    gpus = made_up_fleet.gpus_of(0)
    assert selection.select(gpus, verdict="fatal") == gpus[:1]
    assert selection.select(A100["devices"], verdict="unknown") == [
        {**gpu, "verdict": "unknown"} for gpu in A100["devices"]
    ]


def test_a_lost_gpu_is_fatal_and_meets_no_condition_on_what_it_cannot_tell():
    assert selection.select([LOST], verdict="fatal") == [{**LOST, "verdict": "fatal"}]
    assert selection.select([LOST], memory_mib_min=0) == []
    assert selection.select([LOST], model="*") == []
    assert selection.select([LOST], architecture="ampere") == []


def test_what_was_given_is_not_changed():
    gpu = {"index": 0}
    selection.select([gpu], verdict="ok")
    assert gpu == {"index": 0}


@pytest.mark.parametrize("none", [[], {"present": False}, {"present": True, "devices": None}])
def test_no_gpus(none):
    assert selection.select(none, model="*") == []


@pytest.mark.parametrize(
    ("value", "conditions", "said"),
    [
        (MIXED, {"model": 100}, "model is 100"),
        (MIXED, {"model": ["a100*", None]}, "model is"),
        (MIXED, {"model": ""}, "model is ''"),
        (MIXED, {"memory_mib_min": "40 GB"}, "memory_mib_min is '40 GB'.*MiB"),
        (MIXED, {"memory_mib_max": -1}, "memory_mib_max is -1"),
        (MIXED, {"memory_mib_min": True}, "memory_mib_min is True"),
        (MIXED, {"memory_mib_min": 1.5}, "memory_mib_min is 1.5"),
        (MIXED, {"verdict": "healthy"}, "'healthy'; there are ok, degraded, unknown, fatal"),
        (MIXED, {"architecture": 8}, "architecture is 8"),
        ("a100", {}, "not a str"),
        (None, {}, "not a NoneType"),
        (["a100"], {}, "not a list"),
        ({"present": True, "devices": ["a100"]}, {}, "devices is not a list of mappings"),
    ],
)
def test_bad_input_is_named_with_what_is_right(value, conditions, said):
    with pytest.raises(ValueError, match=said):
        selection.select(value, **conditions)


@pytest.mark.parametrize(
    ("value", "verdict"),
    [
        (A100, "fatal"),
        (T4, "ok"),
        ({"present": True, "devices": []}, "unknown"),
        ({"present": True, "devices": [], "health": {"verdict": "splendid"}}, "unknown"),
        (made_up_fleet.gpus_of(0)[0], "fatal"),
        (made_up_fleet.gpus_of(0)[1], "ok"),
        (A100["devices"][1], "unknown"),
        (LOST, "fatal"),
    ],
)
def test_the_verdict_on_a_node_or_a_gpu(value, verdict):
    assert selection.verdict_of(value) == verdict


def test_there_is_no_verdict_on_a_list():
    with pytest.raises(ValueError, match="not a list"):
        selection.verdict_of([])
