# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops inventory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuops.inventory import snapshot

DEFAULT_NAME = ".gpus.jsonl"


def inventory(
    site: Annotated[Path, typer.Option("--inventory", "-i", exists=True, help="The site's inventory.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help=f"File to write; {DEFAULT_NAME} in the inventory's directory.")
    ] = None,
    limit: Annotated[
        str, typer.Option("--limit", "-l", help="Only these hosts; the others keep what is known.")
    ] = "all",
    from_cache: Annotated[
        bool, typer.Option("--from-cache", help="Take Ansible's fact cache instead of asking the hosts.")
    ] = False,
) -> None:
    """Write a snapshot of the hosts' cards, which the inventory plugin baremetal.gpu.gpus reads.

    Examples:

      gpuops inventory --inventory inventories/mysite

      gpuops inventory --inventory inventories/mysite --limit gpu_nodes_a100
    """
    target = output or (site if site.is_dir() else site.parent) / DEFAULT_NAME
    source = snapshot.from_cache if from_cache else snapshot.from_hosts
    try:
        done = snapshot.make(site, target, limit, source)
    except snapshot.InventoryError as error:
        raise SystemExit(f"gpuops inventory: {error}") from error
    if done.earlier_problem:
        typer.echo(f"nothing was kept of the earlier file: {done.earlier_problem}", err=True)
    for host, text in done.problems.items():
        fate = "keeps what was known" if host in done.kept else "gpu_unknown"
        typer.echo(f"{host}: {fate}: {text}", err=True)
    for group, count in sorted(done.groups.items()):
        typer.echo(f"{count:>6}  {group}")
    typer.echo(f"{len(done.looked_at)} hosts looked at, {len(done.kept)} kept as they were: {target}")
