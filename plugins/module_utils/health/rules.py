# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of one GPU: what a look at it says, without regard to earlier verdicts.

A rule takes a GPU and returns a Finding, or raises NoFinding where there is nothing to say. What it reads has its shape
(see look_shape.py), so anything else that it raises is an error of the rule: the others are made all the same, and the
host has the reason `check_failed`. Debouncing, recovery and escalation are history.py's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import (
    RECOVERY_ACTIONS,
    RECOVERY_NAMES,
    RECOVERY_UNKNOWN,
)

# NVML's codes.
INSUFFICIENT_POWER, LOST, RESET_REQUIRED = 8, 15, 16
# nvmlClocksEventReason* of nvml.h.
HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x40, 0x80
# No rate is taken over less.
RATE_SPAN_S = 60.0


@dataclass
class Finding:
    """What one check found. `value` and `threshold` are in the unit that the text names.

    `error` is of a check that failed itself, whose state is unknown.
    """

    state: str
    value: Any = None
    threshold: Any = None
    text: str = ""
    action: str | None = None
    error: str = ""


class NoFinding(Exception):
    """The check cannot be made: `state` is unknown, not_applicable, or None where it was not asked in this look."""

    def __init__(self, state: str | None) -> None:
        super().__init__(state)
        self.state = state


@dataclass
class Gpu:
    """One GPU in one look.

    `row` is the snapshot's, `peers` those of all GPUs. `memory` is what the rules keep of earlier looks of the same
    boot; they change it in place. `uptime` is in seconds since boot. `listed`: NVML knows the GPU; `silent`: NVML
    could not be asked at all; `on_bus` is None where the bus cannot be read. `switched`: the host has NVSwitches.
    """

    row: dict[str, Any]
    peers: list[dict[str, Any]]
    policy: dict[str, Any]
    memory: dict[str, Any]
    uptime: float
    listed: bool = True
    silent: bool = False
    on_bus: bool | None = True
    switched: bool = False
    device_files: dict[str, Any] = field(default_factory=dict)

    def value(self, key: str) -> Any:
        """The value of a reading."""
        reading = (self.row.get("readings") or {}).get(key)
        if reading is None:
            raise NoFinding(None)
        if "value" in reading:
            if reading["value"] is None:
                raise NoFinding("not_applicable")
            return reading["value"]
        raise NoFinding("not_applicable" if reading.get("state") == "not_applicable" else "unknown")

    def part(self, key: str, name: str) -> Any:
        """One part of a reading that has several; not applicable where the GPU does not tell it."""
        value = self.value(key).get(name)
        if value is None:
            raise NoFinding("not_applicable")
        return value

    def threshold(self, name: str) -> Any:
        return self.policy["thresholds"][name]

    def error_code(self) -> int | None:
        """NVML's code of the failure that concerns the GPU as a whole, from whichever question met it first."""
        error = self.row.get("error") or {}
        if error.get("code") in (LOST, RESET_REQUIRED):
            return int(error["code"])
        for reading in (self.row.get("readings") or {}).values():
            if reading.get("state") == "lost":
                return RESET_REQUIRED if reading.get("code") == RESET_REQUIRED else LOST
        return error.get("code")

    def answers(self) -> bool:
        """Whether the GPU can be reached, so that its readings mean something."""
        return self.listed and bool(self.row.get("uuid")) and self.error_code() not in (LOST, RESET_REQUIRED)

    def per_minute(self, name: str, count: int) -> float:
        """How fast a counter grows, over RATE_SPAN_S at least; no finding until so much time has passed."""
        before = self.memory.get(name)
        if before is None or count < before["count"] or self.uptime < before["uptime"]:
            # The first look, or the counter was set back by a reset.
            self.memory[name] = {"count": count, "uptime": self.uptime}
            raise NoFinding(None)
        span = self.uptime - before["uptime"]
        if span < RATE_SPAN_S:
            raise NoFinding(None)
        self.memory[name] = {"count": count, "uptime": self.uptime}
        return float((count - before["count"]) * 60.0 / span)


Rule = Callable[[Gpu], Finding]


def _when(failed: bool, value: Any, threshold: Any, text: str, **more: Any) -> Finding:
    return Finding("fail" if failed else "ok", value, threshold, text, **more)


# --- can the GPU be reached ------------------------------------------------------------------------------------------


def gpu_missing(gpu: Gpu) -> Finding:
    if gpu.listed:
        return Finding("ok")
    where = gpu.row.get("pci_address")
    if gpu.on_bus is False:
        return Finding("fail", where, "listed", f"the GPU at {where} is no longer on the PCI bus")
    if gpu.silent:
        raise NoFinding("unknown")
    known = "is on the PCI bus" if gpu.on_bus else "was there before"
    return Finding("fail", where, "listed", f"the GPU at {where} {known}, and NVML does not list it")


def _is_unanswered(gpu: Gpu) -> bool:
    """Whether a look came to nothing over this GPU. It is perhaps not asked any more then, and its error says so."""
    return (gpu.row.get("error") or {}).get("device") is not None


def _error(gpu: Gpu, code: int, text: str) -> Finding:
    if not gpu.listed or _is_unanswered(gpu):
        raise NoFinding("unknown")
    return _when(gpu.error_code() == code, code, None, f"NVML says: {text} (code {code})")


def gpu_lost(gpu: Gpu) -> Finding:
    return _error(gpu, LOST, "the GPU is lost")


def gpu_reset_required(gpu: Gpu) -> Finding:
    return _error(gpu, RESET_REQUIRED, "the GPU requires a reset")


def gpu_power_missing(gpu: Gpu) -> Finding:
    return _error(gpu, INSUFFICIENT_POWER, "the GPU lacks external power")


def _unanswered(gpu: Gpu, name: str) -> Finding:
    error = gpu.row.get("error") or {}
    if _is_unanswered(gpu) and error["name"] == name:
        return Finding("fail", error["asked"], None, error["text"])
    if not gpu.answers():
        raise NoFinding("unknown")
    return Finding("ok")


def gpu_hang(gpu: Gpu) -> Finding:
    return _unanswered(gpu, "timeout")


def gpu_crash(gpu: Gpu) -> Finding:
    return _unanswered(gpu, "crashed")


# NVML's codes that speak of the asker and not of the GPU: no permission, timeout, out of memory.
_NOT_THE_GPUS = (4, 10, 20)


def gpu_error(gpu: Gpu) -> Finding:
    error = gpu.row.get("error")
    if not gpu.listed or _is_unanswered(gpu) or (error and error.get("code") in _NOT_THE_GPUS):
        raise NoFinding("unknown")
    if gpu.row.get("uuid") or gpu.error_code() in (INSUFFICIENT_POWER, LOST, RESET_REQUIRED):
        return Finding("ok")
    error = error or {"code": None, "text": "no UUID"}
    return Finding("fail", error["code"], None, f"NVML says: {error['text']}")


# --- memory -----------------------------------------------------------------------------------------------------------


def ecc_uncorrected(gpu: Gpu) -> Finding:
    count, most = gpu.part("ecc_volatile", "uncorrected"), gpu.threshold("ecc_volatile_uncorrected")
    return _when(count > most, count, most, f"{count} uncorrected memory errors since the driver was loaded")


def ecc_sram_uncorrected(gpu: Gpu) -> Finding:
    count, most = gpu.part("ecc_sram", "volatile_uncorrected"), gpu.threshold("ecc_sram_uncorrected")
    return _when(count > most, count, most, f"{count} uncorrected SRAM errors since the driver was loaded")


def ecc_sram_threshold(gpu: Gpu) -> Finding:
    over = gpu.part("ecc_sram", "threshold_exceeded")
    return _when(over, over, False, "the SRAM has had more errors than NVIDIA allows")


def _remapped(gpu: Gpu, name: str) -> bool:
    if "geforce" in str(gpu.row.get("slug") or ""):
        # GeForce has no spare rows; some answer all the same.
        raise NoFinding("not_applicable")
    return bool(gpu.part("remapped_rows", name))


def row_remap_pending(gpu: Gpu) -> Finding:
    pending = _remapped(gpu, "pending")
    return _when(pending, pending, False, "a row of memory waits for a reset to be replaced")


def row_remap_failed(gpu: Gpu) -> Finding:
    failed = _remapped(gpu, "failure")
    return _when(failed, failed, False, "a row of memory could not be replaced")


def retired_pages_pending(gpu: Gpu) -> Finding:
    pending = gpu.part("retired_pages", "pending")
    return _when(pending, pending, False, "a page of memory waits to be retired when the driver is loaded next")


def retired_pages_limit(gpu: Gpu) -> Finding:
    count = gpu.part("retired_pages", "single_bit") + gpu.part("retired_pages", "double_bit")
    limit = gpu.threshold("retired_pages")
    return _when(count >= limit, count, limit, f"{count} pages of memory are retired")


def memory_unrepairable(gpu: Gpu) -> Finding:
    bad = gpu.value("memory_unrepairable")
    return _when(bad, bad, False, "the GPU says that its memory has faults that cannot be repaired")


def memory_repair_pending(gpu: Gpu) -> Finding:
    parts = {"channel_pending": "a channel of its memory", "tpc_pending": "a part of its compute units"}
    pending = [name for name in parts if gpu.part("memory_repair", name)]
    waits = " and ".join(parts[name] for name in pending)
    return _when(bool(pending), pending, [], f"{waits} waits for a reset to be repaired")


# --- what the driver recommends ---------------------------------------------------------------------------------------


def gpu_recovery_action(gpu: Gpu) -> Finding:
    """What the driver wants done, for whatever reason: it stands here when the log has rolled over."""
    wanted = gpu.value("recovery_action")
    if wanted == 0:
        return Finding("ok", 0, 0)
    name = RECOVERY_NAMES.get(wanted, f"one that is not known, number {wanted}")
    _verdict, action = RECOVERY_ACTIONS.get(wanted, RECOVERY_UNKNOWN)
    return Finding("fail", wanted, 0, f"the driver recommends this recovery: {name}", action)


# --- heat and power ---------------------------------------------------------------------------------------------------


def thermal_slowdown(gpu: Gpu) -> Finding:
    reasons = gpu.value("clocks_event_reasons")
    # The general bit comes with either cause; alone it is the GPU's own protection.
    hot = bool(reasons & HW_THERMAL) or reasons & (HW_SLOWDOWN | HW_POWER_BRAKE) == HW_SLOWDOWN
    return _when(hot, hex(reasons), hex(HW_THERMAL | HW_SLOWDOWN), "the GPU slows down because it is too hot")


def power_brake(gpu: Gpu) -> Finding:
    reasons = gpu.value("clocks_event_reasons")
    return _when(
        bool(reasons & HW_POWER_BRAKE), hex(reasons), hex(HW_POWER_BRAKE), "the power supply slows the GPU down"
    )


def temperature_limit(gpu: Gpu) -> Finding:
    """The GPU's own limits, or else the policy's; what the GPU does not tell is no reason."""
    readings = gpu.row.get("readings") or {}
    limits = (readings.get("temperature_limits_c") or {}).get("value") or {}
    judged: list[tuple[str, Any, float]] = []
    first: NoFinding | None = None
    for key, name, limit, own in (
        ("temperature_c", "the GPU", limits.get("slowdown"), gpu.threshold("temperature_c")),
        ("memory_temperature_c", "its memory", limits.get("memory_max"), gpu.threshold("memory_temperature_c")),
    ):
        try:
            value = gpu.value(key)
        except NoFinding as no:
            first = first or no
            continue
        at = own if own is not None else limit - gpu.threshold("temperature_margin_c") if limit else None
        if at is not None:
            judged.append((name, value, at))
    if not judged:
        raise first or NoFinding("not_applicable")
    name, value, at = max(judged, key=lambda row: row[1] - row[2])
    return _when(value >= at, value, at, f"{name} is at {value} °C, and slows down at {at:g} °C")


# --- links ------------------------------------------------------------------------------------------------------------


def pcie_width(gpu: Gpu) -> Finding:
    width, most = gpu.part("pcie", "width"), gpu.part("pcie", "width_max")
    return _when(width < most, width, most, f"the PCIe link has {width} of {most} lanes")


def pcie_generation(gpu: Gpu) -> Finding:
    generation, most = gpu.part("pcie", "generation"), gpu.part("pcie", "generation_max")
    if generation >= most:
        return Finding("ok", generation, most)
    if gpu.part("utilization_percent", "gpu") < gpu.threshold("load_percent"):
        # An idle link slows down to save power, which says nothing.
        raise NoFinding("not_applicable")
    return Finding("fail", generation, most, f"the PCIe link is at generation {generation} of {most} under load")


def pcie_replays(gpu: Gpu) -> Finding:
    generation, lanes = gpu.part("pcie", "generation_max"), gpu.part("pcie", "width")
    per_lane = gpu.threshold("pcie_replays_per_lane").get(str(generation))
    if per_lane is None:
        raise NoFinding("not_applicable")
    limit = math.ceil(lanes * per_lane)
    rate = gpu.per_minute("pcie_replays", gpu.value("pcie_replays"))
    return _when(rate > limit, round(rate, 1), limit, f"{rate:.1f} PCIe packets repeated in a minute")


def _active(row: dict[str, Any]) -> set[int]:
    links = ((row.get("readings") or {}).get("nvlinks") or {}).get("value") or []
    return {link["link"] for link in links if link["active"]}


def nvlink_down(gpu: Gpu) -> Finding:
    """Which links should be up is known from the links that were, and on an SXM board from the GPUs beside it.

    A PCIe GPU without a bridge reports all links down, and one with a bridge some of them; neither is a fault.
    """
    links = gpu.value("nvlinks")
    mig = ((gpu.row.get("readings") or {}).get("mig") or {}).get("value") or {}
    if not links or mig.get("enabled"):
        raise NoFinding("not_applicable")
    active = _active(gpu.row)
    seen = active | set(gpu.memory.get("nvlinks_seen", ()))
    gpu.memory["nvlinks_seen"] = sorted(seen)
    should = len(seen)
    if gpu.switched or "sxm" in str(gpu.row.get("slug") or ""):
        same = (peer for peer in gpu.peers if peer.get("slug") == gpu.row.get("slug"))
        should = max([should, *(len(_active(peer)) for peer in same)])
    if not should:
        raise NoFinding("not_applicable")
    down = [link["link"] for link in links if not link["active"]]
    if seen - active:
        down = sorted(seen - active)
    return _when(
        len(active) < should,
        len(active),
        should,
        f"{len(active)} of {should} NVLinks are up; down: {', '.join(map(str, down))}",
    )


_LINK_ERRORS = (
    ("crc_errors", "nvlink_crc_errors", "CRC errors"),
    ("replay_errors", "nvlink_replay_errors", "replays"),
    ("recovery_errors", "nvlink_recovery_errors", "recoveries"),
)


def nvlink_errors(gpu: Gpu) -> Finding:
    links = gpu.value("nvlinks")
    found: list[Finding] = []
    told = False
    for key, threshold, name in _LINK_ERRORS:
        counts = [link[key] for link in links if link.get(key) is not None]
        if not counts:
            continue
        told = True
        limit = gpu.threshold(threshold)
        try:
            rate = gpu.per_minute(threshold, sum(counts))
        except NoFinding:
            continue
        found.append(_when(rate >= limit, round(rate, 1), limit, f"{rate:.1f} {name} on NVLinks in a minute"))
    if not told:
        raise NoFinding("not_applicable")
    if not found:
        raise NoFinding(None)
    return next((finding for finding in found if finding.state == "fail"), found[0])


def fabric_state(gpu: Gpu) -> Finding:
    fabric = gpu.value("fabric")
    state, status = fabric["state"], fabric.get("status") or 0
    if state == "not_supported":
        raise NoFinding("not_applicable")
    if state != "completed" and gpu.uptime < gpu.threshold("fabric_grace_s"):
        raise NoFinding("unknown")
    shown = state if not status else f"{state} with status {status}"
    return _when(
        state != "completed" or status != 0, shown, "completed", f"the GPU's way into the NVSwitch fabric is {shown}"
    )


def fabric_unhealthy(gpu: Gpu) -> Finding:
    fabric = gpu.value("fabric")
    if fabric["state"] == "not_supported":
        raise NoFinding("not_applicable")
    flags = list(fabric.get("unhealthy") or ())
    return _when(bool(flags), flags, [], f"the NVSwitch fabric reports {', '.join(flags)}")


# --- settings ---------------------------------------------------------------------------------------------------------


def persistence_mode(gpu: Gpu) -> Finding:
    wanted = gpu.policy["expected"]["persistence_mode"]
    mode = gpu.value("persistence_mode")
    if wanted is None:
        raise NoFinding("not_applicable")
    return _when(mode != wanted, mode, wanted, f"persistence mode is {_on(mode)}")


def clocks_locked(gpu: Gpu) -> Finding:
    clocks = gpu.value("application_clocks_mhz")
    pairs = [
        (clocks.get(name), clocks.get(f"default_{name}"))
        for name in ("graphics", "memory")
        if clocks.get(name) is not None and clocks.get(f"default_{name}") is not None
    ]
    if not pairs:
        raise NoFinding("not_applicable")
    now, default = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return _when(
        now != default, now, default, f"the clocks for applications are {_mhz(now)}, by default {_mhz(default)}"
    )


def mig_mode(gpu: Gpu) -> Finding:
    wanted = gpu.policy["expected"]["mig"]
    try:
        mig = gpu.value("mig")
    except NoFinding as no:
        if no.state == "not_applicable" and wanted:
            return Finding("fail", None, True, "the GPU has no MIG, and is expected to")
        raise
    if mig["enabled"] != mig["pending"]:
        text = f"MIG is {_on(mig['enabled'])}, and will be {_on(mig['pending'])} after a reset"
        return Finding("fail", mig["enabled"], mig["pending"], text, action="reset_gpu")
    if wanted is None:
        return Finding("ok", mig["enabled"])
    return _when(mig["enabled"] != wanted, mig["enabled"], wanted, f"MIG is {_on(mig['enabled'])}")


def inforom_corrupt(gpu: Gpu) -> Finding:
    valid = gpu.value("inforom_valid")
    return _when(not valid, valid, True, "the InfoROM is corrupt")


def zombie_process(gpu: Gpu) -> Finding:
    dead = [process["pid"] for process in gpu.value("processes") if not process["exists"]]
    return _when(bool(dead), dead, [], f"memory is held by processes that are gone: {', '.join(map(str, dead))}")


def device_file_missing(gpu: Gpu) -> Finding:
    if gpu.row.get("minor") is None:
        raise NoFinding("unknown")
    path = f"/dev/nvidia{gpu.row['minor']}"
    if path not in gpu.device_files:
        raise NoFinding(None)
    return _when(not gpu.device_files[path], path, "present", f"{path} is missing or has a wrong number")


def _on(value: Any) -> str:
    return "on" if value else "off"


def _mhz(values: Iterable[int]) -> str:
    return " and ".join(f"{value} MHz" for value in values)


# Whether the GPU can be reached comes first: the others mean something only then.
REACHED: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (gpu_missing, gpu_lost, gpu_reset_required, gpu_power_missing, gpu_error, gpu_hang, gpu_crash)
}
READ: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        ecc_uncorrected,
        ecc_sram_uncorrected,
        ecc_sram_threshold,
        row_remap_pending,
        row_remap_failed,
        retired_pages_pending,
        retired_pages_limit,
        memory_unrepairable,
        memory_repair_pending,
        gpu_recovery_action,
        thermal_slowdown,
        temperature_limit,
        power_brake,
        pcie_width,
        pcie_generation,
        pcie_replays,
        nvlink_down,
        nvlink_errors,
        fabric_state,
        fabric_unhealthy,
        persistence_mode,
        clocks_locked,
        mig_mode,
        inforom_corrupt,
        zombie_process,
        device_file_missing,
    )
}


def failed(code: str, error: Exception) -> Finding:
    """What a check finds that fails itself. Each place is told once, with the traceback, on standard error."""
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    if where not in _SAID:
        _SAID.add(where)
        traceback.print_exception(type(error), error, error.__traceback__)
    return Finding("unknown", error=one_line(f"{code}: {type(error).__name__}: {error} ({where})", 200))


_SAID: set[str] = set()


def find(code: str, check: Callable[[], Finding]) -> Finding | None:
    """What a check finds; None for one that was not asked in this look."""
    try:
        return check()
    except NoFinding as no:
        return Finding(no.state) if no.state else None
    except Exception as error:
        return failed(code, error)


def findings(gpu: Gpu) -> dict[str, Finding | None]:
    """What every check of a GPU finds."""
    found = {code: find(code, partial(rule, gpu)) for code, rule in REACHED.items()}
    sensible = gpu.answers()
    found.update(
        {code: find(code, partial(rule, gpu)) if sensible else Finding("unknown") for code, rule in READ.items()}
    )
    return found
