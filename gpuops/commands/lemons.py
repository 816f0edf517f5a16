# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops lemons``: the hosts that fail again and again."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops.accept import history
from gpuops.accept import lemons as ranking
from gpuops.run import records, session
from gpuops.site import InventoryOption, SiteError, find
from gpuops.status import usage_samples

NOT_ALL = 3


def lemons(
    inventory: InventoryOption = None,
    days: Annotated[int, typer.Option(min=1, max=3650, help="How far back it is looked.")] = 90,
    most: Annotated[int, typer.Option("--most", min=1, help="How many hosts are shown.")] = 20,
    prometheus: Annotated[
        str,
        typer.Option(metavar="URL", envvar="GPUOPS_PROMETHEUS", help="The site's Prometheus, for the alerts of hosts."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document with all hosts.")] = False,
) -> None:
    """Show the hosts that fail again and again, the worst first.

    From the records of acceptances and runs beside the inventory, and, with
    --prometheus, from the alerts that were firing. No host is queried. A host has 10
    points for each acceptance in which an item of it failed, 2 for each run in
    which it failed or was not reached, and 1 for each hour of an alert, 100 at
    most for an alert. Prometheus has no alerts older than its retention time.

    Exit status: 0 complete, 3 Prometheus did not answer, 64 wrong options.

    Examples:

      gpuops lemons

      gpuops lemons --days 30 --prometheus http://127.0.0.1:9090 --json
    """
    try:
        site = find(inventory)
        alerts = ranking.alerts(prometheus, days) if prometheus else {}
        problem = ""
    except SiteError as wrong:
        typer.echo(f"gpuops lemons: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    except usage_samples.NoSamples as wrong:
        alerts, problem = {}, str(wrong)
    runs = [record for _path, record in records.earlier(site.remembered)]
    since = time.time() - days * ranking.DAY_S
    found = ranking.rank(history.earlier(site.remembered), runs, alerts, since)
    if as_json:
        document = {"version": 1, "since": since, "problem": problem, "hosts": [row.as_dict() for row in found]}
        typer.echo(json.dumps(document, indent=1))
    elif found:
        for line in ranking.table(found, most):
            typer.echo(untrusted_text.one_line(line, 500))
    else:
        typer.echo(f"no host has failed in the last {days} days, as far as is remembered")
    if problem:
        typer.echo(f"gpuops lemons: {problem}", err=True)
        raise typer.Exit(NOT_ALL)
