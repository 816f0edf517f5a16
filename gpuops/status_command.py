# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops status``: the state of the site."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, Group
from rich.live import Live

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops import drive, runner, screen, status, status_text
from gpuops.ansible_environment import as_if_called_here
from gpuops.secrecy import Redactor
from gpuops.site import InventoryOption, Site, SiteError, find, redactor
from gpuops.up import LimitOption, WordsArgument, answers

PLAYBOOK = "baremetal.gpu.status"


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
        said = redactor(site, words)(untrusted_text.several_lines(done.stderr).strip())
        raise SiteError(f"the inventory {site.inventory} cannot be read: {said[-2000:]}")
    content = json.loads(done.stdout)
    wanted = (status.NODES, status.STORAGE, status.ZOOKEEPER, status.MESOS)
    return {group: _members(content, group, set()) for group in wanted}


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
    also: Callable[[Mapping[str, Any]], None] | None = None,
    redact: Redactor | None = None,
) -> tuple[dict[str, Any], runner.Stopper]:
    """One look at the site; the stopper tells whether somebody asked to end.

    :param also: is given every event too.
    :param redact: takes secrets out of all that is heard; the site's own if left out.
    """
    redact = redact or redactor(site, words, passwords.values())
    reader = status.Reader(groups, partial=bool(limit))

    def take(event: Mapping[str, Any]) -> None:
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
            playbook=PLAYBOOK,
            limit=limit,
            options=words,
            passwords=passwords,
            redact=redact.document,
        )
    return reader.document(time.time()), stopper


def status_command(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=1.0, help="Seconds between two looks with --watch.")] = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state as JSON; with --watch a line each.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of --json, and do no more.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show nodes and cards, who uses them, the storage and the scheduler.

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
        passwords = answers(given)
        groups = groups_of(site, given)
    except SiteError as wrong:
        typer.echo(f"gpuops status: {wrong}", err=True)
        raise typer.Exit(drive.USAGE) from wrong
    redact = redactor(site, given, passwords.values())
    console = Console(highlight=False, emoji=False, markup=False)
    shown = screen.Quiet(redact, console)
    with (
        Live(console=console, auto_refresh=False, vertical_overflow="crop")
        if _repaints(watch, as_json, console)
        else _Nothing() as live
    ):
        while True:
            document, stopper = look(site, groups, limit, given, passwords, redact=redact)
            if stopper.count:
                raise typer.Exit(drive.INTERRUPTED)
            if as_json:
                print(json.dumps(redact.document(document), indent=None if watch else 2), flush=True)
            elif isinstance(live, Live):
                rows = status_text.lines(document, console.width)
                live.update(Group(*(screen.text(row, shown.ascii_only) for row in rows)), refresh=True)
            else:
                shown.lines(status_text.lines(document, shown.width))
            if not watch:
                raise typer.Exit(status.EXIT[document["state"]])
            try:
                time.sleep(interval)
            except KeyboardInterrupt:
                raise typer.Exit(drive.INTERRUPTED) from None


def _repaints(watch: bool, as_json: bool, console: Console) -> bool:
    return watch and not as_json and console.is_terminal and not console.is_dumb_terminal


class _Nothing:
    """In the place of a picture that is painted again."""

    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to take away."""
