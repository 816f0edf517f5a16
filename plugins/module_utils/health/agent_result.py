# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The last result of the host's agent, for whoever wants to rely on it: whether it can be, and if not, why."""

from __future__ import annotations

import json
import math
import os
import stat
import time
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import VERDICTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot

CONFIG = "/etc/baremetal-gpu/agent.json"
RESULT = "/run/baremetal-gpu/gpu.json"
# A result that is older than this many of the agent's intervals is not relied on.
STALE_AFTER = 4
# The result's clocks are this host's own. One that was set back meanwhile is right again with the next result.
AHEAD_S = 5.0
INTERVAL_MOST_S = 86400.0
# The result of a host with sixteen GPUs has some 100 kB.
SIZE_MOST = 16 << 20


class Unusable(ValueError):
    """The agent's result cannot be relied on; the message says why."""


def uptime() -> float:
    """Seconds since the machine was booted, time asleep included: a clock that nobody sets."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def load(path: str) -> dict[str, Any]:
    """The object in a file, where anything may stand, a pipe that nobody writes included.

    :raises FileNotFoundError, Unusable:
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unusable("it is not a plain file")
            text = file.read(SIZE_MOST + 1)
    except FileNotFoundError:
        raise
    except OSError as failure:
        raise Unusable(f"it cannot be read ({failure.strerror})") from failure
    if len(text) > SIZE_MOST:
        raise Unusable(f"it has more than {SIZE_MOST >> 20} MiB")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as failure:
        raise Unusable("it is not the JSON that it should be") from failure
    if not isinstance(found, dict):
        raise Unusable("it is not the JSON that it should be")
    return found


def number(value: Any) -> float | None:
    """A finite number, which what was written by somebody else may not be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def age_s(result: dict[str, Any]) -> float:
    """How old a result is. Less than nothing if it is dated in the future. Raises Unusable."""
    at = number(result.get("time"))
    if at is None:
        raise Unusable("it does not say when it was made")
    age = time.time() - at
    up = number(result.get("uptime"))
    if up is None:
        return age
    # The wall clock may have been set meanwhile; whichever of the two makes it older, or newer than now, counts.
    by_uptime = uptime() - up
    return min(age, by_uptime) if min(age, by_uptime) < -AHEAD_S else max(age, by_uptime)


def check_age(result: dict[str, Any]) -> None:
    """Raises Unusable for a result that is too old, or dated in the future."""
    interval, age = number(result.get("interval_s")), age_s(result)
    if interval is None or not 0 < interval <= INTERVAL_MOST_S:
        raise Unusable("it does not say how often it is made")
    if age < -AHEAD_S:
        raise Unusable(f"it is dated {-age:.0f} s in the future: see whether the host's clock is right")
    if age > STALE_AFTER * interval:
        raise Unusable(f"it is {age:.0f} s old, and a new one is due every {interval:g} s")


def check(result: dict[str, Any], root: str = "/") -> None:
    """Raises Unusable for a result that is not of this boot, too old, or dated in the future."""
    this = boot.boot_id(root)
    if this is None or result.get("boot_id") != this:
        raise Unusable(f"it is of another boot ({str(result.get('boot_id'))[:40]}, and this one is {this})")
    check_age(result)


def _is_part(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("verdict") in VERDICTS
        and isinstance(part.get("reasons"), list)
        and all(isinstance(reason, dict) for reason in part["reasons"])
    )


def is_report(report: Any) -> bool:
    """Whether it has what everybody reads of it."""
    return _is_part(report) and isinstance(report.get("devices"), list) and all(map(_is_part, report["devices"]))


def is_configured(root: str = "/") -> bool:
    """Whether an agent is to watch this host, or has since it was booted."""
    return any(os.path.lexists(os.path.join(root, path.lstrip("/"))) for path in (CONFIG, RESULT))


def path(root: str = "/") -> str:
    """Where the agent's configuration says that the result is. Raises Unusable."""
    try:
        found = load(os.path.join(root, CONFIG.lstrip("/"))).get("result", RESULT)
    except FileNotFoundError:
        return RESULT
    except Unusable as failure:
        raise Unusable(f"of its configuration {CONFIG}: {failure}") from failure
    if not isinstance(found, str) or not found.startswith("/"):
        raise Unusable(f"its configuration {CONFIG} does not say where it is")
    return found


def read(root: str = "/") -> dict[str, Any]:
    """The result, if it can be relied on: of this boot, new enough, and whole. Raises Unusable."""
    where = path(root)
    try:
        result = load(os.path.join(root, where.lstrip("/")))
    except FileNotFoundError:
        raise Unusable(f"there is none at {where}") from None
    check(result, root)
    if not is_report(result.get("health")):
        raise Unusable("it has no readable report")
    return result
