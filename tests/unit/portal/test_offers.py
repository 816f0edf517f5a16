# SPDX-License-Identifier: GPL-3.0-or-later
"""What is free, and whether a session would start at once; nodes and jobs are made up here."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import slurm_backend
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from baremetal_gpu_portal import offers
from baremetal_gpu_portal.offers import NEVER, NOW, PERHAPS, WAITS, Offer

REQUEST = Request(2, "a100", 8, 64, 12, "default")


def node(name: str = "n1", used: int = 0, gres: str = "gpu:a100:4", **more: Any) -> dict[str, Any]:
    row = {
        "name": name,
        "state": "DOWN",
        "reason": "",
        "reason_by": "",
        "reason_since": "",
        "gres": gres,
        "gpus": 4,
        "gpus_used": used,
        "cpus": 32,
        "free_cpus": 32,
        "memory_mib": 256 << 10,
        "free_memory_mib": 256 << 10,
        "partitions": ["batch"],
        "in_service": True,
        "drained": False,
        **more,
    }
    return slurm_backend.node(row)


def job(count: int = 2, node: str = "n1", ends: float | None = 2000.0, **more: Any) -> dict[str, Any]:
    nodes = [] if more.get("waits") else [{"name": node, "minors": [None] * count}]
    row = {"waits": False, "reason": "", "holder": False, "partition": "batch", "nodes": nodes, "ends": ends, **more}
    return slurm_backend.job(row)


def ask(nodes: list[dict[str, Any]], jobs: tuple[dict[str, Any], ...] = (), request: Request = REQUEST) -> Any:
    return offers.forecast(request, nodes, jobs, 1000.0)


def test_a_model_has_what_is_free_of_it_and_the_most_on_one_node() -> None:
    nodes = [
        node(used=3),
        node("n2", used=1),
        node("n3", gres="gpu:h100:8"),
        node("n4", drained=True),
        node("n5", gres=""),
    ]
    assert offers.offers(nodes) == [Offer("a100", 4, 12, 3, 4), Offer("h100", 8, 8, 8, 8)]


def test_of_a_node_with_two_models_no_more_are_promised_than_are_surely_free() -> None:
    assert offers.free_gpus(node(gres="gpu:a100:2,gpu:t4:2", used=1), "a100") == 1
    assert offers.free_gpus(node(gres="gpu:a100:2,gpu:t4:2", used=1)) == 3


def test_with_room_and_nobody_before_it_starts_at_once() -> None:
    answer = ask([node(used=1), node("n2", used=4)])
    assert (answer.answer, answer.text) == (NOW, "It starts at once: 1 of 2 nodes has room for it.")


def test_without_gpus_only_cores_and_memory_count() -> None:
    assert ask([node(used=4)], request=Request(0, "", 8, 64, 1, "x")).answer == NOW


def test_who_waited_before_may_come_first() -> None:
    waiting = job(waits=True, reason="Priority")
    assert ask([node()], (waiting,)).answer == PERHAPS
    assert "1 job waited" in ask([node()], (waiting,)).text


@pytest.mark.parametrize(
    "other", [job(waits=True, reason="Dependency"), job(waits=True, reason="Resources", partition="x")]
)
def test_a_job_that_is_in_nobodys_way_does_not_count(other: dict[str, Any]) -> None:
    assert ask([node()], (other,)).answer == NOW


def test_it_waits_until_enough_gpus_of_one_node_are_back_at_the_latest() -> None:
    jobs = (job(1, ends=5000.0), job(1, ends=3000.0), job(2, ends=9000.0), job(4, "n2", ends=4000.0))
    answer = ask([node(used=4), node("n2", used=4)], jobs)
    assert (answer.answer, answer.at) == (WAITS, 4000.0)
    assert answer.text == "It waits for 2 GPUs a100: 0 are free, and not as many on one node."
    assert ask([node(used=4)], jobs).at == 5000.0


def test_of_jobs_without_an_end_nobody_knows_when() -> None:
    assert ask([node(used=4)], (job(4, ends=None),)).at is None


def test_a_gpu_that_is_held_out_of_service_does_not_come_back() -> None:
    assert ask([node(used=4)], (job(4, ends=2000.0, holder=True),)).at is None


def test_it_waits_for_cores_where_gpus_are_free() -> None:
    assert "cores or memory" in ask([node(free_cpus=4)]).text


def test_nodes_out_of_service_are_waited_for() -> None:
    answer = ask([node(in_service=False)])
    assert (answer.answer, "1 node that could run it is out of service" in answer.text) == (WAITS, True)


@pytest.mark.parametrize(
    "request_",
    [Request(5, "a100", 1, 1), Request(1, "v100", 1, 1), Request(1, "", 33, 1), Request(1, "", 1, 257)],
)
def test_what_no_node_has_is_said_before_anybody_waits(request_: Request) -> None:
    answer = ask([node(), node("n2")], request=request_)
    assert answer.answer == NEVER
    assert "4 GPUs, 32 cores and 256 GiB" in answer.text


def test_nodes_of_another_partition_do_not_count() -> None:
    assert offers.in_partition([node(), node("n2", partitions=["test"])], "test")[0]["name"] == "n2"
    assert ask(list(offers.in_partition([node()], "test"))).text.endswith("The partition has no nodes.")
