# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts run the reconciler of Slurm without ZooKeeper, and whether it acts there."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import fence

CONTROLLERS = ["head1", "head2"]
MASTERS = {"mesos_masters": ["master1"]}


def found(groups: dict[str, list[str]], variables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hostvars: dict[str, dict[str, Any]] = {name: {} for name in (*CONTROLLERS, "login1", "master1")}
    return fence.fence({"slurm_controllers": CONTROLLERS, **groups}, {**hostvars, **variables})


@pytest.mark.parametrize(
    ("groups", "variables", "hosts"),
    [
        ({}, {}, CONTROLLERS),
        ({"slurm_controllers": []}, {}, []),
        # A site of before, whose reconciler needs ZooKeeper, stays as it is.
        ({"gpu_reconcilers": ["head1"]}, {}, []),
        ({"gpu_reconcilers": ["login1"]}, {}, []),
        ({"gpu_reconcilers": ["login1"]}, {"login1": {"gpu_reconciler_scheduler": "slurm"}}, []),
        # One that is removed has no nodes.
        ({"gpu_reconcilers": ["login1"]}, {"login1": {"gpu_reconciler_state": "absent"}}, CONTROLLERS),
        # With Mesos beside Slurm, gpu_reconcilers has the nodes of Mesos, unless it is told otherwise.
        ({"gpu_reconcilers": ["master1"], **MASTERS}, {}, CONTROLLERS),
        ({"gpu_reconcilers": ["master1"]}, {"master1": {"gpu_reconciler_masters": ["http://m:5050"]}}, CONTROLLERS),
        ({"gpu_reconcilers": ["head1"], **MASTERS}, {}, ["head2"]),
        ({"gpu_reconcilers": ["login1"], **MASTERS}, {"login1": {"gpu_reconciler_scheduler": "slurm"}}, []),
        ({}, {"head1": {"gpu_reconciler_scheduler": "mesos"}}, ["head2"]),
        # The role is there to remove it.
        ({}, {"head2": {"gpu_reconciler_state": "absent"}}, CONTROLLERS),
    ],
)
def test_where_it_runs(groups, variables, hosts):
    assert found(groups, variables)["hosts"] == hosts


@pytest.mark.parametrize(
    ("variables", "acts"),
    [
        ({}, True),
        ({"gpu_reconciler_mode": "act"}, True),
        ({"gpu_reconciler_mode": "dry-run"}, False),
        ({"gpu_reconciler_mode": "record"}, False),
        ({"gpu_reconciler_state": "absent"}, False),
    ],
)
def test_whether_it_acts(variables, acts):
    assert found({}, dict.fromkeys(CONTROLLERS, variables))["acts"] is acts


def test_without_a_host_nothing_acts():
    assert found({"gpu_reconcilers": ["head1"]}, {})["acts"] is False


RECORDS, IS_ABSENT = {"gpu_reconciler_mode": "record"}, {"gpu_reconciler_state": "absent"}
OF_MESOS = {"gpu_reconcilers": ["master1"], **MASTERS}


@pytest.mark.parametrize(
    ("groups", "variables", "idle"),
    [
        ({}, {}, None),
        ({"slurm_controllers": []}, {}, None),
        ({}, {"head1": RECORDS}, None),
        ({}, dict.fromkeys(CONTROLLERS, RECORDS), ("head1", "record")),
        # One that is removed fences nothing.
        ({}, dict.fromkeys(CONTROLLERS, IS_ABSENT), ("head1", "absent")),
        ({"gpu_reconcilers": ["login1"]}, {}, ("login1", "dry-run")),
        ({"gpu_reconcilers": ["login1"]}, {"login1": {"gpu_reconciler_mode": "act"}}, None),
        # Each scheduler has its own.
        (OF_MESOS, {}, ("master1", "dry-run")),
        (OF_MESOS, {"master1": {"gpu_reconciler_mode": "act"}}, None),
        (
            OF_MESOS,
            {"master1": {"gpu_reconciler_mode": "act"}, **dict.fromkeys(CONTROLLERS, RECORDS)},
            ("head1", "record"),
        ),
        (OF_MESOS, {"master1": IS_ABSENT}, ("master1", "absent")),
        # That of before, which needed ZooKeeper, is removed, and slurmctld has its own.
        ({"gpu_reconcilers": ["login1"]}, {"login1": IS_ABSENT}, None),
        ({"gpu_reconcilers": CONTROLLERS}, dict.fromkeys(CONTROLLERS, IS_ABSENT), ("head1", "absent")),
    ],
)
def test_which_reconciler_leaves_faulty_gpus_in_service(groups, variables, idle):
    hostvars = {**{name: {} for name in (*CONTROLLERS, "login1", "master1")}, **variables}
    assert fence.idle({"slurm_controllers": CONTROLLERS, **groups}, hostvars) == idle
