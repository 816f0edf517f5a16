# SPDX-License-Identifier: GPL-3.0-or-later
"""Every sample comes once in each epoch, whoever computes it, and wherever a run is cut and continued."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.roles.training_programs import program

sampler = program("sampler")

SIZES = st.tuples(st.integers(1, 300), st.integers(1, 64), st.integers(1, 64)).filter(lambda row: row[2] <= row[1])


@given(SIZES, st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 1000))
def test_each_epoch_has_every_sample_once_with_any_number_of_processes(
    sizes: tuple[int, int, int], processes: list[int], seed: int
) -> None:
    samples, batch, micro_batch = sizes
    one = sampler.Sampler(samples, batch, micro_batch, seed)
    for epoch in (0, 3):
        seen = []
        for number in range(one.steps_per_epoch):
            step = epoch * one.steps_per_epoch + number
            # The number of processes may change at any step.
            world = processes[number % len(processes)]
            seen += [index for rank in range(world) for _number, part in one.share(step, rank, world) for index in part]
        assert sorted(seen) == list(range(samples))


@given(SIZES, st.integers(0, 2000), st.integers(1, 9), st.integers(0, 1000))
def test_a_step_is_the_same_after_a_new_start_and_its_micro_batches_with_any_number_of_processes(
    sizes: tuple[int, int, int], step: int, processes: int, seed: int
) -> None:
    running = sampler.Sampler(*sizes, seed)
    for before in range(max(0, step - 3), step):
        running.batch(before)
    fresh = sampler.Sampler(*sizes, seed)
    assert running.batch(step) == fresh.batch(step)
    dealt = sorted(part for rank in range(processes) for part in fresh.share(step, rank, processes))
    assert dealt == fresh.share(step, 0, 1)
    assert all(len(indices) <= sizes[2] for _number, indices in dealt)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    one = sampler.Sampler(100, 100, 10, 1)
    assert len({tuple(one.batch(step)) for step in range(5)}) == 5
    assert one.batch(0) != sampler.Sampler(100, 100, 10, 2).batch(0)
    # What another release of Python must not change either.
    assert sampler.Sampler(10, 5, 5, 1).batch(0) == [2, 6, 8, 5, 4]
    assert sampler.seed_of(1, 2, 3) == 63003607247023404


@pytest.mark.parametrize("sizes", [(0, 1, 1), (10, 0, 0), (10, 4, 5), (10, 4, 0)])
def test_sizes_that_cannot_be_are_refused(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="micro-batches"):
        sampler.Sampler(*sizes, 1)
