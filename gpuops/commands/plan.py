# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops plan``: what ``gpuops up`` would do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import run as progress
from gpuops.commands import wheels
from gpuops.commands.options import (
    LimitOption,
    PlaybookOption,
    ShardsOption,
    TagsOption,
    WordsArgument,
    passwords_for,
    playbook_named,
    processes_for,
)
from gpuops.plan import host_plans
from gpuops.run import playbooks, records, screen, session
from gpuops.site import InventoryOption, SiteError, find


class OnlyPicture(screen.Picture):
    """While it runs; its results are printed as a plan afterwards."""

    def failure(self, failure: progress.Failure) -> None:
        """Printed with the plan."""

    def ended(self, run: progress.Run, about: Mapping[str, Any]) -> None:
        self._live.stop()


def _shown(as_json: bool, redact: Callable[[str], str]) -> screen.Shown:
    found = screen.choose(as_json=False, redact=redact)
    if as_json or not isinstance(found, screen.Picture):
        return screen.Shown(redact)
    return OnlyPicture(redact, found.console)


def plan_command(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    tags: TagsOption = "",
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show every package, file and unit, host by host.")
    ] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show differences of files too.")] = False,
    playbook: PlaybookOption = playbooks.SITE,
    shards: ShardsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show what gpuops up would do, and change nothing.

    Runs preflight and the stages with --check --diff. Says what is refused,
    wiped and rebooted, and by subsystem what is installed, changed and
    restarted. With --verbose everything is named, host by host; hosts with one
    plan are printed together.

    Exit status: 0 every host was planned, 2 problems were found on hosts, 4
    hosts could not be reached, 6 both, 1 Ansible came to no host, 64 wrong
    options, 130 Ctrl-C.

    Examples:

      gpuops plan

      gpuops plan --verbose

      gpuops plan --limit stor1 --tags storage --diff
    """
    try:
        site = find(inventory)
        playbook = playbook_named(playbook)
        wheels.bring("plan", site, wheels.listed(site, playbook, words or []), tags)
        reader = host_plans.Reader()
        outcome = session.run_playbook(
            site,
            lambda redact: _shown(as_json, redact),
            limit=limit,
            tags=tags,
            check=True,
            playbook=playbook,
            options=words or [],
            also=reader.take,
            passwords=passwords_for(words or []),
            processes=processes_for(playbook, shards),
        )
    except SiteError as wrong:
        typer.echo(f"gpuops plan: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    except OSError as failure:
        typer.echo(f"gpuops plan: {site.remembered} cannot be written: {failure.strerror}", err=True)
        raise typer.Exit(session.BROKEN) from failure
    earlier = [record for _path, record in records.earlier(site.remembered) if record.playbook == playbook]
    last = host_plans.last_time(earlier, time.time())
    redact = outcome.redact
    if as_json:
        failures = [screen.failure_row(failure) for failure in outcome.run.lasting_failures()]
        document = {
            "status": outcome.status,
            "hosts": host_plans.as_json(reader.hosts, diff),
            "failures": failures,
            "last_run": last,
        }
        if not outcome.run.hosts:
            document["output"] = outcome.output
        print(json.dumps(redact.document(document), indent=2))
    elif not outcome.run.hosts:
        typer.echo(f"gpuops plan: Ansible came to no host. Its output:\n{outcome.output}", err=True)
    else:
        shown = screen.Quiet(redact)
        whole = verbose or diff
        if whole:
            shown.lines(host_plans.lines(outcome.run, reader, shown.width, diff))
        else:
            shown.lines(host_plans.brief(outcome.run, reader, shown.width))
        shown.lines([[("plain", "")], [("plain", host_plans.total(outcome.run, reader))]])
        more = "" if whole else "every package, file and unit: `gpuops plan --verbose`"
        shown.lines(
            [[("faint", text)] for text in (last, more, f"output: {outcome.directory / records.OUTPUT}") if text]
        )
    raise typer.Exit(outcome.status)
