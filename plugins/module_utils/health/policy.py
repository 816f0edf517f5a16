# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health policy: thresholds, how each check is taken, what Xids mean, and what the site expects of its hosts.

A site gives only what it wants otherwise, in the same shape as DEFAULTS:

    thresholds: {ecc_volatile_uncorrected: 0, ...}
    checks: {CODE: {verdict: fatal|degraded|ignore, looks: N, clear_looks: N, action: ...}}
    xids: {NUMBER: {verdict: fatal|degraded|application|none, action: ...}}
    expected: {gpus: N, mig: true|false, persistence_mode: true|false}; null is not judged
"""

from __future__ import annotations

import copy
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS, CODES
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FAULTS
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import XIDS

# Sources: NVIDIA DCGM, dcgm_gpu_hardware_limits.h and its PCIe watch, for retired pages, PCIe replays and NVLink;
# NVIDIA's documentation of dynamic page retirement. The rest is this project's own choice.
DEFAULTS: dict[str, Any] = {
    "thresholds": {
        "ecc_volatile_uncorrected": 0,
        "ecc_sram_uncorrected": 0,
        "retired_pages": 63,
        # Degrees below the GPU's own limit; and limits for GPUs that tell none (null: not judged).
        "temperature_margin_c": 0,
        "temperature_c": None,
        "memory_temperature_c": None,
        # Thermal and power checks fail when they were bad for so many seconds of the last so many.
        "share_bad_s": 360,
        "share_window_s": 600,
        "load_percent": 50,
        # Packets repeated in a minute and lane, by PCIe generation.
        "pcie_replays_per_lane": {"1": 0.15, "2": 0.3, "3": 0.48, "4": 0.96, "5": 1.92, "6": 3.84},
        # Errors in a minute, all links of a GPU together.
        "nvlink_crc_errors": 6000,
        "nvlink_replay_errors": 1,
        "nvlink_recovery_errors": 1,
        # How long after boot the NVSwitch fabric may take to come up.
        "fabric_grace_s": 300,
        # Looks in a row that fail before a verdict becomes unknown.
        "unknown_looks": 3,
        # The same fault after so many reboots in a row is the hardware's.
        "rma_reboots": 2,
    },
    "checks": {
        code: {"verdict": row.verdict, "looks": row.looks, "clear_looks": 3, "action": row.action}
        for code, row in CODES.items()
    },
    "xids": {},
    "expected": {"gpus": None, "mig": None, "persistence_mode": True},
}

CHECK_VERDICTS = (*FAULTS, "ignore")
XID_VERDICTS = (*FAULTS, "application", "none")
_MAY_BE_NULL = ("temperature_c", "memory_temperature_c")


class PolicyError(ValueError):
    """A policy that cannot be followed. The message has a line for every mistake: key, value and remedy."""


def _number(low: float) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        right = isinstance(value, (int, float)) and not isinstance(value, bool) and value >= low
        return None if right else f"give a number of {low:g} or more"

    return problem


def _whole(low: int) -> Callable[[Any], str | None]:
    def problem(value: Any) -> str | None:
        right = isinstance(value, int) and not isinstance(value, bool) and value >= low
        return None if right else f"give a whole number of {low} or more"

    return problem


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str | None]:
    return lambda value: None if value in words else f"give one of {', '.join(words)}"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "give true or false"


_CHECK = {
    "verdict": _one_of(CHECK_VERDICTS),
    "looks": _whole(1),
    "clear_looks": _whole(1),
    "action": _one_of(ACTIONS),
}
_XID = {"verdict": _one_of(XID_VERDICTS), "action": _one_of(ACTIONS)}
_EXPECTED: dict[str, Callable[[Any], str | None]] = {
    "gpus": _whole(0),
    "mig": _boolean,
    "persistence_mode": _boolean,
}


def _threshold(name: str) -> Callable[[Any], str | None]:
    if name in ("share_bad_s", "share_window_s"):
        return _number(1)
    if name in ("unknown_looks", "rma_reboots"):
        return _whole(1)
    return _number(0)


def merge(site: dict[str, Any] | None) -> dict[str, Any]:
    """The whole policy: the defaults with the site's values over them. Merging a whole policy gives the same again.

    Raises PolicyError, which names every wrong key with its value and what to give instead.
    """
    site = site or {}
    policy = copy.deepcopy(DEFAULTS)
    wrong: list[str] = []
    if not isinstance(site, dict):
        raise PolicyError(f"the health policy is {site!r}: give a mapping of {', '.join(DEFAULTS)}")
    for part, values in site.items():
        if part not in DEFAULTS:
            wrong.append(f"{part} is not a part of it: use {', '.join(DEFAULTS)}")
        elif not isinstance(values, dict):
            wrong.append(f"{part} is {values!r}: give a mapping")
        else:
            {"thresholds": _thresholds, "checks": _checks, "xids": _xids, "expected": _expected}[part](
                policy[part], values, wrong
            )
    window, bad = policy["thresholds"]["share_window_s"], policy["thresholds"]["share_bad_s"]
    if not wrong and bad > window:
        wrong.append(f"thresholds.share_bad_s is {bad}: give no more than thresholds.share_window_s, which is {window}")
    if wrong:
        raise PolicyError("health policy: " + "; ".join(wrong))
    return policy


def _put(
    into: dict[str, Any], key: str, value: Any, name: str, problem: Callable[[Any], str | None], wrong: list[str]
) -> None:
    complaint = problem(value)
    if complaint:
        wrong.append(f"{name} is {value!r}: {complaint}")
    else:
        into[key] = value


def _unknown_key(name: str, known: Any, wrong: list[str]) -> None:
    wrong.append(f"{name} is not known: use one of {', '.join(map(str, known))}")


def _thresholds(into: dict[str, Any], values: dict[str, Any], wrong: list[str]) -> None:
    for key, value in values.items():
        name = f"thresholds.{key}"
        if key not in into:
            _unknown_key(name, into, wrong)
        elif key == "pcie_replays_per_lane":
            if not isinstance(value, dict):
                wrong.append(f"{name} is {value!r}: give a mapping of PCIe generations to numbers")
                continue
            for generation, limit in value.items():
                if str(generation) not in into[key]:
                    _unknown_key(f"{name}.{generation}", into[key], wrong)
                else:
                    _put(into[key], str(generation), limit, f"{name}.{generation}", _number(0), wrong)
        elif value is None and key in _MAY_BE_NULL:
            into[key] = None
        else:
            _put(into, key, value, name, _threshold(key), wrong)


def _checks(into: dict[str, Any], values: dict[str, Any], wrong: list[str]) -> None:
    for code, settings in values.items():
        if code not in into:
            wrong.append(f"checks.{code} is not a code: see docs/health-codes.md")
        elif not isinstance(settings, dict):
            wrong.append(f"checks.{code} is {settings!r}: give a mapping of {', '.join(_CHECK)}")
        else:
            for key, value in settings.items():
                if key not in _CHECK:
                    _unknown_key(f"checks.{code}.{key}", _CHECK, wrong)
                else:
                    _put(into[code], key, value, f"checks.{code}.{key}", _CHECK[key], wrong)


def _xids(into: dict[str, Any], values: dict[str, Any], wrong: list[str]) -> None:
    for number, settings in values.items():
        if not str(number).isdigit():
            wrong.append(f"xids.{number} is not a number: give Xids such as {max(XIDS)}")
        elif not isinstance(settings, dict):
            wrong.append(f"xids.{number} is {settings!r}: give a mapping of {', '.join(_XID)}")
        else:
            row = into.setdefault(str(number), {})
            for key, value in settings.items():
                if key not in _XID:
                    _unknown_key(f"xids.{number}.{key}", _XID, wrong)
                else:
                    _put(row, key, value, f"xids.{number}.{key}", _XID[key], wrong)


def _expected(into: dict[str, Any], values: dict[str, Any], wrong: list[str]) -> None:
    for key, value in values.items():
        if key not in into:
            _unknown_key(f"expected.{key}", into, wrong)
        elif value is None:
            into[key] = None
        else:
            _put(into, key, value, f"expected.{key}", _EXPECTED[key], wrong)


def for_one_look(site: dict[str, Any] | None) -> dict[str, Any]:
    """The whole policy for a single look without a history: what fails in it counts, since there is no second look.

    What is a share of time, or a rate, cannot be told by one look, and is not.
    """
    single = merge(site)
    for settings in single["checks"].values():
        settings["looks"] = 1
    return single
