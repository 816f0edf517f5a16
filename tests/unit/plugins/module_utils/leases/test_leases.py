# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has which GPU, from the jobs of Slurm and the tasks of Mesos, which are made up here."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.leases import mesos, slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import Lease

UUIDS = {"n1": {0: "GPU-a", 3: "GPU-b"}}


def job(*minors: int | None, node: str = "n1", **more: Any) -> dict[str, Any]:
    return {
        "id": "7",
        "name": "train",
        "user": "alice",
        "started": 100.0,
        "ends": 200.0,
        "waits": False,
        "holder": False,
        "nodes": [{"name": node, "minors": list(minors)}],
        **more,
    }


def test_a_job_has_the_gpus_that_its_node_tells_by_their_minors() -> None:
    assert slurm.leases([job(3, 0)], UUIDS) == [
        Lease("slurm", "7", "train", "alice", "n1", ("GPU-b", "GPU-a"), 100.0, 200.0)
    ]


def test_what_nobody_has_told_stays_unknown() -> None:
    (one,) = slurm.leases([job(0, None, 5)], UUIDS)
    assert one.gpus == ("GPU-a", None, None)
    (other,) = slurm.leases([job(0, node="n2", ends=None)], UUIDS)
    assert (other.gpus, other.expected_end) == ((None,), None)


def test_a_job_on_two_nodes_has_two_leases() -> None:
    two = job(nodes=[{"name": "n1", "minors": [0]}, {"name": "n2", "minors": [1]}])
    assert [(one.host, one.gpus) for one in slurm.leases([two], UUIDS)] == [("n1", ("GPU-a",)), ("n2", (None,))]


def test_a_holder_a_job_that_waits_and_one_without_gpus_have_no_lease() -> None:
    assert slurm.leases([job(0, holder=True), job(0, waits=True), job()], UUIDS) == []


def test_a_task_of_mesos_has_as_many_gpus_as_it_holds_and_nobody_knows_which() -> None:
    tasks = [
        {"id": "t.1", "name": "train", "agent_id": "A1", "resources": {"gpus": 2.0}},
        {"id": "t.2", "name": "web", "agent_id": "A1", "resources": {"cpus": 1}},
        {"id": "t.3", "name": "lost", "agent_id": "A9", "resources": {"gpus": 1}},
    ]
    assert mesos.leases(tasks, {"A1": "g1"}) == [Lease("mesos", "t.1", "train", None, "g1", (None, None), None, None)]
