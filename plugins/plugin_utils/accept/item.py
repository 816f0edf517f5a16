# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An item of an acceptance: one thing that was looked at on one host, and what came of it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

PASS, FAIL, NOT_APPLICABLE, NOT_TESTABLE = "pass", "fail", "not_applicable", "not_testable"
OUTCOMES = (PASS, FAIL, NOT_APPLICABLE, NOT_TESTABLE)
NODE, GPU, NETWORK, STORAGE = "node", "gpu", "network", "storage"
SCHEDULER, SERVICES, AUDIT = "scheduler", "services", "audit"
STAGES = (NODE, GPU, NETWORK, STORAGE, SCHEDULER, SERVICES)
# What runs programs of others runs only where it is asked for.
ALL_STAGES = (*STAGES, AUDIT)
# Fewer are no fleet: which of two is the odd one nobody can say.
FLEET_LEAST = 3


@dataclass(frozen=True)
class Item:
    """One item.

    :ivar id: what was looked at, such as `node.kernel`.
    :ivar subject: the part of the host that it is about, such as a GPU; empty for the host.
    :ivar evidence: what was seen.
    :ivar remedy: what to do; empty where nothing is to be done.
    """

    id: str
    stage: str
    host: str
    outcome: str
    evidence: str
    remedy: str = ""
    subject: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def judged(id: str, stage: str, host: str, good: bool | None, evidence: str, remedy: str, subject: str = "") -> Item:
    """An item that passes or fails; one of which nothing is known (None) is not testable here."""
    outcome = NOT_TESTABLE if good is None else PASS if good else FAIL
    return Item(id, stage, host, outcome, evidence, "" if good else remedy, subject)


def counts(items: list[Item]) -> dict[str, int]:
    found = Counter(item.outcome for item in items)
    return {outcome: found[outcome] for outcome in OUTCOMES}


def odd(values: Mapping[Key, Hashable]) -> tuple[Hashable | None, list[Key]]:
    """What most have, and who has something else.

    Where no value is that of more than half, nobody can say who is the odd one: (None, all).
    """
    most, number = Counter(values.values()).most_common(1)[0]
    if 2 * number <= len(values) and number < len(values):
        return None, list(values)
    return most, [key for key, value in values.items() if value != most]


@dataclass(frozen=True)
class Outlier(Generic[Key]):
    """A value that is worse than those of its like.

    :ivar share: of the median of all, so 0.93 for one that is 7 % slower.
    """

    key: Key
    value: float
    median: float
    share: float


def outliers(values: Mapping[Key, float], tolerance: float) -> list[Outlier[Key]]:
    """The values that are below the median of all by more than the tolerance, the worst first. More is better.

    Of fewer than FLEET_LEAST nothing is said: half of two is the median of both.
    """
    if len(values) < FLEET_LEAST:
        return []
    median = statistics.median(values.values())
    if median <= 0:
        return []
    rows = [Outlier(key, value, median, value / median) for key, value in values.items()]
    return sorted((row for row in rows if row.share < 1 - tolerance), key=lambda row: row.share)
