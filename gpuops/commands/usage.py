# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops usage``: the GPU hours of users and groups."""

from __future__ import annotations

import datetime
import enum
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import KUBERNETES
from gpuops.commands.options import WordsArgument, passwords_for
from gpuops.run import playbooks, runner, screen, session
from gpuops.site import InventoryOption, Site, SiteError, find, redactor
from gpuops.site.secrecy import Redactor
from gpuops.status import document as status
from gpuops.status import usage, usage_samples, usage_text
from gpuops.status.look import groups_of


class By(enum.StrEnum):
    USER = "user"
    GROUP = "group"
    MODEL = "model"
    DAY = "day"


class Format(enum.StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


def usage_command(
    since: Annotated[str, typer.Option("--since", metavar="DATE", help="The first day, such as 2026-11-01.")] = "",
    until: Annotated[
        str, typer.Option("--until", metavar="DATE", help="The last day, included; today if left out.")
    ] = "",
    by: Annotated[
        list[By] | None,
        typer.Option("--by", help="Group the hours by this; may be given several times. By user if left out."),
    ] = None,
    output: Annotated[Format, typer.Option("--format", "-f", help="What is printed.")] = Format.TABLE,
    prometheus: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="GPUOPS_PROMETHEUS",
            help="The site's Prometheus, to separate used from unused hours.",
        ),
    ] = "",
    inventory: InventoryOption = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of --format json, and do no more.")
    ] = False,
    words: WordsArgument = None,
) -> None:
    """Show GPU hours by user, group, GPU model and day.

    They come from Slurm's accounting. The group of a job is its account in Slurm.
    Days are those of the time zone of Slurm's controller. Unused are the hours in
    which the utilisation of a GPU was 0; hours without measurements are unknown.

    Kubernetes has no accounting. On a site without Slurm, --prometheus names the
    Prometheus that has who had which GPU; the group of a pod is its namespace.

    Exit status: 0 complete, 3 the accounting or Prometheus did not answer,
    64 wrong options or a site without scheduler, 130 Ctrl-C.

    Examples:

      gpuops usage --since 2026-11-01 --until 2026-11-30

      gpuops usage --since 2026-11-01 --by group --by model

      gpuops usage --since 2026-11-01 --by day --by user --format csv
    """
    if schema:
        typer.echo(usage.SCHEMA.read_text(encoding="utf-8"), nl=False)
        return
    given, keys = words or [], list(dict.fromkeys(str(key) for key in by or [By.USER]))
    try:
        _check_days(since, until)
        url = usage_samples.check(prometheus) if prometheus else ""
        site = find(inventory)
        passwords = passwords_for(given)
        groups = groups_of(site, given)
        if not groups[status.SLURM] and not groups[status.KUBERNETES]:
            raise SiteError(
                f"the inventory {site.inventory} has no hosts in the groups {status.SLURM} and {status.KUBERNETES}"
            )
        if not groups[status.SLURM] and not url:
            raise SiteError(
                "Kubernetes keeps no accounting; give --prometheus with the URL of the site's Prometheus, which knows "
                "who had which GPU"
            )
        redact = redactor(site, given, passwords.values())
        if not groups[status.SLURM]:
            _of_pods(url, usage.days_of(since, until, datetime.datetime.now()), keys, output, redact)
            return
    except (SiteError, ValueError, usage_samples.NoSamples) as wrong:
        typer.echo(f"gpuops usage: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    reader = _read(site, [*given, "-e", json.dumps(usage.extra_vars(since, until, keys))], passwords, redact)
    if reader.result is None:
        for cause, remedy in reader.failures:
            typer.echo(redact(f"gpuops usage: {cause}{f'; {remedy}' if remedy else ''}"), err=True)
        raise typer.Exit(session.USAGE if reader.is_refused else status.EXIT[UNKNOWN])
    samples, problem = None, ""
    if url:
        try:
            samples = usage_samples.ask(url, usage.periods(reader.result))
        except usage_samples.NoSamples as why:
            problem = f"{why}; see whether {url} can be reached from here"
    found = usage.document(reader.result, keys, samples, problem)
    _print(found, output, redact)
    if problem or found["problems"]:
        raise typer.Exit(status.EXIT[UNKNOWN])


def _of_pods(url: str, days: list[tuple[str, int, int]], keys: list[str], output: Format, redact: Redactor) -> None:
    """The hours of a site with Kubernetes alone."""
    try:
        leases = usage_samples.leases(url, days, KUBERNETES)
        samples = usage_samples.ask(url, days, KUBERNETES)
    except usage_samples.NoSamples as why:
        typer.echo(redact(f"gpuops usage: {why}; see whether {url} can be reached from here"), err=True)
        raise typer.Exit(status.EXIT[UNKNOWN]) from why
    zone = time.strftime("%Z")
    _print(
        usage.document(usage.of_leases(leases, keys, days, zone), keys, samples, source=usage.PROMETHEUS),
        output,
        redact,
    )


def _check_days(since: str, until: str) -> None:
    """Raises SiteError. What is left is for the host, whose days they are."""
    if not since:
        raise SiteError("give the first day with --since, such as --since 2026-11-01")
    for name, day in (("--since", since), ("--until", until)):
        try:
            if day and datetime.date.fromisoformat(day).isoformat() != day:
                raise ValueError(day)
        except ValueError:
            raise SiteError(f"{name} {day} is not a valid day; write it as 2026-11-30") from None


def _read(site: Site, options: Sequence[str], passwords: dict[str, str], redact: Redactor) -> usage.Reader:
    reader = usage.Reader()
    stopper = runner.Stopper(lambda count: None)
    with tempfile.TemporaryDirectory(prefix="gpuops-usage-") as private:
        runner.run(
            site,
            Path(private) / "ansible-runner",
            reader.take,
            stopper,
            playbook=playbooks.USAGE,
            options=options,
            passwords=passwords,
            redact=redact.document,
        )
    if stopper.count:
        raise typer.Exit(session.INTERRUPTED)
    return reader


def _print(found: dict[str, Any], output: Format, redact: Redactor) -> None:
    if output is Format.JSON:
        print(json.dumps(redact.document(found), indent=2))
        return
    if output is Format.CSV:
        print(redact(usage_text.as_csv(found)), end="")
        for told in [found["use"]["problem"], *(row["cause"] for row in found["problems"])]:
            if told:
                typer.echo(redact(f"gpuops usage: {told}"), err=True)
        return
    shown = screen.Quiet(redact)
    shown.lines(usage_text.lines(found, shown.width))
