# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The four verdicts: their words, their order, and their numbers. No other file lists them.

The page of GPUs and the JSON schemas of gpuops cannot import this; a test compares them with it.
"""

from __future__ import annotations

OK, DEGRADED, UNKNOWN, FATAL = "ok", "degraded", "unknown", "fatal"
# From the best to the worst. A degraded GPU is known to work; one that does not answer is not.
VERDICTS = (OK, DEGRADED, UNKNOWN, FATAL)
# Those that a fault can have.
FAULTS = (DEGRADED, FATAL)
# The value of a metric, and the exit code of a command.
NUMBERS = {OK: 0, DEGRADED: 1, FATAL: 2, UNKNOWN: 3}
IN_WORDS = ", ".join(f"{number} {word}" for word, number in NUMBERS.items())


def worst(*verdicts: str) -> str:
    """The worst of at least one."""
    return max(verdicts, key=VERDICTS.index)


def of_number(value: float) -> str:
    """The verdict of a metric's value; a value that is none is unknown."""
    return next((word for word, number in NUMBERS.items() if number == value), UNKNOWN)
