# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a session tells of itself, and what the hub makes of it.

A user can tell anything of the own sessions, and so keep one that is idle, but nothing of another's. A session that
tells nothing, or of which something is not known, is not stopped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    flag,
    json_object,
    list_of,
    number,
    object_of,
    or_null,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, idle
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.idle import Policy, Reading

BYTES_AT_MOST = 16384
FAILED_AT_MOST = GPUS_AT_MOST = 64
# How often a session tells of itself. Two of them may be lost before it is not known what happened between.
INTERVAL_S = 40.0
# A session of which nothing was learned for so long is told of.
SILENT_S = 300.0
SILENT, UNKNOWN = "silent", "unknown"
# The same while its user looks at it.
LOOKED_S = 15.0
_moment = or_null(number(0, 1e11))
_mib = or_null(whole(0, 1 << 30))
SHAPE = object_of(
    {
        "server": text(f"(?:{form.SERVER.pattern})?"),
        "gpu_ratio": or_null(number(0, 1)),
        "cores": or_null(number(0, 1e5)),
        "kernel_busy": or_null(flag),
        "kernel_at": _moment,
        "terminal_at": _moment,
        "traffic": or_null(number(0, 1e12)),
    },
    # Nothing of it is a sentence: what users read is made here.
    {
        "gpus": list_of(object_of({"use": or_null(number(0, 1)), "used_mib": _mib, "total_mib": _mib}), GPUS_AT_MOST),
        "failed": list_of(
            object_of({"gpu": text(r"[A-Za-z0-9/_.-]{1,60}"), "code": text(r"[A-Za-z0-9_.-]{1,60}")}), FAILED_AT_MOST
        ),
    },
)


def read(data: bytes) -> dict[str, Any]:
    """A sample as a session sends it. Raises Malformed."""
    row: dict[str, Any] = SHAPE(json_object(data, BYTES_AT_MOST), "sample")
    return row


class Watched:
    """A session that is watched, from the moment on at which the hub has seen it first.

    :ivar policy: None where it is never stopped.
    :ivar failed: its GPUs that the agent of their host has found out of order, and the code: (gpu, code).
    :ivar until: when its time is over, where the scheduler tells it.
    :ivar looked_at: when its user has looked at what it does.
    """

    def __init__(self, policy: Policy | None, now: float) -> None:
        self.policy, self.failed = policy, frozenset[tuple[str, str]]()
        self._gpus: list[Mapping[str, Any]] = []
        self.until: float | None = None
        self.looked_at = 0.0
        self._state = idle.begin(now, now)
        # When it told something last, and when that said whether it is used.
        self._told, self._known = now, now

    def take(self, row: Mapping[str, Any], now: float) -> str:
        """The level that a sample leads to; empty where it stays as it was.

        A level that stays is told again where it is the last one: the session is still there.
        """
        self.failed = frozenset((one["gpu"], one["code"]) for one in row.get("failed", ()))
        self._gpus, self._told = row.get("gpus", []), now
        if self.policy is None:
            return ""
        others = ("server", "failed", "gpus")
        reading = Reading(now, **{name: value for name, value in row.items() if name not in others})
        before = self._state
        if idle.is_used(before, reading, self.policy) is not None:
            self._known = now
        self._state = idle.decide(before, reading, self.policy)
        level = self._state.level
        return level if level != before.level or level == idle.STOP else ""

    def gpus(self, now: float) -> list[Mapping[str, Any]]:
        """What its GPUs do: rows of {use, used_mib, total_mib}; none where that was told long ago."""
        return self._gpus if now - self._told <= SILENT_S else []

    def extend(self) -> None:
        self._state = idle.extend(self._state)

    @property
    def level(self) -> str:
        return self._state.level

    @property
    def since(self) -> float:
        """From when on nobody has used it, as far as is known."""
        return self._state.time - self._state.idle_s

    @property
    def ends(self) -> float:
        """When it is stopped if nobody uses it."""
        return self._state.time + (idle.left(self._state, self.policy) if self.policy else 0.0)

    def unmeasured(self, now: float) -> str:
        """Why it would not be stopped though it is idle: silent, unknown, or empty where it would."""
        if self.policy is None:
            return ""
        if now - self._told > SILENT_S:
            return SILENT
        return UNKNOWN if now - self._known > SILENT_S else ""

    def as_dict(self, now: float) -> dict[str, Any]:
        """What its user is told."""
        if self.policy is None:
            return {"level": idle.KEEP, "stops": False}
        why = self.unmeasured(now)
        return {"level": self.level, "stops": not why, "idle_since": self.since, "ends": self.ends, "unmeasured": why}
