# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops status``: the state of the site."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live

from gpuops.commands.options import LimitOption, WordsArgument, passwords_for
from gpuops.run import screen, session
from gpuops.site import InventoryOption, SiteError, find, redactor
from gpuops.status import document as status
from gpuops.status import text as status_text
from gpuops.status.look import groups_of, look


def status_command(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1.0, help="Seconds between two looks with --watch.")] = 15.0,
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
    redact = redactor(site, given, passwords.values())
    console = Console(highlight=False, emoji=False, markup=False)
    shown = screen.Quiet(redact, console)
    with (
        Live(console=console, auto_refresh=False, vertical_overflow="crop")
        if _repaints(watch, as_json, console)
        else _Nothing() as live
    ):
        while True:
            state_of_site, stopper = look(site, groups, limit, given, passwords, redact=redact)
            if stopper.count:
                raise typer.Exit(session.INTERRUPTED)
            if as_json:
                print(json.dumps(redact.document(state_of_site), indent=None if watch else 2), flush=True)
            elif isinstance(live, Live):
                rows = status_text.lines(state_of_site, console.width)
                live.update(Group(*(screen.text(row, shown.ascii_only) for row in rows)), refresh=True)
            else:
                shown.lines(status_text.lines(state_of_site, shown.width))
            if not watch:
                raise typer.Exit(status.EXIT[state_of_site["state"]])
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                raise typer.Exit(session.INTERRUPTED) from None


def _repaints(watch: bool, as_json: bool, console: Console) -> bool:
    return watch and not as_json and console.is_terminal and not console.is_dumb_terminal


class _Nothing:
    """In the place of a picture that is painted again."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to take away."""
