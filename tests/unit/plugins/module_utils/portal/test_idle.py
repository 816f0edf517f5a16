# SPDX-License-Identifier: GPL-3.0-or-later
"""Which sessions are stopped, over made-up traces whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import idle
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.idle import KEEP, STOP, WARN1, WARN2, Policy, Reading

POLICY = Policy(window_s=600, first_warning_s=300, last_warning_s=150, spared_s=0)
TRACES = 10_000
# Of a portal that looks every half a minute or more often, a session that is idle is seen to be within two looks.
PERIOD_S, LATE_S = 30, 60


def run(readings: list[Reading], policy: Policy = POLICY, started: float = 0.0) -> list[str]:
    """The decision after each reading."""
    state, found = idle.begin(started, started), []
    for reading in readings:
        state = idle.decide(state, reading, policy)
        found.append(state.level)
    return found


def quiet(times: range) -> list[Reading]:
    return [Reading(float(time)) for time in times]


def test_a_session_that_nobody_uses_is_warned_twice_and_stopped_after_the_window() -> None:
    readings = quiet(range(30, 700, 30))
    told = dict(zip((int(one.time) for one in readings), run(readings), strict=True))
    # The first look counts as use: what went through a kernel before is not known.
    assert [told[at] for at in (300, 330, 480, 600, 630)] == [KEEP, WARN1, WARN2, WARN2, STOP]


@pytest.mark.parametrize(
    "used",
    [
        {"gpu_ratio": 0.03},
        {"cores": 0.5},
        {"kernel_busy": True},
        {"traffic": 5000.0},
        {"kernel_busy": True, "gpu_ratio": None, "cores": None, "traffic": None},
    ],
)
def test_each_kind_of_use_keeps_it(used: dict[str, float | bool | None]) -> None:
    assert set(run([replace(one, **used) for one in quiet(range(30, 7200, 30))])) == {KEEP}


@pytest.mark.parametrize("where", ["kernel_at", "terminal_at"])
def test_a_cell_or_a_command_now_and_then_keeps_it_by_whatever_clock(where: str) -> None:
    def reading(time: int) -> Reading:
        # The clock of the session is a day behind, and something goes through every four minutes.
        return Reading(float(time), **{where: time // 240 * 240 - 86400.0})

    assert set(run([reading(time) for time in range(30, 7200, 30)])) <= {KEEP}


def test_an_open_page_and_an_open_connection_are_no_use() -> None:
    """What they send to stay open is all that moves."""
    assert run([replace(one, traffic=50.0, cores=0.02) for one in quiet(range(30, 700, 30))])[-1] == STOP


@pytest.mark.parametrize("unknown", ["gpu_ratio", "cores", "kernel_busy", "kernel_at", "terminal_at", "traffic"])
def test_nobody_is_stopped_for_what_is_not_known(unknown: str) -> None:
    assert set(run([replace(one, **{unknown: None}) for one in quiet(range(30, 7200, 30))])) == {KEEP}


def test_a_time_in_which_nobody_looked_is_not_idle() -> None:
    assert run([Reading(30.0), Reading(60.0), Reading(9000.0), Reading(9030.0)])[-1] == KEEP


def test_a_clock_that_jumps_stops_nobody() -> None:
    readings = [*quiet(range(30, 300, 30)), Reading(-5000.0), Reading(1e9), Reading(1e9 + 30)]
    assert set(run(readings)) == {KEEP}


def test_nothing_is_stopped_soon_after_its_start() -> None:
    policy = replace(POLICY, spared_s=1800)
    readings = quiet(range(30, 2000, 30))
    told = dict(zip((int(one.time) for one in readings), run(readings, policy), strict=True))
    assert told[1470] == KEEP
    assert told[1770] == WARN2
    assert told[1800] == STOP


def test_a_click_gives_the_whole_window_again() -> None:
    state = idle.begin(0, 0)
    for reading in quiet(range(30, 570, 30)):
        state = idle.decide(state, reading, POLICY)
    assert state.level == WARN2
    state = idle.extend(state)
    levels = []
    for reading in quiet(range(570, 1200, 30)):
        state = idle.decide(state, reading, POLICY)
        levels.append(state.level)
    assert levels[0] == KEEP
    # 540 was the last look before the click.
    assert levels.index(STOP) == (540 + 600 - 570) // 30


def test_the_longest_window_of_a_users_groups_counts() -> None:
    long, short = Policy(window_s=9000), Policy(window_s=3000)
    by_group = {"lab": long, "course": short, "service": None}
    assert idle.policy_of(["course", "lab"], by_group, POLICY) is long
    assert idle.policy_of(["staff"], by_group, POLICY) is POLICY
    assert idle.policy_of(["course", "service"], by_group, POLICY) is None


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (POLICY, ""),
        (Policy(), ""),
        (replace(POLICY, first_warning_s=700), "within the window"),
        (replace(POLICY, last_warning_s=400), "within the window"),
        (replace(POLICY, last_warning_s=30), "at least 120 s"),
        (replace(POLICY, spared_s=-1), "not negative"),
    ],
)
def test_a_policy_that_cannot_warn_is_told(policy: Policy, why: str) -> None:
    told = idle.wrong(policy)
    assert why in told
    assert bool(why) == bool(told)


# --- generated traces ------------------------------------------------------------------------------------------------

PARTS = ("gpu_ratio", "cores", "kernel_busy", "kernel_at", "terminal_at", "traffic")
KINDS = ("gpu", "cpu", "silent kernel", "cells", "terminal", "rsync")


@dataclass
class Trace:
    """A session: what was done in it when (kind, from, to), and the readings that a portal takes of it."""

    policy: Policy
    used: list[tuple[str, float, float]]
    readings: Iterator[Reading]

    def used_last(self, before: float) -> float:
        return max((min(end, before) for _kind, start, end in self.used if start < before), default=0.0)


def trace(number: int) -> Trace:
    """Spells of use of all kinds with pauses between, in which somebody may only have a page or connection open.

    Readings are partly unknown, or not there for minutes; the clock of the session is its own.
    """
    chance = random.Random(number)
    window = chance.uniform(600, 2400)
    first = chance.uniform(0.3, 0.8) * window
    policy = Policy(window, first, max(120.0, chance.uniform(0.3, 0.9) * first), chance.choice((0.0, 900.0, 1800.0)))
    used, time = [], 0.0
    for _spell in range(chance.randint(0, 4)):
        time += chance.uniform(0, 1.1 * window)
        end = time + chance.expovariate(1 / (0.4 * window))
        used.append((chance.choice(KINDS), time, end))
        time = end
    return Trace(policy, used, _readings(chance, used, time + 4 * window + 4000))


def _readings(chance: random.Random, used: list[tuple[str, float, float]], end: float) -> Iterator[Reading]:
    period, skew, flaky = chance.uniform(10, 28), chance.uniform(-1e5, 1e5), chance.random() < 0.2
    before, time = 0.0, 0.0
    kernel_at, terminal_at = skew, skew
    while time < end:
        time += period * chance.uniform(0.9, 1.05)
        if flaky and chance.random() < 0.01:
            time += chance.uniform(0, 900)
        kinds = {kind for kind, start, stop in used if start < time and stop > before}
        # A cell ran, or a key was pressed, within the time. One that computes without output is told of at both ends.
        turned = any(
            kind == "silent kernel" and (before < start < time or before < stop < time) for kind, start, stop in used
        )
        kernel_at = time - 1 + skew if "cells" in kinds or turned else kernel_at
        terminal_at = time - 1 + skew if "terminal" in kinds else terminal_at
        noise = chance.random()
        reading = Reading(
            time,
            gpu_ratio=0.05 + noise * 0.9 if "gpu" in kinds else noise * 0.01,
            cores=0.5 + noise * 8 if kinds & {"cpu", "gpu"} else noise * 0.05,
            kernel_busy=any(kind == "silent kernel" and start < time < stop for kind, start, stop in used),
            kernel_at=kernel_at,
            terminal_at=terminal_at,
            # An editor that is open keeps its connection.
            traffic=1e4 + noise * 1e7 if "rsync" in kinds else noise * 100,
        )
        if flaky and chance.random() < 0.02:
            reading = replace(reading, **{chance.choice(PARTS): None})
        yield reading
        before = time


def judged(one: Trace) -> tuple[list[str], float | None, float]:
    """The decisions until the stop, when that came, and for how long before it nobody knew, since the last use."""
    state, levels, unknown = idle.begin(0.0, 0.0), [], 0.0
    for reading in one.readings:
        passed, in_use = reading.time - state.time, one.used_last(reading.time) > state.time
        state = idle.decide(state, reading, one.policy)
        levels.append(state.level)
        if in_use:
            unknown = 0.0
        if passed > PERIOD_S or None in (getattr(reading, part) for part in PARTS):
            unknown += passed
        if state.level == STOP:
            return levels, reading.time, unknown
    return levels, None, unknown


def test_of_generated_traces_none_is_stopped_in_use_and_each_that_is_left_is_stopped_in_time() -> None:
    false, late, unwarned, before_more = [], [], [], 0
    for number in range(TRACES):
        one = trace(number)
        levels, at, unknown = judged(one)
        last = one.used_last(at if at is not None else float("inf"))
        due = max(last + one.policy.window_s, one.policy.spared_s)
        if at is None or at > due + unknown + LATE_S:
            late.append((number, at, last))
        elif at < due:
            false.append((number, at, last))
        elif not {WARN1, WARN2} <= set(levels):
            unwarned.append(number)
        before_more += at is not None and any(start > at for _kind, start, _end in one.used)
    assert false == []
    assert late == []
    assert unwarned == []
    # Pauses are long enough that it is not always the end that was found.
    assert before_more > TRACES / 100


@pytest.mark.parametrize("minutes", [10, 11, 30, 60, 120, 10_080])
def test_every_window_that_may_be_set_has_two_warnings_in_time(minutes: int) -> None:
    made = idle.policy_for(minutes, 30)
    assert made is not None
    assert idle.wrong(made) == ""
    assert (made.window_s, made.spared_s) == (60.0 * minutes, 1800.0)


def test_an_hour_has_the_warnings_that_people_know_and_none_never_ends() -> None:
    assert idle.policy_for(60, 30) == Policy()
    assert idle.policy_for(0, 30) is None


def test_how_long_is_left_is_told_from_the_last_reading_on() -> None:
    state = idle.begin(0.0, 0.0)
    for reading in quiet(range(30, 331, 30)):
        state = idle.decide(state, reading, POLICY)
    assert idle.left(state, POLICY) == 300.0
    assert idle.left(state, replace(POLICY, spared_s=1000.0)) == 670.0
