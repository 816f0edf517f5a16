# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One verdict on a host and on each of its GPUs, from what is seen, what is logged, and what was so before.

The report is {schema, verdict: ok|degraded|fatal|unknown, since, reasons, suspected, checks, devices: [{uuid, index,
pci_address, verdict, since, reasons, suspected, checks}]}. A reason is {code, verdict, state: "fail", evidence: {value,
threshold, since, ...}, action, remedy, text}; `suspected` are failing checks that have not failed for long enough:
{code, looks, since, text}. `checks` gives ok, fail, unknown or not_applicable for every code. All `since` are Unix
seconds.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import pci
from ansible_collections.baremetal.gpu.plugins.module_utils.health import history as kept
from ansible_collections.baremetal.gpu.plugins.module_utils.health import look_shape
from ansible_collections.baremetal.gpu.plugins.module_utils.health import policy as policies
from ansible_collections.baremetal.gpu.plugins.module_utils.health import rules as health_rules
from ansible_collections.baremetal.gpu.plugins.module_utils.health import rules_node as health_rules_node
from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import (
    DEVICE_CODES,
    EVENT_CODES,
    NODE_CODES,
    remedy,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.health.history import Clock, HistoryError
from ansible_collections.baremetal.gpu.plugins.module_utils.health.rules import Finding, Gpu
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, OK, UNKNOWN, VERDICTS, worst
from ansible_collections.baremetal.gpu.plugins.module_utils.host.pci_address import normal_address

__all__ = ["SCHEMA", "HistoryError", "clear", "judge", "judge_once", "xid_counts"]

SCHEMA = 1
# What a broken library answers in place of a UUID must not pass for another GPU.
_UUID = re.compile(r"^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
# CLOCK_BOOTTIME goes on while the machine sleeps.
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def judge(
    look: dict[str, Any] | None,
    events: Iterable[dict[str, Any]],
    history: dict[str, Any] | None,
    policy: dict[str, Any] | None = None,
    now: dict[str, float] | None = None,
    bus: list[dict[str, Any]] | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The report, and the history for the next call; what is passed in is not changed.

    `look` is a snapshot, or None where only events are new: nothing is then counted as seen again. `history` is empty
    in the beginning. `policy` is the site's, see policy.py. `now` is {time, uptime} without a look; by default the
    host's clocks. `bus` is a snapshot's `pci` without a look, so that an event of what never was on the bus is known
    as such before the first look. Raises PolicyError or HistoryError.
    """
    return _judge(look, events, history, policies.merge(policy), now, bus)


def judge_once(
    look: dict[str, Any],
    events: Iterable[dict[str, Any]],
    policy: dict[str, Any] | None = None,
    log_read: bool = True,
) -> dict[str, Any]:
    """The report on a single look: what fails in it counts at once, except for what is a share of time.

    Without `log_read` nobody could see what the kernel has logged, and the checks of it are unknown.
    """
    report = _judge(look, events, None, policies.for_one_look(policy), None, None)[0]
    if not log_read:
        for part in (report, *report["devices"]):
            part["checks"].update((code, "unknown") for code in EVENT_CODES if part["checks"].get(code) == "ok")
    return report


def _judge(
    look: dict[str, Any] | None,
    events: Iterable[dict[str, Any]],
    history: dict[str, Any] | None,
    rules: dict[str, Any],
    now: dict[str, float] | None,
    bus: list[dict[str, Any]] | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    if history:
        kept.check(history)
        history = copy.deepcopy(history)
        kept.upgrade(history)
    else:
        history = kept.empty()
    events = list(events)
    kept.begin_boot(history, _boot_id(look, events, history))
    at = look or now or {"time": time.time(), "uptime": time.clock_gettime(_BOOTTIME)}
    clock = Clock(at["time"], at["uptime"], history["boot"])

    if look:
        look = {**look, "devices": [look_shape.device(row) for row in look.get("devices") or ()]}
    kept.note_bus(history, look.get("pci") if look else bus)
    seen = _identify(look, history) if look else {}
    blamed = _blamed(look, history) if look else None
    for event in _new(events, history):
        if event["kind"] == "sxid":
            if history["bus"] is None or event["pci_address"] in history["bus"]["switches"]:
                kept.apply_sxid(history["node"], event, clock, rules)
            continue
        one = _record_of(event, history)
        if one is not None:
            kept.apply_event(one, event, clock, rules)
    if look:
        errors = _judge_devices(look, seen, blamed, history, clock, rules)
        _judge_node(look, blamed, errors, history, clock, rules)
    return _report(history, clock, rules), history


def clear(
    history: dict[str, Any], device: str | None = None, code: str | None = None
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Lift faults after somebody mended their cause: the history without them, and [{device, code}] that were lifted.

    `device` is a UUID or a PCI address; None is the node and every GPU. A GPU that is not there any more, and has
    no fault left, is forgotten with this. What is still wrong is found again by the next look.
    """
    kept.check(history)
    history = copy.deepcopy(history)
    kept.upgrade(history)
    lifted: list[dict[str, Any]] = []
    if device is None:
        lifted += [{"device": None, "code": name} for name in kept.clear(history["node"], code, history["boot"])]
    for key, one in list(history["devices"].items()):
        identity = one["identity"]
        if device is not None and device != key and normal_address(device) != identity["pci_address"]:
            continue
        named = identity["uuid"] or key
        lifted += [{"device": named, "code": name} for name in kept.clear(one, code, history["boot"])]
        if not one["present"] and not one["faults"] and history["node"]["answered"]:
            del history["devices"][key]
    return history, lifted


def xid_counts(history: dict[str, Any]) -> list[dict[str, Any]]:
    """[{uuid, pci_address, xid, count, last}] of all Xids ever seen here; `last` in Unix seconds."""
    return [
        {
            "uuid": one["identity"]["uuid"],
            "pci_address": one["identity"]["pci_address"],
            "xid": int(number),
            "count": row["count"],
            "last": row["last"],
        }
        for one in (history or kept.empty())["devices"].values()
        for number, row in sorted(one["xids"].items(), key=lambda item: int(item[0]))
    ]


# --- which boot, which GPU -------------------------------------------------------------------------------------------


def _boot_id(look: dict[str, Any] | None, events: list[dict[str, Any]], history: dict[str, Any]) -> str | None:
    """The boot that this call speaks of. An event of a boot that is known and over does not bring it back."""
    if look:
        boot_id = look.get("boot_id")
        return str(boot_id) if boot_id else None
    for event in events:
        if event.get("boot_id") and event["boot_id"] not in history["boots"]:
            return str(event["boot_id"])
    return None


def _new(events: list[dict[str, Any]], history: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """The events of this boot that were not taken in before. The kernel numbers its records, so none counts twice."""
    known_to = newest = history["sequence"]
    at_newest: set[str] = set()
    for event in events:
        if event.get("boot_id") and history["boots"] and event["boot_id"] != history["boots"][-1]:
            continue
        sequence = event.get("sequence")
        if sequence is not None:
            # One record can hold several lines, and so several events of one number.
            if sequence <= known_to or sequence < newest or (sequence == newest and event["text"] in at_newest):
                continue
            at_newest = {event["text"], *(at_newest if sequence == newest else ())}
            newest = history["sequence"] = sequence
        yield event


def _by_address(history: dict[str, Any], address: str | None) -> str | None:
    """The key of the GPU at an address; the newest where a GPU took another one's place."""
    found = [key for key, one in history["devices"].items() if address and one["identity"]["pci_address"] == address]
    return max(
        found, key=lambda key: (history["devices"][key]["boot"], history["devices"][key]["present"]), default=None
    )


def _record_of(event: dict[str, Any], history: dict[str, Any]) -> dict[str, Any] | None:
    """The record of the GPU of an event. None where there is no such GPU, and none was known here.

    A GPU that has left the bus was known before: in this boot, or as a record of an earlier one.
    """
    uuid, address = event.get("uuid"), event.get("pci_address")
    devices = history["devices"]
    # The line that is judged names the place; which UUID was there, another line said some time before.
    key = uuid if uuid in devices and devices[uuid]["identity"]["pci_address"] in (None, address) else None
    key = key or _by_address(history, address)
    if key is None:
        # No look has shown this GPU yet; its record is found again by its address.
        if history["bus"] is not None:
            if address not in history["bus"]["gpus"]:
                return None
        elif sum(_is_unseen(one) for one in devices.values()) >= kept.UNSEEN_MOST:
            return None
        key = address or "unknown"
        devices[key] = kept.record(pci_address=address)
    one: dict[str, Any] = devices[key]
    return one


def _is_unseen(one: dict[str, Any]) -> bool:
    """Whether only the log has named this GPU so far."""
    return one["identity"]["uuid"] is None and not one["boot"]


def _identify(look: dict[str, Any], history: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Key -> the look's row, for every row. Records are made, and those made by address become the GPU's own."""
    seen: dict[str, dict[str, Any]] = {}
    devices = history["devices"]
    if history["bus"] is not None:
        there = set(history["bus"]["gpus"])
        for key in [key for key, one in devices.items() if _is_unseen(one)]:
            if devices[key]["identity"]["pci_address"] not in there:
                del devices[key]
    rows = _placed(look)
    for row in rows:
        uuid = row.get("uuid")
        if not uuid or not _UUID.match(uuid):
            continue
        if uuid not in devices and len(devices) >= kept.DEVICES_MOST:
            continue
        address = row.get("pci_address")
        if uuid not in devices:
            before = _by_address(history, address)
            devices[uuid] = kept.record()
            if before and devices[before]["identity"]["uuid"] is None:
                kept.merge_records(devices[uuid], devices.pop(before))
            elif before and devices[before]["boot"] < history["boot"]:
                # While the host was off, another GPU took its place.
                del devices[before]
        devices[uuid]["identity"] = {"uuid": uuid, "index": row.get("index"), "pci_address": address}
        seen[uuid] = row
    for row in rows:
        if row in seen.values():
            continue
        # A GPU that is lost tells little of itself: it is known by its place, or by the number it had.
        key = _by_address(history, row.get("pci_address"))
        if key is None or key in seen:
            key = next(
                (
                    key
                    for key, one in devices.items()
                    if key not in seen and one["identity"]["index"] == row["index"] and one["boot"] == history["boot"]
                ),
                row.get("pci_address") or f"index:{row['index']}",
            )
        one = devices.setdefault(key, kept.record(None, row["index"], row.get("pci_address")))
        one["identity"]["index"] = row["index"]
        one["identity"]["pci_address"] = one["identity"]["pci_address"] or row.get("pci_address")
        seen[key] = row
    for row in _own_gpus(look):
        if _by_address(history, row["address"]) is None:
            devices[row["address"]] = kept.record(pci_address=row["address"])
    return seen


def _placed(look: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the GPUs. Where one alone tells no address, and one address alone is left, they belong together."""
    rows = look.get("devices") or []
    nowhere = [row for row in rows if not row.get("pci_address")]
    taken = {row.get("pci_address") for row in rows}
    left = [row["address"] for row in _own_gpus(look) if row["address"] not in taken]
    if len(nowhere) != 1 or len(left) != 1:
        return rows
    return [{**row, "pci_address": left[0]} if row is nowhere[0] else row for row in rows]


def _blamed(look: dict[str, Any], history: dict[str, Any]) -> str | None:
    """The key of the GPU over which the whole look came to nothing; None where it is not known."""
    index = ((look.get("driver") or {}).get("nvml_error") or {}).get("device")
    if index is None:
        return None
    for key, one in history["devices"].items():
        if one["identity"]["index"] == index and one["boot"] == history["boot"]:
            return str(key)
    # No look has shown the GPUs yet in this boot. NVML numbers them by their addresses.
    gpus = sorted(row["address"] for row in _own_gpus(look))
    return _by_address(history, gpus[index]) if index < len(gpus) else None


def _own_gpus(look: dict[str, Any]) -> list[dict[str, Any]]:
    return pci.gpus(look.get("pci"))


# --- judging ----------------------------------------------------------------------------------------------------------


def _judge_devices(
    look: dict[str, Any],
    seen: dict[str, dict[str, Any]],
    blamed: str | None,
    history: dict[str, Any],
    clock: Clock,
    policy: dict[str, Any],
) -> list[str]:
    """Judges every GPU; what is returned are the checks that have failed themselves."""
    errors: list[str] = []
    error = (look.get("driver") or {}).get("nvml_error")
    silent = bool(error)
    on_bus = {row["address"] for row in _own_gpus(look)}
    # A GPU that is handed through to a virtual machine is not this host's to judge.
    handed = {row["address"] for row in pci.others(look.get("pci"))}
    switched = pci.needs_fabric_manager(look.get("pci"))
    bus_told = look.get("pci") is not None
    for key, one in history["devices"].items():
        address = one["identity"]["pci_address"]
        one["handed_through"] = address in handed
        if one["handed_through"]:
            continue
        row = seen.get(key)
        gpu = Gpu(
            row=row
            or {
                "pci_address": address,
                "uuid": one["identity"]["uuid"],
                "error": error if key == blamed else None,
            },
            peers=list(seen.values()),
            policy=policy,
            memory=one["memory"],
            uptime=clock.uptime,
            listed=row is not None,
            silent=silent,
            on_bus=address in on_bus if bus_told else None,
            switched=switched,
            device_files=look.get("device_files") or {},
        )
        one["present"] = row is not None or address in on_bus
        if one["present"]:
            one["boot"] = clock.boot
        if row is None:
            one["identity"]["index"] = None if not silent else one["identity"]["index"]
        errors += _take_in(one, gpu, clock, policy)
    return errors


def _take_in(one: dict[str, Any], gpu: Gpu, clock: Clock, policy: dict[str, Any]) -> list[str]:
    answers = gpu.answers()
    one["answered"] = one["answered"] or answers
    one["missed"] = 0 if answers else one["missed"] + 1
    if not answers:
        kept.pause_shares(one)
    found = health_rules.findings(gpu)
    for code, finding in found.items():
        kept.apply(one, code, finding, clock, policy)
    # What was logged of the GPU in an earlier boot is over when it is well in all that can be read.
    sick = any(
        finding is not None and finding.state == "fail" and policy["checks"][code]["verdict"] == FATAL
        for code, finding in found.items()
    )
    for code in EVENT_CODES:
        if code in DEVICE_CODES:
            kept.apply(one, code, Finding("ok" if answers and not sick else "unknown"), clock, policy)
    return [finding.error for finding in found.values() if finding and finding.error]


def _judge_node(
    look: dict[str, Any],
    blamed: str | None,
    errors: list[str],
    history: dict[str, Any],
    clock: Clock,
    policy: dict[str, Any],
) -> None:
    node = history["node"]
    error = (look.get("driver") or {}).get("nvml_error")
    has_gpus = bool(_own_gpus(look) or history["devices"])
    # Without a GPU there is nothing that NVML could tell; where the bus cannot be read, there may be one.
    missed = bool(error) and (has_gpus or look.get("pci") is None)
    node["answered"] = node["answered"] or not missed
    node["missed"] = node["missed"] + 1 if missed else 0
    found = health_rules_node.findings(look, policy, has_gpus, blamed is not None)
    for code, finding in found.items():
        kept.apply(node, code, finding, clock, policy)
    # As with the GPUs: an NVSwitch's error of an earlier boot is over when all is well that can be read.
    switched = any(row["kind"] == "nvswitch" for row in look.get("pci") or ())
    well = not missed and not any(finding is not None and finding.state == "fail" for finding in found.values())
    for code in EVENT_CODES:
        if code in NODE_CODES:
            state = "ok" if well and switched else "unknown" if switched or not well else "not_applicable"
            kept.apply(node, code, Finding(state), clock, policy)
    errors += [finding.error for finding in found.values() if finding and finding.error]
    kept.apply(node, "check_failed", health_rules_node.check_failed(errors), clock, policy)


# --- the report -------------------------------------------------------------------------------------------------------


def _report(history: dict[str, Any], clock: Clock, policy: dict[str, Any]) -> dict[str, Any]:
    devices = [
        {**one["identity"], **_part(one, _name(one["identity"]), DEVICE_CODES, [], clock, policy)}
        for one in history["devices"].values()
        if not one["handed_through"]
    ]
    devices.sort(key=lambda row: (row["index"] is None, row["index"], row["pci_address"] or ""))
    node = _part(history["node"], None, NODE_CODES, [row["verdict"] for row in devices], clock, policy)
    return {"schema": SCHEMA, **node, "devices": devices}


def _name(identity: dict[str, Any]) -> str:
    """What nvidia-smi takes for the GPU, where it is known."""
    return identity["uuid"] or identity["pci_address"] or "UUID"


def _part(
    one: dict[str, Any],
    gpu: str | None,
    codes: Iterable[str],
    others: list[str],
    clock: Clock,
    policy: dict[str, Any],
) -> dict[str, Any]:
    """What the report says of the node, or of one GPU. `others` are verdicts that this one cannot be better than."""
    reasons = [_reason(code, fault, gpu) for code, fault in one["faults"].items()]
    reasons.sort(key=lambda row: (-VERDICTS.index(row["verdict"]), row["evidence"]["since"], row["code"]))
    unknown = not one["answered"] or one["missed"] >= policy["thresholds"]["unknown_looks"]
    verdict = worst(*(row["verdict"] for row in reasons), *others, UNKNOWN if unknown else OK)
    if one["verdict"]["verdict"] != verdict:
        one["verdict"] = {"verdict": verdict, "since": clock.wall(clock.uptime)}
    return {
        **one["verdict"],
        "reasons": reasons,
        "suspected": [
            {"code": code, **pending} for code, pending in sorted(one["pending"].items()) if code not in one["faults"]
        ],
        "checks": {code: "fail" if code in one["faults"] else one["checks"].get(code, "unknown") for code in codes},
    }


def _links(rows: Iterable[dict[str, Any]]) -> dict[str, list[int]]:
    """Address of an NVSwitch -> the numbers of its links that SXids named."""
    found: dict[str, set[int]] = {}
    for row in rows:
        for address, links in row["links"].items():
            found.setdefault(address, set()).update(links)
    return {address: sorted(links) for address, links in sorted(found.items())}


def _reason(code: str, fault: dict[str, Any], gpu: str | None) -> dict[str, Any]:
    evidence = {"value": fault["value"], "threshold": fault["threshold"], "since": fault["since"]}
    if "xids" in fault:
        evidence["xids"] = {number: row["count"] for number, row in fault["xids"].items()}
        if fault.get("instances"):
            evidence["instances"] = fault["instances"]
    if "sxids" in fault:
        evidence["sxids"] = {number: row["count"] for number, row in fault["sxids"].items()}
        evidence["links"] = _links(fault["sxids"].values())
    return {
        "code": code,
        "verdict": fault["verdict"],
        "state": "fail",
        "evidence": evidence,
        "action": fault["action"],
        "remedy": remedy(code, fault["action"], gpu),
        "text": fault["text"],
    }
