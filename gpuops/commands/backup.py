# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops backup`` and ``gpuops restore-head``: what controller and heads alone know, into one file and back."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive, make, shelf
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import run
from gpuops import __version__
from gpuops.backup import controller, site_archive
from gpuops.backup.site_archive import CONTROLLER, ENDING, HOST, PREFIX
from gpuops.commands.drain import CheckOption
from gpuops.commands.locked_run import run_locked
from gpuops.commands.options import WordsArgument
from gpuops.inventory.snapshot import InventoryError, hosts_of
from gpuops.run import events, session
from gpuops.run.playbooks import FETCH_BACKUP, RESTORE_HEAD
from gpuops.site import InventoryOption, Site, SiteError, find

LOCK = ("backup.lock", "gpuops backup or gpuops restore-head")
BACKUPS = "backups"


class Packed:
    """Takes events; ``hosts`` has what each host has put into its archive."""

    def __init__(self, action: str) -> None:
        self._action = action
        self.hosts: dict[str, dict[str, Any]] = {}

    def take(self, event: events.Event) -> None:
        if isinstance(event, events.HostResult) and event.succeeded and event.task.action == self._action:
            self.hosts[event.host] = dict(event.result)


def backup(
    inventory: InventoryOption = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="DIRECTORY", help="Where archives are; .gpuops/backups of the site if left out."),
    ] = None,
    keep: Annotated[int, typer.Option(min=1, help="How many archives stay there.")] = 14,
    also: Annotated[
        list[Path] | None, typer.Option("--also", metavar="PATH", help="A further file or directory of this machine.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Read the archives that are there, and list them.")] = False,
    check: CheckOption = False,
    words: WordsArgument = None,
) -> None:
    """Save what exists only on the controller and the heads, in one file.

    The file has the inventory, secrets and ledgers of this machine, and of hosts
    the state of Slurm, its accounting, the munge key, the portal, users of the
    registry, ZooKeeper, silences of alerts, Grafana, a single Ceph monitor, and
    of Kubernetes a snapshot of etcd with the keys of the cluster.
    Programs keep running. The file has mode 0600 and is NOT encrypted.

    Exit status: 0 a whole archive was written and compared, or with --list all
    are whole; 2 a host failed and 4 one was not reached, so none was written and
    the earlier ones stay; 1 it could not be written; 64 wrong options.

    Examples:

      gpuops backup --to /mnt/elsewhere/mysite

      gpuops backup --list --to /mnt/elsewhere/mysite

      gpuops backup --check
    """
    given = words or []
    try:
        site = find(inventory)
        directory = (to or site.remembered / BACKUPS).absolute()
        site.refuse_inside(directory)
        if listed:
            _list(directory)
            return
        own, unknown = controller.part(site, also or [], given)
    except SiteError as wrong:
        typer.echo(f"gpuops backup: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    for variable in unknown:
        typer.echo(f"gpuops backup: where {variable} leads is not known here; name the file with --also", err=True)
    packed = Packed("host_backup")
    try:
        if not check:
            site.remembered.mkdir(mode=0o700, exist_ok=True)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="gpuops-backup-", dir=None if check else directory) as private:
            outcome = run_locked(
                "backup",
                site,
                False,
                LOCK,
                check=check,
                playbook=FETCH_BACKUP,
                options=["-e", json.dumps({"backup_target": private}), *given],
                also=packed.take,
            )
            if outcome.status:
                typer.echo("gpuops backup: no archive was written; the earlier ones stay", err=True)
                raise typer.Exit(outcome.status)
            for host, result in sorted(packed.hosts.items()):
                for line in controller.lines(result):
                    typer.echo(f"{host}: {line}")
            if check:
                typer.echo(f"controller: {', '.join(own.paths)}")
                return
            path = _assembled(Path(private), directory, own, sorted(packed.hosts))
        gone = shelf.prune(str(directory), PREFIX, ENDING, keep, str(path))
    except (Refused, OSError) as wrong:
        typer.echo(f"gpuops backup: no archive was written; the earlier ones stay: {wrong}", err=True)
        raise typer.Exit(session.BROKEN) from wrong
    typer.echo(f"{path}: {path.stat().st_size} bytes" + (f"; {len(gone)} older ones went" if gone else ""))


def _assembled(private: Path, directory: Path, own: Any, hosts: Sequence[str]) -> Path:
    now = time.time()
    archives = {CONTROLLER: private / f".{CONTROLLER}{site_archive.OF_HOST}"}
    make.make(str(archives[CONTROLLER]), CONTROLLER, [own], run, now)
    for host in hosts:
        archives[f"{HOST}{host}"] = private / f"{host}{site_archive.OF_HOST}"
        archive.read(str(archives[f"{HOST}{host}"]))
    path = directory / shelf.name_of(PREFIX, ENDING, now)
    site_archive.write(path, archives, __version__, now)
    return path


def _list(directory: Path) -> None:
    rows = site_archive.listed(directory)
    for row in rows:
        if row.problem:
            typer.echo(f"{row.path}: NOT WHOLE: {row.problem}")
        else:
            made = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.made))
            typer.echo(f"{row.path}: {made}, {row.size} bytes, {', '.join(row.hosts)}")
    if not rows:
        typer.echo(f"gpuops backup: {directory} has no archives", err=True)
    if any(row.problem for row in rows):
        raise typer.Exit(session.FAILED)


def restore_head(
    path: Annotated[Path, typer.Argument(metavar="ARCHIVE", help="A file of gpuops backup or of a host's timer.")],
    inventory: InventoryOption = None,
    host: Annotated[str, typer.Option("--host", help="The host of the inventory that gets it.")] = "",
    of: Annotated[str, typer.Option("--from", help="The host that it was; the same if left out.")] = "",
    to: Annotated[
        Path | None,
        typer.Option(
            "--controller", metavar="DIRECTORY", help="Write the files of the controller there, and do no more."
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="What the host has may go; a copy of it stays on the host.")
    ] = False,
    check: CheckOption = False,
    words: WordsArgument = None,
) -> None:
    """Restore the state of a head from an archive, onto it or onto another host.

    Call it on a bare machine BEFORE `gpuops up` comes there: a slurmctld without
    its state ends the jobs that run. The whole archive is checked, and every
    objection is named, before anything changes. After an interruption, run it
    again; a second run changes nothing.

    Exit status: 0 it is back, 2 it was refused or failed, 4 the host was not
    reached, 1 Ansible came to no host, 64 wrong options or a damaged archive.

    Examples:

      gpuops restore-head site-20261129-023000.tar --host head1

      gpuops restore-head site-20261129-023000.tar --host head2 --from head1

      gpuops restore-head site-20261129-023000.tar --controller mysite
    """
    try:
        with tempfile.TemporaryDirectory(prefix="gpuops-restore-") as private:
            if to is not None:
                _put_back(path, to, Path(private), check)
                return
            if not host:
                raise SiteError("name the host that gets it with --host")
            site = find(inventory)
            if hosts_of(site.inventory, host)[1] != [host]:
                raise SiteError(f"{host} is not a host of the inventory {site.inventory}")
            source = site_archive.member(path, f"{HOST}{of or host}", Path(private))
            status = _restore(site, host, source, replace, check, words or [])
    except (SiteError, InventoryError, Refused, OSError, Malformed) as wrong:
        typer.echo(f"gpuops restore-head: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    raise typer.Exit(status)


def _restore(site: Site, host: str, source: Path, replace: bool, check: bool, words: Sequence[str]) -> int:
    put_back = Packed("host_restore")
    variables = {"restore_host": host, "backup_source": str(source), "backup_replace": replace}
    outcome = run_locked(
        "restore-head",
        site,
        False,
        LOCK,
        limit=host,
        check=check,
        playbook=RESTORE_HEAD,
        options=["-e", json.dumps(variables), *words],
        also=put_back.take,
    )
    result = put_back.hosts.get(host, {})
    if not outcome.status:
        names = ", ".join(map(str, result.get("parts") or ()))
        would = "would be put back" if check else "put back"
        typer.echo(f"{host}: {would}: {names}" if names else f"{host}: all of it is back already; nothing changed")
        if result.get("left_out"):
            typer.echo(
                f"{host}: left out, as the host is in no group for it: {', '.join(map(str, result['left_out']))}"
            )
        if names and not check:
            typer.echo("to do: gpuops up")
    return outcome.status


def _put_back(path: Path, directory: Path, private: Path, check: bool) -> None:
    source = site_archive.member(path, CONTROLLER, private)
    (private / "members").mkdir()
    manifest = archive.read(str(source), str(private / "members"))
    written, elsewhere = controller.put_back(manifest, private / "members", directory.absolute(), check)
    typer.echo(f"{directory}: {len(written)} files {'would be ' if check else ''}written")
    for other in elsewhere:
        typer.echo(f"not written, as it was elsewhere: {other}")
