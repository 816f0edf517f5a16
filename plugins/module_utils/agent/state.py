# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent knows of earlier, kept over restarts, crashes and power cuts."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import history as health_history
from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FAULTS, VERDICTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed

SCHEMA = 1
# That of a host with sixteen GPUs and every kind of fault has less than one.
SIZE_AT_MOST = 16 << 20


class State:
    """The history of the verdicts in one file.

    A file that cannot be used is moved aside and named in `lost`; the agent then begins anew instead of not at all.
    `is_new` says that nothing was there to begin with, or nothing that can be used.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost: str | None = None
        self.is_new = False
        self._written = ""

    def load(self) -> dict[str, Any]:
        try:
            text = host_files.read(self.path, SIZE_AT_MOST).decode("utf-8")
            kept = bounded_json.parse_object(text)
            if kept.get("schema") != SCHEMA:
                raise Malformed(f"it has schema {str(kept.get('schema'))[:20]}, and this agent reads schema {SCHEMA}")
            history = kept.get("history")
            check(history)
        except FileNotFoundError:
            self.is_new = True
            return {}
        except UnicodeDecodeError as failure:
            self.put_aside(f"byte {failure.start} is not UTF-8")
            return {}
        except OSError as failure:
            self.put_aside(str(failure.strerror))
            return {}
        except Malformed as failure:
            self.put_aside(str(failure))
            return {}
        self._written = text
        return dict(history or {})

    def put_aside(self, why: str) -> None:
        """The file cannot be gone on with. It is kept, and `lost` tells it."""
        aside = host_files.put_aside(self.path)
        kept = f"it is kept as {aside}" if aside else "it cannot be put aside"
        self.lost = f"{self.path} cannot be used ({why}); {kept}, and a new history is started"
        self.is_new, self._written = True, ""

    def save(self, history: dict[str, Any]) -> None:
        """Written only if something is new: a quiet host does not wear its disk. Raises OSError."""
        text = json.dumps({"schema": SCHEMA, "history": history}, separators=(",", ":"), sort_keys=True)
        if text == self._written:
            return
        try:
            host_files.write(self.path, text, mode=0o600)
        except FileNotFoundError:
            # Somebody has removed the directory.
            host_files.make_directories(os.path.dirname(os.path.abspath(self.path)), 0o700)
            host_files.write(self.path, text, mode=0o600)
        self._written = text

    def clean(self) -> None:
        """Remove what agents that were killed while they wrote have left."""
        with host_files.place(self.path) as there:
            there.clean()


# --- what a history has to look like; see health/history.py -----------------------------------------------------------

_WHAT = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "an object",
    list: "a list",
}


def check(history: Any) -> None:
    """Raises Malformed, with the place, where a history is not one that can be gone on with."""
    _must(history, dict, "history")
    if not history:
        return
    try:
        health_history.check(history)
    except health_history.HistoryError as failure:
        raise Malformed(str(failure)) from None
    for name in ("boot", "sequence"):
        _must(_part(history, name, "history"), int, f"history.{name}")
    for boot in _must(_part(history, "boots", "history"), list, "history.boots"):
        _must(boot, str, "history.boots")
    bus = _must(history.get("bus"), dict, "history.bus", optional=True)
    for name in ("gpus", "switches") if bus is not None else ():
        for address in _must(_part(bus, name, "history.bus"), list, f"history.bus.{name}"):
            _must(address, str, f"history.bus.{name}")
    _record(_part(history, "node", "history"), "history.node")
    for name, one in _must(_part(history, "devices", "history"), dict, "history.devices").items():
        _record(one, f"history.devices.{name[:60]}")


def _must(value: Any, kind: type, where: str, optional: bool = False) -> Any:
    """The value, if it is of its kind. true and false are no numbers, and a whole number is a number."""
    if optional and value is None:
        return value
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and kind is not bool):
        raise Malformed(f"{where} is not {_WHAT[kind]}")
    return value


def _part(one: dict[str, Any], name: str, where: str) -> Any:
    if name not in one:
        raise Malformed(f"{where} has no {name}")
    return one[name]


def _record(one: Any, where: str) -> None:
    _must(one, dict, where)
    identity = _must(_part(one, "identity", where), dict, f"{where}.identity")
    for name in ("uuid", "pci_address"):
        _must(_part(identity, name, where), str, f"{where}.identity.{name}", optional=True)
    _must(_part(identity, "index", where), int, f"{where}.identity.index", optional=True)
    for name in ("answered", "present", "handed_through"):
        _must(_part(one, name, where), bool, f"{where}.{name}")
    for name in ("boot", "missed"):
        _must(_part(one, name, where), int, f"{where}.{name}")
    verdict = _must(_part(one, "verdict", where), dict, f"{where}.verdict")
    _among(_part(verdict, "verdict", where), (None, *VERDICTS), f"{where}.verdict.verdict")
    _must(_part(verdict, "since", where), float, f"{where}.verdict.since", optional=True)
    for row, place in _rows(one, "checks", where):
        _must(row, str, place)
    for row, place in _rows(one, "pending", where):
        _fields(row, place, {"looks": int, "since": float, "text": str})
    for row, place in _rows(one, "shares", where):
        _must(row, dict, place)
        _must(_part(row, "last", place), float, f"{place}.last", optional=True)
        for bucket in _must(_part(row, "minutes", place), list, f"{place}.minutes"):
            if len(_must(bucket, list, f"{place}.minutes")) != 2:
                raise Malformed(f"{place}.minutes has a row that is not a pair")
            _must(bucket[0], int, f"{place}.minutes")
            _must(bucket[1], float, f"{place}.minutes")
    for row, place in _rows(one, "faults", where):
        _fault(row, place)
    for row, place in _rows(one, "past", where):
        _fields(row, place, {"chain": int, "boot": int, "lifts": int})
    for row, place in _rows(one, "memory", where):
        if place.endswith(".nvlinks_seen"):
            for link in _must(row, list, place):
                _must(link, int, place)
        else:
            _fields(row, place, {"count": int, "uptime": float})
    for row, place in _numbered(_part(one, "xids", where), f"{where}.xids"):
        _fields(row, place, {"count": int, "last": float})
    # What was seen in the last seconds, in the form of whichever version wrote it.
    recent = _part(one, "recent", where)
    if not isinstance(recent, (list, dict)):
        raise Malformed(f"{where}.recent is neither a list nor an object")
    for row, place in _numbered(recent, f"{where}.recent") if isinstance(recent, dict) else ():
        _fields(row, place, {"teller": str, "count": int, "uptime": float})


def _fault(row: Any, place: str) -> None:
    _fields(row, place, {"since": float, "boot": int, "good": int, "text": str})
    _among(_part(row, "verdict", place), FAULTS, f"{place}.verdict")
    _among(_part(row, "action", place), ACTIONS, f"{place}.action")
    for name in ("value", "threshold"):
        _part(row, name, place)
    code = place.rpartition(".")[2]
    if code.startswith("sxid_"):
        for sxid, where in _numbered(_part(row, "sxids", place), f"{place}.sxids"):
            _fields(sxid, where, {"count": int, "links": dict})
            for links, there in _rows(sxid, "links", where):
                for link in _must(links, list, there):
                    _must(link, int, there)
    if code.startswith("xid_"):
        numbered = _numbered(_part(row, "xids", place), f"{place}.xids")
        if not numbered:
            raise Malformed(f"{place}.xids is empty")
        for xid, where in numbered:
            _fields(xid, where, {"count": int, "boot": int})
            _among(_part(xid, "action", where), ACTIONS, f"{where}.action")


def _rows(one: dict[str, Any], name: str, where: str) -> list[tuple[Any, str]]:
    rows = _must(_part(one, name, where), dict, f"{where}.{name}")
    return [(row, f"{where}.{name}.{key[:60]}") for key, row in rows.items()]


def _numbered(rows: Any, where: str) -> list[tuple[Any, str]]:
    _must(rows, dict, where)
    for key in rows:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise Malformed(f"{where} has {key[:20]!r}, which is not a number")
    return [(row, f"{where}.{key}") for key, row in rows.items()]


def _fields(row: Any, place: str, kinds: dict[str, type]) -> None:
    _must(row, dict, place)
    for name, kind in kinds.items():
        _must(_part(row, name, place), kind, f"{place}.{name}")


def _among(value: Any, wanted: tuple[Any, ...], where: str) -> None:
    if not (value is None or isinstance(value, str)) or value not in wanted:
        raise Malformed(f"{where} is none of {', '.join(map(str, wanted))}")
