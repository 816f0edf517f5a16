# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops status``: the state of the site."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuops.commands import repeated_look
from gpuops.commands.options import LimitOption, WordsArgument, passwords_for
from gpuops.commands.repeated_look import IntervalOption, WatchOption
from gpuops.run import session
from gpuops.site import InventoryOption, SiteError, find, redactor
from gpuops.status import document as status
from gpuops.status import text as status_text
from gpuops.status.look import groups_of
from gpuops.users.site_list import ended as ended_users
from gpuops.users.site_list import ended_text


def status_command(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    watch: WatchOption = False,
    interval: IntervalOption = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON; with --watch a line each.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of --json, and do no more.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show nodes and GPUs, who uses them, the storage and the scheduler.

    What is down does not keep the rest from being shown, and is named.

    Exit status: 0 all is well, 1 something is degraded, 2 something is broken,
    3 something could not be looked at, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops status

      gpuops status --watch --interval 30

      gpuops status --json | jq '.nodes[] | select(.state != "ok")'
    """
    if schema:
        typer.echo(status.SCHEMA.read_text(encoding="utf-8"), nl=False)
        return
    given = words or []
    try:
        site = find(inventory)
        passwords = passwords_for(given)
        groups = groups_of(site, given)
    except SiteError as wrong:
        typer.echo(f"gpuops status: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    ended = ended_text(ended_users(site))
    if ended and not as_json:
        typer.echo(f"{ended}; what they have left ends with `gpuops up --tags users`\n")
    found = repeated_look.show(
        site,
        groups,
        limit,
        given,
        passwords,
        redact=redactor(site, given, passwords.values()),
        view=lambda state_of_site: state_of_site,
        lines=lambda state_of_site, width, _height: status_text.lines(state_of_site, width),
        interval=interval if watch else None,
        as_json=as_json,
    )
    if found is not None:
        raise typer.Exit(status.EXIT[found["state"]])
