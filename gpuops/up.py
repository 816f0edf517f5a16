# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops up``: bring the site to what its inventory says."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import TAGS
from gpuops import drive, records, runner, screen
from gpuops.site import InventoryOption, Site, SiteError, find

LimitOption = Annotated[str, typer.Option("--limit", "-l", help="Only these hosts or groups.")]
TagsOption = Annotated[str, typer.Option("--tags", "-t", help=f"Only these stages: {', '.join(TAGS)}.")]
WordsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- OPTIONS", help="Further options of ansible-playbook, after --.", show_default=False),
]


PlaybookOption = Annotated[
    str, typer.Option("--playbook", "-p", help="Another playbook, a file or a name such as baremetal.gpu.verify.")
]
ShardsOption = Annotated[
    int | None,
    typer.Option(min=1, help="So many processes of Ansible side by side. By default as many as pay, or one with -p."),
]


class NothingLeft(Exception):
    """There is nothing to go on with."""


def playbook_named(given: str) -> str:
    """A file by its whole path, since ansible-runner works in a directory of its own; a name as it is."""
    return str(Path(given).resolve()) if Path(given).is_file() else given


def processes_for(playbook: str, asked: int | None) -> int | None:
    """How many processes of Ansible are to be used; None for as many as pay.

    Of another playbook than the site's nobody knows but its author whether its hosts can be divided.
    """
    return asked if asked or playbook == runner.SITE_PLAYBOOK else 1


def answers(words: Sequence[str]) -> dict[str, str]:
    """Passwords for the questions that these options have Ansible ask; it is not on the terminal itself."""
    wanted = dict(runner.ASKED[word] for word in words if word in runner.ASKED)
    return {pattern: typer.prompt(question, hide_input=True) for pattern, question in wanted.items()}


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


def go_on(outcome: drive.Outcome, inventory: Path | None) -> str:
    """What to do next after a run that did not come to a good end."""
    words = ["gpuops", "up", *(["-i", str(inventory)] if inventory else [])]
    if outcome.record.playbook != runner.SITE_PLAYBOOK:
        words += ["-p", outcome.record.playbook]
    command = shlex.join([*words, "--resume"])
    if outcome.status == drive.INTERRUPTED:
        return f"stopped. What is done stays; go on with `{command}`"
    left = outcome.record.left()
    if left:
        named = ", ".join(left[:5]) + (f" and {len(left) - 5} more" if len(left) > 5 else "")
        return f"to do: mend what is said above, then `{command}` runs {named} again"
    return ""


def carry_out(
    command: str,
    site: Site,
    as_json: bool,
    lock: tuple[str, str] = ("lock", "gpuops up"),
    *,
    options: Sequence[str] = (),
    **given: Any,
) -> drive.Outcome:
    """drive.drive() with a lock held; what keeps it from beginning is said, and ends the command.

    :param lock: its file, and the commands that hold it.
    """
    try:
        passwords = answers(options)
        with records.lock(site.remembered, *lock):
            return drive.drive(
                site, lambda redact: screen.choose(as_json, redact), options=options, passwords=passwords, **given
            )
    except records.Busy as busy:
        typer.echo(f"gpuops {command}: {busy}", err=True)
        raise typer.Exit(drive.BROKEN) from busy
    except OSError as failure:
        typer.echo(f"gpuops {command}: {site.remembered} cannot be written: {failure.strerror}", err=True)
        raise typer.Exit(drive.BROKEN) from failure


def up(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    tags: TagsOption = "",
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the hosts that the last run did not bring to its end.")
    ] = False,
    playbook: PlaybookOption = runner.SITE_PLAYBOOK,
    shards: ShardsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each event.")] = False,
    words: WordsArgument = None,
) -> None:
    """Bring the site to what its inventory says: from preflight to storage and scheduler, as baremetal.gpu.site does.

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
        raise typer.Exit(drive.USAGE) from wrong
    except NothingLeft:
        typer.echo("gpuops up: the last run brought every host to its end, so there is nothing to resume", err=True)
        return
    outcome = carry_out(
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
        if not outcome.run.hosts and outcome.status != drive.INTERRUPTED:
            typer.echo(f"gpuops up: Ansible came to no host. It said:\n{outcome.said}", err=True)
        else:
            typer.echo(go_on(outcome, inventory))
        typer.echo(f"output and events: {outcome.directory}")
    raise typer.Exit(outcome.status)
