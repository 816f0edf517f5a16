# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of Ansible in check mode announces of a real one, host by host."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import NAMES
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, rows, texts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import text as line_of
from gpuops.run import events

_DISK_ACTIONS = ("ceph_osd_device", "ceph_osd_device_info")
_DRIFT_ACTION = "host_drift_info"
# The fact in which the role converge announces a reboot, with the reason.
_REBOOT = "converge_reboot_announced"
# What a role calls the fact in which it announces a proof, after its own name.
_PROOF = "_proof_announced"
MOST_DIFF_LINES = 400
# In the plan in brief.
MOST_FAILURES, MOST_NAMES, MOST_WORDS = 6, 4, 2

# (attribute, word, style), in the order in which they are printed. What cannot be undone comes first.
SECTIONS = (
    ("wipes", "WIPE", "bad"),
    ("reboots", "REBOOT", "bad"),
    ("removes", "remove", "changed"),
    ("disks", "disk", "changed"),
    ("installs", "install", "good"),
    ("changes", "change", "plain"),
    ("proofs", "prove", "plain"),
    ("cautions", "caution", "changed"),
)


@dataclass
class HostPlan:
    """What would be done on a host, in words, each list in the order in which it would happen.

    :ivar wipes: disks whose content would be destroyed.
    :ivar disks: disks that hold nothing and would be taken into use.
    :ivar proofs: what is proven once that is done; it is not tried on the host as it is.
    :ivar summary: the summary of preflight of the stages to come.
    :ivar stages: the same by stage, with the names of units that would be restarted as ``restarts``.
    """

    wipes: list[str] = field(default_factory=list)
    reboots: list[str] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)
    disks: list[str] = field(default_factory=list)
    installs: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    proofs: list[str] = field(default_factory=list)
    cautions: list[str] = field(default_factory=list)
    summary: list[str] = field(default_factory=list)
    diffs: list[str] = field(default_factory=list)
    stages: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    def add(self, section: str, text: str, stage: str = "") -> None:
        rows = getattr(self, section)
        whole = f"{stage}: {text}" if stage else text
        if whole not in rows:
            rows.append(whole)
            self.note(section, text, stage)

    def note(self, section: str, text: str, stage: str) -> None:
        self.stages.setdefault(stage, {}).setdefault(section, []).append(text)

    @property
    def idle(self) -> bool:
        return not (self.wipes or self.reboots or self.removes or self.disks or self.installs or self.changes)


class Reader:
    """Takes the events of ansible-runner, one by one."""

    def __init__(self) -> None:
        self.hosts: dict[str, HostPlan] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult) or not event.succeeded:
            return
        host, result, action = self.hosts.setdefault(event.host, HostPlan()), event.result, event.task.action
        self._preflight(host, result)
        self._announced(host, result, event.stage)
        if action in _DISK_ACTIONS:
            _disks(host, result)
        elif action == _DRIFT_ACTION:
            _drift(host, result, event.stage)
        elif event.changed:
            _change(host, event.task.name, result, event.stage)
        if event.changed:
            host.diffs += _diffs(result)

    @staticmethod
    def _announced(host: HostPlan, result: Mapping[str, Any], stage: str) -> None:
        for name, text in mapping(result.get("ansible_facts")).items():
            if not isinstance(text, str):
                continue
            if name == _REBOOT:
                host.add("reboots", text.strip())
            elif name.endswith(_PROOF):
                host.add("proofs", text.strip(), stage)

    @staticmethod
    def _preflight(host: HostPlan, result: Mapping[str, Any]) -> None:
        plan = mapping(mapping(result.get("ansible_facts")).get("gpu_plan"))
        if not plan:
            return
        host.summary = texts(plan.get("steps"))
        if plan.get("reboot_expected"):
            for reason in texts(plan.get("reboot_reasons")) or ["preflight expects one"]:
                host.add("reboots", f"perhaps: {reason}")
        for text in texts(result.get("advice")):
            host.add("cautions", text)


def _disks(host: HostPlan, result: Mapping[str, Any]) -> None:
    for row in rows(result.get("devices")):
        if row.get("action") != "prepare":
            continue
        if row.get("wipe"):
            host.add("wipes", f"{row.get('path')}: everything on it is destroyed ({row.get('why', '')})")
        else:
            host.add("disks", f"{row.get('path')} becomes an OSD ({row.get('why', '')})")
        for name in texts(row.get("also_wipe")):
            host.add("wipes", f"{name}: everything on it is destroyed (db or wal of the OSD on {row.get('path')})")


def _drift(host: HostPlan, result: Mapping[str, Any], stage: str) -> None:
    for section, items in mapping(result.get("drift")).items():
        for item in rows(items):
            (text,) = compare.plan({section: [item]})
            actions = texts(item.get("actions"))
            # One that is enabled only now does not run yet.
            if section == "units" and "restart" in actions and not {"enable", "start"}.intersection(actions):
                host.changes.append(f"{stage}: {text}" if stage else text)
                host.note("restarts", line_of(item.get("name")).removesuffix(".service"), stage)
            else:
                host.add(_section_of(section, actions), text, stage)


def _section_of(drift_section: str, actions: list[str]) -> str:
    """Where the mending of an item of a drift belongs."""
    if drift_section == "packages":
        for action, section in (("install", "installs"), ("remove", "removes")):
            if action in actions:
                return section
    return "reboots" if "reboot" in actions else "changes"


def _change(host: HostPlan, task: str, result: Mapping[str, Any], stage: str) -> None:
    parts = [row for row in rows(result.get("results")) if row.get("changed")]
    named = [row["_ansible_item_label"] for row in parts if isinstance(row.get("_ansible_item_label"), str)]
    headers = [row["after_header"] for row in _diff_rows(result) if isinstance(row.get("after_header"), str)]
    about = ", ".join(dict.fromkeys([*named, *headers]))
    for text in texts(result.get("plan")) or [f"{task}{f' ({about})' if about else ''}"]:
        host.add("changes", text, stage)


def _diff_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = []
    for part in [result, *rows(result.get("results"))]:
        diff = part.get("diff")
        found += [row for row in (diff if isinstance(diff, list) else [diff]) if isinstance(row, dict)]
    return found


def _diffs(result: Mapping[str, Any]) -> list[str]:
    """Differences in the unified form; what a module has prepared itself is taken as it is."""
    lines: list[str] = []
    for row in _diff_rows(result):
        if row.get("prepared"):
            lines += str(row["prepared"]).splitlines()
        elif "before" in row and "after" in row:
            before, after = (str(row[key] or "").splitlines() for key in ("before", "after"))
            old, new = (str(row.get(f"{key}_header") or key) for key in ("before", "after"))
            lines += difflib.unified_diff(before, after, old, new, lineterm="")
    if len(lines) > MOST_DIFF_LINES:
        lines = [*lines[:MOST_DIFF_LINES], f"… {len(lines) - MOST_DIFF_LINES} lines more"]
    return lines


def grouped(hosts: Mapping[str, HostPlan]) -> list[tuple[list[str], HostPlan]]:
    """Hosts with one and the same plan together, those with most to lose first."""
    groups: list[tuple[list[str], HostPlan]] = []
    for name, plan in sorted(hosts.items()):
        for names, known in groups:
            if known == plan:
                names.append(name)
                break
        else:
            groups.append(([name], plan))
    return sorted(groups, key=lambda group: (not group[1].wipes, not group[1].reboots, group[1].idle))


def as_json(hosts: Mapping[str, HostPlan], with_diffs: bool) -> dict[str, Any]:
    names = [section for section, _word, _style in SECTIONS] + ["summary"] + (["diffs"] if with_diffs else [])
    return {host: {name: getattr(plan, name) for name in names} for host, plan in hosts.items()}


def lines(run: progress.Run, reader: Reader, width: int, with_diffs: bool = False) -> list[Line]:
    """The plan in words."""
    out: list[Line] = []
    failed = {failure.host: failure for failure in run.lasting_failures()}
    for failure in failed.values():
        out += progress_text.failure_lines(failure, width)
    planned = {name: plan for name, plan in reader.hosts.items() if not (name in failed and plan.idle)}
    idle: list[str] = []
    for names, plan in grouped(planned):
        if plan.idle and not plan.cautions:
            idle += names
            continue
        out.append([("plain", "")])
        out += progress_text.wrapped(
            "", ", ".join(names) + (f" ({len(names)} hosts)" if len(names) > 1 else "") + _state(plan), width, "busy"
        )
        for text in plan.summary if not plan.idle else []:
            out += progress_text.wrapped("  in brief ", text, width)
        for section, word, style in SECTIONS:
            for text in getattr(plan, section):
                out += progress_text.wrapped(f"  {word:<8} ", text, width, style)
        if with_diffs:
            out += [[(_diff_style(text), f"  {text}")] for text in plan.diffs]
    if idle:
        out += [[("plain", "")], *progress_text.wrapped("", f"{', '.join(idle)}: nothing to do", width, "good")]
    return out


def brief(run: progress.Run, reader: Reader, width: int) -> list[Line]:
    """The plan by subsystem: what is refused, wiped and rebooted, and then a line for each."""
    out: list[Line] = []
    failures, count = run.lasting_failures(), len(run.hosts)
    for failure in failures[:MOST_FAILURES]:
        out += progress_text.failure_lines(failure, width)
    if len(failures) > MOST_FAILURES:
        out.append([("bad", f"and {len(failures) - MOST_FAILURES} more hosts with problems")])
    for section, word in (("wipes", "WIPE"), ("reboots", "REBOOT")):
        hosts: dict[str, list[str]] = {}
        for name, plan in sorted(reader.hosts.items()):
            for text in getattr(plan, section):
                hosts.setdefault(text, []).append(name)
        for text, names in hosts.items():
            out += progress_text.wrapped(f"{word:<8} ", f"{_hosts(names, count)}: {text}", width, "bad")
    known = {stage for plan in reader.hosts.values() for stage in plan.stages}
    order = [*(name for name in NAMES if name in known), *sorted(known.difference(NAMES))]
    table = [row for row in ((stage, *_of_stage(stage, reader, count)) for stage in order) if row[2]]
    first, second = (max((len(row[column]) for row in table), default=0) for column in (0, 1))
    if out and table:
        out.append([("plain", "")])
    for stage, where, words in table:
        out += progress_text.wrapped(f"{stage:<{first}}  {where:<{second}}  ", words, width)
    idle = sorted(name for name, plan in reader.hosts.items() if plan.idle and name not in {f.host for f in failures})
    if idle:
        out += progress_text.wrapped("", f"{_hosts(idle, count)}: nothing to do", width, "good")
    cautions = sum(len(plan.cautions) for plan in reader.hosts.values())
    if cautions:
        out.append([("changed", f"{cautions} {'caution' if cautions == 1 else 'cautions'} of preflight: --verbose")])
    return out


def _hosts(names: list[str], count: int) -> str:
    if len(names) == count > 2:
        return f"all {len(names)} hosts"
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _of_stage(stage: str, reader: Reader, count: int) -> tuple[str, str]:
    """Whose hosts a stage would change, and what on all of them together."""
    found: dict[str, dict[str, None]] = {}
    names = []
    for name, plan in sorted(reader.hosts.items()):
        sections = plan.stages.get(stage, {})
        if any(sections.get(section) for section in ("installs", "removes", "disks", "changes", "restarts")):
            names.append(name)
        for section, told in sections.items():
            found.setdefault(section, {}).update(dict.fromkeys(told))
    words = [
        f"{verb} {len(found[section])} {'package' if len(found[section]) == 1 else 'packages'}"
        for section, verb in (("installs", "install"), ("removes", "REMOVE"))
        if found.get(section)
    ]
    if found.get("disks"):
        words.append(f"take {len(found['disks'])} {'disk' if len(found['disks']) == 1 else 'disks'} into use")
    changes = list(found.get("changes", {}))
    if changes:
        words.append(f"{len(changes)} changes" if len(changes) > MOST_WORDS else "; ".join(changes))
    if found.get("restarts"):
        words.append(f"RESTART {', '.join(found['restarts'])}")
    return _hosts(names, count), ", ".join(words)


def _state(plan: HostPlan) -> str:
    counts = [
        (len(plan.wipes), "to WIPE"),
        (len(plan.installs), "to install"),
        (len(plan.removes), "to remove"),
        (len(plan.changes) + len(plan.disks), "to change"),
    ]
    words = [f"{number} {word}" for number, word in counts if number]
    if plan.reboots:
        words.append("REBOOT")
    return f": {', '.join(words) or 'nothing to do'}"


def _diff_style(text: str) -> str:
    if text.startswith(("+++", "---", "@@")):
        return "faint"
    return "good" if text.startswith("+") else "bad" if text.startswith("-") else "plain"


def total(run: progress.Run, reader: Reader) -> str:
    """One line on all hosts together."""
    counts = run.counts()
    busy = [plan for plan in reader.hosts.values() if not plan.idle]
    parts = [f"nothing was changed. {len(busy)} of {counts['hosts']} hosts would change"]
    for attribute, one, several in (("reboots", "host may reboot", "hosts may reboot"),):
        number = sum(1 for plan in busy if getattr(plan, attribute))
        if number:
            parts.append(f"{number} {one if number == 1 else several}")
    wipes = sum(len(plan.wipes) for plan in busy)
    if wipes:
        parts.append(f"{wipes} {'disk' if wipes == 1 else 'disks'} WIPED")
    stopped = counts["failed"] + counts["unreachable"]
    if stopped:
        parts.append(f"{stopped} could not be planned to the end")
    return ", ".join(parts)


def last_time(records: Iterable[Any], now: float) -> str:
    """How long the last real run took that came to its end; empty without one."""
    ended = [record for record in records if not record.check and record.rc == 0]
    if not ended:
        return ""
    record = ended[-1]
    stages = ", ".join(f"{stage} {progress_text.clock(took)}" for stage, took in record.stages.items() if took >= 0.5)
    return (
        f"the last run took {progress_text.clock(record.seconds)}, {ago(now - record.started)}"
        + (f" ({stages})" if stages else "")
        + f", and changed {record.changed} of {len(record.hosts)} hosts"
    )


def ago(seconds: float) -> str:
    for size, word in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {word} ago"
    return "just now"
