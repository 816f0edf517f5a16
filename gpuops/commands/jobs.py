# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops jobs``: who computes on which GPUs, who waits and why, and which GPUs are free."""

from __future__ import annotations

from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import UNKNOWN
from gpuops.commands import repeated_look
from gpuops.commands.options import WordsArgument, passwords_for
from gpuops.commands.repeated_look import IntervalOption, WatchOption
from gpuops.run import session
from gpuops.site import InventoryOption, SiteError, find, redactor
from gpuops.status import document as status
from gpuops.status import jobs, jobs_text
from gpuops.status.look import groups_of


def jobs_command(
    inventory: InventoryOption = None,
    user: Annotated[str, typer.Option("--user", "-u", help="List only the jobs of this user.")] = "",
    watch: WatchOption = False,
    interval: IntervalOption = 15.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the jobs as JSON; with --watch a line each.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON schema of --json, and do no more.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show running and waiting jobs, and which GPUs are free.

    Of Mesos it shows tasks with GPUs: neither their users nor what waits are
    known to it.

    Exit status: 0 every scheduler was seen, 3 one was not, 64 wrong options or
    a site without a scheduler, 130 Ctrl-C.

    Examples:

      gpuops jobs

      gpuops jobs --watch --user alice

      gpuops jobs --json | jq '.gpus[] | select(.free >= 4)'
    """
    if schema:
        typer.echo(jobs.SCHEMA.read_text(encoding="utf-8"), nl=False)
        return
    given = words or []
    try:
        site = find(inventory)
        passwords = passwords_for(given)
        groups = {name: hosts for name, hosts in groups_of(site, given).items() if name in jobs.GROUPS}
        if not any(groups[name] for name in jobs.SCHEDULERS):
            raise SiteError(
                f"the inventory {site.inventory} has no scheduler; add hosts to one of the groups "
                f"{', '.join(jobs.SCHEDULERS)}"
            )
    except SiteError as wrong:
        typer.echo(f"gpuops jobs: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    found = repeated_look.show(
        site,
        groups,
        # Hosts of the storage alone tell nothing of jobs.
        ":".join(name for name in jobs.GROUPS if groups[name]),
        given,
        passwords,
        redact=redactor(site, given, passwords.values()),
        view=lambda state_of_site: jobs.document(state_of_site, user),
        lines=jobs_text.lines,
        interval=interval if watch else None,
        as_json=as_json,
    )
    if found is not None and not jobs.is_seen(found):
        raise typer.Exit(status.EXIT[UNKNOWN])
