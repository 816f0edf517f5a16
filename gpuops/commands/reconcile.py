# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops reconcile`` and ``gpuops clear``: the reconciler's commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import command as reconciler_command
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import MODES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import CONFIG

Config = Annotated[Path, typer.Option("--config", help="What the role gpu_reconciler wrote.")]


def reconcile(
    config: Config = CONFIG,
    mode: Annotated[
        str | None, typer.Option(help=f"Instead of the policy's: {', '.join(MODES)}. Only act changes anything.")
    ] = None,
    once: Annotated[bool, typer.Option(help="Look at all nodes once, and end.")] = False,
    status: Annotated[bool, typer.Option(help="Show what is known of every node, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show the status as JSON.")] = False,
) -> None:
    """Keep tasks away from fatal GPUs: follow the nodes' verdicts and act on the Mesos agents.

    Examples:

      gpuops reconcile --once --mode dry-run

      gpuops reconcile --status
    """
    if status:
        raise typer.Exit(reconciler_command.status(config, as_json))
    raise typer.Exit(reconciler_command.run(config, mode, once))


def clear(
    node: Annotated[str | None, typer.Argument(help="NODE, or NODE:UUID for one GPU.")] = None,
    breaker: Annotated[bool, typer.Option(help="Permit what the fleet breaker holds back.")] = False,
    config: Config = CONFIG,
) -> None:
    """Confirm that a node or a GPU was repaired, or release the fleet breaker; the leading reconciler does the rest.

    Examples:

      gpuops clear gpu7

      gpuops clear --breaker
    """
    raise typer.Exit(reconciler_command.clear(config, node, breaker))
