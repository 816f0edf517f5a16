# SPDX-License-Identifier: GPL-3.0-or-later
"""What an acceptance has found so far, in one file beside the inventory. A run that is killed goes on from it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import (
    gpu,
    network,
    node,
    scheduler,
    services,
    storage,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    GPU,
    NETWORK,
    NODE,
    NOT_TESTABLE,
    SCHEDULER,
    SERVICES,
    STORAGE,
    Item,
)
from gpuops.run import events, records

FILE = "accept.json"
VERSION = 1
# What a task returns: its action -> the key of its result, and the stage that it ends.
RESULTS = {
    "accept_info": ("accept", NODE),
    "gpu_load": ("load", GPU),
    "accept_storage": ("storage", STORAGE),
    "accept_jobs": ("jobs", SCHEDULER),
    "accept_registry": ("registry", SERVICES),
}
# The same of what is asked once, on a host that need not be one of those that are accepted.
ASKED_ONCE = {
    "ceph_cluster_info": ("ceph", STORAGE),
    "ceph_subvolume_info": ("homes", STORAGE),
    "accept_services": ("", SERVICES),
}
WITH_SERVICES = frozenset(stage for _key, stage in ASKED_ONCE.values())


@dataclass
class Acceptance:
    """An acceptance that has begun.

    :ivar started: seconds since the epoch.
    :ivar hosts: what hosts returned: {name: {"gpu": …, "accept": …, "load": …}}.
    :ivar services: what was asked once, by the host that answered: {name: {"ceph": …}}.
    :ivar done: the stages that each host has gone through.
    """

    started: float
    limit: str
    stages: list[str]
    minutes: float
    version: int = VERSION
    ended: float | None = None
    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: dict[str, list[str]] = field(default_factory=dict)
    services: dict[str, dict[str, Any]] = field(default_factory=dict)

    def left(self, stage: str) -> list[str]:
        return [host for host in self.hosts if stage not in self.done.get(host, [])]

    def begin_stage(self, stage: str) -> None:
        """The network is measured between all hosts or not at all: of a tournament that was cut nothing is kept."""
        if stage == NETWORK:
            for host, row in self.hosts.items():
                row.pop("network", None)
                row.pop(f"why_{NETWORK}", None)
                self.done[host] = [name for name in self.done.get(host, []) if name != NETWORK]
        for row in self.services.values():
            row.pop(f"unreachable_{stage}", None)

    def passed_by(self, stage: str) -> list[str]:
        return [host for host in self.hosts if stage in self.done.get(host, [])]


def _is_whole(found: Any) -> bool:
    return (
        isinstance(found, dict)
        and found.get("version") == VERSION
        and isinstance(found.get("hosts"), dict)
        and all(isinstance(row, dict) for row in found["hosts"].values())
        and isinstance(found.get("done"), dict)
        and all(isinstance(row, list) for row in found["done"].values())
        and isinstance(found.get("stages"), list)
        and all(isinstance(found.get(key), (int, float)) for key in ("started", "minutes"))
        and isinstance(found.get("limit"), str)
        and isinstance(found.get("services", {}), dict)
        and all(isinstance(row, dict) for row in found.get("services", {}).values())
    )


def load(remembered: Path) -> Acceptance | None:
    """The acceptance that is remembered; None where there is none that can be read."""
    found = records.document(remembered / FILE)
    if not _is_whole(found):
        return None
    return Acceptance(**{key: found[key] for key in Acceptance.__dataclass_fields__ if key in found})


def save(remembered: Path, acceptance: Acceptance) -> None:
    """For its owner alone, and whole at every moment."""
    remembered.mkdir(mode=0o700, exist_ok=True)
    new = remembered / f"{FILE}.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(acceptance), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(remembered / FILE)


class Taker:
    """Takes events, and remembers what hosts return as soon as they do.

    :ivar stage: the stage that is run; tasks of another one are skipped, which says nothing of it.
    """

    stage = ""

    def __init__(self, remembered: Path, acceptance: Acceptance, redact: Callable[[Any], Any]) -> None:
        self._remembered, self._acceptance, self._redact = remembered, acceptance, redact

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult):
            return
        if event.task.action in ASKED_ONCE or event.host not in self._acceptance.hosts:
            self._take_service(event)
        if event.host not in self._acceptance.hosts:
            return
        host, row = event.host, self._acceptance.hosts[event.host]
        action, result = event.task.action, event.result
        if action == "gpu_facts" and event.succeeded:
            facts = result.get("ansible_facts")
            row["gpu"] = self._redact(facts.get("gpu")) if isinstance(facts, Mapping) else None
        elif action == "accept_network" and event.outcome != "unreachable":
            self._take_pair(host, event)
        elif action in RESULTS and event.outcome != "unreachable":
            key, stage = RESULTS[action]
            if stage != self.stage:
                return
            row[key] = self._redact(result.get(key)) if event.succeeded else None
            row[f"why_{stage}"] = str(result.get("msg", "")) if event.outcome == "failed" else ""
            self._acceptance.done.setdefault(host, []).append(stage)
        else:
            return
        save(self._remembered, self._acceptance)

    def _take_service(self, event: events.HostResult) -> None:
        key, stage = ASKED_ONCE.get(event.task.action, ("", ""))
        row: dict[str, Any] = {}
        if event.outcome == "unreachable" and self.stage in WITH_SERVICES:
            row[f"unreachable_{self.stage}"] = str(event.result.get("msg", ""))
        elif stage == self.stage and event.succeeded:
            # A module that tries several things says which one it was.
            part = event.result.get("part")
            row[key or str(part)] = self._redact(dict(event.result) if key else event.result.get("service"))
        if row:
            self._acceptance.services.setdefault(event.host, {}).update(row)
            save(self._remembered, self._acceptance)

    def _take_pair(self, host: str, event: events.HostResult) -> None:
        """A host measures with one partner after the other, and has gone through the stage when it listens no more."""
        row, result = self._acceptance.hosts[host], event.result
        rows = row.setdefault("network", [])
        if isinstance(result.get("measured"), Mapping):
            rows.append(self._redact(result["measured"]))
        if event.outcome == "failed":
            row[f"why_{NETWORK}"] = str(result.get("msg", ""))
        if event.outcome == "failed" or result.get("ended") is True:
            done = self._acceptance.done.setdefault(host, [])
            done += [NETWORK] if NETWORK not in done else []


def judge(acceptance: Acceptance, tolerance: float) -> list[Item]:
    """The items of all stages that were chosen, of every host that was."""
    found: list[Item] = []
    if NODE in acceptance.stages:
        found += node.items(acceptance.hosts)
    if GPU in acceptance.stages:
        found += gpu.items(_with_why(acceptance, GPU), tolerance)
    if NETWORK in acceptance.stages:
        found += network.items(_with_why(acceptance, NETWORK))
    if STORAGE in acceptance.stages:
        found += storage.items(_with_why(acceptance, STORAGE), acceptance.services)
    if SCHEDULER in acceptance.stages:
        found += scheduler.items(_with_why(acceptance, SCHEDULER))
    if SERVICES in acceptance.stages:
        found += services.items(_with_why(acceptance, SERVICES), acceptance.services)
    for host, row in acceptance.services.items():
        for stage in acceptance.stages:
            if f"unreachable_{stage}" in row:
                found.append(Item(f"{stage}.service", stage, host, NOT_TESTABLE, "the host was not reached"))
    return found


def _with_why(acceptance: Acceptance, stage: str) -> dict[str, dict[str, Any]]:
    return {host: {**row, "why": row.get(f"why_{stage}", "")} for host, row in acceptance.hosts.items()}


def begin(limit: str, stages: list[str], minutes: float, hosts: list[str]) -> Acceptance:
    return Acceptance(time.time(), limit, stages, minutes, hosts={host: {} for host in hosts})
