# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops accept``: whether a cluster is fit to be handed over."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import gpu, network
from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import (
    ALL_STAGES,
    GPU,
    NETWORK,
    NODE,
    STAGES,
    STORAGE,
)
from gpuops.accept import history, record, report
from gpuops.commands.locked_run import run_locked
from gpuops.commands.options import LimitOption, WordsArgument
from gpuops.inventory.snapshot import InventoryError, hosts_of
from gpuops.run import playbooks, screen, session, shards
from gpuops.site import InventoryOption, Site, SiteError, find, redactor

GROUP = "gpu_cluster"
MINUTES, SHORT_MINUTES = 10.0, 1.0
# What a host that comes back has to pass. It takes no jobs yet, and nobody else is asked anything.
SHORT_STAGES = (NODE, GPU, NETWORK, STORAGE)
# With so many others a host of a short acceptance measures its network.
PARTNERS = 3
OUTPUT, SHORT_OUTPUT = Path("acceptance.html"), Path("acceptance-short.html")


def _refuse(text: str, status: int = session.USAGE) -> typer.Exit:
    typer.echo(f"gpuops accept: {text}", err=True)
    return typer.Exit(status)


def _chosen(stages: str) -> list[str]:
    names = [name.strip() for name in stages.split(",") if name.strip()]
    unknown = [name for name in names if name not in ALL_STAGES]
    if unknown or not names:
        raise _refuse(
            f"--stages: {', '.join(unknown) or 'nothing'} is not a stage; the stages are {', '.join(ALL_STAGES)}"
        )
    return [name for name in ALL_STAGES if name in names]


def _begun(site: Site, limit: str, stages: list[str], minutes: float, short: bool) -> record.Acceptance:
    """Raises InventoryError, and ends the command where no host is chosen."""
    # A host of the group alone can be one that has GPUs.
    _everyone, hosts = hosts_of(site.inventory, f"{GROUP}:&{limit}" if limit else GROUP)
    if not hosts:
        raise _refuse(f"no host of the group {GROUP} is chosen")
    partners = None
    if short:
        _everyone, fleet = hosts_of(site.inventory, GROUP)
        partners = sorted(set(fleet) - set(hosts))[:PARTNERS] if NETWORK in stages else []
    return record.begin(limit, stages, minutes, hosts, partners)


def _run_of(acceptance: record.Acceptance, stage: str, words: list[str]) -> dict[str, Any]:
    """Limit and options of a stage's run. What serves the hosts is asked where it is, which a limit would leave out."""
    variables: dict[str, Any] = {"accept_stage": stage, "accept_minutes": acceptance.minutes}
    variables["accept_as_jobs"] = acceptance.as_jobs
    limit = shards.without(acceptance.limit, acceptance.passed_by(stage))
    if stage in record.WITH_SERVICES:
        limit, variables["target_hosts"] = "", ",".join(acceptance.left(stage))
    elif stage == NETWORK and acceptance.partners:
        limit, variables["target_hosts"] = "", ",".join([*acceptance.left(stage), *acceptance.partners])
    return {"limit": limit, "options": ["-e", json.dumps(variables), *words]}


def carry_out(
    site: Site,
    acceptance: record.Acceptance,
    output: Path,
    *,
    tolerance: float = gpu.TOLERANCE,
    network_tolerance: float = network.TOLERANCE,
    sign_key: Path | None = None,
    as_json: bool = False,
    words: list[str] | None = None,
) -> int:
    """Runs the stages that are left, judges, and writes the report; the exit status. What cannot be done ends it."""
    site.refuse_inside(output)
    try:
        record.save(site.remembered, acceptance)
    except OSError as failure:
        raise _refuse(f"{site.remembered} cannot be written: {failure.strerror}", session.BROKEN) from failure
    redact = redactor(site, words or [])
    taker = record.Taker(site.remembered, acceptance, redact.document)
    status = session.DONE
    for stage in acceptance.stages:
        if not acceptance.left(stage):
            continue
        taker.stage = stage
        acceptance.begin_stage(stage)
        outcome = run_locked(
            "accept",
            site,
            as_json,
            lock=("accept.lock", "gpuops accept"),
            playbook=playbooks.ACCEPT,
            also=taker.take,
            stage=stage,
            **_run_of(acceptance, stage, words or []),
        )
        if outcome.status in (session.INTERRUPTED, session.BROKEN):
            if not acceptance.short:
                typer.echo("gpuops accept: `gpuops accept --resume` goes on from here", err=True)
            raise typer.Exit(outcome.status)
        status |= outcome.status & session.UNREACHABLE
    acceptance.ended = time.time()
    fleet = record.load(site.remembered, record.FLEET_FILE) if acceptance.short else None
    items = record.judge(acceptance, tolerance, network_tolerance, fleet)
    found = redact.document(report.document(acceptance, items, site.directory.name))
    try:
        record.save(site.remembered, acceptance)
        if not acceptance.short:
            record.add_to_fleet(site.remembered, acceptance)
        history.keep(site.remembered, found)
        written = report.write(found, output)
        if sign_key is not None:
            written.append(report.sign(output.with_suffix(".json"), sign_key))
    except (OSError, report.SigningFailed) as failure:
        raise _refuse(f"the report cannot be written: {failure}", session.BROKEN) from failure
    if not as_json:
        shown = screen.Quiet()
        shown.lines(report.table(found, shown.width))
        for line in [*report.lines(found), *map(str, written)]:
            typer.echo(line)
    return status | (session.DONE if found["accepted"] else session.FAILED)


def carry_out_short(site: Site, hosts: list[str], as_json: bool = False) -> int:
    """A short acceptance of hosts that are to come back; the exit status. Raises InventoryError."""
    acceptance = _begun(site, ",".join(hosts), list(SHORT_STAGES), SHORT_MINUTES, short=True)
    return carry_out(site, acceptance, SHORT_OUTPUT, as_json=as_json)


def accept(
    inventory: InventoryOption = None,
    limit: LimitOption = "",
    stages: Annotated[str, typer.Option("--stages", help="Which stages, separated by commas.")] = "",
    minutes: Annotated[
        float | None,
        typer.Option(min=0, max=10080, help=f"How long the GPUs are held under load. [default: {MINUTES:g}]"),
    ] = None,
    short: Annotated[
        bool, typer.Option("--short", help="A short form for hosts that come back, compared with the others.")
    ] = False,
    as_jobs: Annotated[
        bool, typer.Option("--as-jobs", help="On nodes of Slurm a job has the free GPUs meanwhile: nothing is drained.")
    ] = False,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=0.9, help="The share by which a GPU may be slower than its like.")
    ] = gpu.TOLERANCE,
    network_tolerance: Annotated[
        float, typer.Option(min=0.001, max=0.99, help="The share by which a host's network may be slower.")
    ] = network.TOLERANCE,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the acceptance that was cut.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help=f"Where to write it; .json and .xml are written beside it. [default: {OUTPUT}]"
        ),
    ] = None,
    sign_key: Annotated[Path | None, typer.Option("--sign-key", help="Sign the report with this SSH key.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each event.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the schema of the report and exit.")] = False,
    words: WordsArgument = None,
) -> None:
    """Show whether hosts and their GPUs are fit for handover.

    Stage node compares versions, settings and devices over the fleet. Stage
    gpu puts every idle GPU under load: a test of all free memory,
    arithmetic with results that are checked, and copies that are measured and
    compared with the data sheet and with the other GPUs. Stage network
    measures between all pairs of hosts, storage a file in a home, scheduler
    runs jobs of Slurm, and services tests what people and operators use. Stage
    audit runs only on request: `cmax audit --slurm` of the package
    clustermax, on the first login node, if it is installed there.

    Results of hosts are saved at once, so --resume continues an interrupted
    run. Nothing is changed on a host. Drain hosts first (`gpuops drain`),
    so that no job begins on a GPU under load; scheduler needs them back. With
    --as-jobs a job of Slurm has the free GPUs meanwhile.

    --short is for hosts that come back after a repair: node, gpu for a minute,
    network with three others, and storage. They are compared with what earlier
    acceptances have found out about the others.

    Exit status: 0 accepted, 1 it cannot be done, 2 an item fails, 4 a host was
    not reached, 64 wrong options, 130 Ctrl-C.

    Examples:

      gpuops accept --minutes 60 --sign-key ~/.ssh/id_ed25519

      gpuops accept --short --limit a100-3

      gpuops accept --as-jobs

      gpuops accept --stages scheduler,services

      gpuops accept --resume
    """
    if schema:
        print(report.SCHEMA_FILE.read_text(encoding="utf-8"), end="")
        return
    if sign_key is not None and not sign_key.is_file():
        raise _refuse(f"--sign-key: {sign_key} is not a file")
    if short and resume:
        raise _refuse("a short acceptance cannot be resumed: leave --resume or --short out")
    chosen = _chosen(stages or ",".join(SHORT_STAGES if short else STAGES))
    try:
        site = find(inventory)
        if resume:
            acceptance = record.load(site.remembered)
            if acceptance is None:
                raise _refuse("there is no acceptance to go on with; leave --resume out")
        else:
            long = SHORT_MINUTES if short else MINUTES
            acceptance = _begun(site, limit, chosen, long if minutes is None else minutes, short)
            acceptance.as_jobs = as_jobs
        status = carry_out(
            site,
            acceptance,
            output or (SHORT_OUTPUT if short else OUTPUT),
            tolerance=tolerance,
            network_tolerance=network_tolerance,
            sign_key=sign_key,
            as_json=as_json,
            words=words,
        )
    except (SiteError, InventoryError) as wrong:
        raise _refuse(str(wrong)) from wrong
    raise typer.Exit(status)
