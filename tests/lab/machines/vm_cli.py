# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the lab's virtual machine."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from .guard import guarded
from .system import LabError
from .vm import MEMORY_MIB, NAME, Shape, Vm

app = typer.Typer(no_args_is_help=True, help="A virtual machine with a kernel of its own, emulated by qemu.")


@app.command()
@guarded
def up(
    memory: Annotated[int, typer.Option(help="Its memory in MiB.")] = MEMORY_MIB,
    disk: Annotated[list[str] | None, typer.Option(help="A further disk, as NAME:GIB. Can be given again.")] = None,
    join: Annotated[bool, typer.Option("--join", help="Put it in the network of the lab's machines.")] = False,
) -> None:
    """Make it or start it, and wait until it answers; the first time, its disk image is built.

    It finds a further disk as /dev/disk/by-id/virtio-lab-NAME. A machine that is
    there already is started as it was made.
    """
    asked = Shape(memory, dict(map(_disk, disk or ())), join)
    Vm().up(asked if asked != Shape() else None)


def _disk(words: str) -> tuple[str, int]:
    name, _, size = words.partition(":")
    if not size.isdecimal() or not int(size):
        raise LabError(f"disk {words!r}: give a name and a size in GiB, such as data:4")
    return name, int(size)


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
