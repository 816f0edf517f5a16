# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops drain`` and ``gpuops restore``: take hosts out of the scheduler, and bring them back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from gpuops.commands.accept import carry_out_short
from gpuops.commands.locked_run import run_locked
from gpuops.inventory.snapshot import InventoryError, hosts_of
from gpuops.run import events, screen, session
from gpuops.run.playbooks import DRAIN, RESTORE
from gpuops.site import InventoryOption, Site, SiteError, find

SHOWN_JOBS = 10
# The two write one ledger, and may run while `gpuops up` is at work.
LOCK = ("agents.lock", "gpuops drain or gpuops restore")

HostsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="HOST",
        help="Hosts or groups of the inventory; after --, further options of ansible-playbook.",
    ),
]
CheckOption = Annotated[bool, typer.Option("--check", help="Show what would be done, and change nothing.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a line of JSON for each event.")]


class Taken:
    """Takes events; ``agents`` has what became of each host's agent of Mesos, ``nodes`` of its node of Slurm."""

    def __init__(self, restore: bool) -> None:
        # Before a node is resumed, it is asked whose drain it is.
        self._wanted = "active" if restore else "drained"
        self.agents: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {}

    def take(self, event: events.Event) -> None:
        if not isinstance(event, events.HostResult) or not event.succeeded:
            return
        result = event.result
        if event.task.action == "mesos_agent_state":
            agent = result.get("agent") or {}
            row = self.agents.setdefault(event.host, {"action": None, "before": result.get("before")})
            row["action"] = row["action"] or result.get("action")
            row |= {"agent": agent.get("id"), "state": agent.get("state"), "ours": bool(result.get("ours"))}
        elif event.task.action == "slurm_maintenance" and result.get("wanted") == self._wanted and result.get("node"):
            row = self.nodes.setdefault(event.host, {"action": None})
            row["action"] = row["action"] or result.get("action")
            row |= {**result["node"], "ours": bool(result.get("ours")), "jobs": list(result.get("jobs") or ())}

    def lines(self, restore: bool, check: bool) -> list[str]:
        """A sentence for each host."""
        told = [f"{host}: {_node_sentence(row, restore, check)}" for host, row in self.nodes.items()]
        return told + [f"{host}: {_sentence(row, restore, check)}" for host, row in self.agents.items()]


def _sentence(row: Mapping[str, Any], restore: bool, check: bool) -> str:
    agent = f"agent {row['agent']}"
    if check and row["action"]:
        return f"{agent} is {row['before']} and would be {'brought back' if restore else 'drained'}"
    if restore:
        return f"{agent} takes tasks again" if row["action"] else f"{agent} takes tasks already"
    if row["ours"]:
        return f"{agent} is {row['state']}{'' if row['action'] else ' already'}; `gpuops restore` brings it back"
    return f"{agent} is {row['state']} already, and not from here: `gpuops restore` leaves it alone without --takeover"


def _node_sentence(row: Mapping[str, Any], restore: bool, check: bool) -> str:
    would = {"drain": "would be drained", "resume": "would take jobs again", "hand_back": "would be the reconciler's"}
    if check and row["action"]:
        return f"its node of Slurm {would[row['action']]}{_jobs(row)}"
    if restore:
        if row["action"] == "hand_back":
            return f"its node of Slurm stays drained by the reconciler, which resumes it: {row['reason']}"
        return f"its node of Slurm takes jobs {'again' if row['action'] else 'already'}"
    if row["ours"]:
        already = "" if row["action"] else " already"
        return f"its node of Slurm is drained{already}{_jobs(row)}; `gpuops restore` brings it back"
    since = row["reason_since"] or "some time"
    return (
        f"its node of Slurm was taken out by {row['reason_by'] or 'an unknown user'} since {since} "
        f"with the reason '{row['reason']}'{_jobs(row)}: `gpuops restore` leaves it alone without --takeover"
    )


def _jobs(row: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{job['id']} of {job['user']}" for job in row["jobs"][:SHOWN_JOBS])
    more = len(row["jobs"]) - SHOWN_JOBS
    return f", with jobs on it ({listed}{f' and {more} more' if more > 0 else ''})" if listed else ""


def _parted(given: Sequence[str]) -> tuple[list[str], list[str]]:
    """(hosts, options of ansible-playbook): the command line has both in one list, and no host begins with a dash."""
    first = next((place for place, word in enumerate(given) if word.startswith("-")), len(given))
    return list(given[:first]), list(given[first:])


def _hosts(site: Site, given: Sequence[str]) -> list[str]:
    """The hosts that the names stand for. Raises InventoryError for a name that stands for none."""
    everyone, chosen = hosts_of(site.inventory, ",".join(given))
    for name in given:
        if name not in everyone:
            hosts_of(site.inventory, name)
    return chosen


def _run(
    command: str,
    playbook: str,
    given: Sequence[str],
    inventory: Path | None,
    variables: Mapping[str, Any],
    check: bool,
    as_json: bool,
) -> None:
    """Run the playbook on the hosts, print what became of them, and end with the exit status."""
    names, words = _parted(given)
    try:
        site = find(inventory)
        hosts = _hosts(site, names)
    except (SiteError, InventoryError) as wrong:
        typer.echo(f"gpuops {command}: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    taken = Taken(command == "restore")
    outcome = run_locked(
        command,
        site,
        as_json,
        LOCK,
        # So that the controller, which the playbook's first play is about, is no host of the run.
        limit=",".join(hosts),
        check=check,
        playbook=playbook,
        options=["-e", json.dumps({"target_hosts": "all", **variables}), *words],
        also=taken.take,
    )
    if as_json:
        print(
            json.dumps(outcome.redact.document({"event": "agents", "hosts": taken.agents, "nodes": taken.nodes})),
            flush=True,
        )
        raise typer.Exit(outcome.status)
    shown = screen.Quiet(outcome.redact)
    shown.lines([[("plain", line)] for line in taken.lines(command == "restore", check)])
    left = outcome.record.left()
    if outcome.status == session.INTERRUPTED:
        typer.echo(f"stopped. A drain that has begun goes on; `gpuops {command} {' '.join(names)}` waits for it again")
    elif left:
        typer.echo(f"to do: fix the causes above, then run `gpuops {command} {' '.join(left)}`")
    if outcome.status:
        typer.echo(f"output and events: {outcome.directory}")
    raise typer.Exit(outcome.status)


def drain(
    hosts: HostsArgument,
    inventory: InventoryOption = None,
    grace: Annotated[int, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL of a task of Mesos.")] = 600,
    timeout: Annotated[
        int, typer.Option(min=0, help="Seconds to wait until the hosts are empty; 0 does not wait.")
    ] = 900,
    reason: Annotated[str, typer.Option(help="Why; users of Slurm read it in `sinfo -R`.")] = "maintenance",
    check: CheckOption = False,
    as_json: JsonOption = False,
) -> None:
    """Drain hosts in the scheduler: no new work starts there, and the command waits until they are empty.

    Runs baremetal.gpu.drain. Tasks of Mesos end within the grace; jobs of Slurm
    are waited for and never cancelled. Hosts that others have drained stay as
    they are.

    Exit status: 0 every host is empty, 2 one is not, and the jobs that block
    are named, 4 hosts could not be reached, 6 both, 1 Ansible came to no host
    or another drain is at work, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops drain a100-3

      gpuops drain a100-3 a100-4 --grace 60 --check

      gpuops drain gpu_nodes_a100 --timeout 0

      gpuops drain node1 --reason "another fan" --timeout 86400
    """
    variables = {"drain_grace": grace, "drain_timeout": timeout, "drain_reason": reason}
    _run("drain", DRAIN, hosts, inventory, variables, check, as_json)


def _accept(given: Sequence[str], inventory: Path | None, as_json: bool) -> None:
    """Ends the command where hosts do not pass a short acceptance."""
    names, _words = _parted(given)
    try:
        site = find(inventory)
        status = carry_out_short(site, _hosts(site, names), as_json)
    except (SiteError, InventoryError) as wrong:
        typer.echo(f"gpuops restore: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    if status != session.DONE:
        typer.echo("gpuops restore: not accepted, so nothing was brought back", err=True)
        raise typer.Exit(status)


def restore(
    hosts: HostsArgument,
    inventory: InventoryOption = None,
    timeout: Annotated[int, typer.Option(min=0, help="Seconds to wait for slurmd or a drain of Mesos.")] = 900,
    takeover: Annotated[bool, typer.Option("--takeover", help="Also restore hosts that others drained.")] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="Only if `gpuops accept --short` finds nothing wrong with them.")
    ] = False,
    check: CheckOption = False,
    as_json: JsonOption = False,
) -> None:
    """Restore hosts that gpuops drain drained.

    Runs baremetal.gpu.restore. A node of Slurm takes jobs again when its slurmd
    has registered with all its GPUs. A drain of Mesos that still goes on is
    waited for, because it cannot be called off. With --accept none of the hosts
    comes back before all have passed a short acceptance; --check leaves it out.

    Exit status: 0 every host takes work, 2 one does not, 4 hosts could not be
    reached, 6 both, 1 Ansible came to no host or another drain is at work, 64
    wrong options, 130 Ctrl-C.

    Examples:

      gpuops restore a100-3

      gpuops restore a100-3 --accept

      gpuops restore a100-3 --takeover --check
    """
    if accept and not check:
        _accept(hosts, inventory, as_json)
    variables = {"restore_timeout": timeout, "restore_takeover": takeover}
    _run("restore", RESTORE, hosts, inventory, variables, check, as_json)
