# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a session is idle: a decision over what is read of it, made without a clock or a machine.

A session is used while its GPUs or cores compute, a kernel is busy (with or without output), or something goes through
a kernel, a terminal, SSH or rsync. An open page or an open connection in which nothing moves is no use. What is not
known neither counts as use nor as idleness, and nor does a time for which nothing was read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

KEEP, WARN1, WARN2, STOP = "keep", "warn1", "warn2", "stop"
LEVELS = (KEEP, WARN1, WARN2, STOP)


@dataclass(frozen=True)
class Policy:
    """When a session is stopped. Times in seconds.

    :ivar window_s: how long it has to be idle.
    :ivar first_warning_s: how long before the stop its user is warned, and `last_warning_s` a second time.
    :ivar spared_s: for how long after its start it is never stopped.
    :ivar gpu_ratio: what use of its busiest GPU counts, from 0 to 1; `cores` the same for its processors.
    :ivar traffic: how many bytes a second through SSH count. Connections that are only kept open have less.
    :ivar gap_s: of a longer time between two readings nobody knows what happened.
    """

    window_s: float = 3600.0
    first_warning_s: float = 1200.0
    last_warning_s: float = 300.0
    spared_s: float = 1800.0
    gpu_ratio: float = 0.02
    cores: float = 0.1
    traffic: float = 200.0
    gap_s: float = 120.0


@dataclass(frozen=True)
class Reading:
    """What is known of a session at a time; None for what is not.

    :ivar gpu_ratio: the most that one of its GPUs was used since the last reading; `cores` how many were busy.
    :ivar kernel_busy: whether a kernel computes.
    :ivar kernel_at: when something last went through a kernel, and `terminal_at` through a terminal, by the clock of
        the session. Only whether they change is looked at, so that no clock has to be right.
    :ivar traffic: bytes a second through SSH, rsync and forwarded ports since the last reading.
    """

    time: float
    gpu_ratio: float | None = 0.0
    cores: float | None = 0.0
    kernel_busy: bool | None = False
    kernel_at: float | None = 0.0
    terminal_at: float | None = 0.0
    traffic: float | None = 0.0


@dataclass(frozen=True)
class State:
    """What is kept of a session between two readings.

    :ivar idle_s: for how long it is known to be idle.
    :ivar level: the last decision.
    """

    started: float
    time: float
    idle_s: float = 0.0
    level: str = KEEP
    kernel_at: float | None = None
    terminal_at: float | None = None


def begin(started: float, time: float) -> State:
    """The state of a session that is looked at for the first time, perhaps long after its start."""
    return State(started, time)


def extend(state: State) -> State:
    """Its user has asked for more time: the window begins anew."""
    return replace(state, idle_s=0.0, level=KEEP)


def is_used(state: State, reading: Reading, policy: Policy) -> bool | None:
    """Whether it was used since the last reading; None where that is not known."""
    signs = (
        None if reading.gpu_ratio is None else reading.gpu_ratio >= policy.gpu_ratio,
        None if reading.cores is None else reading.cores >= policy.cores,
        reading.kernel_busy,
        None if reading.kernel_at is None else reading.kernel_at != state.kernel_at,
        None if reading.terminal_at is None else reading.terminal_at != state.terminal_at,
        None if reading.traffic is None else reading.traffic >= policy.traffic,
    )
    if any(signs):
        return True
    return None if None in signs else False


def decide(state: State, reading: Reading, policy: Policy) -> State:
    """The state after a reading; `level` says what is to be done now.

    No level is left out: nobody is stopped who was not warned twice.
    """
    passed = reading.time - state.time
    used = is_used(state, reading, policy)
    idle_s = state.idle_s
    if used:
        idle_s = 0.0
    elif used is False and 0 < passed <= policy.gap_s:
        idle_s += passed
    left_s = _left(idle_s, state.started, reading.time, policy)
    if left_s <= 0:
        due = STOP
    elif left_s <= policy.last_warning_s:
        due = WARN2
    else:
        due = WARN1 if left_s <= policy.first_warning_s else KEEP
    level = LEVELS[min(LEVELS.index(due), LEVELS.index(state.level) + 1)]
    return State(
        state.started,
        reading.time,
        idle_s,
        level,
        state.kernel_at if reading.kernel_at is None else reading.kernel_at,
        state.terminal_at if reading.terminal_at is None else reading.terminal_at,
    )


def left(state: State, policy: Policy) -> float:
    """In how many seconds it is stopped if nobody uses it, from the last reading on."""
    return _left(state.idle_s, state.started, state.time, policy)


def _left(idle_s: float, started: float, time: float, policy: Policy) -> float:
    return max(policy.window_s - idle_s, started + policy.spared_s - time)


def policy_for(minutes: int, spared_minutes: int) -> Policy | None:
    """The policy that stops a session after so many minutes; None for 0, which stops none.

    The warnings of a short window come later, so that they still say something.
    """
    if not minutes:
        return None
    window_s = 60.0 * minutes
    last_s = max(Policy.gap_s, min(Policy.last_warning_s, window_s / 12))
    return Policy(
        window_s=window_s,
        first_warning_s=min(Policy.first_warning_s, window_s / 3),
        last_warning_s=last_s,
        spared_s=60.0 * spared_minutes,
    )


def policy_of(groups: Iterable[str], by_group: Mapping[str, Policy | None], default: Policy | None) -> Policy | None:
    """The policy for a user of these groups: of those that are his, the one with the longest window.

    :param by_group: None for a group whose sessions are never stopped.
    """
    own = [by_group[group] for group in groups if group in by_group]
    if not own:
        return default
    return None if None in own else max((one for one in own if one), key=lambda one: one.window_s)


def wrong(policy: Policy) -> str:
    """Why sessions cannot be judged by a policy; empty where they can."""
    if not 0 < policy.last_warning_s < policy.first_warning_s < policy.window_s:
        return "the second warning comes after the first one, and both within the window"
    if policy.last_warning_s < policy.gap_s:
        return f"the second warning comes at least {policy.gap_s:g} s before the stop"
    if policy.spared_s < 0:
        return "the time after a start in which nothing is stopped is not negative"
    return ""
