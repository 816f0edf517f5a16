# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The shape of a look: what the process that asks NVML answers, and a broken library may have made.

It is checked here, once. So the rules read it without care, and an error in a rule is one of the rule.
"""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.session import XID_MOST
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    flag,
    json_object,
    list_of,
    mapping_of,
    number,
    object_of,
    one_of,
    or_null,
    text,
    whole,
)

_text, _count, _yes, _number = or_null(text()), or_null(whole()), or_null(flag), or_null(number())
_code = or_null(whole(-(10**6)))
# No counter of 64 bits is too large: NVML has the largest for "not available".
_bits = whole(0, 2**64 - 1)
# Of devices, device files and processes: a host with MIG has thousands of files.
MANY = 1 << 16
# What the rules read. Of a reading with parts, a part may be null or missing: the GPU does not tell it.
READINGS = {
    "temperature_c": number(),
    "memory_temperature_c": number(),
    "temperature_limits_c": object_of({}, {"slowdown": _number, "memory_max": _number}),
    "clocks_event_reasons": _bits,
    "utilization_percent": object_of({}, {"gpu": _count}),
    "ecc_volatile": object_of({}, {"uncorrected": _count}),
    "ecc_sram": object_of({}, {"volatile_uncorrected": _count, "threshold_exceeded": _yes}),
    "remapped_rows": object_of({}, {"pending": _yes, "failure": _yes}),
    "retired_pages": object_of({}, {"single_bit": _count, "double_bit": _count, "pending": _yes}),
    "memory_unrepairable": flag,
    "memory_repair": object_of({}, {"channel_pending": _yes, "tpc_pending": _yes}),
    "recovery_action": whole(),
    "pcie": object_of({}, dict.fromkeys(("generation", "generation_max", "width", "width_max"), _count)),
    "pcie_replays": whole(),
    "nvlinks": list_of(
        object_of(
            {"link": whole(), "active": flag},
            dict.fromkeys(("crc_errors", "replay_errors", "recovery_errors"), _count),
        )
    ),
    "fabric": object_of({"state": text()}, {"status": _count, "unhealthy": or_null(list_of(text()))}),
    "persistence_mode": flag,
    "application_clocks_mhz": mapping_of(text(), _count),
    "mig": object_of({"enabled": flag, "pending": flag}),
    "inforom_valid": flag,
    "processes": list_of(object_of({"pid": whole(), "exists": flag}), MANY),
}
_error = object_of(
    {"code": _code, "name": text(), "text": text()},
    {"device": _count, "asked": _text, "stuck": flag},
    keep=True,
)
_reading = object_of({}, {"state": text(), "code": _code, "text": text()}, keep=True)
_device = object_of(
    {
        "index": _count,
        "uuid": _text,
        "minor": _count,
        "pci_address": _text,
        "slug": _text,
        "error": or_null(_error),
        "readings": mapping_of(text(), _reading),
    },
    keep=True,
)
_look = object_of(
    {
        "boot_id": _text,
        "time": number(0),
        "uptime": number(0),
        "driver": object_of({"loaded": _text, "nvml_error": or_null(_error)}, keep=True),
        "pci": or_null(list_of(object_of({"address": text(), "kind": _text}, keep=True), MANY)),
        "device_files": mapping_of(text(), flag, MANY),
        "fabric_manager": object_of({"needed": flag, "running": _yes}),
        "devices": list_of(_device),
    },
    keep=True,
)
_event = object_of(
    {
        "kind": one_of("nvml_xid"),
        "uuid": _text,
        "pci_address": _text,
        "xid": whole(0, XID_MOST),
        "text": text(),
        "sequence": _count,
        "uptime": number(0),
        "boot_id": _text,
        "detail": object_of({}, keep=True),
    }
)
# What the agent's child says, by the key that it has.
_MESSAGES = {
    "snapshot": object_of({"snapshot": _look, "seconds": number(0)}),
    "event": object_of({"event": _event}),
    "library_changed": object_of({"library_changed": flag}),
}


def message(line: bytes, at_most: int) -> dict[str, Any]:
    """What the agent's child has said in a line. Raises Malformed."""
    found = json_object(line, at_most)
    for name, shape in _MESSAGES.items():
        if name in found:
            return dict(shape(found, "the answer"))
    raise Malformed(f"the answer has none of {', '.join(_MESSAGES)}")


def device(row: dict[str, Any]) -> dict[str, Any]:
    """A look's row of a GPU, with its readings as the rules read them: one without its shape is unknown."""
    readings = row.get("readings") or {}
    return {**row, "readings": {key: _checked(key, reading) for key, reading in readings.items() if key in READINGS}}


def senseless(look: dict[str, Any]) -> list[str]:
    """The answers of NVML that mean nothing, and why; the checks that need them are unknown."""
    return [
        f"GPU {row['index']}: {key}: {reading.get('text')}"
        for row in look["devices"]
        for key, reading in device(row)["readings"].items()
        if reading.get("state") == "unknown" and reading.get("code") is None
    ]


def _checked(key: str, reading: dict[str, Any]) -> dict[str, Any]:
    if reading.get("value") is None:
        return reading
    try:
        return {"value": READINGS[key](reading["value"], key)}
    except Malformed as why:
        return {"state": "unknown", "code": None, "text": str(why)}
