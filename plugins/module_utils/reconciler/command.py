# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's commands, as `gpuops` on the controller and as one file on the masters have them."""

from __future__ import annotations

import argparse
import getpass
import json
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import NotOurs, Store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.service import Service
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Settings, Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import MODES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.status import overview, table
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import CONFIG, SCHEDULERS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.settings import (
    Settings as ZooKeeperSettings,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.store import UNREACHABLE

FAILED, USAGE_ERROR = 1, 64
STOP = (signal.SIGTERM, signal.SIGINT)
_NOT_REACHED: tuple[type[Exception], ...] = (OSError, *UNREACHABLE)
_AWAY: tuple[type[Exception], ...] = (CallFailed, NotOurs, *_NOT_REACHED)


def _complain(why: object) -> None:
    sys.stderr.write(f"gpuops: {why}\n")


def _not_reached(why: Exception, settings: Settings) -> int:
    """Say what kept a command from ZooKeeper or from the state directory. The exit status."""
    if isinstance(settings, ZooKeeperSettings) and type(why).__name__ == "NoAuthError":
        _complain(
            f"ZooKeeper refuses {settings.credentials} at {settings.path}: what is there has other secrets. "
            "Put the file gpu_reconciler_secrets_path back on the controller and run `gpuops up --tags gpu_reconciler`"
        )
    else:
        _complain(f"{type(why).__name__}: {why}")
    return FAILED


def _store(settings: Settings) -> Store:
    return SCHEDULERS[settings.scheduler].store(settings, reconciler_settings.secrets(settings))


def _stop_when_told(service: Service) -> None:
    signal.sigwait(STOP)
    service.stop()


def run(config: Path, mode: str | None, once: bool) -> int:
    """Lead, or wait to lead, until SIGTERM; with `once` look at all nodes once. The exit status."""
    try:
        settings = reconciler_settings.load(config, mode)
        if not once:
            # Before there are threads, which take the mask over: only the one that waits for them is to get them.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        secrets = reconciler_settings.secrets(settings)
        scheduler = SCHEDULERS[settings.scheduler]
        service = Service(settings, scheduler.backend(settings, secrets), scheduler.store(settings, secrets))
        if once:
            if service.once():
                return 0
            _complain("another reconciler leads, so nothing was done here")
            return FAILED
        threading.Thread(target=_stop_when_told, args=(service,), daemon=True).start()
        service.run()
    except Wrong as why:
        _complain(why)
        return USAGE_ERROR
    except _AWAY as why:
        return _not_reached(why, settings)
    return 0


def _ask(settings: Settings, request: dict[str, Any]) -> str | None:
    store = _store(settings)
    store.open()
    try:
        if request["kind"] == "clear" and request["host"] not in store.hosts():
            raise Wrong(f"{request['host']} is not a known node", "see `sudo gpuops-reconciler status`")
        store.ask(request)
        return store.leader()
    finally:
        store.close()


def clear(config: Path, node: str | None, breaker: bool) -> int:
    """Ask whoever leads to take a node, or NODE:UUID, as mended, or to let go of the breaker. The exit status."""
    request: dict[str, Any] = {"by": f"{getpass.getuser()}@{socket.gethostname()}", "kind": "permit"}
    try:
        if (node is None) == (not breaker):
            raise Wrong("give NODE, NODE:UUID or --breaker")
        if node is not None:
            host, _colon, uuid = node.partition(":")
            request.update(kind="clear", host=host, uuid=uuid or None)
        settings = reconciler_settings.load(config)
        leader = _ask(settings, request)
    except Wrong as why:
        _complain(why)
        return USAGE_ERROR
    except _NOT_REACHED as why:
        return _not_reached(why, settings)
    sys.stdout.write(f"asked {leader}\n" if leader else "queued: there is no leader yet\n")
    return 0


def status(config: Path, as_json: bool) -> int:
    """Show what is known of every node. The exit status."""
    try:
        settings = reconciler_settings.load(config)
        store = _store(settings)
        store.open()
        try:
            found = overview(store)
        finally:
            store.close()
    except Wrong as why:
        _complain(why)
        return USAGE_ERROR
    except _NOT_REACHED as why:
        return _not_reached(why, settings)
    text = json.dumps(found, indent=2) if as_json else table(found, SCHEDULERS[settings.scheduler].plan)
    sys.stdout.write(f"{text}\n")
    return 0


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="gpuops-reconciler", description="Keeps tasks away from fatal GPUs.")
    parser.add_argument("--config", type=Path, default=CONFIG, help="(default: %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="lead, or wait to lead; systemd does this")
    one.add_argument("--mode", choices=MODES, help="instead of the policy's; only act changes anything")
    one.add_argument("--once", action="store_true", help="read all nodes once, and end")
    one = commands.add_parser("status", help="show what is known of every node")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = commands.add_parser("clear", help="say that a node or a GPU was repaired, or release the fleet breaker")
    one.add_argument("node", nargs="?", help="NODE, or NODE:UUID for one GPU")
    one.add_argument(
        "--breaker",
        action="store_true",
        help="permit the reconciler to take out the nodes that the fleet breaker holds back",
    )
    asked = parser.parse_args(words)
    if asked.command == "run":
        return run(asked.config, asked.mode, asked.once)
    if asked.command == "status":
        return status(asked.config, asked.json)
    return clear(asked.config, asked.node, asked.breaker)


if __name__ == "__main__":
    raise SystemExit(main())
