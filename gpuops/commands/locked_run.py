# SPDX-License-Identifier: GPL-3.0-or-later
"""A run of a command that no other one may disturb."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from gpuops.commands.options import passwords_for
from gpuops.run import records, screen, session
from gpuops.site import Site


def run_locked(
    command: str,
    site: Site,
    as_json: bool,
    lock: tuple[str, str] = ("lock", "gpuops up"),
    *,
    options: Sequence[str] = (),
    stage: str = "",
    **given: Any,
) -> session.Outcome:
    """session.run_playbook() with a lock held; what keeps it from beginning is printed, and ends the command.

    :param lock: its file, and the commands that hold it.
    :param stage: of a run that is one of several; whoever runs them shows a table of all.
    """
    try:
        passwords = passwords_for(options)
        with records.lock(site.remembered, *lock):
            return session.run_playbook(
                site,
                lambda redact: screen.choose(as_json, redact, stage),
                options=options,
                passwords=passwords,
                stage=stage,
                **given,
            )
    except records.Busy as busy:
        typer.echo(f"gpuops {command}: {busy}", err=True)
        raise typer.Exit(session.BROKEN) from busy
    except OSError as failure:
        typer.echo(f"gpuops {command}: {site.remembered} cannot be written: {failure.strerror}", err=True)
        raise typer.Exit(session.BROKEN) from failure
