# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops logs``: what the hosts of the site have written into their journals, from the log host."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gpuops.commands.options import WordsArgument, passwords_for
from gpuops.inventory.snapshot import InventoryError, hosts_of
from gpuops.logs.entries import Reader
from gpuops.logs.query import LINES_AT_MOST, Query, QueryError
from gpuops.run import playbooks, runner, screen, session
from gpuops.site import InventoryOption, Site, SiteError, find, redactor

LOG_HOSTS = "log_hosts"
NOT_SEEN = 3
# ansible-runner empties a result with more characters, 700,000 by default. journalctl prints at most 4096 bytes of a
# field, and Ansible hands on what it printed twice.
LARGEST_ANSWER = 2 * 8192 * LINES_AT_MOST


def _hosts(site: Site, given: Sequence[str]) -> list[str]:
    """The hosts that names of hosts and groups stand for; none for all. Raises SiteError and InventoryError."""
    everyone, _all = hosts_of(site.inventory, "all")
    try:
        hosts_of(site.inventory, LOG_HOSTS)
    except InventoryError:
        raise SiteError(f"the inventory {site.inventory} has no log host; add one to the group {LOG_HOSTS}") from None
    for name in given:
        if name not in everyone:
            hosts_of(site.inventory, name)
    return hosts_of(site.inventory, ",".join(given))[1] if given else []


def logs_command(
    inventory: InventoryOption = None,
    hosts: Annotated[
        list[str] | None, typer.Option("--host", "-H", help="Only this host or group; may be given again.")
    ] = None,
    since: Annotated[
        str, typer.Option("--since", "-S", help="Only entries since then: '2026-11-28 14:00', yesterday, -2h.")
    ] = "",
    grep: Annotated[
        str, typer.Option("--grep", "-g", help="Only messages that this regular expression fits, such as Xid.")
    ] = "",
    units: Annotated[
        list[str] | None, typer.Option("--unit", "-u", help="Only this unit, such as slurmd; may be given again.")
    ] = None,
    kernel: Annotated[bool, typer.Option("--kernel", "-k", help="Only messages of the kernel.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", help=f"At most so many entries, the newest; {LINES_AT_MOST} at most.")
    ] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each entry.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show what the hosts of the site have written into their journals.

    Asks the host of the group log_hosts. A time is that of the host that wrote
    the entry, shown in the time zone of this one. With --host only entries are
    shown that came with the certificate of the host; the name in a line is the
    one that it gives itself.

    Exit status: 0 the log host has answered, 3 it has not, 64 wrong options or
    a site without a log host, 130 Ctrl-C.

    Examples:

      gpuops logs --host a100-3 --since -2h

      gpuops logs --kernel --grep Xid

      gpuops logs --unit slurmctld --unit baremetal-gpu-agent --lines 50
    """
    given = words or []
    try:
        site = find(inventory)
        query = Query((), since, grep, tuple(units or ()), kernel, lines)
        query.arguments()
        query = Query(_hosts(site, hosts or []), since, grep, tuple(units or ()), kernel, lines)
        variable = query.variable()
    except (SiteError, InventoryError, QueryError) as wrong:
        typer.echo(f"gpuops logs: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    reader = Reader()
    stopper = runner.Stopper(lambda count: None)
    passwords = passwords_for(given)
    redact = redactor(site, given, passwords.values())
    os.environ["MAX_EVENT_RES"] = str(LARGEST_ANSWER)
    with tempfile.TemporaryDirectory(prefix="gpuops-logs-") as private:
        runner.run(
            site,
            Path(private) / "ansible-runner",
            reader.take,
            stopper,
            playbook=playbooks.READ_LOGS,
            options=["-e", json.dumps({"logs_arguments": variable}), *given],
            passwords=passwords,
            redact=redact.document,
        )
    if stopper.count:
        raise typer.Exit(session.INTERRUPTED)
    if as_json:
        for entry in reader.entries:
            print(json.dumps(redact.document(entry.as_dict())))
    else:
        screen.Quiet(redact).lines([line for entry in reader.entries for line in entry.lines()])
    if reader.unreadable:
        typer.echo(f"gpuops logs: {reader.unreadable} entries could not be read", err=True)
    if reader.problem:
        typer.echo(f"gpuops logs: {redact(reader.problem)}", err=True)
        raise typer.Exit(NOT_SEEN)
    if not reader.entries:
        typer.echo("gpuops logs: no entry fits", err=True)
