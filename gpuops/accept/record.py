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

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_json as shapes
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import (
    audit,
    gpu,
    network,
    node,
    scheduler,
    services,
    storage,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    AUDIT,
    GPU,
    NETWORK,
    NODE,
    NOT_TESTABLE,
    SCHEDULER,
    SERVICES,
    STORAGE,
    Item,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import ENTRIES_AT_MOST
from gpuops.run import events, records

FILE = "accept.json"
# A short acceptance does not replace one that can be gone on with.
SHORT_FILE = "accept-short.json"
# What was last found out about each host, whatever stages the acceptances had. Short ones compare with it.
FLEET_FILE = "accept-fleet.json"
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
    "ceph_info": ("homes", STORAGE),
    "accept_collective": ("", SCHEDULER),
    "accept_services": ("", SERVICES),
    "accept_audit": ("audit", AUDIT),
}
WITH_SERVICES = frozenset(stage for _key, stage in ASKED_ONCE.values())


@dataclass
class Acceptance:
    """An acceptance that has begun.

    :ivar started: seconds since the epoch.
    :ivar hosts: what hosts returned: {name: {"gpu": …, "accept": …, "load": …}}.
    :ivar services: what was asked once, by the host that answered: {name: {"ceph": …}}.
    :ivar as_jobs: whether a job of Slurm has the GPUs of its nodes while they are under load.
    :ivar short: whether it is one of few hosts, which are compared with what is known of the others.
    :ivar partners: hosts that are not accepted, with which those that are measure the network: {name: {"network": …}}.
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
    as_jobs: bool = False
    short: bool = False
    partners: dict[str, dict[str, Any]] = field(default_factory=dict)

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


SHAPE = shapes.object_of(
    {
        "version": shapes.whole(VERSION, VERSION),
        "hosts": records.TABLES,
        "done": shapes.mapping_of(shapes.text(), shapes.list_of(shapes.anything), ENTRIES_AT_MOST),
        "stages": shapes.list_of(shapes.anything),
        "started": shapes.number(),
        "minutes": shapes.number(),
        "limit": shapes.text(),
    },
    {"services": records.TABLES},
)


def load(remembered: Path, name: str = FILE) -> Acceptance | None:
    """The acceptance that is remembered; None where there is none that can be read."""
    found = records.document(remembered / name, SHAPE)
    if found is None:
        return None
    return Acceptance(**{key: found[key] for key in Acceptance.__dataclass_fields__ if key in found})


def save(remembered: Path, acceptance: Acceptance, name: str = "") -> None:
    """For its owner alone, and whole at every moment."""
    remembered.mkdir(mode=0o700, exist_ok=True)
    name = name or (SHORT_FILE if acceptance.short else FILE)
    new = remembered / f"{name}.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(asdict(acceptance), file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(remembered / name)


def add_to_fleet(remembered: Path, acceptance: Acceptance) -> None:
    """Remembers what was found out about the hosts. An acceptance of all hosts tells which ones there are."""
    fleet = load(remembered, FLEET_FILE) or Acceptance(acceptance.started, "", [], 0.0)
    if not acceptance.limit:
        fleet.hosts = {host: row for host, row in fleet.hosts.items() if host in acceptance.hosts}
    for host, row in acceptance.hosts.items():
        fleet.hosts.setdefault(host, {}).update(row)
    save(remembered, fleet, FLEET_FILE)


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
        if event.host in self._acceptance.partners and event.task.action == "accept_network":
            self._take_pair(event)
        if event.host not in self._acceptance.hosts:
            return
        host, row = event.host, self._acceptance.hosts[event.host]
        action, result = event.task.action, event.result
        if action == "gpu_facts" and event.succeeded:
            facts = result.get("ansible_facts")
            row["gpu"] = self._redact(facts.get("gpu")) if isinstance(facts, Mapping) else None
        elif action == "accept_hold" and isinstance(result.get("held"), Mapping):
            row["held"] = self._redact(result["held"])
        elif action == "accept_network" and event.outcome != "unreachable":
            self._take_pair(event)
            if NETWORK not in self._acceptance.done.get(host, []):
                # Of a tournament that is cut nothing is kept, and a large one has many pairs.
                return
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

    def _take_pair(self, event: events.HostResult) -> None:
        """A host measures with one partner after the other, and has gone through the stage when it listens no more."""
        host, result = event.host, event.result
        is_partner = host in self._acceptance.partners
        row = (self._acceptance.partners if is_partner else self._acceptance.hosts)[host]
        rows = row.setdefault("network", [])
        if isinstance(result.get("measured"), Mapping):
            rows.append(self._redact(result["measured"]))
        if event.outcome == "failed":
            row[f"why_{NETWORK}"] = str(result.get("msg", ""))
        if not is_partner and (event.outcome == "failed" or result.get("ended") is True):
            done = self._acceptance.done.setdefault(host, [])
            done += [NETWORK] if NETWORK not in done else []


def judge(
    acceptance: Acceptance,
    tolerance: float = gpu.TOLERANCE,
    network_tolerance: float = network.TOLERANCE,
    fleet: Acceptance | None = None,
) -> list[Item]:
    """The items of all stages that were chosen, of every host that was.

    :param fleet: what is known of others, with which the hosts of a short acceptance are compared.
    """
    hosts = _among(acceptance, fleet or Acceptance(0, "", [], 0)) if acceptance.short else acceptance.hosts
    judges: dict[str, Callable[[dict[str, dict[str, Any]]], list[Item]]] = {
        NODE: node.items,
        GPU: lambda rows: gpu.items(rows, tolerance),
        NETWORK: lambda rows: network.items(rows, network_tolerance),
        STORAGE: lambda rows: storage.items(rows, acceptance.services),
        SCHEDULER: lambda rows: scheduler.items(rows, acceptance.services),
        SERVICES: lambda rows: services.items(rows, acceptance.services),
        AUDIT: lambda _rows: audit.items(acceptance.services),
    }
    found: list[Item] = []
    for stage in acceptance.stages:
        rows = {host: {**row, "why": row.get(f"why_{stage}", "")} for host, row in hosts.items()}
        found += judges[stage](rows)
    if acceptance.short:
        found = [item for item in found if item.host in acceptance.hosts or item.host not in hosts]
    for host, row in acceptance.services.items():
        for stage in acceptance.stages:
            if f"unreachable_{stage}" in row:
                found.append(Item(f"{stage}.service", stage, host, NOT_TESTABLE, "the host was not reached"))
    return found


def _among(acceptance: Acceptance, fleet: Acceptance) -> dict[str, dict[str, Any]]:
    """The hosts among those of the fleet, in which nothing is left of what they were themselves."""
    others = {host: dict(row) for host, row in fleet.hosts.items() if host not in acceptance.hosts}
    for row in others.values():
        pairs = row.get("network")
        rows = [pair for pair in pairs if isinstance(pair, dict)] if isinstance(pairs, list) else []
        row["network"] = [pair for pair in rows if pair.get("peer") not in acceptance.hosts]
    for name, row in acceptance.partners.items():
        before = others.setdefault(name, {})
        before["network"] = [*before.get("network", []), *row.get("network", [])]
    return {**others, **acceptance.hosts}


def begin(
    limit: str, stages: list[str], minutes: float, hosts: list[str], partners: list[str] | None = None
) -> Acceptance:
    """One that has partners is a short one."""
    return Acceptance(
        time.time(),
        limit,
        stages,
        minutes,
        hosts={host: {} for host in hosts},
        short=partners is not None,
        partners={name: {} for name in partners or []},
    )
