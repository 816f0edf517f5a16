# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node publishes and what it is told, read as what it is: text of somebody else's making.

Nothing of it is used before all of it has its shape. A verdict that cannot be used is Unusable, with the reason; its
node is then left as it is, and keeps nobody else waiting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import VERDICTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    flag,
    json_object,
    list_of,
    number,
    object_of,
    one_of,
    or_null,
    shown,
    text,
    whole,
)

SCHEMA = 1
# How far the clock of a node may be ahead, in seconds. Whoever is further ahead has no time that means anything.
AHEAD_S = 300.0
HOST = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
UUID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}"
# An operator may name a GPU by its address as well.
NAME_OF_GPU = r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}"
PCI_ADDRESS = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-1][0-9A-Fa-f]\.[0-7]"
AGENT_ID = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}"
# Not fewer than an agent remembers; see history.py.
DEVICES_AT_MOST = 1024
REASONS_AT_MOST = 256
# How the unit of a Mesos agent stands; `held`: it waits for a condition.
UNITS = ("active", "activating", "failed", "inactive", "held", "unknown")

uuid_text = text(UUID, 100, "a UUID")
host_text = text(HOST, 253, "the name of a host")
agent_id_text = text(AGENT_ID, 200, "the id of an agent")


def agent_id_shape(value: Any, where: str) -> str:
    # One that never came up has none.
    return "" if value == "" else str(agent_id_text(value, where))


_reason = object_of(
    {"code": text(r"[A-Za-z0-9_.-]{1,80}", 80, "a code"), "verdict": one_of(*VERDICTS)},
    {"action": text(r"[A-Za-z0-9_.-]{1,80}", 80, "an action"), "text": text()},
)
_device = object_of(
    {"verdict": one_of(*VERDICTS), "reasons": list_of(_reason, REASONS_AT_MOST)},
    {
        "uuid": or_null(uuid_text),
        "index": or_null(whole(0, 65535)),
        # Of its device file, which is how Slurm names it.
        "minor": or_null(whole(0, 65535)),
        "pci_address": or_null(text(PCI_ADDRESS, 20, "a PCI address")),
    },
)
order_shape = object_of(
    {"kind": one_of("replace", "reset", "reboot"), "agent_id": agent_id_shape, "gpus": list_of(uuid_text)},
    {
        "id": text(),
        "at": number(0),
        "sent": one_of("order", "withdraw"),
        "withdrawn": flag,
        "reboot": list_of(uuid_text),
        "boot_id": or_null(text()),
    },
    keep=True,
)
clear_shape = object_of({"id": text()}, {"device": or_null(text(NAME_OF_GPU, 100, "the name of a GPU"))})
_orders = object_of({}, {"order": or_null(order_shape), "clear": or_null(clear_shape)})
_verdict = object_of(
    {
        "schema": whole(),
        "host": host_text,
        "reasons": list_of(_reason, REASONS_AT_MOST),
        "devices": list_of(_device, DEVICES_AT_MOST),
    },
    {
        "verdict": one_of(*VERDICTS),
        "boot_id": or_null(text(at_most=100)),
        "time": or_null(number(0)),
        "listed": or_null(list_of(uuid_text, DEVICES_AT_MOST)),
        "held_back": or_null(list_of(uuid_text, DEVICES_AT_MOST)),
        "order": or_null(
            object_of(
                {"id": text(at_most=500)},
                {
                    "state": one_of("running", "done", "failed"),
                    "error": or_null(text()),
                    "end_boot_id": or_null(text(at_most=100)),
                },
            )
        ),
        # The Mesos agent as the host sees it, for one that does not register.
        "mesos": or_null(
            object_of(
                {"agent_id": or_null(agent_id_text), "unit": one_of(*UNITS), "executors": or_null(whole(0, 10**6))},
                {"unread": or_null(text())},
            )
        ),
    },
)


@dataclass(frozen=True)
class Unusable:
    """A verdict that cannot be used, and why."""

    why: str


# What is known of a node's verdict.
Published = Union[Mapping[str, Any], Unusable]


def read(host: str, data: bytes) -> Published:
    """What was published for this host."""
    try:
        return checked(host, json_object(data))
    except Malformed as why:
        return Unusable(str(why))


def checked(host: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """The verdict with the keys that are known. Raises Malformed."""
    if isinstance(told.get("schema"), int) and told["schema"] != SCHEMA:
        raise Malformed(f"it has schema {shown(told['schema'])}, and this reconciler reads {SCHEMA}")
    verdict: dict[str, Any] = _verdict(told, "it")
    if verdict["host"] != host:
        raise Malformed(f"it belongs to {verdict['host']}")
    uuids = [row["uuid"] for row in verdict["devices"] if row.get("uuid")]
    for name, rows in (("devices", uuids), ("listed", verdict.get("listed") or [])):
        twice = sorted({uuid for uuid in rows if rows.count(uuid) > 1})
        if twice:
            raise Malformed(f"{name} has {', '.join(twice)} more than once")
    return verdict


def orders(data: bytes) -> dict[str, Any]:
    """What the reconciler says to a node: {order, clear}, each null for nothing. Raises Malformed."""
    told: dict[str, Any] = _orders(json_object(data), "it") if data else {}
    if told.get("order") and not told["order"].get("id"):
        raise Malformed("its order has no id")
    return told


def in_the_future(verdict: Mapping[str, Any], now: float) -> str:
    """Why its time cannot be used; empty if it can."""
    ahead = (verdict.get("time") or 0.0) - now
    if ahead <= AHEAD_S:
        return ""
    return f"it is dated {ahead:.0f} s in the future. To do: set the host's clock, or that of the reconciler"
