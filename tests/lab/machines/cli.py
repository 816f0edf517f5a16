# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of tools/lab."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Annotated, ParamSpec

import typer

from . import inventory as inventories
from . import lifecycle, network
from .guard import guarded
from .machine import Machine
from .state import STANDARD_MACHINES, USER, Lab, parse_machine
from .vm_cli import app as vm

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Real machines on this host to try and test everything on.",
)
app.add_typer(vm, name="vm")

P = ParamSpec("P")
Name = Annotated[str, typer.Argument(help="The machine.")]
Names = Annotated[list[str], typer.Argument(help="The machines.")]


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A sub-command whose refusals are one message and exit status 1, not a traceback."""
    app.command(function.__name__.replace("_", "-"))(guarded(function))
    return function


@command
def up(
    machine: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            help="A machine of the lab or a standard one, or NAME:SUITE:SCENARIO[:cgroup-v1]. Repeatable.",
        ),
    ] = None,
) -> None:
    """Make and boot machines: the three standard ones, or those named. Twice is as good as once."""
    lab = Lab()
    names = machine or [spec.name for spec in STANDARD_MACHINES]
    lifecycle.up(lab, [lab.machines[text] if text in lab.machines else parse_machine(text) for text in names])


@command
def down(
    machine: Annotated[list[str] | None, typer.Option("--machine", help="Only this machine. Repeatable.")] = None,
) -> None:
    """Remove the lab, or some of its machines, and leave nothing behind but the caches."""
    lifecycle.down(Lab(), machine or [])


@command
def clean() -> None:
    """Remove what a crash has left of the lab."""
    lifecycle.clean(Lab(load=False))


@command
def status() -> None:
    """List the machines."""
    lab = Lab()
    typer.echo(f"lab {lab.id}: subnet {lab.subnet or '-'}, bridge {lab.bridge}, {lab.directory}")
    for spec in lab.machines.values():
        state = "running" if Machine(lab, spec).running() else "stopped"
        typer.echo(f"{spec.name:10} {state:8} {spec.address:15} {spec.suite:10} {spec.scenario} (egress {spec.egress})")


@command
def inventory() -> None:
    """Print the lab as Ansible's inventory scripts do."""
    typer.echo(json.dumps(inventories.inventory(Lab()), indent=2))


@command
def answers() -> None:
    """Print the lab as a site of your own: what `gpuops init --answers` takes."""
    typer.echo(json.dumps(inventories.answers(Lab()), indent=2))


@command
def ssh(
    name: Name,
    words: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND...]", help="What to run there.")] = None,
    user: Annotated[str, typer.Option(help="The account; alice and bob have one in a cluster.")] = USER,
) -> None:
    """Log in to a machine, or run a command there."""
    lab = Lab()
    machine = Machine(lab, lab.get(name))
    argv = machine.ssh_command(*(["--", *words] if words else []), user=user)
    sys.stdout.flush()
    os.execvp(argv[0], argv)


@command
def reset(
    names: Names,
    keep_disks: Annotated[bool, typer.Option("--keep-disks", help="Keep their disks, with what is on them.")] = False,
) -> None:
    """Make machines bare again, in seconds."""
    lifecycle.reset(Lab(), names, keep_disks)


@command
def power_cut(names: Names) -> None:
    """Kill machines without warning; 'up' boots them again."""
    lifecycle.power_cut(Lab(), names)


@command
def scenario(name: Name, file: Annotated[str, typer.Argument(help="A scenario's name or file.")]) -> None:
    """Give a running machine other simulated devices."""
    lifecycle.scenario(Lab(), name, file)


@command
def xid(
    name: Name,
    gpu: Annotated[int, typer.Option(help="Position of the GPU.")] = 0,
    code: Annotated[int, typer.Option(help="79 is a GPU that fell off the bus.")] = 79,
) -> None:
    """Let the kernel log of a machine tell of a fault of a GPU, as NVIDIA's driver does."""
    lifecycle.xid(Lab(), name, gpu, code)


@command
def disk(
    name: Name,
    disks: Annotated[list[str], typer.Argument(help="Names for the disks.")],
    size: Annotated[int, typer.Option(help="Gigabytes; the file behind it takes only what is written.")] = 8,
) -> None:
    """Give a running machine disks, found there as /dev/disk/by-id/lab-NAME. They go with a reset."""
    lifecycle.add_disks(Lab(), name, disks, size)


@command
def changes(name: Name, as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False) -> None:
    """List what differs from the bare machine: A added, M modified, D deleted."""
    found = lifecycle.changes(Lab(), name)
    if as_json:
        typer.echo(json.dumps([{"kind": change.kind, "path": change.path} for change in found], indent=2))
    else:
        for change in found:
            typer.echo(str(change))


@command
def egress(name: Name, wanted: Annotated[str, typer.Argument(metavar="|".join(network.EGRESS))]) -> None:
    """Let a machine reach everything, only this host and the lab, or these without the apt cache."""
    lifecycle.set_egress(Lab(), [name], wanted)


@command
def traffic(
    name: Name,
    reset: Annotated[bool, typer.Option("--reset", help="Set the counters to zero after reading them.")] = False,
) -> None:
    """Print as JSON what a machine sent of its own accord: to the apt cache, to this host, and elsewhere."""
    lab = Lab()
    typer.echo(json.dumps(network.traffic(lab, lab.get(name), reset=reset)))
