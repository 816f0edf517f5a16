# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the lab's virtual machine."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from .guard import guarded
from .vm import NAME, Vm

app = typer.Typer(no_args_is_help=True, help="A virtual machine with a kernel of its own, emulated by qemu.")


@app.command()
@guarded
def up() -> None:
    """Make it or start it, and wait until it answers; the first time, its disk image is built."""
    Vm().up()


@app.command()
@guarded
def down() -> None:
    """Stop it and remove everything of it but the cached disk image."""
    Vm().down()


@app.command("power-cut")
@guarded
def power_cut(
    stay_off: Annotated[bool, typer.Option("--stay-off", help="Do not boot it again.")] = False,
) -> None:
    """Take its power away, without a shutdown, and boot it again."""
    Vm().power_cut(restart=not stay_off)


@app.command()
@guarded
def status() -> None:
    """Say whether it exists and runs, as JSON."""
    vm = Vm()
    spec, pid = vm.spec(), vm.pid()
    port = spec.port if spec else None
    console = str(vm.console) if spec else None
    typer.echo(json.dumps({"name": NAME, "exists": spec is not None, "pid": pid, "port": port, "console": console}))


@app.command()
@guarded
def inventory() -> None:
    """Print it as an Ansible inventory in JSON."""
    typer.echo(json.dumps(Vm().inventory(), indent=2))


@app.command(context_settings={"ignore_unknown_options": True})
@guarded
def ssh(command: Annotated[list[str] | None, typer.Argument(help="A command to run there, after --.")] = None) -> None:
    """Log in, or run a command."""
    words = Vm().ssh_command(*(command or []))
    os.execvp(words[0], words)
