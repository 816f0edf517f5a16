# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a site: the playbook baremetal.gpu.status, and the document of its results."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuops.run import events, listing, playbooks, runner
from gpuops.site import Site, redactor
from gpuops.site.secrecy import Redactor
from gpuops.status import document


def groups_of(site: Site, words: Sequence[str]) -> dict[str, list[str]]:
    """The hosts of the groups that a status is about. Raises SiteError."""
    content = listing.read(site, words)
    groups = [document.NODES, document.STORAGE, document.ZOOKEEPER, document.MESOS, document.SLURM]
    groups += [document.PORTAL, document.BACKUP]
    return {group: content.hosts(group) for group in groups}


def look(
    site: Site,
    groups: Mapping[str, list[str]],
    limit: str,
    words: Sequence[str],
    passwords: Mapping[str, str],
    also: events.Take | None = None,
    redact: Redactor | None = None,
) -> tuple[dict[str, Any], runner.Stopper]:
    """One look at the site; the stopper has whether somebody stopped it.

    :param also: is given every event too.
    :param redact: takes secrets out of events; the site's own if left out.
    """
    redact = redact or redactor(site, words, passwords.values())
    reader = document.Reader(groups, partial=bool(limit))

    def take(event: events.Event) -> None:
        reader.take(event)
        if also:
            also(event)

    stopper = runner.Stopper(lambda count: None)
    with tempfile.TemporaryDirectory(prefix="gpuops-status-") as private:
        runner.run(
            site,
            Path(private) / "ansible-runner",
            take,
            stopper,
            playbook=playbooks.STATUS,
            limit=limit,
            options=words,
            passwords=passwords,
            redact=redact.document,
        )
    return reader.document(time.time()), stopper
