# SPDX-License-Identifier: GPL-3.0-or-later
"""A run from its beginning to its end: Ansible is run, what happens is shown, and what came of it is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import progress
from gpuops import records, runner, screen, told
from gpuops.feed import Feed
from gpuops.site import Site, secrets

# Exit statuses. Those of hosts are Ansible's own bits.
DONE, BROKEN, FAILED, UNREACHABLE, USAGE, INTERRUPTED = 0, 1, 2, 4, 64, 130

Take = Callable[[Mapping[str, Any]], None]


@dataclass
class Outcome:
    """How a run ended.

    :ivar status: an exit status for gpuops.
    :ivar said: the end of the output, for a run that did not come to any host.
    """

    status: int
    record: records.Record
    run: progress.Run
    directory: Path
    said: str
    redact: Callable[[str], str]


def status_of(run: progress.Run, rc: int, interrupted: bool) -> int:
    """The exit status of a run; Ansible's own tells the two kinds of hosts apart only in its last play.

    A run that came to no host is a failure: somebody has mistyped a name.
    """
    if interrupted:
        return INTERRUPTED
    counts = run.counts()
    status = (FAILED if counts["failed"] else 0) | (UNREACHABLE if counts["unreachable"] else 0)
    return status or (BROKEN if rc or not run.hosts else DONE)


def drive(
    site: Site,
    shown_as: Callable[[Callable[[str], str]], screen.Shown],
    *,
    limit: str = "",
    tags: str = "",
    check: bool = False,
    options: Sequence[str] = (),
    playbook: str = runner.SITE_PLAYBOOK,
    also: Take | None = None,
    passwords: Mapping[str, str] | None = None,
) -> Outcome:
    """Run a playbook on a site. Raises OSError where nothing can be kept.

    :param shown_as: makes the way of showing it, given what takes secrets out of text.
    :param also: is given every event too.
    """
    record = records.Record(playbook, limit, tags, check, started=time.time())
    expected = records.expected(site.remembered, record.kind)
    kept = records.begin(site.remembered, secrets(site) | set((passwords or {}).values()))
    shown = shown_as(kept.redact)

    def tell(failure: progress.Failure) -> None:
        # Before anything wraps its lines, which would take a secret apart.
        failure.result = json.loads(kept.redact(json.dumps(failure.result, default=str)))
        row = screen.failure_row(failure)
        kept.event({"event": "failure", "after": round(failure.after, 1), **row})
        shown.failure(failure)

    def note(kind: str, host: str, stage: str, task: str) -> None:
        after = round(run.elapsed(time.monotonic()), 1)
        kept.event({"event": kind, "after": after, "host": host, "stage": stage, "task": task})
        shown.note(kind, host, stage, task, after)

    run = progress.Run(time.monotonic(), expected, tell, note)
    feed = Feed(run)
    facts = told.Told()
    said: list[str] = []

    def take(event: Mapping[str, Any]) -> None:
        output = str(event.get("stdout") or "").replace("\r", "")
        if output:
            kept.output(output)
            if not run.hosts:
                said.append(output)
        play, stage = run.play, run.stage
        feed.take(event, time.monotonic())
        if (play, stage) != (run.play, run.stage) and run.stage:
            kept.event({"event": "stage", "stage": run.stage, "play": run.play, "at": round(time.time(), 1)})
        facts.take(event)
        if also:
            also(event)
        shown.event(run, str(event.get("event")))

    about = {"playbook": playbook, "limit": limit, "tags": tags, "check": check, "directory": str(kept.directory)}
    stopper = runner.Stopper(shown.stopping)
    kept.save(record)
    rc = BROKEN
    try:
        with shown:
            shown.began(run, about)
            words = [*options, *(["--check", "--diff"] if check else [])]
            rc = runner.run(
                site,
                kept.directory / records.PRIVATE,
                take,
                stopper,
                playbook=playbook,
                limit=limit,
                tags=tags,
                options=words,
                passwords=passwords,
            )
            run.finished(time.monotonic(), cut=stopper.count > 0)
            _conclude(record, run, rc, stopper.count > 0)
            status = status_of(run, rc, record.interrupted)
            if not run.hosts and not rc:
                said.append("No host has a task to do: see whether --limit and --tags are names that there are.")
            broken = {} if run.hosts else {"said": "\n".join(said[-12:])}
            shown.ended(run, {**about, "status": status, "hosts": record.hosts, "seconds": record.seconds, **broken})
    finally:
        if record.rc is None:
            _conclude(record, run, rc, interrupted=True)
        kept.document(told.FILE, facts.hosts)
        kept.save(record)
        kept.close()
    return Outcome(status, record, run, kept.directory, kept.redact("\n".join(said[-12:])), kept.redact)


def _conclude(record: records.Record, run: progress.Run, rc: int, interrupted: bool) -> None:
    record.rc = rc
    record.interrupted = interrupted
    record.seconds = round(run.elapsed(time.monotonic()), 1)
    record.stages = {stage: round(seconds, 1) for stage, seconds in run.stage_seconds.items()}
    record.changed = run.counts()["changed"]
    for name, host in run.hosts.items():
        record.cells[name] = dict(host.cells)
        record.spans[name] = {
            stage: [round(moment - run.started, 1) for moment in span] for stage, span in host.spans.items() if stage
        }
        if host.failure is not None and host.out:
            record.hosts[name] = host.failure.kind
        else:
            record.hosts[name] = records.UNFINISHED if interrupted else records.DONE
