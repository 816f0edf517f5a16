# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""JSON that may have been cut, changed or made up: whole, of bounded size and depth, or refused with a reason."""

from __future__ import annotations

import json
import math
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

DEPTH_AT_MOST = 40
# The counters of a GPU have 64 bits.
NUMBER_BELOW = 2**64
DIGITS_AT_MOST = 25
SHOWN = 100
# What comes about where a document is read on that is not as its writer makes it.
MISSHAPEN = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


class Malformed(ValueError):
    """It is not what it should be; the message says in what."""


def parse(text: bytes | str) -> Any:
    """The value, in which every text can be written as UTF-8 and every number is finite. Raises Malformed."""
    try:
        found = json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text, parse_constant=_refuse, parse_int=_whole
        )
    except UnicodeDecodeError as failure:
        raise Malformed(f"byte {failure.start} is not UTF-8") from None
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as failure:
        raise Malformed(f"it is not JSON: {one_line(failure, SHOWN)}") from None
    _check(found)
    return found


def parse_object(text: bytes | str) -> dict[str, Any]:
    """The same for an object."""
    found = parse(text)
    if not isinstance(found, dict):
        raise Malformed(f"it is {_kind(found)}, not an object")
    return found


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _whole(digits: str) -> int:
    """Python takes quadratic time for the digits of a number, and not every version bounds them."""
    if len(digits) > DIGITS_AT_MOST:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {"list": "a list", "str": "a text", "bool": "true or false"}.get(type(value).__name__, "a number")


def _check(whole: Any) -> None:
    """Without recursion, which is what a deep one is made to break."""
    waiting: list[tuple[Any, int]] = [(whole, 0)]
    while waiting:
        value, depth = waiting.pop()
        if depth > DEPTH_AT_MOST:
            raise Malformed("it is nested too deeply")
        if isinstance(value, dict):
            waiting += [(one, depth + 1) for pair in value.items() for one in pair]
        elif isinstance(value, list):
            waiting += [(one, depth + 1) for one in value]
        elif isinstance(value, str):
            if not value.isascii():
                try:
                    value.encode("utf-8")
                except UnicodeEncodeError:
                    raise Malformed("a text has half a character in it") from None
        elif isinstance(value, float):
            if not math.isfinite(value):
                raise Malformed("a number is not finite")
        elif isinstance(value, int) and abs(value) >= NUMBER_BELOW:
            raise Malformed("a number is too large")
