# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that is under way: its processes of Ansible, and what becomes of their events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops import records, runner, screen, shards, told
from gpuops.feed import Feed
from gpuops.site import Site

Take = Callable[[Mapping[str, Any]], None]
# Takes an event and the stage in which its process is.
TakeStaged = Callable[[Mapping[str, Any], str], None]

# Bits of ansible-playbook's exit status that tell of hosts; with any other it has stopped altogether.
OF_HOSTS = 2 | 4
LAST_LINES = 12


def worst(statuses: Iterable[int]) -> int:
    """One with which Ansible has stopped altogether, if there is any, or else the highest."""
    return max(statuses, key=lambda rc: (bool(rc & ~OF_HOSTS), rc))


class UnderWay:
    """A run from the first process of Ansible to the last.

    :param options: for each of them.
    :param also: is given every event too, with its stage.
    :param seen: the most hosts of an earlier run on the site; None where none is remembered.
    :ivar run: what is known of it.
    :ivar told: what was told of its hosts that is needed later.
    :ivar said: the output until the first host was heard of.
    """

    def __init__(
        self,
        site: Site,
        kept: records.Run,
        shown: screen.Shown,
        expected: dict[str, float],
        options: Sequence[str],
        passwords: Mapping[str, str] | None,
        also: TakeStaged | None,
        seen: int | None,
    ) -> None:
        self.run = shards.Whole(time.monotonic(), expected, self._tell, self._note)
        self.told = told.Told()
        self.said: list[str] = []
        self._site = site
        self._kept = kept
        self._shown = shown
        self._options = options
        self._passwords = passwords
        self._also = also
        self._seen = seen
        self._stopper = runner.Stopper(shown.stopping)
        self._one_at_a_time = threading.Lock()

    @property
    def stopped(self) -> bool:
        """Whether somebody has stopped it."""
        return self._stopper.count > 0

    def last_words(self) -> str:
        return "\n".join(self.said[-LAST_LINES:])

    # The way

    def go(self, playbook: str, limit: str, tags: str, processes: int | None) -> int:
        """Run all of it; the worst exit status of Ansible."""
        statuses = [0]
        with self._stopper.watching():
            hosts = self._listed(shards.lister(playbook), limit) if shards.may_pay(processes, self._seen) else []
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
        """The hosts of a playbook; none where Ansible does not tell them, which it will say why when it runs."""
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

    def _ansible(self, name: str, leg: shards.Leg, within: str, take: Take, listing: bool = False) -> int:
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

    # What happens on it

    def _listener(self, process: int, part: progress.Run) -> Take:
        """Takes the events of a process.

        :param process: 0 where there is only one.
        :param part: what is known of its hosts.
        """
        feed = Feed(part)

        def take(event: Mapping[str, Any]) -> None:
            with self._one_at_a_time:
                self._take(event, process, feed)

        return take

    def _take(self, event: Mapping[str, Any], process: int, feed: Feed) -> None:
        run, now = self.run, time.monotonic()
        output = str(event.get("stdout") or "").replace("\r", "")
        if output:
            self._kept.output(output, process)
            if not run.hosts:
                self.said.append(output)
        before = run.play, run.stage
        feed.take(event, now)
        if feed.run is not run:
            run.follow(feed.run, (event.get("event_data") or {}).get("host"), now)
        if before != (run.play, run.stage) and run.stage:
            self._kept.event({"event": "stage", "stage": run.stage, "play": run.play, "at": round(time.time(), 1)})
        self.told.take(event)
        if self._also:
            self._also(event, feed.run.stage)
        self._shown.event(run, str(event.get("event")))

    def _tell(self, failure: progress.Failure) -> None:
        # Before anything wraps its lines, which would take a secret apart.
        failure.result = self._kept.redact.document(failure.result)
        row = screen.failure_row(failure)
        self._kept.event({"event": "failure", "after": round(failure.after, 1), **row})
        self._shown.failure(failure)

    def _note(self, kind: str, host: str, stage: str, task: str) -> None:
        after = round(self.run.elapsed(time.monotonic()), 1)
        self._kept.event({"event": kind, "after": after, "host": host, "stage": stage, "task": task})
        self._shown.note(kind, host, stage, task, after)
