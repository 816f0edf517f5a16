# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of Ansible of a run, and what becomes of their events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events, host_reports, playbooks, records, runner, screen, shards
from gpuops.run.reducer import Reducer
from gpuops.site import Site

# Bits of ansible-playbook's exit status that are about hosts; with any other it has stopped altogether.
OF_HOSTS = 2 | 4
LAST_LINES = 12


def worst(statuses: Iterable[int]) -> int:
    """One with which Ansible has stopped altogether, if there is any, or else the highest."""
    return max(statuses, key=lambda rc: (bool(rc & ~OF_HOSTS), rc))


@dataclass(frozen=True)
class Broken:
    """A leg that Ansible has ended because all hosts of a play had failed.

    :ivar begun: how many of its plays were begun.
    :ivar gone_on: the tags of the stages that went on all the same.
    """

    leg: shards.Leg
    begun: int
    gone_on: set[str]

    def hosts_left(self, plays: Sequence[tuple[set[str], list[str]]]) -> set[str]:
        """The hosts of the plays that were left; plays are with their tags and hosts."""
        wanted = set(filter(None, self.leg.tags.split(",")))
        # Of the plays for single nodes, only the tasks have tags.
        of_nodes = set(shards.DIVISIBLE_TAGS) if self.leg.playbook == playbooks.SITE else set()
        return {
            host
            for tags, hosts in plays[self.begun :]
            if not (tags or of_nodes) & self.gone_on
            and (not wanted or not (tags or of_nodes) or (tags or of_nodes) & wanted)
            for host in hosts
        }


class Processes:
    """A run from the first process of Ansible to the last.

    :param options: for each of them.
    :param also: is given every event too; results have their stage.
    :param most_hosts: of an earlier run on the site; None where none is remembered.
    :ivar run: what is known of it.
    :ivar reports: what a report needs later of its hosts.
    :ivar first_output: the output until the first event of a host.
    """

    def __init__(
        self,
        site: Site,
        kept: records.Run,
        shown: screen.Shown,
        expected: dict[str, float],
        options: Sequence[str],
        passwords: Mapping[str, str] | None,
        also: events.Take | None,
        most_hosts: int | None,
    ) -> None:
        self.run = shards.Whole(time.monotonic(), expected, self._failure, self._note)
        self.reports = host_reports.HostReports()
        self.first_output: list[str] = []
        self._site = site
        self._kept = kept
        self._shown = shown
        self._options = options
        self._passwords = passwords
        self._also = also
        self._most_hosts = most_hosts
        # The plays that the process at work has begun, and the legs that Ansible has ended.
        self._plays: set[str] = set()
        self._broken: list[Broken] = []
        self._stopper = runner.Stopper(shown.stopping)
        self._one_at_a_time = threading.Lock()

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it."""
        return self._stopper.count > 0

    def last_lines(self) -> str:
        """The end of the output of a run that came to no host."""
        return "\n".join(self.first_output[-LAST_LINES:])

    # Running Ansible

    def go(self, playbook: str, limit: str, tags: str, processes: int | None) -> int:
        """Run all of it; the worst exit status of Ansible."""
        statuses = [0]
        with self._stopper.watching():
            hosts = self._listed(shards.lister(playbook), limit) if shards.may_pay(processes, self._most_hosts) else []
            count, at_once = shards.portions(len(hosts), processes) if hosts else (1, 1)
            statuses += self._in_legs(shards.legs(playbook, tags, count), hosts, limit, tags, (count, at_once))
            if self._broken and not self.stopped:
                self._find_unfinished(playbook, limit)
        return worst(statuses)

    def _in_legs(
        self, left: list[shards.Leg], hosts: list[str], limit: str, tags: str, portions: tuple[int, int]
    ) -> list[int]:
        """Run legs one after another, and what goes on behind one that Ansible has ended; the exit statuses."""
        statuses: list[int] = []
        regular, (count, at_once) = len(left), portions
        while left:
            leg, number = left.pop(0), len(statuses)
            out = [name for name, host in self.run.hosts.items() if host.out] if leg.out is None else leg.out
            parts = shards.dealt([name for name in hosts if name not in out], count) if leg.divided else []
            self._plays.clear()
            if len(parts) > 1:
                statuses.append(self._in_parts(number, leg, parts, at_once))
            else:
                within = self._file_of(f"{number}", leg.hosts) if leg.hosts else shards.without(limit, out)
                statuses.append(self._ansible(f"{number}", leg, within, self._listener(0, self.run)))
            if self.stopped or statuses[-1] & ~OF_HOSTS:
                break
            if number + 1 >= regular and not leg.hosts:
                left += self._behind(leg)
            if not left and leg.playbook == playbooks.SITE and not leg.hosts:
                left += shards.missed(self.run, tags)
        return statuses

    def _behind(self, leg: shards.Leg) -> list[shards.Leg]:
        """What goes on where Ansible has ended a leg before its last play."""
        failed = self.run.broke_off()
        if failed is None or leg.divided:
            return []
        more = shards.rest(self.run, failed, leg.tags) if leg.playbook == playbooks.SITE else []
        self._broken.append(Broken(leg, len(self._plays), {tag for row in more for tag in row.tags.split(",")}))
        return more

    def _find_unfinished(self, playbook: str, limit: str) -> None:
        """Note the hosts of plays that were not begun."""
        listing = shards.Plays()
        leg = shards.Leg(playbook, options=("--list-hosts",))
        if self._ansible("plays", leg, limit, listing.take, listing=True):
            return
        for broken in self._broken:
            self.run.unfinished.update(broken.hosts_left(listing.plays))

    def _file_of(self, name: str, hosts: Iterable[str]) -> str:
        """A limit to hosts."""
        file = self._kept.directory / records.PRIVATE / f"{name}.hosts"
        file.write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
        return f"@{file}"

    def _listed(self, playbook: str, limit: str) -> list[str]:
        """The hosts of a playbook; none where Ansible does not list them; it prints the reason when it runs."""
        listing = shards.Listing()
        rc = self._ansible("hosts", shards.Leg(playbook, options=("--list-hosts",)), limit, listing.take, listing=True)
        return [] if rc else listing.hosts

    def _in_parts(self, number: int, leg: shards.Leg, parts: list[list[str]], at_once: int) -> int:
        """Run a leg in a process for each part of its hosts, so many at once; the worst exit status."""
        statuses = [0]

        def one(process: int, part: progress.Run) -> None:
            # It may have waited for its turn.
            if self.stopped or worst(statuses) & ~OF_HOSTS:
                return
            name = f"{number}-{process}"
            within = self._file_of(name, parts[process - 1])
            rc = self._ansible(name, leg, within, self._listener(process, part))
            with self._one_at_a_time:
                statuses.append(rc)
                part.finished(time.monotonic(), self.stopped)

        with ThreadPoolExecutor(at_once) as pool:
            begun = [pool.submit(one, process, part) for process, part in enumerate(self.run.divide(parts), 1)]
            for future in begun:
                future.result()
        self.run.unite()
        return worst(statuses)

    def _ansible(self, name: str, leg: shards.Leg, within: str, take: events.Take, listing: bool = False) -> int:
        # Names of hosts go back to Ansible as they are.
        redact = None if listing else self._kept.redact.document
        return runner.run(
            self._site,
            self._kept.directory / records.PRIVATE / name,
            take,
            self._stopper,
            playbook=leg.playbook,
            limit=within,
            tags=leg.tags,
            options=[*self._options, *leg.options],
            passwords=self._passwords,
            redact=redact,
        )

    # Events

    def _listener(self, process: int, part: progress.Run) -> events.Take:
        """Takes the events of a process.

        :param process: 0 where there is only one.
        :param part: what is known of its hosts.
        """
        reducer = Reducer(part)

        def take(event: events.Event) -> None:
            with self._one_at_a_time:
                self._take(event, process, reducer)

        return take

    def _take(self, event: events.Event, process: int, reducer: Reducer) -> None:
        run, now = self.run, time.monotonic()
        if event.output:
            self._kept.output(event.output, process)
            if not run.hosts:
                self.first_output.append(event.output)
        if isinstance(event, events.PlayStarted):
            self._plays.add(event.uuid)
        before = run.play, run.stage
        event = reducer.take(event, now)
        if reducer.run is not run:
            host = event.host if isinstance(event, (events.HostStarted, events.HostResult)) else None
            run.follow(reducer.run, host, now)
        if before != (run.play, run.stage) and run.stage:
            self._kept.event({"event": "stage", "stage": run.stage, "play": run.play, "at": round(time.time(), 1)})
        if isinstance(event, events.HostResult):
            self.reports.take(event)
        if self._also:
            self._also(event)
        self._shown.event(run)

    def _failure(self, failure: progress.Failure) -> None:
        # Before anything wraps its lines, which would take a secret apart.
        failure.result = self._kept.redact.document(failure.result)
        row = screen.failure_row(failure)
        self._kept.event({"event": "failure", "after": round(failure.after, 1), **row})
        self._shown.failure(failure)

    def _note(self, kind: str, host: str, stage: str, task: str) -> None:
        after = round(self.run.elapsed(time.monotonic()), 1)
        self._kept.event({"event": kind, "after": after, "host": host, "stage": stage, "task": task})
        self._shown.note(kind, host, stage, task, after)
