# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The health checks of one card: what a look at it says, without regard to earlier verdicts.

A rule takes a Card and returns a Finding, or raises NoFinding where there is nothing to say. Debouncing, recovery and
escalation are health_history.py's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import (
    RECOVERY_ACTIONS,
    RECOVERY_NAMES,
    RECOVERY_UNKNOWN,
)

# NVML's codes.
INSUFFICIENT_POWER, LOST, RESET_REQUIRED = 8, 15, 16
# nvmlClocksEventReason* of nvml.h.
HW_SLOWDOWN, HW_THERMAL, HW_POWER_BRAKE = 0x8, 0x40, 0x80
# NVML has the largest number there is for "not available".
NO_COUNT = 2**63
# No rate is taken over less.
RATE_SPAN_S = 60.0


@dataclass
class Finding:
    """What one check found. `value` and `threshold` are in the unit that the text names."""

    state: str
    value: Any = None
    threshold: Any = None
    text: str = ""
    action: str | None = None
    remedy: str | None = None


class NoFinding(Exception):
    """The check cannot be made: `state` is unknown, not_applicable, or None where it was not asked in this look."""

    def __init__(self, state: str | None) -> None:
        super().__init__(state)
        self.state = state


@dataclass
class Card:
    """One card in one look.

    `row` is the snapshot's, `peers` those of all cards. `memory` is what the rules keep of earlier looks of the same
    boot; they change it in place. `uptime` is in seconds since boot. `listed`: NVML knows the card; `silent`: NVML
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

    def boolean(self, key: str) -> bool:
        """A reading that is a yes or no."""
        value = self.value(key)
        if not isinstance(value, bool):
            raise NoFinding("unknown")
        return value

    def _part(self, key: str, name: str) -> Any:
        value = self.value(key).get(name)
        if value is None:
            raise NoFinding("not_applicable")
        return value

    def number(self, key: str, name: str) -> int:
        """A count, one part of a reading that has several; not applicable where the card does not tell it."""
        value = self._part(key, name)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < NO_COUNT:
            raise NoFinding("unknown")
        return value

    def flag(self, key: str, name: str) -> bool:
        """A yes or no, as `number`."""
        value = self._part(key, name)
        if not isinstance(value, bool):
            raise NoFinding("unknown")
        return value

    def threshold(self, name: str) -> Any:
        return self.policy["thresholds"][name]

    def error_code(self) -> int | None:
        """NVML's code of the failure that concerns the card as a whole, from whichever question met it first."""
        error = self.row.get("error") or {}
        if error.get("code") in (LOST, RESET_REQUIRED):
            return int(error["code"])
        for reading in (self.row.get("readings") or {}).values():
            if reading.get("state") == "lost":
                return RESET_REQUIRED if reading.get("code") == RESET_REQUIRED else LOST
        return error.get("code")

    def answers(self) -> bool:
        """Whether the card can be reached, so that its readings mean something."""
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


Rule = Callable[[Card], Finding]


def _when(failed: bool, value: Any, threshold: Any, text: str, **more: Any) -> Finding:
    return Finding("fail" if failed else "ok", value, threshold, text, **more)


# --- can the card be reached ------------------------------------------------------------------------------------------


def gpu_missing(card: Card) -> Finding:
    if card.listed:
        return Finding("ok")
    where = card.row.get("pci_address")
    if card.on_bus is False:
        return Finding("fail", where, "listed", f"the card at {where} is no longer on the PCI bus")
    if card.silent:
        raise NoFinding("unknown")
    known = "is on the PCI bus" if card.on_bus else "was there before"
    return Finding("fail", where, "listed", f"the card at {where} {known}, and NVML does not list it")


def _is_unanswered(card: Card) -> bool:
    """Whether a look came to nothing over this card. It is perhaps not asked any more then, and its error says so."""
    return (card.row.get("error") or {}).get("device") is not None


def _error(card: Card, code: int, text: str) -> Finding:
    if not card.listed or _is_unanswered(card):
        raise NoFinding("unknown")
    return _when(card.error_code() == code, code, None, f"NVML says: {text} (code {code})")


def gpu_lost(card: Card) -> Finding:
    return _error(card, LOST, "the card is lost")


def gpu_reset_required(card: Card) -> Finding:
    return _error(card, RESET_REQUIRED, "the card requires a reset")


def gpu_power_missing(card: Card) -> Finding:
    return _error(card, INSUFFICIENT_POWER, "the card lacks external power")


def _unanswered(card: Card, name: str) -> Finding:
    error = card.row.get("error") or {}
    if _is_unanswered(card) and error["name"] == name:
        return Finding("fail", error["asked"], None, error["text"])
    if not card.answers():
        raise NoFinding("unknown")
    return Finding("ok")


def gpu_hang(card: Card) -> Finding:
    return _unanswered(card, "timeout")


def gpu_crash(card: Card) -> Finding:
    return _unanswered(card, "crashed")


# NVML's codes that speak of the asker and not of the card: no permission, timeout, out of memory.
_NOT_THE_CARDS = (4, 10, 20)


def gpu_error(card: Card) -> Finding:
    error = card.row.get("error")
    if not card.listed or _is_unanswered(card) or (error and error.get("code") in _NOT_THE_CARDS):
        raise NoFinding("unknown")
    if card.row.get("uuid") or card.error_code() in (INSUFFICIENT_POWER, LOST, RESET_REQUIRED):
        return Finding("ok")
    error = error or {"code": None, "text": "no UUID", "remedy": None}
    return Finding("fail", error["code"], None, f"NVML says: {error['text']}", remedy=error.get("remedy"))


# --- memory -----------------------------------------------------------------------------------------------------------


def ecc_uncorrected(card: Card) -> Finding:
    count, most = card.number("ecc_volatile", "uncorrected"), card.threshold("ecc_volatile_uncorrected")
    return _when(count > most, count, most, f"{count} uncorrected memory errors since the driver was loaded")


def ecc_sram_uncorrected(card: Card) -> Finding:
    count, most = card.number("ecc_sram", "volatile_uncorrected"), card.threshold("ecc_sram_uncorrected")
    return _when(count > most, count, most, f"{count} uncorrected SRAM errors since the driver was loaded")


def ecc_sram_threshold(card: Card) -> Finding:
    over = card.flag("ecc_sram", "threshold_exceeded")
    return _when(over, over, False, "the SRAM has had more errors than NVIDIA allows")


def _remapped(card: Card, name: str) -> bool:
    if "geforce" in str(card.row.get("slug") or ""):
        # GeForce has no spare rows; some answer all the same.
        raise NoFinding("not_applicable")
    return card.flag("remapped_rows", name)


def row_remap_pending(card: Card) -> Finding:
    pending = _remapped(card, "pending")
    return _when(pending, pending, False, "a row of memory waits for a reset to be replaced")


def row_remap_failed(card: Card) -> Finding:
    failed = _remapped(card, "failure")
    return _when(failed, failed, False, "a row of memory could not be replaced")


def retired_pages_pending(card: Card) -> Finding:
    pending = card.flag("retired_pages", "pending")
    return _when(pending, pending, False, "a page of memory waits to be retired when the driver is loaded next")


def retired_pages_limit(card: Card) -> Finding:
    count = card.number("retired_pages", "single_bit") + card.number("retired_pages", "double_bit")
    limit = card.threshold("retired_pages")
    return _when(count >= limit, count, limit, f"{count} pages of memory are retired")


def memory_unrepairable(card: Card) -> Finding:
    bad = card.boolean("memory_unrepairable")
    return _when(bad, bad, False, "the GPU says that its memory has faults that cannot be repaired")


def memory_repair_pending(card: Card) -> Finding:
    parts = {"channel_pending": "a channel of its memory", "tpc_pending": "a part of its compute units"}
    pending = [name for name in parts if card.flag("memory_repair", name)]
    waits = " and ".join(parts[name] for name in pending)
    return _when(bool(pending), pending, [], f"{waits} waits for a reset to be repaired")


# --- what the driver recommends ---------------------------------------------------------------------------------------


def gpu_recovery_action(card: Card) -> Finding:
    """What the driver wants done, for whatever reason: it stands here when the log has rolled over."""
    wanted = card.value("recovery_action")
    if isinstance(wanted, bool) or not isinstance(wanted, int):
        raise NoFinding("unknown")
    if wanted == 0:
        return Finding("ok", 0, 0)
    name = RECOVERY_NAMES.get(wanted, f"one that is not known, number {wanted}")
    _verdict, action = RECOVERY_ACTIONS.get(wanted, RECOVERY_UNKNOWN)
    return Finding("fail", wanted, 0, f"the driver recommends this recovery: {name}", action, xid.remedy(action))


# --- heat and power ---------------------------------------------------------------------------------------------------


def thermal_slowdown(card: Card) -> Finding:
    reasons = card.value("clocks_event_reasons")
    # The general bit comes with either cause; alone it is the card's own protection.
    hot = bool(reasons & HW_THERMAL) or reasons & (HW_SLOWDOWN | HW_POWER_BRAKE) == HW_SLOWDOWN
    return _when(hot, hex(reasons), hex(HW_THERMAL | HW_SLOWDOWN), "the card slows down because it is too hot")


def power_brake(card: Card) -> Finding:
    reasons = card.value("clocks_event_reasons")
    return _when(
        bool(reasons & HW_POWER_BRAKE), hex(reasons), hex(HW_POWER_BRAKE), "the power supply slows the card down"
    )


def temperature_limit(card: Card) -> Finding:
    """The card's own limits, or else the policy's; what the card does not tell is no reason."""
    readings = card.row.get("readings") or {}
    limits = (readings.get("temperature_limits_c") or {}).get("value") or {}
    judged: list[tuple[str, Any, float]] = []
    first: NoFinding | None = None
    for key, name, limit, own in (
        ("temperature_c", "the card", limits.get("slowdown"), card.threshold("temperature_c")),
        ("memory_temperature_c", "its memory", limits.get("memory_max"), card.threshold("memory_temperature_c")),
    ):
        try:
            value = card.value(key)
        except NoFinding as no:
            first = first or no
            continue
        at = own if own is not None else limit - card.threshold("temperature_margin_c") if limit else None
        if at is not None:
            judged.append((name, value, at))
    if not judged:
        raise first or NoFinding("not_applicable")
    name, value, at = max(judged, key=lambda row: row[1] - row[2])
    return _when(value >= at, value, at, f"{name} is at {value} °C, and slows down at {at:g} °C")


# --- links ------------------------------------------------------------------------------------------------------------


def pcie_width(card: Card) -> Finding:
    width, most = card.number("pcie", "width"), card.number("pcie", "width_max")
    return _when(width < most, width, most, f"the PCIe link has {width} of {most} lanes")


def pcie_generation(card: Card) -> Finding:
    generation, most = card.number("pcie", "generation"), card.number("pcie", "generation_max")
    if generation >= most:
        return Finding("ok", generation, most)
    if card.number("utilization_percent", "gpu") < card.threshold("load_percent"):
        # An idle link slows down to save power, which says nothing.
        raise NoFinding("not_applicable")
    return Finding("fail", generation, most, f"the PCIe link is at generation {generation} of {most} under load")


def pcie_replays(card: Card) -> Finding:
    generation, lanes = card.number("pcie", "generation_max"), card.number("pcie", "width")
    per_lane = card.threshold("pcie_replays_per_lane").get(str(generation))
    if per_lane is None:
        raise NoFinding("not_applicable")
    limit = math.ceil(lanes * per_lane)
    rate = card.per_minute("pcie_replays", card.value("pcie_replays"))
    return _when(rate > limit, round(rate, 1), limit, f"{rate:.1f} PCIe packets repeated in a minute")


def _active(row: dict[str, Any]) -> set[int]:
    links = ((row.get("readings") or {}).get("nvlinks") or {}).get("value") or []
    return {link["link"] for link in links if link["active"]}


def nvlink_down(card: Card) -> Finding:
    """Which links should be up is known from the links that were, and on an SXM board from the cards beside it.

    A PCIe card without a bridge reports all links down, and one with a bridge some of them; neither is a fault.
    """
    links = card.value("nvlinks")
    mig = ((card.row.get("readings") or {}).get("mig") or {}).get("value") or {}
    if not links or mig.get("enabled"):
        raise NoFinding("not_applicable")
    active = _active(card.row)
    seen = active | set(card.memory.get("nvlinks_seen", ()))
    card.memory["nvlinks_seen"] = sorted(seen)
    should = len(seen)
    if card.switched or "sxm" in str(card.row.get("slug") or ""):
        same = (peer for peer in card.peers if peer.get("slug") == card.row.get("slug"))
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


def nvlink_errors(card: Card) -> Finding:
    links = card.value("nvlinks")
    found: list[Finding] = []
    told = False
    for key, threshold, name in _LINK_ERRORS:
        counts = [link[key] for link in links if link.get(key) is not None]
        if not counts:
            continue
        told = True
        limit = card.threshold(threshold)
        try:
            rate = card.per_minute(threshold, sum(counts))
        except NoFinding:
            continue
        found.append(_when(rate >= limit, round(rate, 1), limit, f"{rate:.1f} {name} on NVLinks in a minute"))
    if not told:
        raise NoFinding("not_applicable")
    if not found:
        raise NoFinding(None)
    return next((finding for finding in found if finding.state == "fail"), found[0])


def fabric_state(card: Card) -> Finding:
    fabric = card.value("fabric")
    state, status = fabric["state"], fabric.get("status") or 0
    if state == "not_supported":
        raise NoFinding("not_applicable")
    if state != "completed" and card.uptime < card.threshold("fabric_grace_s"):
        raise NoFinding("unknown")
    shown = state if not status else f"{state} with status {status}"
    return _when(
        state != "completed" or status != 0, shown, "completed", f"the card's way into the NVSwitch fabric is {shown}"
    )


def fabric_unhealthy(card: Card) -> Finding:
    fabric = card.value("fabric")
    if fabric["state"] == "not_supported":
        raise NoFinding("not_applicable")
    flags = list(fabric.get("unhealthy") or ())
    return _when(bool(flags), flags, [], f"the NVSwitch fabric reports {', '.join(flags)}")


# --- settings ---------------------------------------------------------------------------------------------------------


def persistence_mode(card: Card) -> Finding:
    wanted = card.policy["expected"]["persistence_mode"]
    mode = card.boolean("persistence_mode")
    if wanted is None:
        raise NoFinding("not_applicable")
    return _when(mode != wanted, mode, wanted, f"persistence mode is {_on(mode)}")


def clocks_locked(card: Card) -> Finding:
    clocks = card.value("application_clocks_mhz")
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


def mig_mode(card: Card) -> Finding:
    wanted = card.policy["expected"]["mig"]
    try:
        mig = card.value("mig")
    except NoFinding as no:
        if no.state == "not_applicable" and wanted:
            return Finding("fail", None, True, "the card has no MIG, and is expected to")
        raise
    if mig["enabled"] != mig["pending"]:
        text = f"MIG is {_on(mig['enabled'])}, and will be {_on(mig['pending'])} after a reset"
        return Finding("fail", mig["enabled"], mig["pending"], text, action="reset_gpu")
    if wanted is None:
        return Finding("ok", mig["enabled"])
    return _when(mig["enabled"] != wanted, mig["enabled"], wanted, f"MIG is {_on(mig['enabled'])}")


def inforom_corrupt(card: Card) -> Finding:
    valid = card.boolean("inforom_valid")
    return _when(not valid, valid, True, "the InfoROM is corrupt")


def zombie_process(card: Card) -> Finding:
    dead = [process["pid"] for process in card.value("processes") if not process["exists"]]
    return _when(bool(dead), dead, [], f"memory is held by processes that are gone: {', '.join(map(str, dead))}")


def device_file_missing(card: Card) -> Finding:
    if card.row.get("minor") is None:
        raise NoFinding("unknown")
    path = f"/dev/nvidia{card.row['minor']}"
    if path not in card.device_files:
        raise NoFinding(None)
    return _when(not card.device_files[path], path, "present", f"{path} is missing or has a wrong number")


def _on(value: Any) -> str:
    return "on" if value else "off"


def _mhz(values: Iterable[int]) -> str:
    return " and ".join(f"{value} MHz" for value in values)


# Whether the card can be reached comes first: the others mean something only then.
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


def _find(rule: Rule, card: Card) -> Finding | None:
    try:
        return rule(card)
    except NoFinding as no:
        return Finding(no.state) if no.state else None
    except (AttributeError, KeyError, TypeError, ValueError):
        # What a broken library answers is of no use to this check, and must not keep the others from being made.
        return Finding("unknown")


def findings(card: Card) -> dict[str, Finding | None]:
    """What every check finds; None for one that was not asked in this look."""
    found = {code: _find(rule, card) for code, rule in REACHED.items()}
    sensible = card.answers()
    found.update({code: _find(rule, card) if sensible else Finding("unknown") for code, rule in READ.items()})
    return found
