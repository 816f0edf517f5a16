# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered between two looks, and how findings become faults and faults end.

The history is a dict that goes to JSON and back unchanged. It has one record for the node and one for every GPU, by
UUID, or by PCI address as long as no UUID is known. A record:

    identity   {uuid, index, pci_address}
    answered   whether the GPU was ever reached; missed: looks in a row in which it was not
    present    whether the last look had it; boot: the last boot in which one had it
    handed_through  whether it belongs to a virtual machine, so that nothing is said of it
    verdict    {verdict, since} as last reported
    checks     CODE -> state in the last look that asked
    pending    CODE -> {looks, since, text}: failing, and not yet for long enough
    shares     CODE -> {last, minutes: [[minute, bad seconds], ...]}: how much of the time was bad
    faults     CODE -> the fault: a REASON of the report, with what is needed to end it
    past       CODE or xid:N -> {chain, boot, lifts}: what escalation counts
    memory     what the rules keep, of one boot only except for `nvlinks_seen`
    xids       N -> {count, last}
    recent     N -> {teller, count, uptime}: Xids of the last seconds that NVML or the kernel's log alone has told

`bus` is what the bus of this boot has or had: {gpus, switches}, addresses. Only of what was there is something logged
that counts, so the history cannot be made to grow by what a line says.

Durations are taken from the uptime, never from the wall clock, which jumps; wall time is only shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import codes as health_codes
from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS, CODES
from ansible_collections.baremetal.gpu.plugins.module_utils.health.rules import Finding
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid

SCHEMA = 1
BOOTS_KEPT = 50
# The kernel's log and NVML tell of one Xid within this time.
SAME_XID_S = 10.0
# A look counts for the time since the one before, but for no more than this.
SHARE_GAP_S = 120.0
SHARE_BUCKET_S = 60.0
# Of a GPU. An Xid that is in no table counts for no verdict, and is counted as long as there are not many of them.
UNDOCUMENTED_MOST = 32
# Of a fault: numbers of SXids; MIG's instances.
SXIDS_MOST, INSTANCES_MOST = 64, 64
# GPUs that only the log names, before a look has told which ones there are.
UNSEEN_MOST = 32
BUS_MOST = 1024
# Of all GPUs that were ever here. More are no GPUs, but a library that makes up UUIDs.
DEVICES_MOST = 512


class HistoryError(ValueError):
    """The history is not one that this version can go on with."""


@dataclass(frozen=True)
class Clock:
    """`time` in Unix seconds, `uptime` in seconds since boot, `boot` the number of the boot in this history."""

    time: float
    uptime: float
    boot: int

    def wall(self, uptime: float) -> float:
        """The wall time of a moment of this boot, by the clock as it goes now."""
        return round(self.time - max(0.0, self.uptime - uptime), 3)


def empty() -> dict[str, Any]:
    return {"schema": SCHEMA, "boots": [], "boot": 0, "sequence": -1, "bus": None, "node": record(), "devices": {}}


def record(uuid: str | None = None, index: int | None = None, pci_address: str | None = None) -> dict[str, Any]:
    return {
        "identity": {"uuid": uuid, "index": index, "pci_address": pci_address},
        "answered": False,
        "present": False,
        "handed_through": False,
        "boot": 0,
        "verdict": {"verdict": None, "since": None},
        "missed": 0,
        "checks": {},
        "pending": {},
        "shares": {},
        "faults": {},
        "past": {},
        "memory": {},
        "xids": {},
        "recent": {},
    }


def check(history: dict[str, Any]) -> None:
    """Raises HistoryError for a history of another version."""
    if history.get("schema") != SCHEMA:
        raise HistoryError(
            f"the health history has schema {history.get('schema')!r}, and this version writes {SCHEMA}: "
            "use the version that wrote it, or remove the file to begin anew"
        )


def upgrade(history: dict[str, Any]) -> None:
    """What an earlier version kept in another form, and lives no longer than some seconds, begins anew."""
    history.setdefault("bus", None)
    for one in records(history):
        if not isinstance(one["recent"], dict):
            one["recent"] = {}


def note_bus(history: dict[str, Any], bus: Iterable[dict[str, Any]] | None) -> None:
    """Remember for this boot what is on the PCI bus, a snapshot's `pci`; None where the bus cannot be read."""
    if bus is None:
        return
    known = history["bus"] or {"gpus": [], "switches": []}
    for row in bus:
        part = known.get({"gpu": "gpus", "nvswitch": "switches"}.get(row["kind"], ""))
        if part is not None and row["address"] not in part and len(part) < BUS_MOST:
            part.append(row["address"])
    history["bus"] = known


def records(history: dict[str, Any]) -> list[dict[str, Any]]:
    return [history["node"], *history["devices"].values()]


def begin_boot(history: dict[str, Any], boot_id: str | None) -> None:
    """Notice that the host was booted since; a boot id that cannot be read changes nothing."""
    if boot_id is None or (history["boots"] and history["boots"][-1] == boot_id):
        return
    history["boots"] = [*history["boots"], boot_id][-BOOTS_KEPT:]
    history["boot"] += 1
    history["sequence"], history["bus"] = -1, None
    for one in records(history):
        one["pending"], one["shares"], one["recent"] = {}, {}, {}
        one["memory"] = {key: value for key, value in one["memory"].items() if key == "nvlinks_seen"}


def merge_records(into: dict[str, Any], other: dict[str, Any]) -> None:
    """Take over what was recorded by address before the GPU told its UUID."""
    for part in ("faults", "past"):
        for key, value in other[part].items():
            into[part].setdefault(key, value)
    for number, row in other["xids"].items():
        mine = into["xids"].setdefault(number, {"count": 0, "last": row["last"]})
        mine["count"] += row["count"]
        mine["last"] = max(mine["last"], row["last"])
    into["recent"].update(other["recent"])


# --- escalation -------------------------------------------------------------------------------------------------------


def _escalated(one: dict[str, Any], key: str, action: str, last: str, clock: Clock, policy: dict[str, Any]) -> str:
    """Count an occurrence of a fault, and return what is to be done about it now.

    A reset that did not help is followed by a reboot, and a fault that is back after `rma_reboots` reboots in a row
    is the hardware's.
    """
    past = one["past"].get(key)
    if past is None or past["boot"] < clock.boot - 1:
        past = {"chain": 1, "boot": clock.boot, "lifts": 0}
    elif past["boot"] == clock.boot - 1:
        past = {"chain": past["chain"] + 1, "boot": clock.boot, "lifts": 0}
    one["past"][key] = past
    if action not in ("reset_gpu", "reboot"):
        return action
    if past["chain"] > policy["thresholds"]["rma_reboots"]:
        return last
    return "reboot" if past["lifts"] else action


def _lift(one: dict[str, Any], code: str, boot: int) -> None:
    fault = one["faults"].pop(code)
    for key in [f"xid:{number}" for number in fault.get("xids", ())] or [code]:
        past = one["past"].get(key)
        if past and past["boot"] == boot:
            past["lifts"] += 1


# --- from findings to faults ------------------------------------------------------------------------------------------


def _failed_enough(one: dict[str, Any], code: str, text: str, clock: Clock, policy: dict[str, Any]) -> bool:
    """Count a look that failed; whether the check has failed for long enough."""
    pending = one["pending"].setdefault(code, {"looks": 0, "since": clock.wall(clock.uptime)})
    pending["looks"] += 1
    pending["text"] = text
    if CODES[code].share:
        return bool(_bad_s(one, code, True, clock, policy) >= policy["thresholds"]["share_bad_s"])
    return bool(pending["looks"] >= policy["checks"][code]["looks"])


def _is_over(one: dict[str, Any], code: str, clock: Clock, policy: dict[str, Any]) -> bool:
    """Count a good look; whether a fault may end with such looks."""
    if CODES[code].share:
        bad_s = _bad_s(one, code, False, clock, policy)
        if not bad_s:
            one["pending"].pop(code, None)
        # A fault ends well below where it began, so that it does not flap.
        return bool(bad_s < policy["thresholds"]["share_bad_s"] / 2)
    one["pending"].pop(code, None)
    return True


def _bad_s(one: dict[str, Any], code: str, failed: bool, clock: Clock, policy: dict[str, Any]) -> float:
    """For how many seconds of the window the check failed. A look speaks for the time since the one before it."""
    kept = one["shares"].setdefault(code, {"last": None, "minutes": []})
    gap = 0.0 if kept["last"] is None else min(SHARE_GAP_S, max(0.0, clock.uptime - kept["last"]))
    kept["last"] = clock.uptime
    minute = int(clock.uptime // SHARE_BUCKET_S)
    if failed:
        if not kept["minutes"] or kept["minutes"][-1][0] != minute:
            kept["minutes"].append([minute, 0.0])
        kept["minutes"][-1][1] += gap
    oldest = (clock.uptime - policy["thresholds"]["share_window_s"]) / SHARE_BUCKET_S
    kept["minutes"] = [bucket for bucket in kept["minutes"] if bucket[0] >= oldest]
    return float(sum(bucket[1] for bucket in kept["minutes"]))


def pause_shares(one: dict[str, Any]) -> None:
    """A look that failed: the time until the next one counts for nothing."""
    for kept in one["shares"].values():
        kept["last"] = None


def apply(one: dict[str, Any], code: str, finding: Finding | None, clock: Clock, policy: dict[str, Any]) -> None:
    """Let one finding set, keep or end a fault. A check that was not made, or failed to be, changes no fault."""
    if finding is None:
        return
    one["checks"][code] = finding.state
    settings = policy["checks"][code]
    if settings["verdict"] == "ignore":
        one["faults"].pop(code, None)
        return
    fault = one["faults"].get(code)
    if finding.state == "fail":
        if _failed_enough(one, code, finding.text, clock, policy) or fault:
            _set(one, code, finding, clock, policy)
        return
    if finding.state == "ok":
        over = _is_over(one, code, clock, policy)
    elif finding.state == "not_applicable":
        # A GPU of another mode or driver than at the time of the fault: only a new boot makes that an answer.
        over = fault is not None and fault["boot"] != clock.boot
    else:
        return
    if fault and over:
        _good_look(one, code, fault, clock, settings["clear_looks"])


def _good_look(one: dict[str, Any], code: str, fault: dict[str, Any], clock: Clock, clear_looks: int) -> None:
    if fault["action"] == "rma" and CODES[code].action != "rma":
        # Escalated: that it looks well now is what it did before, so somebody has to say that it was mended.
        return
    if CODES[code].ends == health_codes.BY_BOOT and fault["boot"] == clock.boot:
        return
    fault["good"] += 1
    if fault["good"] >= clear_looks:
        _lift(one, code, clock.boot)


def _set(
    one: dict[str, Any], code: str, finding: Finding, clock: Clock, policy: dict[str, Any], since: float | None = None
) -> None:
    settings = policy["checks"][code]
    fault = one["faults"].get(code)
    pending = one["pending"].pop(code, None)
    if fault is None:
        if since is None:
            since = pending["since"] if pending else clock.wall(clock.uptime)
        fault = one["faults"][code] = {"since": since, "boot": None}
    action = finding.action or settings["action"]
    if fault["boot"] != clock.boot:
        escalates = settings["verdict"] == "fatal"
        fault["action"] = _escalated(one, code, action, "rma", clock, policy) if escalates else action
    else:
        fault["action"] = max(fault["action"], action, key=ACTIONS.index)
    fault.update(
        boot=clock.boot,
        good=0,
        verdict=settings["verdict"],
        value=finding.value,
        threshold=finding.threshold,
        text=finding.text,
    )


# --- events -----------------------------------------------------------------------------------------------------------


def is_repeated(one: dict[str, Any], event: dict[str, Any]) -> bool:
    """Whether an Xid is one that the other of its two tellers told already; it is remembered either way."""
    teller = "nvml" if event["kind"] == "nvml_xid" else "kernel"
    key = str(event["xid"])
    recent = one["recent"].get(key)
    if recent is None or abs(event["uptime"] - recent["uptime"]) > SAME_XID_S:
        recent = {"teller": teller, "count": 0}
    elif recent["teller"] != teller and recent["count"]:
        recent["count"] -= 1
        return True
    if not recent["count"]:
        recent["teller"] = teller
    recent["count"] += 1
    recent["uptime"] = event["uptime"]
    one["recent"][key] = recent
    return False


def _counts(one: dict[str, Any], number: int) -> bool:
    """Whether an Xid is taken in. One that is in no table is not, where many others are not either."""
    if xid.is_known(number) or str(number) in one["xids"]:
        return True
    return sum(not xid.is_known(int(other)) for other in one["xids"]) < UNDOCUMENTED_MOST


def _count(one: dict[str, Any], number: int, since: float) -> None:
    counted = one["xids"].setdefault(str(number), {"count": 0, "last": since})
    counted["count"] += 1
    counted["last"] = max(counted["last"], since)


def apply_event(one: dict[str, Any], event: dict[str, Any], clock: Clock, policy: dict[str, Any]) -> None:
    """Count an Xid, and let it, or the fall off the bus, set a fault at once."""
    since = clock.wall(event["uptime"])
    if event["kind"] == "off_bus":
        if policy["checks"]["gpu_off_bus"]["verdict"] != "ignore":
            _set(one, "gpu_off_bus", Finding("fail", event["text"], None, event["text"]), clock, policy, since)
        return
    number, detail = event["xid"], event.get("detail") or {}
    if not _counts(one, number):
        return
    repeated = is_repeated(one, event)
    if repeated and (event["kind"] == "nvml_xid" or not xid.says_more(number)):
        return
    if not repeated:
        _count(one, number, since)
    verdict, action = xid.judge(number, detail, policy["xids"])
    if verdict in ("none", "application"):
        if xid.is_all_clear(number, detail):
            _forget_xid(one, number, clock)
        return
    if xid.is_told_by_nvml(number, one["checks"]):
        return
    code = f"xid_{verdict}"
    if policy["checks"][code]["verdict"] == "ignore":
        return
    _set_xid(one, code, number, action, since, clock, policy)
    _note_instance(one["faults"][code], detail)


def _set_xid(
    one: dict[str, Any], code: str, number: int, action: str, since: float, clock: Clock, policy: dict[str, Any]
) -> None:
    """One fault for all Xids of a severity; its value is the one that asks for most."""
    fault = one["faults"].setdefault(code, {"since": since, "xids": {}, "action": "none"})
    row = fault["xids"].get(str(number))
    new = row is None or row["boot"] != clock.boot
    if row is None or row["boot"] != clock.boot:
        last = xid.row(number).escalation or "rma"
        wanted = _escalated(one, f"xid:{number}", action, last if last == "inspect" else "rma", clock, policy)
        row = {"count": 0, "action": wanted, "boot": clock.boot}
    elif ACTIONS.index(action) > ACTIONS.index(row["action"]):
        row["action"] = action
        new = True
    row["count"] += 1
    row["boot"] = clock.boot
    fault["xids"][str(number)] = row
    fault.update(boot=clock.boot, good=0, verdict=policy["checks"][code]["verdict"], threshold=None)
    if new:
        # In a storm most are of a number that is there already.
        _sum_up_xids(fault)


def _note_instance(fault: dict[str, Any], detail: dict[str, Any]) -> None:
    """The instance of MIG in which it happened is evidence; the whole GPU is judged, as its memory is shared."""
    if detail.get("instance") is None:
        return
    instance = {"instance": detail["instance"], "compute_instance": detail.get("compute_instance")}
    known = fault.setdefault("instances", [])
    if instance not in known and len(known) < INSTANCES_MOST:
        known.append(instance)


def _sum_up_xids(fault: dict[str, Any]) -> None:
    worst = max(fault["xids"], key=lambda number: (ACTIONS.index(fault["xids"][number]["action"]), -int(number)))
    fault["value"] = int(worst)
    fault["action"] = fault["xids"][worst]["action"]
    fault["text"] = "; ".join(xid.text(int(number)) for number in sorted(fault["xids"], key=int))


# What an NVSwitch's driver calls an error -> the check of the host that it fails. A correctable one is no fault, and a
# severity that is not known is not taken for a mild one.
_SXID_CODES = {"fatal": "sxid_fatal", "nonfatal": "sxid_degraded", "correctable": None}


def apply_sxid(node: dict[str, Any], event: dict[str, Any], clock: Clock, policy: dict[str, Any]) -> None:
    """An error of an NVSwitch is the host's: all its GPUs are joined by it."""
    detail, number = event.get("detail") or {}, str(event["sxid"])
    code = _SXID_CODES.get(str(detail.get("severity")), "sxid_fatal")
    if code is None or policy["checks"][code]["verdict"] == "ignore":
        return
    before = node["faults"].get(code)
    told = before["sxids"] if before and before["boot"] == clock.boot else {}
    if number in told or len(told) < SXIDS_MOST:
        row = told.setdefault(number, {"count": 0, "links": {}})
        row["count"] += 1
        links = row["links"].setdefault(event["pci_address"], [])
        links.extend(link for link in detail.get("links") or () if link not in links)
    finding = Finding("fail", event["sxid"], None, f"the driver of an NVSwitch reported: {event['text']}")
    _set(node, code, finding, clock, policy, clock.wall(event["uptime"]))
    node["faults"][code]["sxids"] = told


def _forget_xid(one: dict[str, Any], number: int, clock: Clock) -> None:
    """The driver itself says that an Xid's reason is over."""
    for code in ("xid_fatal", "xid_degraded"):
        fault = one["faults"].get(code)
        if fault and fault["xids"].get(str(number), {}).get("boot") == clock.boot:
            if len(fault["xids"]) == 1:
                _lift(one, code, clock.boot)
            else:
                del fault["xids"][str(number)]
                _sum_up_xids(fault)


# --- operators --------------------------------------------------------------------------------------------------------


def clear(one: dict[str, Any], code: str | None, boot: int) -> list[str]:
    """Lift the faults of a record, all or those of one code; what is failing still is found again by the next look."""
    cleared = [name for name in sorted(one["faults"]) if code in (None, name)]
    for name in cleared:
        _lift(one, name, boot)
        one["pending"].pop(name, None)
        one["shares"].pop(name, None)
        one["checks"].pop(name, None)
        if name == "nvlink_down":
            one["memory"].pop("nvlinks_seen", None)
    return cleared
