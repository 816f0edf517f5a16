# SPDX-License-Identifier: GPL-3.0-or-later
"""``gpuops place``: choose nodes and GPUs for a task, and pin a Marathon app to them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import topology
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import file as fleet_file
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import app as placement_app
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import facts as placement_facts
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import place as placement
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement import policies as placement_policies
from ansible_collections.baremetal.gpu.plugins.plugin_utils.placement.fragmentation import GPU, Kind
from gpuops.inventory import snapshot
from gpuops.site import InventoryOption, SiteError, find

REFUSED = 1
USAGE_ERROR = 64

LINKS = {"nvlink": topology.NVLINK_POINTS, **dict(topology.LEVELS.values())}


class _Wrong(Exception):
    """The command was given something that it cannot use."""


def _read_json(path: Path, what: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as failure:
        raise _Wrong(f"{what} {path} cannot be read: {failure}") from failure


def _is_snapshot(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(header, dict) and header.get("kind") == fleet_file.KIND


def _own_snapshot(inventory: Path | None) -> Path:
    """The snapshot of the site, and on standard error how old it is. Raises SiteError, _Wrong."""
    path = find(inventory).directory / snapshot.NAME
    if not path.is_file():
        raise _Wrong(f"{path} is not there. Write it with `gpuops inventory`, or name the nodes with --nodes")
    written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(path.stat().st_mtime))
    typer.echo(f"nodes as `gpuops inventory` last saw them, {written}: {path}", err=True)
    return path


def _snapshot_nodes(path: Path, allow_unknown: bool) -> list[placement.Node]:
    nodes = []
    for row in fleet_file.read(str(path), facts=True):
        try:
            if row.problem:
                raise placement_facts.BrokenNodes(row.problem)
            nodes.append(placement_facts.from_facts(row.host, row.facts(), allow_unknown))
        except (placement_facts.BrokenNodes, fleet.BrokenFacts):
            nodes.append(placement.Node(row.host, (), None, None, excluded="facts cannot be used"))
    return nodes


def _nodes(
    path: Path, state: Path | None, slurm: Path | None, kubernetes: Path | None, allow_unknown: bool
) -> tuple[list[placement.Node], dict[Kind, float]]:
    if _is_snapshot(path):
        nodes, counts = _snapshot_nodes(path, allow_unknown), {}
        if state:
            counts = placement_facts.use_state(nodes, _read_json(state, "the Mesos state"))
        elif slurm:
            counts = placement_facts.use_slurm(nodes, _read_json(slurm, "the status"))
        elif kubernetes:
            counts = placement_facts.use_kubernetes(nodes, _read_json(kubernetes, "the status"))
        return nodes, counts
    if state or slurm or kubernetes:
        option = "--mesos-state" if state else "--slurm-status" if slurm else "--kubernetes-status"
        raise _Wrong(f"{path} is not a snapshot of gpuops inventory, so {option} has no facts to go with")
    content = _read_json(path, "the file of nodes")
    rows = content.get("nodes") if isinstance(content, dict) else content
    return placement_facts.from_description(rows, allow_unknown)


def _request(given: Mapping[str, Any], app: Any) -> tuple[placement.Request, int]:
    """(what an instance needs, how many): by the app if there is one, else by the options."""
    sizes = {key: given[key] for key in ("gpus", "gpu_part", "cpus", "memory_mib", "instances")}
    if app is None:
        part = sizes["gpu_part"]
        request = placement.Request(
            1 if part is not None else 1 if sizes["gpus"] is None else sizes["gpus"],
            GPU if part is None else part,
            round((sizes["cpus"] or 0) * GPU),
            sizes["memory_mib"] or 0,
        )
        if part is not None and sizes["gpus"] not in (None, 1):
            raise _Wrong("--gpu-part is of one GPU, so it does not go with --gpus")
        instances = sizes["instances"] or 1
    else:
        both = [f"--{key.replace('_', '-')}" for key, value in sizes.items() if value is not None]
        if both:
            raise _Wrong(f"the app has what it needs, so {', '.join(both)} cannot be given with --app")
        request, instances = placement_app.request(app)
    request = request._replace(
        models=tuple(given["models"]),
        gpu_memory_mib=given["gpu_memory_mib"],
        weakest_pair=LINKS[given["links"]] if given["links"] else 0,
    )
    if request.problems():
        raise _Wrong("; ".join(request.problems()))
    return request, instances


def _choose(cluster: placement.Cluster, request: placement.Request, instances: int, apart: bool) -> list[Any]:
    """A choice for each instance, one after the other. Raises placement.Refused."""
    found = []
    for number in range(instances):
        try:
            choice = cluster.choose(request)
        except placement.Refused as refused:
            if number:
                refused.add_note(f"{number} of {instances} instances would fit")
            raise
        found.append(choice)
        cluster.start(choice.node, request, choice.chosen)
        if apart:
            cluster.close(choice.node, "has an instance already")
    return found


def _as_json(choice: placement.Choice) -> dict[str, Any]:
    gpus = [choice.node.gpus[number] for number in choice.chosen]
    return {
        "node": choice.node.name,
        "gpus": [{"index": gpu.index, "uuid": gpu.uuid, "model": gpu.model} for gpu in gpus],
        "reasons": list(choice.reasons),
    }


def _print(text: str, err: bool) -> None:
    """Names and reasons come from files of which hosts have written parts."""
    typer.echo(untrusted_text.several_lines(text), err=err)


def _as_text(row: dict[str, Any]) -> str:
    gpus = ", ".join(f"{gpu['index']} {gpu['uuid']}".strip() for gpu in row["gpus"])
    return "\n".join([f"{row['node']}" + (f": GPUs {gpus}" if gpus else ""), *(f"  {text}" for text in row["reasons"])])


def place(
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes",
            "-n",
            help="A snapshot of gpuops inventory, or nodes as JSON; the site's own snapshot if left out.",
        ),
    ] = None,
    inventory: InventoryOption = None,
    mesos_state: Annotated[
        Path | None,
        typer.Option(help="The state of the leading Mesos master, from /state: CPU, memory and what is in use."),
    ] = None,
    slurm_status: Annotated[
        Path | None,
        typer.Option(help="What gpuops status --json printed: of Slurm's nodes CPU, memory and which GPUs are in use."),
    ] = None,
    kubernetes_status: Annotated[Path | None, typer.Option(help="The same of the nodes of Kubernetes.")] = None,
    app: Annotated[Path | None, typer.Option(help="A Marathon app to place and to print with constraints.")] = None,
    gpus: Annotated[int | None, typer.Option(help="Whole GPUs; 1 by default.")] = None,
    gpu_part: Annotated[int | None, typer.Option(help="Thousandths of one GPU, in place of --gpus.")] = None,
    cpus: Annotated[float | None, typer.Option(help="CPUs.")] = None,
    memory_mib: Annotated[int | None, typer.Option(help="Memory of the node in MiB.")] = None,
    instances: Annotated[int | None, typer.Option(min=1, help="How many of the kind.")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Pattern for the model's slug; more than one may match.")
    ] = None,
    gpu_memory_mib: Annotated[int, typer.Option(min=0, help="Least memory of each GPU in MiB.")] = 0,
    links: Annotated[
        str | None, typer.Option(help=f"What each pair of GPUs needs at least: {', '.join(LINKS)}.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="NODE, NODE:INDEX or UUID that is not to be used.")] = None,
    policy: Annotated[
        str, typer.Option(help=f"How to choose among nodes: {', '.join(placement_policies.POLICIES)}.")
    ] = placement_policies.DEFAULT,
    seed: Annotated[int, typer.Option(help="For the policy random: the same seed draws the same node.")] = 0,
    allow_unknown: Annotated[bool, typer.Option(help="Use GPUs also whose health is not known.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Choose nodes and GPUs for a task, and print why; the exit code is 1 if no node fits.

    Examples:

      gpuops place --gpus 4 --model 'h100*' --links nvlink

      gpuops place --nodes nodes.json --app train.json > pinned.json
    """
    given = {
        "gpus": gpus,
        "gpu_part": gpu_part,
        "cpus": cpus,
        "memory_mib": memory_mib,
        "instances": instances,
        "models": model or [],
        "gpu_memory_mib": gpu_memory_mib,
        "links": links,
    }
    try:
        if nodes is not None and inventory is not None:
            raise _Wrong("--nodes is what to choose among, so --inventory cannot be given with it")
        if sum(one is not None for one in (mesos_state, slurm_status, kubernetes_status)) > 1:
            raise _Wrong("give one of --mesos-state, --slurm-status and --kubernetes-status, by what the nodes run")
        nodes = nodes or _own_snapshot(inventory)
        if links is not None and links not in LINKS:
            raise _Wrong(f"--links {links}: there are {', '.join(LINKS)}")
        document = None if app is None else _read_json(app, "the app")
        request, count = _request(given, document)
        apart = document is not None and placement_app.apart(document)
        found, counts = _nodes(nodes, mesos_state, slurm_status, kubernetes_status, allow_unknown)
        placement_facts.exclude(found, exclude or [])
        choices = _choose(placement.Cluster(found, policy, counts, seed), request, count, apart)
        pinned = None if document is None else placement_app.pinned(document, [choice.node.name for choice in choices])
    except placement.Refused as refused:
        notes = "".join(f"\n  {note}" for note in getattr(refused, "__notes__", []))
        why = "".join(f"\n  {text}: {number} nodes" for text, number in refused.excluded.items())
        _print(f"gpuops place: none of the {refused.nodes} nodes fits{why}{notes}", err=True)
        raise typer.Exit(REFUSED) from refused
    except placement_app.BrokenApp as wrong:
        _print(f"gpuops place: {app}: {wrong}", err=True)
        raise typer.Exit(USAGE_ERROR) from wrong
    except placement_facts.BrokenNodes as wrong:
        _print(f"gpuops place: {mesos_state or slurm_status or kubernetes_status or nodes}: {wrong}", err=True)
        raise typer.Exit(USAGE_ERROR) from wrong
    except (_Wrong, SiteError, fleet_file.SnapshotError, ValueError) as wrong:
        _print(f"gpuops place: {wrong}", err=True)
        raise typer.Exit(USAGE_ERROR) from wrong
    rows = [_as_json(choice) for choice in choices]
    if as_json:
        typer.echo(json.dumps({"placements": rows, **({"app": pinned} if pinned else {})}, indent=2))
        return
    # The app goes to standard output alone, so that it can be sent on as it is.
    for row in rows:
        _print(_as_text(row), err=pinned is not None)
    if pinned:
        typer.echo(json.dumps(pinned, indent=2))
