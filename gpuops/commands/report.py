# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops report``: the record of the site."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuops.commands.options import LimitOption, WordsArgument, passwords_for
from gpuops.report import collect, junit, page
from gpuops.run import session
from gpuops.site import InventoryOption, SiteError, find, redactor
from gpuops.status.look import groups_of, look


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as failure:
        typer.echo(f"gpuops report: {path} cannot be written: {failure.strerror}", err=True)
        raise typer.Exit(session.BROKEN) from failure
    typer.echo(path)


def report(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Where to write it; .json and .xml are written beside it.")
    ] = Path("report.html"),
    words: WordsArgument = None,
) -> None:
    """Write the record of the site: HTML for people, JSON and JUnit for programs.

    Looks at the site as gpuops status does, and adds what is remembered of the
    last runs: plans, verification with measured rates, and when each host was
    at which stage. Of a run of ansible-playbook it finds the verification, in
    the directory where the role gpu_verify leaves it. The HTML file needs no network and no other file.

    Exit status: 0 written, 1 it cannot be written, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops report

      gpuops report --output /srv/www/mysite.html
    """
    given = words or []
    try:
        site = find(inventory)
        site.refuse_inside(output)
        passwords = passwords_for(given)
        groups = groups_of(site, given)
    except SiteError as wrong:
        typer.echo(f"gpuops report: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    facts = collect.Facts()
    redact = redactor(site, given, passwords.values())
    document, stopper = look(site, groups, limit, given, passwords, facts.take, redact)
    if stopper.count:
        raise typer.Exit(session.INTERRUPTED)
    found: Mapping[str, Any] = redact.document(collect.gather(site, document, facts.hosts))
    _write(output, page.html(found))
    _write(output.with_suffix(".json"), json.dumps(found, indent=1) + "\n")
    _write(output.with_suffix(".xml"), junit.junit(found))
