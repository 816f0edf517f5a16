# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Every GPU of this host under load: copies one GPU after the other, then all at the same time, then the pairs.

Meanwhile NVML is read, by a process that may hang without holding anything up.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import children, load
from ansible_collections.baremetal.gpu.plugins.module_utils.accept.load import Options, Tell
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml, readings, snapshot

SCHEMA = 1
READINGS = "readings"
PAUSE_S = 2.0
# What is read of each GPU while it works, and what is compared before and after.
QUESTIONS = {
    key: readings.QUICK[key]
    for key in (
        "temperature_c",
        "memory_temperature_c",
        "power_w",
        "power_limit_w",
        "clocks_mhz",
        "clocks_event_reasons",
        "pcie",
        "ecc_volatile",
        "pcie_replays",
        "remapped_rows",
    )
}
# Bits of the reasons why clocks are held down (NVML API reference); a software power cap is how a GPU at work is.
HELD_BACK = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def _read(binding: str | None, tell: Tell) -> None:
    """A child's work: readings of all GPUs, every PAUSE_S, until it is ended."""
    reader = snapshot.Reader(nvml.load_binding(binding))
    while True:
        error = reader.session.open()
        seen: dict[str, Any] = {"error": error, "devices": []}
        if error is None:
            seen = reader.session.devices(QUESTIONS, None)
        rows = {
            row["uuid"]: {key: answer.get("value") for key, answer in row["readings"].items()}
            for row in seen["devices"]
            if row["uuid"]
        }
        tell({"rows": rows, "nvml_error": seen["error"]})
        time.sleep(PAUSE_S)


class Watched:
    """What the readings of one GPU have been: the first, the last, and the extremes between."""

    def __init__(self) -> None:
        self.first: dict[str, Any] | None = None
        self.last: dict[str, Any] | None = None
        self.samples = 0
        self.most: dict[str, float] = {}
        self.least_clock: float | None = None
        self.reasons = 0
        self.pcie: dict[str, int] = {}

    def take(self, row: dict[str, Any]) -> None:
        self.first = self.first or row
        self.last = row
        self.samples += 1
        for key in ("temperature_c", "memory_temperature_c", "power_w"):
            if row.get(key) is not None:
                self.most[key] = max(self.most.get(key, row[key]), row[key])
        clock = (row.get("clocks_mhz") or {}).get("sm")
        if clock is not None:
            self.least_clock = clock if self.least_clock is None else min(self.least_clock, clock)
        self.reasons |= row.get("clocks_event_reasons") or 0
        for key, value in (row.get("pcie") or {}).items():
            if value is not None:
                self.pcie[key] = max(self.pcie.get(key, value), value)

    def result(self) -> dict[str, Any] | None:
        if self.first is None or self.last is None:
            return None
        return {
            "samples": self.samples,
            "most": self.most,
            "least_sm_mhz": self.least_clock,
            "power_limit_w": self.last.get("power_limit_w"),
            "held_back": [text for bit, text in HELD_BACK.items() if self.reasons & bit],
            "pcie": self.pcie,
            "grown": _grown(self.first, self.last),
        }


def _grown(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> dict[str, list[Any]]:
    """The counters of errors that are larger than before: {name: [before, after]}."""
    found: dict[str, list[Any]] = {}
    for key in ("ecc_volatile", "pcie_replays", "remapped_rows") if not path else after:
        old, new, name = before.get(key), after.get(key), f"{path}{key}"
        if isinstance(old, dict) and isinstance(new, dict):
            found.update(_grown(old, new, f"{name}."))
        elif isinstance(old, int) and isinstance(new, int) and new > old:
            found[name] = [old, new]
    return found


def tournament(count: int) -> list[tuple[int, int]]:
    """Every pair once."""
    return list(itertools.combinations(range(count), 2))


def _devices(options: Options, tell: Tell) -> None:
    tell({"step": "init"})
    tell({"devices": load.found_devices(load.driver(options))})


def run(options: Options, binding: str | None, peers: bool = True) -> dict[str, Any]:
    """{schema, error, nvml_error, devices, pairs}. Never raises for what a GPU or a driver does."""
    result: dict[str, Any] = {"schema": SCHEMA, "error": None, "nvml_error": None, "devices": [], "pairs": []}

    def take_devices(_name: str, row: dict[str, Any]) -> None:
        result["devices"] = row.get("devices", result["devices"])

    error = children.together({"init": functools.partial(_devices, options)}, options.timeout_s, take_devices)["init"]
    if error:
        return {**result, "error": error}
    rows = result["devices"]
    if options.devices:
        rows = result["devices"] = [row for row in rows if row.get("uuid") in options.devices]
    sound = [row for row in rows if row["error"] is None]
    watched: dict[str, Watched] = {row["uuid"]: Watched() for row in sound}
    by_uuid = {row["uuid"]: row for row in sound}

    def take(name: str, told: dict[str, Any]) -> None:
        if name == READINGS:
            result["nvml_error"] = told.get("nvml_error") or result["nvml_error"]
            for uuid in set(told.get("rows", ())) & set(watched):
                watched[uuid].take(told["rows"][uuid])
            return
        row = by_uuid[name]
        row.update(told.get("result", {}))
        if "memory_errors" in told:
            row["memory_errors"] = (row.get("memory_errors", []) + told["memory_errors"])[:16]

    def with_readings(works: dict[str, children.Work]) -> dict[str, Any]:
        # Opening NVML takes its time, and nothing is ended for it: what it does not tell is not known.
        helper = {READINGS: functools.partial(_read, binding)}
        errors = children.together({**works, **helper}, options.timeout_s, take, frozenset(helper))
        silent = errors.pop(READINGS)
        if silent and not result["nvml_error"]:
            result["nvml_error"] = {"code": None, "name": silent["name"], "text": silent["text"], "remedy": ""}
        return errors

    for row in sound:
        # One after the other: they would take the bus from each other.
        row["error"] = with_readings({row["uuid"]: functools.partial(load.copies, options, row["index"])})[row["uuid"]]
    working = [row for row in sound if row["error"] is None]
    if working:
        works: dict[str, children.Work] = {row["uuid"]: functools.partial(load.load, options, row) for row in working}
        for uuid, failed in with_readings(works).items():
            by_uuid[uuid]["error"] = failed
    for row in sound:
        row["readings"] = watched[row["uuid"]].result()
    if peers:
        result["pairs"] = [_pair(options, one, other) for one, other in _pairs(working)]
    return result


def _pairs(rows: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    sound = [row for row in rows if row["error"] is None]
    return [(sound[first], sound[second]) for first, second in tournament(len(sound))]


def _pair(options: Options, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"first": one["uuid"], "second": other["uuid"]}
    work = functools.partial(load.pair, options, one["index"], other["index"])

    def take(_name: str, told: dict[str, Any]) -> None:
        found.update(told.get("result", {}))

    found["error"] = children.together({"pair": work}, options.timeout_s, take)["pair"]
    return found
