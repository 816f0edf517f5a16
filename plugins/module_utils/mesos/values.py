# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a value is one that Mesos or Marathon can read, by kind of value.

Each check gives None, or what the value must be, to follow "must be". The grammar is that of stout's parsers
(apache/mesos, 3rdparty/stout/include/stout/{duration,bytes,numify}.hpp) and of Scallop's converters; where those take
more than makes sense, such as a negative duration, less is taken here.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Callable

_DURATION = re.compile(r"\d+(\.\d+)?(ns|us|ms|secs|mins|hrs|days|weeks)", re.ASCII)
_BYTES = re.compile(r"\d+(B|KB|MB|GB|TB)", re.ASCII)
_HOST = r"[A-Za-z0-9_.-]+(:\d{1,5})?|\[[0-9a-fA-F:]+\](:\d{1,5})?"
_ZK = re.compile(rf"zk://([^/@\s]+:[^/@\s]+@)?({_HOST})(,({_HOST}))*(/[^/\s]+)+", re.ASCII)
_HTTP = re.compile(rf"https?://({_HOST})(,({_HOST}))*/?", re.ASCII)
_RATE = re.compile(r"\d+/\d+(\.\d+)?(ns|us|ms|secs|mins|hrs|days|weeks)", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def _pattern(pattern: re.Pattern[str], must: str) -> Callable[[str], str | None]:
    return lambda text: None if pattern.fullmatch(text) else must


def _int(low: int | None = None, high: int | None = None) -> Callable[[str], str | None]:
    must = "a whole number" if low is None else f"a whole number from {low}" + ("" if high is None else f" to {high}")

    def check(text: str) -> str | None:
        if not re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
            return must
        number = int(text)
        return must if (low is not None and number < low) or (high is not None and number > high) else None

    return check


def _double(text: str) -> str | None:
    return None if re.fullmatch(r"-?\d+(\.\d+)?([eE]-?\d+)?", text, re.ASCII) else "a number"


def _bool(text: str) -> str | None:
    return None if text in ("true", "false", "1", "0") else "true or false"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "file:///"))


def _path(text: str) -> str | None:
    return None if _is_path(text) else "an absolute path, or file:// and an absolute path"


def _json(text: str) -> str | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as why:
        return f"JSON, and is not: {why}"
    return None if isinstance(parsed, (dict, list)) else "a JSON object or list"


def _json_or_path(text: str) -> str | None:
    return None if _is_path(text) else (_json(text) and "JSON, or the absolute path of a file with it")


def _uint_list(text: str) -> str | None:
    # A blank after the comma is refused by the agent too, and nothing after the last one is not.
    return None if re.fullmatch(r"\d+(,\d+)*,?", text, re.ASCII) else "numbers with commas and no blank between them"


def _text_list(text: str) -> str | None:
    return "names with commas between them, none empty" if "" in text.split(",") else None


def _text(text: str) -> str | None:
    return None


def _ip(text: str) -> str | None:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return "an IP address"
    return None


_CHECKS: dict[str, Callable[[str], str | None]] = {
    "bool": _bool,
    "toggle": _bool,
    "presence": _bool,
    "duration": _pattern(_DURATION, "a duration such as 90secs (ns, us, ms, secs, mins, hrs, days, weeks)"),
    "bytes": _pattern(_BYTES, "a size such as 512MB (B, KB, MB, GB, TB), without a fraction"),
    "int": _int(),
    "uint": _int(0),
    "port": _int(1, 65535),
    "workers": _int(1, 1024),
    "one": _int(1, 1),
    "rate": _pattern(_RATE, "a rate such as 2/1secs"),
    "double": _double,
    "json": _json,
    "json_or_path": _json_or_path,
    "path": _path,
    "text": _text,
    "text_or_path": _text,
    "text_list": _text_list,
    "uint_list": _uint_list,
    "uri": _text,
    "ip": _ip,
    "zk_url": _pattern(_ZK, "zk://[user:password@]host:port,…/path"),
    "master_url": lambda text: (
        None if _ZK.fullmatch(text) or _HTTP.fullmatch(text) else "zk://host:port,…/path or http(s)://host:port"
    ),
}


def text_of(value: Any) -> str:
    """A value as these programs read it: booleans in small letters, documents as JSON."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(value)


def problem(kind: str, value: Any, choices: tuple[str, ...] = ()) -> str | None:
    """What the value must be and is not, or None. `choices` are the only values that are taken, if there are any."""
    text = text_of(value)
    if _CONTROL.search(text):
        return "on one line and without control characters"
    if kind not in ("bool", "text", "text_list", "toggle", "presence") and not text:
        return "given, and is empty"
    if choices:
        given = text.split(",") if kind == "text_list" else [text]
        return None if set(given) <= set(choices) else ("one of " + ", ".join(choices))
    return _CHECKS[kind](text)
