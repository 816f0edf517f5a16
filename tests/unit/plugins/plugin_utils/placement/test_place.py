# SPDX-License-Identifier: GPL-3.0-or-later
"""Placement on small clusters, made by hand, whose best answer is plain; and what must hold for any cluster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import fragmentation as placement_fragmentation
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import links as placement_links
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU, Kind
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.place import (
    Cluster,
    Gpu,
    Node,
    Refused,
    Request,
    usual_kinds,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.policies import POLICIES

# NVLinks of a DGX-1 with V100s, by NVIDIA's "DGX-1 With Tesla V100 System Architecture" (hybrid cube mesh).
NVLINKS = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
DGX = placement_links.matrix(
    [
        [
            None if one == other else 100 * NVLINKS[one][other] + (10 if one // 4 != other // 4 else 30)
            for other in range(8)
        ]
        for one in range(8)
    ]
)


def node(name: str, gpus: int, cpus: int = 64, memory: int = 256000, model: str = "a100", **more) -> Node:
    return Node(name, [Gpu(index, model=model) for index in range(gpus)], cpus * 1000, memory, **more)


def used(wanted: Node, *milli: int, cpus: int = 0) -> Node:
    """The node after tasks took so much of its first GPUs."""
    for number, part in enumerate(milli):
        if part:
            wanted.take(Request(milli=part), [number])
    wanted.take(Request(0, cpu=cpus * 1000), [])
    return wanted


def chosen(nodes: list[Node], request: Request, policy: str = "lasting", **more) -> tuple[str, tuple[int, ...]]:
    choice = Cluster(nodes, policy, **more).choose(request)
    return choice.node.name, choice.chosen


def test_a_small_task_leaves_the_empty_node_to_big_ones():
    nodes = [node("empty", 8), used(node("begun", 8), *[1000] * 5)]
    assert chosen(nodes, Request(cpu=8000)) == ("begun", (5,))


def test_a_part_goes_where_it_fits_tightest():
    kinds = {Kind(1000, 1, 500): 1.0, Kind(1000, 1, 1000): 1.0}
    nodes = [used(node("one", 2), 0, 500)]
    assert chosen(nodes, Request(milli=500), counts=kinds) == ("one", (1,))


def test_a_task_without_gpus_spares_the_cpu_that_gpus_need():
    nodes = [node("free", 2, 16), used(node("taken", 2, 16), 1000, 1000)]
    assert chosen(nodes, Request(0, cpu=12000), counts={Kind(8000, 1, 1000): 1.0}) == ("taken", ())


@pytest.mark.parametrize(
    ("policy", "name"),
    [("bundle", "busy"), ("spread", "idle"), ("bestfit", "busy"), ("packing", "busy"), ("dotprod", "busy")],
)
def test_policies_differ_as_they_should(policy, name):
    nodes = [node("idle", 4), used(node("busy", 4), 500, 500, cpus=8), used(node("some", 4), 500)]
    assert chosen(nodes, Request(milli=500, cpu=1000), policy)[0] == name


def test_clustering_prefers_its_own_class():
    nodes = [used(node("whole", 4), 1000), used(node("mixed", 4), 1000, 300), used(node("shared", 4), 300)]
    assert chosen(nodes, Request(milli=300), "clustering")[0] == "shared"


def test_the_fragmentation_of_the_paper_by_hand():
    counts = {Kind(4000, 1, 1000): 2, Kind(2000, 1, 500): 1, Kind(1000, 0, 0): 1}
    fragmentation = placement_fragmentation.Fragmentation(counts)
    # 1.6 GPUs are free. Whole: 600 are too small. Half: all of use. No GPU: all are useless.
    assert fragmentation.of(4000, (600, 1000)) == pytest.approx(0.5 * 600 + 0.25 * 0 + 0.25 * 1600)
    # With 3 CPUs no whole-GPU task runs there.
    assert fragmentation.of(3000, (600, 1000)) == pytest.approx(0.5 * 1600 + 0.25 * 1600)


def test_the_lasting_fragmentation_counts_what_cpu_can_feed():
    counts = {Kind(8000, 1, 1000): 1}
    lasting = placement_fragmentation.Lasting(counts)
    assert lasting.of(32000, (1000,) * 4) == 0
    # 12 CPUs: one task more runs, but CPU is there for one and a half of four GPUs.
    assert lasting.of(12000, (1000,) * 4) == pytest.approx(2500)
    assert lasting.of(7000, (1000,) * 4) == pytest.approx(2 * 4000)


# Of a hundred tasks one takes a whole node; forty share a GPU.
SHARING = {
    Kind(8000, 1, 1000): 45,
    Kind(16000, 1, 1000): 5,
    Kind(4000, 1, 300): 20,
    Kind(8000, 1, 500): 20,
    Kind(4000, 0, 0): 9,
    Kind(64000, 8, 1000): 1,
}


@pytest.mark.parametrize(("used", "cpu"), [(2, 16000), (2, 92000), (3, 20000), (3, 84000), (4, 60000), (4, 80000)])
def test_where_gpus_are_shared_a_whole_node_is_kept_for_who_takes_it_whole(used, cpu):
    """A node in use has room; the empty one is as much as the rare task with eight GPUs needs."""
    part, whole = (Node(name, [Gpu(index) for index in range(8)], 96000, 10**6) for name in ("part", "whole"))
    part.take(Request(used, GPU, 96000 - cpu), range(used))
    assert chosen([whole, part], Request(1, GPU, 8000), counts=SHARING)[0] == "part"


def test_where_none_is_shared_the_weights_are_the_frequencies():
    alone = {kind: count for kind, count in SHARING.items() if kind.milli in (0, GPU)}
    assert placement_fragmentation._by_size(alone) == alone
    weights = placement_fragmentation._by_size(SHARING)
    assert weights[Kind(4000, 0, 0)] == 9
    assert weights[Kind(8000, 1, 1000)] == 45
    assert weights[Kind(4000, 1, 300)] < 20
    assert weights[Kind(64000, 8, 1000)] > 1


@pytest.mark.parametrize(
    ("free", "count", "best"),
    [
        (range(8), 2, {(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)}),
        (range(8), 4, {(0, 1, 2, 3), (4, 5, 6, 7)}),
        ((0, 1, 5), 2, {(1, 5)}),
        ((0, 5, 6), 2, {(5, 6)}),
    ],
)
def test_the_best_linked_gpus_are_chosen(free, count, best):
    assert placement_links.best_set(DGX, tuple(free), count) in best


def test_equal_sets_leave_the_better_rest():
    scores = placement_links.matrix([[None, 1, 1, 0], [1, None, 0, 0], [1, 0, None, 1], [0, 0, 1, None]])
    # 0-1, 0-2 and 2-3 are equal; taking 0-2 would leave 1 and 3, which are not linked.
    assert placement_links.best_set(scores, (0, 1, 2, 3), 2) == (0, 1)
    scores = placement_links.matrix([[None, 1, 1, 0], [1, None, 1, 1], [1, 1, None, 0], [0, 1, 0, None]])
    # 0-1 comes first, but leaves 2 and 3 without a link; 0-2 leaves 1-3.
    assert placement_links.best_set(scores, (0, 1, 2, 3), 2) == (0, 2)


def test_no_set_is_linked_well_enough():
    assert placement_links.best_set(DGX, (0, 5), 2, weakest=100) is None
    with pytest.raises(Refused, match="not linked well enough: 1"):
        Cluster([used(node("dgx", 8, scores=DGX), 0, *[1000] * 4, 0, 1000, 1000)]).choose(Request(2, weakest_pair=100))


def test_a_refusal_counts_nodes_by_condition():
    nodes = [
        node("small", 8, cpus=4),
        node("other", 8, model="tesla-t4"),
        used(node("full", 8), *[1000] * 8),
        node("none", 0),
        node("closed", 8, excluded="excluded by name"),
        Node("sick", [Gpu(0, model="a100", excluded="health fatal")] * 4, 64000, 256000),
        Node("unasked", [Gpu(index, model="a100") for index in range(4)], None, None),
    ]
    with pytest.raises(Refused) as refused:
        Cluster(nodes).choose(Request(4, cpu=8000, memory_mib=1000, models=("a1*",)))
    assert refused.value.excluded == {
        "not enough free CPU": 1,
        "too few GPUs of that kind": 1,
        "too few GPUs free": 1,
        "no GPU": 1,
        "excluded by name": 1,
        "GPUs excluded (health fatal)": 1,
        "free CPU not known": 1,
        "free memory not known": 1,
    }


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (Request(-1), "gpus is -1"),
        (Request(1, 0), "0/1000"),
        (Request(1, 1500), "1500/1000"),
        (Request(2, 500), "a part is of one GPU"),
        (Request(cpu=-1), "cpu is -1"),
    ],
)
def test_a_wrong_request_is_no_refusal(request_, problem):
    with pytest.raises(ValueError, match=problem):
        Cluster([node("one", 8)]).choose(request_)


def test_a_choice_says_why():
    nodes = [node("idle", 8, scores=DGX), used(node("busy", 8, scores=DGX), 1000, 1000)]
    choice = Cluster([*nodes, node("tiny", 1)]).choose(Request(2))
    text = "\n".join(choice.reasons)
    assert "2 of 3 nodes fit; too few GPUs: 1" in text
    assert f"on {choice.node.name}" in text
    assert "next best is" in text
    assert "are the best linked of" in text


def test_a_task_that_ended_makes_room():
    cluster = Cluster([node("one", 1)])
    request = Request(1, cpu=1000)
    found, gpus = cluster.find(request) or pytest.fail("it does not fit")
    cluster.start(found, request, gpus)
    assert cluster.find(request) is None
    cluster.end(found, request, gpus)
    assert cluster.find(request) == (found, gpus)
    with pytest.raises(ValueError, match="1000 free"):
        cluster.end(found, request, gpus)


def test_usual_kinds_are_of_the_nodes():
    assert usual_kinds([node("a", 4, 32), node("b", 2, 16)]) == {
        Kind(8000, 1, 1000): 1,
        Kind(16000, 2, 1000): 1 / 2,
        Kind(32000, 4, 1000): 1 / 4,
    }


GPUS = st.builds(
    Gpu,
    st.integers(0, 9),
    model=st.sampled_from(["a100", "t4"]),
    excluded=st.sampled_from(["", "", "", "health fatal", "in MIG mode"]),
)
SHAPES = st.lists(st.tuples(st.lists(GPUS, max_size=4), st.integers(0, 32000), st.integers(0, 9000)), max_size=5)
REQUESTS = st.tuples(st.integers(0, 4), st.integers(1, 999), st.integers(0, 9000), st.integers(0, 3000)).map(
    # Of those with one GPU, half want a part of one, of a certain model.
    lambda drawn: (
        Request(1, drawn[1], drawn[2], drawn[3], ("a1*",))
        if drawn[0] == 1 and drawn[1] % 2
        else Request(drawn[0], 1000, drawn[2], drawn[3])
    )
)
# Requests, and now and then the end of one of the tasks that run.
STEPS = st.lists(st.one_of(REQUESTS, st.integers(0, 99)), max_size=20)


def play(shapes, steps, policy) -> list:
    """Where each request goes; the conditions that hold after every step are checked by the way."""
    nodes = [Node(f"n{number}", gpus, cpu, memory) for number, (gpus, cpu, memory) in enumerate(shapes)]
    cluster, running, went = Cluster(nodes, policy, seed=7), [], []
    for step in steps:
        if isinstance(step, int):
            if running:
                cluster.end(*running.pop(step % len(running)))
            continue
        found = cluster.find(step)
        went.append(found and (found[0].name, found[1]))
        if found is None:
            assert not any(fits(other, step) for other in nodes)
            continue
        where, gpus = found
        assert len(set(gpus)) == step.gpus
        assert not any(where.gpus[number].excluded for number in gpus)
        assert all(step.allows(where.gpus[number]) for number in gpus)
        cluster.start(where, step, gpus)
        running.append((where, step, gpus))
        held(nodes, shapes, running)
    return went


def fits(where: Node, request: Request) -> bool:
    """Whether there is room, worked out without the product."""
    room = [
        gpu
        for gpu, free in zip(where.gpus, where.free, strict=True)
        if not gpu.excluded and free >= request.milli and (not request.models or gpu.model == "a100")
    ]
    return where.cpu >= request.cpu and where.memory_mib >= request.memory_mib and len(room) >= request.gpus


def held(nodes, shapes, running) -> None:
    """No node has given more than it had."""
    for where, (gpus, cpu, memory) in zip(nodes, shapes, strict=True):
        tasks = [(request, places) for other, request, places in running if other is where]
        assert sum(request.cpu for request, _places in tasks) == cpu - where.cpu <= cpu
        assert sum(request.memory_mib for request, _places in tasks) <= memory
        for number in range(len(gpus)):
            assert sum(request.milli for request, places in tasks if number in places) <= 1000


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(shapes=SHAPES, steps=STEPS)
def test_nothing_is_given_twice_and_the_same_input_gives_the_same_answer(policy, shapes, steps):
    assert play(shapes, steps, policy) == play(shapes, steps, policy)


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, steps=STEPS, request_=REQUESTS)
def test_what_is_remembered_is_what_a_fresh_look_says(shapes, steps, request_):
    nodes = [Node(f"n{number}", *shape) for number, shape in enumerate(shapes)]
    cluster = Cluster(nodes, "lasting", {Kind(2000, 1, 1000): 1.0, Kind(500, 1, 300): 1.0})
    for step in steps:
        found = None if isinstance(step, int) else cluster.find(step)
        if found:
            cluster.start(found[0], step, found[1])
        fresh = Cluster(nodes, "lasting", {Kind(2000, 1, 1000): 1.0, Kind(500, 1, 300): 1.0})
        assert cluster.find(request_) == fresh.find(request_)
