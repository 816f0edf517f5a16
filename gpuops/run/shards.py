# SPDX-License-Identifier: GPL-3.0-or-later
"""Many hosts are divided among several processes of Ansible that work side by side, or take turns.

One ansible-playbook has a main process that does one thing after another; with the workers that it can feed, it keeps
about four cores busy, whatever ``forks`` is. Each worker is a copy of the main process with what is known of all its
hosts, so that every task of every host is dearer the more hosts there are. Only hosts that have nothing to do with each
other can be divided: the nodes with their drivers and engines can, a cluster for storage or for jobs is one thing.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import NAMES, STAGES, Stage, behind, does_without
from gpuops.run import events
from gpuops.run.playbooks import (
    HOMES_PREFLIGHT,
    PORTAL_PREFLIGHT,
    PREFLIGHT,
    SETTINGS_PREFLIGHT,
    SITE,
    STORAGE_PREFLIGHT,
)

# What one process and its workers keep busy, and how many hosts are worth the start of another one.
CORES, FEWEST_HOSTS = 4, 50
# Of more than these, some wait for their turn.
MOST_HOSTS = 100

# The tags of the site's playbook for stages whose hosts can be divided.
DIVISIBLE_TAGS = tuple(tag for stage in STAGES if stage.independent for tag in stage.tags)
# What has its settings checked by SETTINGS_PREFLIGHT: all behind the nodes' stages that has no check of its own.
CHECKED_TAGS = frozenset(
    tag for stage in behind("agent") if stage.name not in ("storage", "portal") for tag in stage.tags
)
# Those of DIVISIBLE_TAGS before which all hosts go through preflight.
TAGS_AFTER_PREFLIGHT = tuple(tag for stage in STAGES if stage.after_preflight for tag in stage.tags)


@dataclass(frozen=True)
class Leg:
    """A part of a run. The next one is for the hosts that have come through it.

    :ivar options: further ones for ansible-playbook.
    :ivar divided: whether its hosts are divided among processes.
    :ivar hosts: those that it is for alone; empty for all.
    :ivar out: those that it is not for; None for all that are out.
    """

    playbook: str
    tags: str = ""
    options: tuple[str, ...] = ()
    divided: bool = False
    hosts: tuple[str, ...] = ()
    out: tuple[str, ...] | None = None


def legs(playbook: str, tags: str, count: int) -> list[Leg]:
    """The legs of a run whose hosts are in ``count`` parts."""
    if count == 1:
        return [Leg(playbook, tags)]
    if playbook != SITE:
        return [Leg(playbook, tags, divided=True)]
    named = [name.strip() for name in tags.split(",") if name.strip()]
    apart = [name for name in named if name in DIVISIBLE_TAGS] if named else DIVISIBLE_TAGS
    together = [name for name in named if name not in DIVISIBLE_TAGS]
    # All checks come before anything is changed anywhere, as in the site's playbook. The hosts of the first are
    # those that have something to do under DIVISIBLE_TAGS.
    found = []
    if any(name in TAGS_AFTER_PREFLIGHT for name in apart):
        # What it finds out about a host lasts as long as its process, so that the next leg has it again.
        found.append(Leg(PREFLIGHT, divided=True))
    for tag, checks in (("storage", STORAGE_PREFLIGHT), ("homes", HOMES_PREFLIGHT), ("portal", PORTAL_PREFLIGHT)):
        if apart and (not named or tag in together):
            found.append(Leg(checks))
    if apart and (not named or CHECKED_TAGS.intersection(together)):
        found.append(Leg(SETTINGS_PREFLIGHT, ",".join(name for name in together if name in CHECKED_TAGS)))
    if apart:
        found.append(Leg(playbook, ",".join(apart), divided=True))
    if together:
        found.append(Leg(playbook, ",".join(together)))
    elif not named:
        found.append(Leg(playbook, options=("--skip-tags", ",".join(DIVISIBLE_TAGS))))
    return found


def _is_wanted(stage: Stage, tags: str) -> bool:
    named = [name.strip() for name in tags.split(",") if name.strip()]
    return not named or any(tag in named for tag in stage.tags)


def rest(run: progress.Run, failed: str, tags: str) -> list[Leg]:
    """The stages of the site that go on where Ansible has ended a leg, since all hosts of a play failed.

    :param failed: the stage in which they did.
    :param tags: those of the leg.
    """
    candidates = behind(failed)
    if failed in NAMES[1:] and not {"driver", "containers"}.intersection(run.stage_seconds):
        # In a check before anything was changed anywhere.
        candidates = tuple(stage for stage in STAGES[1:] if stage.name != failed)
    # Where no host waits for another, only those that failed lack the stage.
    apart = failed != "preflight" and any(stage.name == failed and stage.independent for stage in STAGES)
    found: dict[tuple[str, ...], list[str]] = {}
    for stage in candidates:
        out = tuple(name for name, host in run.hosts.items() if not _can_do(host, stage))
        if (
            _is_wanted(stage, tags)
            and (apart or stage.independent or does_without(stage, failed))
            and len(out) < len(run.hosts)
        ):
            found.setdefault(out, []).append(stage.tag)
    return [Leg(SITE, ",".join(dict.fromkeys(names)), out=out) for out, names in found.items()]


def missed(run: progress.Run, tags: str) -> list[Leg]:
    """What hosts that failed can go through all the same, of the stages that others have come to."""
    found: dict[tuple[str, ...], list[str]] = {}
    for stage in STAGES:
        hosts = tuple(
            name
            for name, host in run.hosts.items()
            if host.failure is not None
            and host.out
            and stage in behind(host.failure.stage)
            and _can_do(host, stage)
            and stage.name not in host.cells
        )
        if hosts and stage.name in run.stage_seconds and _is_wanted(stage, tags):
            found.setdefault(hosts, []).append(stage.tag)
    return [Leg(SITE, ",".join(dict.fromkeys(names)), hosts=hosts) for hosts, names in found.items()]


def _can_do(host: progress.Host, stage: Stage) -> bool:
    """Whether a host goes through a stage after what has happened to it."""
    failure = host.failure
    if failure is None or not host.out:
        return True
    return failure.kind == progress.FAILED and failure.stage in NAMES and does_without(stage, failure.stage)


def lister(playbook: str) -> str:
    """A playbook whose hosts are those that are divided."""
    return PREFLIGHT if playbook == SITE else playbook


def may_pay(processes: int | None, most_hosts: int | None) -> bool:
    """Whether hosts may have to be divided, without a listing by Ansible, which takes a second.

    :param processes: of the command line; None for as many as pay.
    :param most_hosts: of an earlier run; None where none is remembered.
    """
    if processes:
        return processes > 1
    return most_hosts is None or most_hosts > MOST_HOSTS or sensible(most_hosts) > 1


def sensible(hosts: int) -> int:
    """How many processes for so many hosts pay on this machine."""
    return max(1, min(len(os.sched_getaffinity(0)) // CORES, hosts // FEWEST_HOSTS))


def portions(hosts: int, processes: int | None) -> tuple[int, int]:
    """(how many parts the hosts are in, how many of these are at work side by side).

    One process of the command line has all hosts.
    """
    if processes == 1:
        return 1, 1
    at_once = processes or sensible(hosts)
    turns = math.ceil(hosts / (at_once * MOST_HOSTS))
    return max(1, turns) * at_once, at_once


def without(limit: str, out: Iterable[str]) -> str:
    """A limit that leaves out hosts, too."""
    left_out = [f"!{name}" for name in out]
    return ",".join([limit or "all", *left_out]) if left_out else limit


def dealt(hosts: Sequence[str], count: int) -> list[list[str]]:
    """Hosts in ``count`` parts, or as many as there are hosts; neighbours, who are often alike, in different ones."""
    return [list(hosts[number::count]) for number in range(min(count, len(hosts)))]


class Listing:
    """Takes the events of ansible-playbook --list-hosts, which has no order of its own."""

    _LINE = re.compile(r"^ {6}(\S+)$", re.MULTILINE)

    def __init__(self) -> None:
        self._hosts: set[str] = set()

    @property
    def hosts(self) -> list[str]:
        """Those of all its plays."""
        return sorted(self._hosts)

    def take(self, event: events.Event) -> None:
        self._hosts.update(self._LINE.findall(event.output))


class Plays(Listing):
    """Takes the same events; ``plays`` has the tags and the hosts of each play, in order."""

    _PLAY = re.compile(r"^  play #\d+ .*\tTAGS: \[([^\]]*)\]$", re.MULTILINE)

    def __init__(self) -> None:
        super().__init__()
        self._output = ""

    @property
    def plays(self) -> list[tuple[set[str], list[str]]]:
        parts = self._PLAY.split(self._output)
        return [
            ({tag for tag in tags.split(",") if tag}, self._LINE.findall(listed))
            for tags, listed in zip(parts[1::2], parts[2::2], strict=True)
        ]

    def take(self, event: events.Event) -> None:
        super().take(event)
        self._output += f"{event.output}\n"


class Whole(progress.Run):
    """A run of which several processes have a Run each for a while; this one is all of them together.

    Its stage, play and task are those of the process at work that is furthest behind.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shards: list[progress.Run] = []
        self._listed: list[str] = []
        self._order = list(NAMES)

    def divide(self, parts: Sequence[Sequence[str]]) -> list[progress.Run]:
        """A Run for each part of the hosts. What is known of them from before stays known."""
        self._listed = sorted(name for names in parts for name in names)
        for names in parts:
            shard = progress.Run(self.started, None, self._report, self._on_note)
            shard.hosts = {name: self.hosts[name] for name in names if name in self.hosts}
            self._shards.append(shard)
        return self._shards

    def follow(self, shard: progress.Run, host: str | None, now: float) -> None:
        """Take over what an event, about a host or none, has changed in a shard."""
        if host in shard.hosts and host not in self.hosts:
            known = {**self.hosts, host: shard.hosts[host]}
            # Not in the order of their first events.
            self.hosts = {name: known[name] for name in (*self._listed, *known) if name in known}
        for stage in shard.stage_seconds:
            self.stage_seconds.setdefault(stage, 0.0)
        under_way = [row for row in self._shards if row.stage]
        if not under_way:
            return
        behind = min(under_way, key=lambda row: self._place(row.stage))
        if behind.stage != self.stage:
            self._charge(now)
        self.play, self.stage, self.task = behind.play, behind.stage, behind.task

    def unite(self) -> None:
        """The processes have ended, and their Runs are finished."""
        self._shards = []

    def _is_before(self, stage: str) -> bool:
        """Hosts that wait for their turn have every stage before them."""
        return all(shard.play for shard in self._shards) and super()._is_before(stage)

    def _place(self, stage: str) -> int:
        """Stages that have no place of their own come in the order in which they are met."""
        if stage not in self._order:
            self._order.append(stage)
        return self._order.index(stage)
