# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops node``: machines that come into the site's inventory, and leave it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from gpuops import yaml_text
from gpuops.commands.drain import LOCK, Taken
from gpuops.commands.locked_run import run_locked
from gpuops.commands.options import YesOption, consents
from gpuops.inventory import hosts_file
from gpuops.run import listing, session
from gpuops.run.playbooks import DRAIN
from gpuops.site import InventoryOption, Site, SiteError, find

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="""Add and remove machines of the site.

    Each command changes hosts.yml of the inventory, shows what changes and
    asks. `gpuops up` brings it to all hosts that have to know.

    Examples:

      gpuops node add gpu9 192.0.2.39 --like gpu2

      gpuops node remove gpu1 --wait 86400
    """,
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name in the inventory.")]


def _refuse(command: str, why: object, status: int = session.USAGE) -> typer.Exit:
    typer.echo(f"gpuops node {command}: {why}", err=True)
    return typer.Exit(status)


def _write(path: Path, before: str, after: str, yes: bool) -> bool:
    """Show the difference, ask, and write. Raises Refused, OSError."""
    typer.echo("\n".join(yaml_text.differing(before, after, path.name)))
    if not consents("Write this?", yes):
        return False
    if path.read_text(encoding="utf-8") != before:
        raise Refused(f"{path} was changed meanwhile", "call this again")
    files.write(os.path.realpath(path), after, None)
    typer.echo(f"{path} is written")
    return True


@app.command("add")
def add(
    name: NameArgument,
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Its address, or its name in the DNS.")],
    like: Annotated[str, typer.Option("--like", metavar="HOST", help="It gets all the groups of this host.")],
    inventory: InventoryOption = None,
    yes: YesOption = False,
) -> None:
    """Add a machine: it gets all the groups of another one.

    Variables of the other one, in host_vars or in hosts.yml, stay its own.

    Examples:

      gpuops node add gpu9 192.0.2.39 --like gpu2
    """
    try:
        path = hosts_file.find(find(inventory))
        before = path.read_text(encoding="utf-8")
        if not _write(path, before, hosts_file.add(before, name, address, like), yes):
            raise typer.Exit(session.BROKEN)
        typer.echo("next: `gpuops plan` shows what a run would do, and `gpuops up` does it")
    except (Refused, SiteError) as why:
        raise _refuse("add", why) from why
    except (OSError, UnicodeDecodeError) as why:
        raise _refuse("add", why, session.BROKEN) from why


@app.command("remove")
def remove(
    name: NameArgument,
    inventory: InventoryOption = None,
    wait: Annotated[int, typer.Option("--wait", min=0, help="Seconds to wait for jobs that run on it.")] = 0,
    lost: Annotated[bool, typer.Option("--lost", help="It is gone, and its jobs with it: drain nothing.")] = False,
    yes: YesOption = False,
) -> None:
    """Remove a machine from the site: first from the scheduler, then from the inventory.

    While jobs run on it, it is refused; with --wait it gets no new ones, and
    the command waits for those that run. No job is cancelled. A machine that
    alone has a role, such as the head, is refused.

    Exit status: 0 removed, 2 jobs run on it, 4 it could not be reached, 1
    another drain is at work or the answer was no, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops node remove gpu1

      gpuops node remove gpu1 --wait 86400

      gpuops node remove gpu1 --lost
    """
    try:
        site = find(inventory)
        path = hosts_file.find(site)
        before = path.read_text(encoding="utf-8")
        after = hosts_file.remove(before, name)
        schedules = {"slurm_nodes", "mesos_agents"} & _groups_of(site, name)
        if "mesos_agents" in schedules and not (wait or lost):
            raise Refused(f"tasks of Mesos on {name} would be ended", "give --wait 900: they have ten minutes to end")
        if schedules and not lost:
            _drain(site, name, wait)
        if _write(path, before, after, yes):
            typer.echo(
                "next: `gpuops up` takes it out of Slurm, metrics, exports and rules of the other hosts\n"
                f"to do: {name} still has keys and accounts of the site: install it anew before others get it; then "
                "`ssh-keygen -R ADDRESS` forgets its host key here"
            )
        else:
            if schedules and not lost:
                typer.echo(f"{name} is drained; `gpuops restore {name}` brings it back")
            raise typer.Exit(session.BROKEN)
    except (Refused, SiteError) as why:
        raise _refuse("remove", why) from why
    except (OSError, UnicodeDecodeError) as why:
        raise _refuse("remove", why, session.BROKEN) from why


def _groups_of(site: Site, name: str) -> set[str]:
    """The groups of a host as Ansible has them. Raises SiteError."""
    found = listing.read(site)
    return {group for group in ("slurm_nodes", "mesos_agents") if name in found.hosts(group)}


def _drain(site: Site, name: str, wait: int) -> None:
    """Take it out of the scheduler; first look, so that one with jobs on it stays as it is."""
    for check in (True, False) if not wait else (False,):
        taken = Taken(False)
        variables = {"target_hosts": "all", "drain_timeout": wait, "drain_reason": "leaves"}
        outcome = run_locked(
            "node remove",
            site,
            False,
            LOCK,
            limit=name,
            check=check,
            playbook=DRAIN,
            options=["-e", json.dumps(variables)],
            also=taken.take,
        )
        for line in taken.lines(False, check):
            typer.echo(line)
        if outcome.status:
            typer.echo(
                f"gpuops node remove: {name} stays in the inventory; where it is gone for good, give --lost", err=True
            )
            raise typer.Exit(outcome.status)
        if check and any(row.get("jobs") for row in taken.nodes.values()):
            remedy = f"wait for them with `gpuops node remove {name} --wait 86400`"
            typer.echo(f"gpuops node remove: jobs run on {name}, and nothing was changed. To do: {remedy}", err=True)
            raise typer.Exit(session.FAILED)
