# SPDX-License-Identifier: GPL-3.0-or-later
"""Entry point of gpuops: global options and the sub-commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops import __version__

# Each with its function, or its Typer, and the module of it.
COMMANDS = {
    "init": "gpuops.commands.init:init",
    "plan": "gpuops.commands.plan:plan_command",
    "up": "gpuops.commands.up:up",
    "status": "gpuops.commands.status:status_command",
    "jobs": "gpuops.commands.jobs:jobs_command",
    "usage": "gpuops.commands.usage:usage_command",
    "logs": "gpuops.commands.logs:logs_command",
    "doctor": "gpuops.commands.doctor:doctor_command",
    "report": "gpuops.commands.report:report",
    "accept": "gpuops.commands.accept:accept",
    "lemons": "gpuops.commands.lemons:lemons",
    "manifest": "gpuops.commands.fetch:manifest",
    "fetch": "gpuops.commands.fetch:fetch",
    "user": "gpuops.commands.user:app",
    "image": "gpuops.commands.image:app",
    "inventory": "gpuops.commands.inventory:inventory",
    "probe": "gpuops.commands.probe:probe",
    "place": "gpuops.commands.place:place",
    "node": "gpuops.commands.node:app",
    "drain": "gpuops.commands.drain:drain",
    "restore": "gpuops.commands.drain:restore",
    "reconcile": "gpuops.commands.reconcile:reconcile",
    "backup": "gpuops.commands.backup:backup",
    "restore-head": "gpuops.commands.backup:restore_head",
    "clear": "gpuops.commands.reconcile:clear",
}

# As sysexits.h has it: a fault of the program, not of how it was called.
SOFTWARE_FAULT = 70
FAULT_AT_MOST = 2000


class Commands(Mapping[str, Any]):
    """The sub-commands by their names. One is loaded when it is called: all of them take half a second."""

    def __getitem__(self, name: str) -> Any:
        module, attribute = COMMANDS[name].split(":")
        loaded = getattr(import_module(module), attribute)
        if not isinstance(loaded, typer.Typer):
            function, loaded = loaded, typer.Typer(add_completion=False)
            loaded.command(name)(function)
        command = typer.main.get_command(loaded)
        command.name = name
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class Group(TyperGroup):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        commands: Any = Commands()
        self.commands = commands


class App(typer.Typer):
    """Prints in one line what went wrong where nobody had foreseen it; the traceback is for --debug."""

    debug = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().__call__(*args, **kwargs)
        except Exception as fault:
            if self.debug:
                raise
            text = untrusted_text.one_line(" ".join(str(fault).split()), FAULT_AT_MOST) or "no more is known"
            typer.echo(
                f"gpuops: {type(fault).__name__}: {text}\n"
                "gpuops: this was not foreseen. `gpuops --debug COMMAND …` shows where it happened",
                err=True,
            )
            sys.exit(SOFTWARE_FAULT)


app = App(
    name="gpuops",
    cls=Group,
    help="Build and look after a GPU cluster on bare metal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(given: bool) -> None:
    if given:
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
