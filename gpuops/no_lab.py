# SPDX-License-Identifier: GPL-3.0-or-later
"""gpuops lab where there is no checkout."""

from __future__ import annotations

import typer

app = typer.Typer(add_completion=False)


@app.command("lab", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def no_lab() -> None:
    """Say where the lab is to be had."""
    typer.echo("gpuops lab: this is an installed gpuops; the lab runs from a clone of the repository", err=True)
    raise typer.Exit(1)
