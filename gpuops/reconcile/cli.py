# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands ``gpuops reconcile`` and ``gpuops clear``."""

from __future__ import annotations

import getpass
import json
import signal
import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos_operator import Failed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconcile_shapes import MODES
from gpuops.reconcile import settings as told
from gpuops.reconcile.service import Service
from gpuops.reconcile.status import overview, table
from gpuops.reconcile.store import UNREACHABLE, Store

FAILED = 1
USAGE_ERROR = 64

Config = Annotated[Path, typer.Option("--config", help="What the role gpu_reconciler wrote.")]


def _stop(command: str, why: object, code: int) -> None:
    typer.echo(f"gpuops {command}: {why}", err=True)
    raise typer.Exit(code)


def reconcile(
    config: Config = told.CONFIG,
    mode: Annotated[
        str | None, typer.Option(help=f"Instead of the policy's: {', '.join(MODES)}. Only act changes anything.")
    ] = None,
    once: Annotated[bool, typer.Option(help="Look at all nodes once, and end.")] = False,
    status: Annotated[bool, typer.Option(help="Show what is known of every node, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Show the status as JSON.")] = False,
) -> None:
    """Keep tasks away from fatal cards: follow the nodes' verdicts and act on the Mesos agents."""
    try:
        settings = told.load(config, mode)
        secrets = told.secrets(settings)
        if status:
            _show(Store(settings, secrets), as_json)
            return
        service = Service(settings, secrets)
        if once:
            if not service.once():
                _stop("reconcile", "another reconciler leads, so nothing was done here", FAILED)
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: service.stop())
        service.run()
    except told.Wrong as why:
        _stop("reconcile", why, USAGE_ERROR)
    except (Failed, *UNREACHABLE) as why:
        _stop("reconcile", why or type(why).__name__, FAILED)


def _show(store: Store, as_json: bool) -> None:
    store.open()
    try:
        found = overview(store)
    finally:
        store.close()
    typer.echo(json.dumps(found, indent=2) if as_json else table(found))


def clear(
    node: Annotated[str | None, typer.Argument(help="NODE, or NODE:UUID for one card.")] = None,
    breaker: Annotated[
        bool, typer.Option(help="Let the nodes that the fleet breaker holds back be taken out.")
    ] = False,
    config: Config = told.CONFIG,
) -> None:
    """Say that a node or a card was mended, or let go of the fleet breaker; whoever leads does the rest."""
    try:
        if (node is None) == (not breaker):
            raise told.Wrong("give NODE, NODE:UUID or --breaker")
        request: dict[str, Any] = {"by": f"{getpass.getuser()}@{socket.gethostname()}"}
        if node is None:
            request["kind"] = "permit"
        else:
            host, _colon, uuid = node.partition(":")
            request.update(kind="clear", host=host, uuid=uuid or None)
        settings = told.load(config)
        store = Store(settings, told.secrets(settings))
        store.open()
        try:
            if request["kind"] == "clear" and request["host"] not in store.hosts():
                raise told.Wrong(
                    f"{request['host']} is no node that was ever heard of. To do: see gpuops reconcile --status"
                )
            store.ask(request)
            leader = store.leader()
        finally:
            store.close()
    except told.Wrong as why:
        _stop("clear", why, USAGE_ERROR)
    except UNREACHABLE as why:
        _stop("clear", why or type(why).__name__, FAILED)
    typer.echo(f"asked {leader}" if leader else "asked; nobody leads now, and whoever leads next will do it")
