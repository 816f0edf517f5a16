# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point of gpuops: global options and the sub-commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuops import __version__
from gpuops.doctor_command import doctor_command
from gpuops.drain import drain, restore
from gpuops.fetch.cli import fetch, manifest
from gpuops.init.command import init
from gpuops.inventory.cli import inventory
from gpuops.place import place
from gpuops.plan_command import plan_command
from gpuops.probe import probe
from gpuops.reconcile import clear, reconcile
from gpuops.report.command import report
from gpuops.status_command import status_command
from gpuops.up import up

CHECKOUT = Path(__file__).resolve().parents[1]

# As sysexits.h has it: a fault of the program, not of how it was called.
SOFTWARE_FAULT = 70


class App(typer.Typer):
    """Says in one line what went wrong where nobody had foreseen it; the traceback is for --debug."""

    debug = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except Exception as fault:
            if self.debug:
                raise
            text = " ".join(str(fault).split()) or "no more is known"
            typer.echo(
                f"gpuops: {type(fault).__name__}: {text}\n"
                "gpuops: this was not foreseen. `gpuops --debug COMMAND …` shows where it happened",
                err=True,
            )
            sys.exit(SOFTWARE_FAULT)


app = App(
    name="gpuops",
    help="Build and look after a GPU cluster on bare metal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gpuops {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of faults that were not foreseen.")] = False,
) -> None:
    """Build and look after a GPU cluster on bare metal.

    A site's directory has an ansible.cfg that names its inventory; gpuops is
    called there, or given --inventory.

    Examples:

      gpuops init mysite && cd mysite

      gpuops plan && gpuops up

      gpuops status --watch
    """
    app.debug = debug


app.command()(init)
app.command("plan")(plan_command)
app.command()(up)
app.command("status")(status_command)
app.command("doctor")(doctor_command)
app.command()(report)
app.command()(manifest)
app.command()(fetch)
app.command()(inventory)
app.command()(probe)
app.command()(place)
app.command()(drain)
app.command()(restore)
app.command()(reconcile)
app.command()(clear)

# The lab builds its machines' simulated cards from the sources, so it belongs to a checkout.
if CHECKOUT.joinpath("tests", "simulators").is_dir():
    from gpuops.lab.cli import app as lab

    app.add_typer(lab, name="lab", help="Real machines on this host to try and test everything on.")
else:

    @app.command("lab", hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def no_lab() -> None:
        """Say where the lab is to be had."""
        typer.echo("gpuops lab: this is an installed gpuops; the lab runs from a clone of the repository", err=True)
        raise typer.Exit(1)
