# SPDX-License-Identifier: GPL-3.0-or-later
"""A run from its beginning to its end: Ansible is run, what happens is shown, and what came of it is kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.run import events, host_reports, playbooks, records, screen
from gpuops.run.processes import Processes
from gpuops.site import Site, secrets
from gpuops.site.secrecy import Redactor

# Exit statuses. Those of hosts are Ansible's own bits.
DONE, BROKEN, FAILED, UNREACHABLE, USAGE, INTERRUPTED = 0, 1, 2, 4, 64, 130


@dataclass
class Outcome:
    """How a run ended.

    :ivar status: an exit status for gpuops.
    :ivar output: the end of it, for a run that did not come to any host.
    """

    status: int
    record: records.Record
    run: progress.Run
    directory: Path
    output: str
    redact: Redactor


def status_of(run: progress.Run, rc: int, interrupted: bool) -> int:
    """The exit status of a run; Ansible's own tells the two kinds of hosts apart only in its last play.

    A run that came to no host is a failure: somebody has mistyped a name.
    """
    if interrupted:
        return INTERRUPTED
    counts = run.counts()
    status = (FAILED if counts["failed"] else 0) | (UNREACHABLE if counts["unreachable"] else 0)
    return status or (BROKEN if rc or not run.hosts else DONE)


def run_playbook(
    site: Site,
    shown_as: Callable[[Callable[[str], str]], screen.Shown],
    *,
    limit: str = "",
    tags: str = "",
    check: bool = False,
    options: Sequence[str] = (),
    playbook: str = playbooks.SITE,
    also: events.Take | None = None,
    passwords: Mapping[str, str] | None = None,
    processes: int | None = 1,
    stage: str = "",
) -> Outcome:
    """Run a playbook on a site. Raises OSError where nothing can be kept.

    :param shown_as: makes the way of showing it, given what takes secrets out of text.
    :param also: is given every event too; results have their stage.
    :param processes: of Ansible, among which hosts are divided; None for as many as pay, see shards.
    :param stage: of a playbook without roles, where a run is one of its stages alone.
    """
    record = records.Record(playbook, limit, tags, check, started=time.time())
    before = [earlier for _path, earlier in records.earlier(site.remembered)]
    expected = records.expected((one for one in before if not stage or stage in one.stages), record.kind)
    expected = {stage: expected[stage]} if stage in expected else {} if stage else expected
    kept = records.begin(site.remembered, secrets(site, options, (passwords or {}).values(), playbook))
    shown = shown_as(kept.redact)
    words = [*options, *(["--check", "--diff"] if check else [])]
    ansible = Processes(site, kept, shown, expected, words, passwords, also, records.most_hosts(before))
    ansible.run.only_stage = stage
    about = {"playbook": playbook, "limit": limit, "tags": tags, "check": check, "directory": str(kept.directory)}
    kept.save(record)
    rc = BROKEN
    try:
        with shown:
            shown.began(ansible.run, about)
            rc = ansible.go(playbook, limit, tags, processes)
            ansible.run.finished(time.monotonic(), cut=ansible.stopped)
            _conclude(record, ansible.run, rc, ansible.stopped)
            status = status_of(ansible.run, rc, record.interrupted)
            if not ansible.run.hosts and not rc:
                ansible.first_output.append(
                    "No host has a task to do: see whether --limit and --tags are names that there are."
                )
            broken = {} if ansible.run.hosts else {"output": ansible.last_lines()}
            shown.ended(
                ansible.run, {**about, "status": status, "hosts": record.hosts, "seconds": record.seconds, **broken}
            )
    finally:
        if record.rc is None:
            _conclude(record, ansible.run, rc, interrupted=True)
        kept.document(host_reports.FILE, ansible.reports.hosts)
        kept.save(record)
        kept.close()
    return Outcome(status, record, ansible.run, kept.directory, kept.redact(ansible.last_lines()), kept.redact)


def _conclude(record: records.Record, run: progress.Run, rc: int, interrupted: bool) -> None:
    record.rc = rc
    record.interrupted = interrupted
    record.seconds = round(run.elapsed(time.monotonic()), 1)
    # In the order of a host's path, as the report shows them; a host without GPUs comes to some before the others do.
    record.stages = {stage: round(run.stage_seconds[stage], 1) for stage in run.stages() if stage in run.stage_seconds}
    record.changed = run.counts()["changed"]
    for name, host in run.hosts.items():
        record.cells[name] = dict(host.cells)
        record.spans[name] = {
            stage: [round(moment - run.started, 1) for moment in span] for stage, span in host.spans.items() if stage
        }
        if host.failure is not None and host.out:
            record.hosts[name] = host.failure.kind
        else:
            cut = interrupted or name in run.unfinished
            record.hosts[name] = records.UNFINISHED if cut else records.DONE
    record.hosts |= {name: records.UNFINISHED for name in sorted(run.unfinished) if name not in record.hosts}
