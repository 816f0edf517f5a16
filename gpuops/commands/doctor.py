# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops doctor``: why hosts fail."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import parse
from gpuops.commands.options import WordsArgument, passwords_for
from gpuops.doctor import findings as doctor
from gpuops.inventory.snapshot import InventoryError, hosts_of
from gpuops.run import playbooks, records, runner, screen, session
from gpuops.site import InventoryOption, Site, SiteError, find, redactor


def last_failure(site: Site, host: str) -> dict[str, Any] | None:
    """The failure of the host in the last run that came to it; None if it went well there."""
    for path, record in reversed(records.earlier(site.remembered)):
        if record.check or host not in record.hosts:
            continue
        if record.hosts[host] not in ("failed", "unreachable"):
            return None
        try:
            rows = [parse(row) for row in (path / records.EVENTS).read_text(encoding="utf-8").split("\n") if row]
        except (OSError, ValueError):
            return None
        failures = [
            row for row in rows if isinstance(row, dict) and row.get("event") == "failure" and row.get("host") == host
        ]
        return failures[-1] if failures else None
    return None


def doctor_command(
    host: Annotated[str, typer.Argument(help="A host of the inventory; all of them if left out.")] = "",
    inventory: InventoryOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    words: WordsArgument = None,
) -> None:
    """Examine a host, or all, and print why it fails: cause, evidence and remedy.

    Looks at the way to the host, at preflight, driver, GPUs, agent, Slurm and
    Kubernetes, at units that failed, and at what earlier runs left behind.
    Changes nothing.

    Exit status: 0 nothing was found, 64 wrong options, 130 Ctrl-C; otherwise
    that of the first cause: 10 name, 11 network, 12 host_key, 13 login,
    14 become, 15 python, 20 preflight, 30 driver, 31 gpu_fatal,
    32 gpu_degraded, 33 agent, 34 slurm, 35 kubernetes, 40 unit, 41 left_over,
    50 last_run, 60 unknown. Of several hosts it is the lowest.

    Examples:

      gpuops doctor

      gpuops doctor a100-3

      gpuops doctor a100-3 --json -- --ask-become-pass
    """
    # Options for Ansible alone, without a host: `gpuops doctor -- -e x=y`.
    given = words or []
    if host.startswith("-"):
        host, given = "", [host, *given]
    try:
        site = find(inventory)
        _everyone, chosen = hosts_of(site.inventory, host or "all")
    except (SiteError, InventoryError) as wrong:
        typer.echo(f"gpuops doctor: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    if host and chosen != [host]:
        names = ", ".join(chosen[:5])
        typer.echo(f"gpuops doctor: {host} is not one host but {names}; name one of them", err=True)
        raise typer.Exit(session.USAGE)
    if not host:
        typer.echo(f"examining {len(chosen)} {'host' if len(chosen) == 1 else 'hosts'} …", err=True)
    readers = doctor.Readers(chosen)
    stopper = runner.Stopper(lambda count: None)
    passwords = passwords_for(given)
    redact = redactor(site, given, passwords.values())
    with tempfile.TemporaryDirectory(prefix="gpuops-doctor-") as private:
        runner.run(
            site,
            Path(private) / "ansible-runner",
            readers.take,
            stopper,
            playbook=playbooks.DOCTOR,
            limit=host,
            options=["-e", "target_hosts=all", *given],
            passwords=passwords,
            redact=redact.document,
        )
    if stopper.count:
        raise typer.Exit(session.INTERRUPTED)
    found = {
        name: reader.findings(redact.document(last_failure(site, name))) for name, reader in readers.readers.items()
    }
    documents = [doctor.as_json(name, readers.readers[name], rows) for name, rows in found.items()]
    if as_json:
        print(json.dumps(redact.document(documents[0] if host else {"hosts": documents}), indent=2))
    else:
        shown = screen.Quiet(redact)
        if host:
            shown.lines(doctor.lines(host, readers.readers[host], found[host], shown.width))
        else:
            shown.lines(doctor.lines_of_all(readers, found, shown.width))
    raise typer.Exit(min((doctor.exit_status(rows) for rows in found.values() if rows), default=0))
