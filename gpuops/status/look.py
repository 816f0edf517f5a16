# SPDX-License-Identifier: GPL-3.0-or-later
"""One look at a site: the playbook baremetal.gpu.status, and the document of its results."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops.run import events, playbooks, runner
from gpuops.run.environment import as_if_called_here
from gpuops.site import Site, SiteError, redactor
from gpuops.site.secrecy import Redactor
from gpuops.status import document


def groups_of(site: Site, words: Sequence[str]) -> dict[str, list[str]]:
    """The hosts of the groups that a status is about. Raises SiteError."""
    vault = [word for word in words if word.startswith("--vault-")]
    done = subprocess.run(
        ["ansible-inventory", "-i", str(site.inventory), "--list", *vault],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **as_if_called_here()},
    )
    if done.returncode:
        # Where YAML is broken, Ansible shows the line.
        output = redactor(site, words)(untrusted_text.several_lines(done.stderr).strip())
        raise SiteError(f"the inventory {site.inventory} cannot be read: {output[-2000:]}")
    content = json.loads(done.stdout)
    groups = (document.NODES, document.STORAGE, document.ZOOKEEPER, document.MESOS, document.SLURM, document.PORTAL)
    return {group: _members(content, group, set()) for group in groups}


def _members(content: Mapping[str, Any], group: str, seen: set[str]) -> list[str]:
    if group in seen:
        return []
    seen.add(group)
    row = content.get(group) or {}
    found = list(row.get("hosts") or [])
    for child in row.get("children") or []:
        found += _members(content, child, seen)
    return list(dict.fromkeys(found))


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
