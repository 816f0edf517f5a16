# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops init``: make the inventory of a site."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from gpuops.init import answers, discover, files, proposal, users
from gpuops.run import session

# Option of hosts -> their role, and the prompt for it.
QUESTIONS = {
    answers.GPU: "GPU nodes, such as gpu[1:4]=192.0.2.[31:34]",
    answers.STORAGE: "Storage nodes (empty for none)",
    answers.CONTROLLER: "Controllers (empty for none)",
    answers.CPU: "Nodes without GPUs (empty for none)",
}
# What runs on one host -> the question for it.
PLACES = {
    "portal": "Host of the portal, where people log in",
    "registry": "Host of the registry of images",
    "monitoring": "Host that watches the others and keeps their logs",
}
AUTO, NONE = "auto", "none"
# Of the facts of a host that cannot be used, so many lines are shown.
MOST_REFUSED = 5
HEAD_HELP = "'' for none. The head if left out."
HOSTS_HELP = "NAME or NAME=ADDRESS; gpu[1:4]=192.0.2.[31:34] is four. May be given several times."


def prompted(given: dict[str, Any]) -> dict[str, Any]:
    """Questions on the terminal for what was not given. An answer `auto` is left to the proposal."""
    typer.echo("Hosts are names or addresses, separated by blanks; an address follows its name after =.")
    words = str(typer.prompt("Hosts (empty to name them by kind)", default="", show_default=False)).split()
    hosts: dict[str, Any] = answers.named(words)
    for role, question in {} if hosts else QUESTIONS.items():
        words = str(typer.prompt(question, default="", show_default=False)).split()
        hosts = answers.merge({"hosts": hosts}, {"hosts": answers.named(words, role)})["hosts"]
    typed: dict[str, Any] = {"hosts": hosts}
    if "user" not in given:
        typed["user"] = typer.prompt("Account that may become root by sudo", default="admin")
    for key, choices in (("scheduler", answers.SCHEDULERS), ("homes", answers.HOMES)):
        if key not in given:
            typed[key] = typer.prompt(f"{key.capitalize()} ({', '.join(choices)}, {AUTO})", default=AUTO)
    if "domain" not in given:
        question = "Domain in whose DNS you can have names (empty for none)"
        typed["domain"] = str(typer.prompt(question, default="", show_default=False)).strip()
    for key, question in PLACES.items():
        if key not in given:
            answer = typer.prompt(f"{question} ({NONE} for none)", default=AUTO)
            typed[key] = "" if answer == NONE else answer
    if "users" not in given:
        path = str(
            typer.prompt("File with the users, CSV or YAML (empty for none yet)", default="", show_default=False)
        )
        typed |= _people(Path(path.strip())) if path.strip() else {}
    if "reboot" not in given:
        allowed = typer.confirm("May a run reboot hosts where nothing else helps?", default=False)
        typed["reboot"] = "allowed" if allowed else "refused"
    return answers.merge(given, {key: value for key, value in typed.items() if value != AUTO})


def _people(path: Path) -> dict[str, Any]:
    try:
        return users.file(path)
    except Refused as wrong:
        raise answers.AnswersError([str(wrong)]) from wrong
    except (OSError, UnicodeDecodeError) as failure:
        raise answers.AnswersError([f"{path} cannot be read: {failure}"]) from failure


def _file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        raise answers.AnswersError([f"{path} cannot be read: {failure}"]) from failure
    if not isinstance(content, dict):
        raise answers.AnswersError([f"{path} has no mapping in it; write `hosts: {{gpu1: {{role: gpu}}}}`"])
    return content


def print_facts(site: answers.Answers, look: discover.Look) -> None:
    """Print the facts of the hosts."""
    width = max(len(host.name) for host in site.hosts)
    for host in site.hosts:
        name = host.name.ljust(width)
        if host.name in look.problems:
            for cause, remedy in look.problems[host.name]:
                typer.echo(f"{name}  {cause}\n{' ' * width}  remedy: {remedy}")
            continue
        found = look.hosts.get(host.name)
        if found is None:
            typer.echo(f"{name}  no facts")
            continue
        gpus = Counter(found.gpus)
        parts = [found.system, *(f"{count}x {model}" for model, count in gpus.items())]
        if answers.GPU in host.roles and not gpus:
            parts.append("no NVIDIA GPU on its PCI bus, so GPU stages will skip it")
        if answers.STORAGE in host.roles:
            parts.append(f"{len(found.disks)} free {'disk' if len(found.disks) == 1 else 'disks'}")
        typer.echo(f"{name}  {', '.join(part for part in parts if part)}")
        for text in found.refused[:MOST_REFUSED]:
            typer.echo(f"{' ' * width}  not used: {text}")


def _use_disks(site: answers.Answers, look: discover.Look) -> bool:
    """Ask whether the free disks are to become OSDs."""
    free = {
        host.name: look.hosts[host.name].disks
        for host in site.of(answers.STORAGE)
        if host.disks is None and host.name in look.hosts and look.hosts[host.name].disks
    }
    for name, disks in free.items():
        for disk in disks:
            typer.echo(f"  {name}: {disk.path} {disk.size} {disk.model}".rstrip())
    return bool(free) and typer.confirm("Are these disks to become OSDs?", default=False)


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The new site; not there yet, or empty.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST]...", help="Hosts, by address or NAME=ADDRESS, whose roles are proposed."),
    ] = None,
    answers_file: Annotated[
        Path | None, typer.Option("--answers", "-a", help="Answers as YAML; options come on top.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help=f"GPU nodes: {HOSTS_HELP}")] = None,
    storage: Annotated[list[str] | None, typer.Option(help="Storage nodes, in the same way.")] = None,
    controller: Annotated[list[str] | None, typer.Option(help="Controllers, in the same way.")] = None,
    cpu: Annotated[list[str] | None, typer.Option(help="Nodes without GPUs, in the same way.")] = None,
    user: Annotated[str | None, typer.Option(help="Account that may become root by sudo.")] = None,
    private_key: Annotated[str | None, typer.Option(help="Private key for SSH, if not one of your own.")] = None,
    scheduler: Annotated[str | None, typer.Option(help=f"{', '.join(answers.SCHEDULERS)}; slurm if left out.")] = None,
    homes: Annotated[
        str | None,
        typer.Option(help="cephfs, nfs or local; cephfs with storage nodes, local on one host, otherwise nfs."),
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Domain of the site: portal.DOMAIN and registry.DOMAIN.")] = None,
    portal: Annotated[str | None, typer.Option(help=f"Host of the portal; {HEAD_HELP}")] = None,
    registry: Annotated[str | None, typer.Option(help=f"Host of the registry of images; {HEAD_HELP}")] = None,
    people: Annotated[
        Path | None,
        typer.Option("--users", help=f"Who uses the site: CSV with {', '.join(users.COLUMNS)}, or YAML."),
    ] = None,
    public_network: Annotated[str | None, typer.Option(help="Network of the storage, such as 192.0.2.0/24.")] = None,
    engine: Annotated[str | None, typer.Option(help=f"Container engine: {', '.join(answers.ENGINES)}.")] = None,
    reboot: Annotated[str | None, typer.Option(help="Whether runs may reboot hosts: refused or allowed.")] = None,
    monitoring: Annotated[
        str | None,
        typer.Option(help=f"Host that watches the others and keeps their logs; {HEAD_HELP}"),
    ] = None,
    use_free_disks: Annotated[
        bool | None, typer.Option("--use-free-disks", help="Make OSDs of all disks that are free.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Gather no facts of the hosts.")] = False,
) -> None:
    """Create the complete inventory of a site. Never overwrites a file.

    Addresses are enough for a whole cluster: one host without a GPU, or the
    first, becomes the head with Slurm's controller, the homes, the portal, the
    registry and the monitoring, and the files say why. Without hosts in options
    or answers it asks on the terminal.

    Gathers facts of the hosts, and proposes from them roles, groups by the
    model of the GPUs, the network of the storage, and disks that are free.

    Exit status: 0 done, 4 written, but some hosts could not be examined, 64
    the answers are wrong or DIR is not empty.

    Examples:

      gpuops init mysite 192.0.2.11 192.0.2.[31:32] --user admin --users users.csv

      gpuops init mysite --user admin --gpu 'gpu[1:4]=192.0.2.[31:34]'

      gpuops init mysite --answers answers.yml
    """
    given = {
        "user": user,
        "private_key": private_key,
        "public_network": public_network,
        "engine": engine,
        "reboot": reboot,
        "use_free_disks": use_free_disks,
        "scheduler": scheduler,
        "homes": homes,
        "domain": domain,
        "portal": portal,
        "registry": registry,
        "monitoring": monitoring,
    }
    roles = {answers.CONTROLLER: controller, answers.GPU: gpu, answers.STORAGE: storage, answers.CPU: cpu}
    try:
        files.check_place(directory)
        content = answers.merge(_file(answers_file), {key: value for key, value in given.items() if value is not None})
        content |= _people(people) if people else {}
        for role, words in {"": hosts, **roles}.items():
            content = answers.merge(content, {"hosts": answers.named(words or [], role)})
        asking = not content["hosts"] and sys.stdin.isatty()
        if asking:
            content = prompted(content)
        site = answers.read(content)
        look = discover.Look()
        if not offline:
            typer.echo(f"asking {len(site.hosts)} {'host' if len(site.hosts) == 1 else 'hosts'} what is in them …")
            look = discover.look(site)
            if look.output and not look.hosts and not look.problems:
                typer.echo(look.output, err=True)
            print_facts(site, look)
        look.rename(proposal.settle(site, look.hosts))
        if asking and not site.use_free_disks:
            site.use_free_disks = _use_disks(site, look)
        rendered = files.render(site, look.hosts)
        files.write(directory, rendered)
        if site.of(answers.GPU):
            files.write_snapshot(directory, look.hosts)
    except answers.AnswersError as wrong:
        for problem in wrong.problems:
            typer.echo(f"gpuops init: {problem}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    except (files.Occupied, files.Unwritable, ValueError) as wrong:
        typer.echo(f"gpuops init: {wrong}", err=True)
        raise typer.Exit(session.USAGE) from wrong
    except OSError as failure:
        typer.echo(f"gpuops init: {failure.filename or directory} cannot be written: {failure.strerror}", err=True)
        raise typer.Exit(session.BROKEN) from failure
    _chosen(site)
    typer.echo(f"\n{directory}:")
    for name in sorted(rendered):
        typer.echo(f"  {name}")
    _next_steps(site, look, directory, offline)
    if not offline and len(look.hosts) < len(site.hosts):
        raise typer.Exit(session.UNREACHABLE)


def _chosen(site: answers.Answers) -> None:
    """Print what the site is to be, and why."""
    of = {role: ", ".join(host.name for host in site.of(role)) for role in (answers.GPU, answers.CPU, answers.STORAGE)}
    typer.echo(f"\n{'head':<12}{site.head}: {site.reasons['head']}")
    for name, words in (
        ("GPU nodes", of[answers.GPU]),
        ("CPU nodes", of[answers.CPU]),
        ("storage", of[answers.STORAGE]),
    ):
        if words:
            typer.echo(f"{name:<12}{words}")
    for name in ("scheduler", "homes", "portal", "registry", "monitoring", "users"):
        typer.echo(f"{name:<12}{site.reasons[name]}")


def _next_steps(site: answers.Answers, look: discover.Look, directory: Path, offline: bool) -> None:
    typer.echo("\nnext:")
    lacking = [
        host.name
        for host in site.of(answers.STORAGE)
        if not host.disks and not (site.use_free_disks and host.name in look.hosts and look.hosts[host.name].disks)
    ]
    if lacking:
        typer.echo(f"  name the disks of {', '.join(lacking)} in inventory/host_vars")
    if site.of(answers.STORAGE):
        if not (site.public_network or discover.common_network(site, look.hosts)):
            typer.echo("  set ceph_common_public_network in inventory/group_vars/storage_nodes.yml")
        typer.echo(f"  keep a copy of {files.PASSWORD}; without it the keys of the storage are lost")
    typer.echo(f"  cd {directory} && gpuops plan && gpuops up")
    if site.of(answers.GPU):
        typer.echo("  gpuops inventory    (groups of hosts by the driver's facts of their GPUs)")
