# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.inventory import snapshot
from gpuops.site import InventoryOption, SiteError, find


def inventory(
    inventory: InventoryOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help=f"File to write; {snapshot.NAME} in the inventory's directory."),
    ] = None,
    limit: Annotated[
        str, typer.Option("--limit", "-l", help="Only these hosts; the others keep what is known.")
    ] = "all",
    from_cache: Annotated[
        bool, typer.Option("--from-cache", help="Take Ansible's fact cache instead of asking the hosts.")
    ] = False,
) -> None:
    """Write a snapshot of the hosts' GPUs, which the inventory plugin baremetal.gpu.gpus reads.

    Examples:

      gpuops inventory

      gpuops inventory --inventory inventories/mysite --limit gpu_nodes_a100
    """
    source = snapshot.from_cache if from_cache else snapshot.from_hosts
    try:
        site = find(inventory)
        target = output or site.directory / snapshot.NAME
        done = snapshot.make(site.inventory, target, limit, source)
    except (SiteError, snapshot.InventoryError) as error:
        raise SystemExit(f"gpuops inventory: {error}") from error
    if done.earlier_problem:
        typer.echo(f"nothing was kept of the earlier file: {done.earlier_problem}", err=True)
    for host, text in done.problems.items():
        fate = "keeps what was known" if host in done.kept else "gpu_unknown"
        typer.echo(f"{host}: {fate}: {text}", err=True)
    for group, count in sorted(done.groups.items()):
        typer.echo(f"{count:>6}  {group}")
    typer.echo(f"{len(done.looked_at)} hosts looked at, {len(done.kept)} kept as they were: {target}")
