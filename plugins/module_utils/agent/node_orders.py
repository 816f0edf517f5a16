# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Carries out the order that the agent has laid down, as root, and leaves the answer for it.

The order of a kind that this host does not allow is refused. One that was cut, by a crash or a boot, is taken up again:
each of its parts may be done twice. One at a time: a lock keeps a second one, and a playbook, out.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.orders import (
    Unreadable,
    is_order,
    read,
    read_strictly,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.health.described import ANSWER
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.boot import boot_id
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import Place, Replacement

KINDS = ("replace", "reset", "reboot")
COMMAND_S = 300


@dataclass
class Settings:
    """`allowed` are of KINDS; a reboot that comes with a replacement has to be allowed as well."""

    order: str = "/var/lib/baremetal-gpu/agent/order.json"
    answer: str = ANSWER
    allowed: tuple[str, ...] = ("replace",)
    place: Place = field(default_factory=Place)
    root: str = "/"


def run(argv: Sequence[str]) -> tuple[int, str]:
    """Run a program: (exit status, output)."""
    try:
        status, said, _nothing = host_run.execute(argv, COMMAND_S, merged=True)
    except host_run.TimedOut:
        return host_run.TIMED_OUT, f"not done after {COMMAND_S} s"
    except OSError as why:
        return host_run.NOT_FOUND, str(why)
    return status, host_run.text(said)


@contextmanager
def alone(place: Place) -> Iterator[None]:
    """Only one at a time changes the agent of this host. Raises Refused where another one is at it."""
    with open(place.lock, "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as why:
            raise Refused("another change of this host's agent is going on", "wait for its end") from why
        yield


def obey(settings: Settings, devices: Iterable[Mapping[str, Any]], runner: host_run.Call = run) -> dict[str, Any]:
    """Carry out the order that lies there, if it has no answer yet.

    Gives the answer {id, state, error, boot_id, end_boot_id}: the boots of the host in which it was begun and ended.
    Where the answer cannot be left, nothing is begun, and OSError says why.
    """
    order = read(settings.order)
    try:
        before = read_strictly(settings.answer)
    except Unreadable as why:
        # The order may have been carried out, and a host is not booted twice for one.
        return _refuse(settings, order, str(why))
    if not is_order(order):
        return before
    if before.get("id") == order["id"] and before.get("state") != "running":
        return before
    boot = boot_id(settings.root)
    notes = False
    answer: dict[str, Any] = {"id": order["id"], "state": "running", "boot_id": before.get("boot_id", boot)}
    try:
        with alone(settings.place):
            if before.get("id") != order["id"]:
                if order.get("withdrawn"):
                    raise Refused("withdrawn")
                answer["boot_id"] = boot
                # What cannot be noted down is not begun: with a full disk it would be done again and again.
                notes = True
                _leave(settings, answer)
                notes = False
            _do(settings, order, list(devices), runner, rebooted=answer["boot_id"] != boot)
    except Refused as why:
        answer.update(state="failed", error=str(why))
    except OSError as why:
        if notes:
            raise
        answer.update(state="failed", error=f"{why.filename}: {why.strerror}")
    else:
        waits = order.get("reboot") and answer["boot_id"] == boot
        answer["state"] = "running" if waits else "done"
    if answer["state"] != "running":
        answer["end_boot_id"] = boot
    _leave(settings, answer)
    return answer


def _refuse(settings: Settings, order: Mapping[str, Any], why: str) -> dict[str, Any]:
    host_files.put_aside(settings.answer)
    boot = boot_id(settings.root)
    error = f"{why}, so it is not known whether this was done before. To do: look at the host, and decide again"
    answer = {"id": order.get("id"), "state": "failed", "error": error, "boot_id": boot, "end_boot_id": boot}
    _leave(settings, answer)
    return answer


def _leave(settings: Settings, answer: Mapping[str, Any]) -> None:
    host_files.make_directories(os.path.dirname(settings.answer))
    host_files.write(settings.answer, json.dumps(answer) + "\n")


def _do(
    settings: Settings,
    order: Mapping[str, Any],
    devices: list[Mapping[str, Any]],
    runner: host_run.Call,
    rebooted: bool,
) -> None:
    kind, reboot = order.get("kind"), bool(order.get("reboot"))
    for needed in [kind, *(["reboot"] if reboot else [])]:
        if needed not in settings.allowed:
            raise Refused(f"{needed} is not allowed on this host", "add it to gpu_agent_orders, or do it yourself")
    needs_agent = kind not in ("reset", "reboot")
    if not isinstance(order.get("gpus"), list) or (needs_agent and not isinstance(order.get("agent_id"), str)):
        raise Refused(f"{settings.order} is not a whole order", "look at the host, and decide again")
    if kind == "reset":
        for uuid in order["gpus"]:
            status, said = runner(["nvidia-smi", "--gpu-reset", "-i", str(uuid)])
            if status:
                raise Refused(f"nvidia-smi --gpu-reset -i {uuid} ended with {status}: {said.strip()[-300:]}")
        return
    if kind == "reboot":
        if not rebooted:
            status, said = runner(["systemctl", "reboot"])
            if status:
                raise Refused(f"systemctl reboot ended with {status}: {said.strip()[-300:]}")
        return
    if reboot and rebooted:
        # The unit has started the agent at boot, with the new list.
        return
    Replacement(settings.place, str(order["agent_id"]), order["gpus"], devices, runner).carry_out(reboot)
