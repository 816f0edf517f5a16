# SPDX-License-Identifier: GPL-3.0-or-later
"""The harness of the benchmarks: what it makes of samples. The samples are made up; nothing is timed."""

from __future__ import annotations

import pytest

from tests.bench import harness
from tests.bench.harness import Sample
from tests.unit.project.tree import try_run


def samples(*cpu: float) -> list[tuple[Sample, Sample]]:
    """Pairs whose first side needs so much CPU and whose second side needs 1 s; memory is 300 and 100 MiB."""
    return [(Sample(value, 300.0, ""), Sample(1.0, 100.0, "")) for value in cpu]


@pytest.mark.parametrize(
    ("cpu", "control", "verdict"),
    [
        ((22, 23, 24), (1.0, 1.0), "yes"),
        ((17, 18, 19), (1.0, 1.0), "no"),
        ((19, 20, 21), (1.0, 1.0), "inconclusive"),
        ((22, 23, 24), (1.5,), "inconclusive"),
        ((22, 23, 24), (0.5,), "inconclusive"),
        ((80, 90, 95), (1.5,), "yes"),
    ],
)
def test_a_goal_is_reached_only_beyond_the_noise(cpu, control, verdict):
    goals = {"cpu_s": 20.0, "memory_mib": None}
    rows = harness.compare("x", samples(*cpu), goals, samples(*control))
    assert [(row.quantity, row.verdict) for row in rows] == [("CPU", verdict), ("memory", "")]


def test_what_both_sides_need_to_start_can_be_taken_off():
    (cpu, memory) = harness.compare("x", samples(10.9), {}, less=Sample(0.9, 50.0, ""))
    assert cpu.ratio == pytest.approx(100.0)
    assert (memory.baseline, memory.ours, memory.ratio) == (250.0, 50.0, 5.0)


def test_sides_take_turns_at_going_first():
    order = []

    def side(name):
        def run():
            order.append(name)
            return Sample(1.0, 1.0, name)

        return run

    pairs = harness.paired(side("a"), side("b"), 3, [side("warm")])
    assert order == ["warm", "a", "b", "b", "a", "a", "b"]
    assert [(first.outcome, second.outcome) for first, second in pairs] == [("a", "b")] * 3


def test_the_interval_holds_the_median_and_leaves_out_a_stray_pair():
    middle, low, high = harness.interval([10, 10, 11, 11, 10, 11, 90])
    assert middle == 11
    assert low == 10
    assert high < 90


def test_a_benchmark_that_there_is_not_is_named(tmp_path):
    done = try_run([harness.sys.executable, "-m", "tests.bench", "inventori"])
    assert done.returncode == 2
    assert "there is no benchmark inventori; there are " in done.stderr


@pytest.mark.parametrize(("worst", "goal", "verdict"), [(0.19, 0.2, "yes"), (0.21, 0.2, "no"), (9.0, None, "")])
def test_what_has_no_baseline_is_judged_by_its_worst(worst, goal, verdict):
    assert harness.Figure("x", "wall", "s", 0.02, worst, 100, goal).verdict == verdict


def test_a_ratio_below_one_keeps_what_counts():
    row = harness.Comparison("x", "wall", "s", 1.0, 50.0, 0.0213, 0.019, 12.34, 5)
    assert harness.cells(row)[4] == "0.021 (0.019 to 12.3, n=5)"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0123456, "0.0123"), (0.9, "0.900"), (41.15, "41.1"), (1234.5, "1,234"), (0, "0"), (-0.5, "-0.500")],
)
def test_numbers_have_three_digits_that_count(value, shown):
    assert harness.cells(harness.Figure("x", "wall", "s", value, value, 1))[2] == f"{shown} s"
