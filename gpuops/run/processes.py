# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes of Ansible of a run, and what becomes of their events."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events, host_reports, records, runner, screen, shards
from gpuops.run.reducer import Reducer
from gpuops.site import Site

# Bits of ansible-playbook's exit status that are about hosts; with any other it has stopped altogether.
OF_HOSTS = 2 | 4
LAST_LINES = 12


def worst(statuses: Iterable[int]) -> int:
    """One with which Ansible has stopped altogether, if there is any, or else the highest."""
    return max(statuses, key=lambda rc: (bool(rc & ~OF_HOSTS), rc))


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
            for number, leg in enumerate(shards.legs(playbook, tags, count)):
                out = [name for name, host in self.run.hosts.items() if host.out]
                parts = shards.dealt([name for name in hosts if name not in out], count) if leg.divided else []
                if len(parts) > 1:
                    rc = self._in_parts(number, leg, parts, at_once)
                else:
                    rc = self._ansible(str(number), leg, shards.without(limit, out), self._listener(0, self.run))
                statuses.append(rc)
                if self.stopped or rc & ~OF_HOSTS:
                    break
        return worst(statuses)

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
            file = self._kept.directory / records.PRIVATE / f"{number}-{process}.hosts"
            file.write_text("".join(f"{host}\n" for host in parts[process - 1]), encoding="utf-8")
            rc = self._ansible(f"{number}-{process}", leg, f"@{file}", self._listener(process, part))
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
