# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the reconciler itself has written into its store, and what operators ask: read as strictly as a node's verdict.

A server that lost a disk, an edit by hand, another version: what does not have its shape is not used.
"""

from __future__ import annotations

import functools
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import (
    NAME_OF_GPU,
    clear_shape,
    host_text,
    order_shape,
    uuid_text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    Shape,
    anything,
    flag,
    json_object,
    list_of,
    mapping_of,
    number,
    object_of,
    one_of,
    or_null,
    shown,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import fleet as reconcile_fleet
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import memory as reconcile_memory
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Plan

# A journal has 20 entries with their evidence.
BYTES_AT_MOST = 1 << 20


_seconds = number(0)
gpu_text = text(NAME_OF_GPU, 100, "a GPU")


def _fence(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != 2:
        raise Malformed(f"{where} is {shown(value)}, not a time and a host")
    return [_seconds(value[0], where), host_text(value[1], where)]


@functools.lru_cache
def _row(plan: Plan) -> Shape:
    kind = one_of(*plan.KINDS)
    step = object_of(
        {"kind": kind, "why": text(at_most=20000), "evidence": mapping_of(text(), anything)},
        {"order": order_shape, **plan.STEP_SHAPES},
        keep=True,
    )
    memory = object_of(
        {"schema": whole(), "host": host_text, "number": whole()},
        {
            "known": flag,
            "silent": or_null(_seconds),
            "absent": or_null(_seconds),
            "well": mapping_of(uuid_text, _seconds),
            "order": or_null(order_shape),
            "failed": or_null(object_of({"what": kind, "why": text(at_most=20000), "at": _seconds}, keep=True)),
            "fenced": or_null(object_of({"at": _seconds}, {"why": text(at_most=20000), **plan.STEP_SHAPES}, keep=True)),
            "gpus": mapping_of(
                uuid_text,
                object_of(
                    {"resets": whole(), "reboots": whole(), "at": _seconds}, {"quarantine": flag, "cleared": flag}, True
                ),
            ),
            "intent": or_null(object_of({"number": whole(), "at": _seconds, "step": step}, keep=True)),
            **plan.SHAPES,
        },
        keep=True,
    )
    entry = object_of({"time": number(), "what": text()}, {"kind": kind}, keep=True)
    return object_of({"memory": memory, "last": list_of(entry)}, {"clear": or_null(clear_shape)}, keep=True)


_fleet = object_of(
    {},
    {
        "schema": whole(reconcile_fleet.SCHEMA, reconcile_fleet.SCHEMA),
        "fences": list_of(_fence, 10**5),
        "permitted": list_of(host_text, 10**5),
    },
    keep=True,
)
_request = object_of(
    {"kind": one_of("clear", "permit")},
    {"host": host_text, "uuid": or_null(text(NAME_OF_GPU, 100, "a GPU")), "by": text()},
)


class OtherVersion(Malformed):
    """It was written by another version, for which it is kept as it is."""


def node(plan: Plan, host: str, data: bytes) -> dict[str, Any]:
    """A journal/HOST: {memory, last, clear}, or {apart: why} of a host that waits for an operator. Raises Malformed."""
    told = json_object(data, BYTES_AT_MOST)
    if "apart" in told:
        return {"apart": text()(told["apart"], "apart")}
    memory = told.get("memory")
    schema = memory.get("schema") if isinstance(memory, dict) else None
    if isinstance(schema, int) and schema != reconcile_memory.SCHEMA:
        raise OtherVersion(f"it has schema {shown(schema)}, and this reconciler reads {reconcile_memory.SCHEMA}")
    row: dict[str, Any] = _row(plan)(told, "it")
    if row["memory"]["host"] != host:
        raise Malformed(f"it belongs to {row['memory']['host']}")
    return row


def fleet(data: bytes) -> dict[str, Any]:
    """The breaker's memory. Raises Malformed."""
    told: dict[str, Any] = _fleet(json_object(data, 4 * BYTES_AT_MOST), "it")
    return told


def request(data: bytes) -> dict[str, Any]:
    """What an operator asks. Raises Malformed."""
    told: dict[str, Any] = _request(json_object(data), "it")
    if told["kind"] == "clear" and not told.get("host"):
        raise Malformed("it clears no host")
    return told
