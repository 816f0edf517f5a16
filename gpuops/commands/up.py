# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops up``: bring the site to what its inventory describes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gpuops.commands import wheels
from gpuops.commands.locked_run import run_locked
from gpuops.commands.options import (
    LimitOption,
    PlaybookOption,
    ShardsOption,
    TagsOption,
    WordsArgument,
    playbook_named,
    processes_for,
)
from gpuops.run import playbooks, records, session
from gpuops.site import InventoryOption, Site, SiteError, find
from gpuops.status import entrances
from gpuops.users.site_list import ended as ended_users
from gpuops.users.site_list import ended_text


class NothingLeft(Exception):
    """There is nothing to go on with."""


def resumed(site: Site, playbook: str, limit: str, tags: str) -> tuple[str, str]:
    """(limit, tags) that go on where the last run of the playbook stopped. Raises NothingLeft, SiteError."""
    if limit or tags:
        raise SiteError("--resume takes --limit and --tags from the run that it goes on with; leave them out")
    runs = [
        (path, record)
        for path, record in records.earlier(site.remembered)
        if not record.check and record.playbook == playbook
    ]
    if not runs:
        raise SiteError(f"no run of {playbook} is remembered, so there is nothing to resume. Run `gpuops up`")
    path, record = runs[-1]
    if record.rc == 0 and not record.interrupted:
        raise NothingLeft
    if record.interrupted or record.rc is None or not record.left():
        # The run was cut, perhaps before some hosts were come to: all of it again. What is done is found done.
        return record.limit, record.tags
    return f"@{path / records.RETRY}", record.tags


def go_on(outcome: session.Outcome, inventory: Path | None) -> str:
    """What to do next after a run that did not come to a good end."""
    words = ["gpuops", "up", *(["-i", str(inventory)] if inventory else [])]
    if outcome.record.playbook != playbooks.SITE:
        words += ["-p", outcome.record.playbook]
    command = shlex.join([*words, "--resume"])
    if outcome.status == session.INTERRUPTED:
        return f"stopped. What is done stays; go on with `{command}`"
    left = outcome.record.left()
    if left:
        named = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        return f"to do: fix the causes above, then `{command}` runs {named} again"
    return ""


def up(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    tags: TagsOption = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the hosts that the last run did not bring to its end.")
    ] = False,
    playbook: PlaybookOption = playbooks.SITE,
    shards: ShardsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each event.")] = False,
    words: WordsArgument = None,
) -> None:
    """Bring the site to what its inventory describes, from preflight to storage and scheduler; runs baremetal.gpu.site.

    Exit status: 0 every host is done, 2 hosts failed, 4 hosts could not be
    reached, 6 both, 1 Ansible came to no host, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops up

      gpuops up --limit gpu_nodes_a100 --tags driver

      gpuops up --resume

      gpuops up -- -e gpu_verify_expected=4 --ask-vault-pass
    """
    try:
        site = find(inventory)
        playbook = playbook_named(playbook)
        if resume:
            limit, tags = resumed(site, playbook, limit, tags)
    except SiteError as wrong:
        typer.echo(f"gpuops up: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    except NothingLeft:
        typer.echo("gpuops up: the last run brought every host to its end, so there is nothing to resume", err=True)
        return
    inventory_now = wheels.listed(site, playbook, words or [])
    wheels.bring("up", site, inventory_now, tags)
    ended = ended_text(ended_users(site))
    if ended and not as_json:
        typer.echo(f"{ended}, so this run closes them")
    outcome = run_locked(
        "up",
        site,
        as_json,
        limit=limit,
        tags=tags,
        playbook=playbook,
        options=words or [],
        processes=processes_for(playbook, shards),
    )
    if outcome.status and not as_json:
        if not outcome.run.hosts and outcome.status != session.INTERRUPTED:
            typer.echo(f"gpuops up: Ansible came to no host. Its output:\n{outcome.output}", err=True)
        else:
            typer.echo(go_on(outcome, inventory))
        typer.echo(f"output and events: {outcome.directory}")
    if inventory_now and not (outcome.status or as_json or tags) and (resume or not limit):
        typer.echo("\n".join(["", *map(outcome.redact, entrances.lines(inventory_now, site.directory))]))
    raise typer.Exit(outcome.status)
