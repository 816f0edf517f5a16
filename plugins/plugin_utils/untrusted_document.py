# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents from outside: what a host, a file or the network has said as JSON, made harmless where it enters.

Every text in it becomes printable and bounded (see untrusted_text), and there is no number that JSON cannot hold, no
endless list and no depth that ends a reader. What it means is still not to be trusted, nor that it has the shape that
its reader expects: `mapping`, `rows`, `text`, `number` and `moment` take a part of it for what it should be, or for
nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text

# Of a text that may have many lines, such as what a program printed.
CHARACTERS_AT_MOST = 200000
# Of a list or a mapping; there are no more packages than that on a host.
ENTRIES_AT_MOST = 50000
DEPTH_AT_MOST = 40
NUMBER_AT_MOST = 2**63
# The end of the year 9999.
LAST_MOMENT = 253402300799
# Of a file; that of a host with 16 GPUs has some kilobytes.
BYTES_AT_MOST = 50_000_000


def cleaned(value: Any, depth: int = DEPTH_AT_MOST) -> Any:
    """The value with nothing in it that a terminal, a file or a reader could stumble over."""
    if isinstance(value, str):
        if value.isprintable() and len(value) <= CHARACTERS_AT_MOST:
            # Ansible's own kinds of strings are left behind too.
            return str(value)
        return untrusted_text.several_lines(value, CHARACTERS_AT_MOST)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -NUMBER_AT_MOST <= value <= NUMBER_AT_MOST else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (Mapping, list, tuple)) and depth <= 0:
        return untrusted_text.CUT.strip()
    if isinstance(value, Mapping):
        pairs = list(value.items())[:ENTRIES_AT_MOST] if len(value) > ENTRIES_AT_MOST else value.items()
        return {
            key if _is_plain(key) else untrusted_text.one_line(key): cleaned(part, depth - 1) for key, part in pairs
        }
    if isinstance(value, (list, tuple)):
        return [cleaned(part, depth - 1) for part in value[:ENTRIES_AT_MOST]]
    return untrusted_text.one_line(value)


def _is_plain(key: Any) -> bool:
    return isinstance(key, str) and len(key) <= untrusted_text.LINE_AT_MOST and key.isprintable()


def load(path: str) -> Any:
    """What a file of JSON holds, cleaned. Raises OSError, and ValueError for what is no JSON or too much of it."""
    with open(path, "rb") as file:
        content = file.read(BYTES_AT_MOST + 1)
    return parse(content)


def parse(content: bytes | str) -> Any:
    """What a text of JSON holds, cleaned. Raises ValueError for what is no JSON or too much of it."""
    if len(content) > BYTES_AT_MOST:
        raise ValueError(f"it has more than {BYTES_AT_MOST} bytes")
    try:
        return cleaned(json.loads(content))
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def mapping(value: Any) -> dict[str, Any]:
    """A part that should be a mapping; empty if it is none."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """A part that should be a list of mappings: those that are."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """A part that should be a list of texts: those that are."""
    return [part for part in value if isinstance(part, str)] if isinstance(value, list) else []


def text(value: Any, at_most: int = untrusted_text.LINE_AT_MOST) -> str:
    """A part that should be a line of text, or something that has one; empty if there is none."""
    return "" if value is None or isinstance(value, (dict, list)) else untrusted_text.one_line(value, at_most)


def number(value: Any) -> float | None:
    """A part that should be a number; None if it is none, or a large one."""
    wrong = isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= NUMBER_AT_MOST
    return None if wrong else value


def moment(value: Any) -> float | None:
    """A part that should be a time in Unix seconds, and that a calendar has; None if it is none."""
    found = number(value)
    return found if found is not None and 0 <= found <= LAST_MOMENT else None
