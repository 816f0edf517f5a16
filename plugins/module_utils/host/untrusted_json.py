# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON from outside: bounded (see bounded_json), and of the shape that the reader expects, or refused with the reason.

A shape is a function (value, where) that gives the value back, with its texts made printable, or raises Malformed:

    order = object_of({"id": text(), "at": number()}, {"gpus": list_of(text(UUID))})
    order(json_object(data), "order")
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed, parse_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

Shape = Callable[[Any, str], Any]
# What no document of ours comes near.
BYTES_AT_MOST = 512 << 10
ROWS_AT_MOST = 1024
SHOWN = 60


def json_object(data: bytes | str, at_most: int = BYTES_AT_MOST) -> dict[str, Any]:
    """A JSON object. Raises Malformed for anything else: other bytes, too many of them, too deep, no finite number."""
    if len(data) > at_most:
        raise Malformed(f"it has {len(data)} bytes, and {at_most} are read at most")
    return parse_object(data)


def _wrong(value: Any, where: str, wanted: str) -> Malformed:
    return Malformed(f"{where} is {shown(value)}, not {wanted}")


def shown(value: Any) -> str:
    """A value for people, short and on one line."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return "null" if value is None else one_line(repr(value), SHOWN)


def text(pattern: str | None = None, at_most: int = 500, wanted: str = "") -> Shape:
    """Text. With a pattern it is taken as it is, and all of it has to match; without, it becomes one printable line."""
    known = re.compile(pattern) if pattern is not None else None

    def check(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _wrong(value, where, wanted or "text")
        if known is None:
            return one_line(value, at_most)
        if len(value) > at_most or not known.fullmatch(value):
            raise _wrong(value, where, wanted or f"as {known.pattern}")
        return value

    return check


def one_of(*known: str) -> Shape:
    def check(value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in known:
            raise _wrong(value, where, f"one of {', '.join(known)}")
        return value

    return check


def number(least: float = -1e15, most: float = 1e15) -> Shape:
    def check(value: Any, where: str) -> Any:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise _wrong(value, where, "a number" if least < 0 else f"a number from {least:g} to {most:g}")
        return value

    return check


def whole(least: int = 0, most: int = 10**15) -> Shape:
    def check(value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _wrong(value, where, f"a whole number from {least} to {most}")
        return value

    return check


def flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, where, "true or false")
    return value


def anything(value: Any, where: str) -> Any:
    """Of any shape; that it is bounded is json_object's work."""
    return value


def or_null(shape: Shape) -> Shape:
    return lambda value, where: None if value is None else shape(value, where)


def list_of(shape: Shape, at_most: int = ROWS_AT_MOST) -> Shape:
    def check(value: Any, where: str) -> list[Any]:
        if not isinstance(value, list) or len(value) > at_most:
            raise _wrong(value, where, f"a list of {at_most} at most")
        return [shape(row, f"{where}[{place}]") for place, row in enumerate(value)]

    return check


def mapping_of(key: Shape, shape: Shape, at_most: int = ROWS_AT_MOST) -> Shape:
    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict) or len(value) > at_most:
            raise _wrong(value, where, f"an object with {at_most} keys at most")
        return {key(name, f"a key of {where}"): shape(row, f"{where}.{shown(name)}") for name, row in value.items()}

    return check


def object_of(needed: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, keep: bool = False) -> Shape:
    """An object with these keys. Others are left out; with `keep` they stay, for a version that knows them."""
    known = {**needed, **(optional or {})}

    def check(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(value, where, "an object")
        missing = [name for name in needed if name not in value]
        if missing:
            raise Malformed(f"{where} has no {', '.join(missing)}")
        found = {name: shape(value[name], f"{where}.{name}") for name, shape in known.items() if name in value}
        return {**value, **found} if keep else found

    return check
