# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the stand-ins read flags, resources and attributes, and what they do with what they cannot read.

The words and exit statuses are those that a real master and agent (ClusterD 1.11.0) gave.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

FLAGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
_UNITS = r"(ns|us|ms|secs|mins|hrs|days|weeks)"
_PATTERNS = {
    "bool": r"true|false|1|0",
    "duration": rf"-?\d+(\.\d+)?{_UNITS}",
    "bytes": r"\d+(B|KB|MB|GB|TB)",
    "int": r"-?\d+",
    "uint": r"\d+",
    "port": r"\d{1,5}",
    "double": r"-?\d+(\.\d+)?([eE]-?\d+)?",
    # An empty part at the end is passed over.
    "uint_list": r"\d+(,\d+)*,?",
}
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def die(text: str) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    raise SystemExit(1)


def abort(text: str) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    os.abort()


def end(text: str) -> NoReturn:
    """Ends the program from any of its threads."""
    print(text, file=sys.stderr, flush=True)
    os._exit(1)


def seconds(text: str) -> float:
    """A duration that was checked, such as 75secs or 10mins."""
    found = re.fullmatch(r"([-\d.]+)([a-z]+)", text)
    assert found, text
    units = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "secs": 1, "mins": 60, "hrs": 3600, "days": 86400, "weeks": 604800}
    return float(found[1]) * units[found[2]]


class Flags(dict[str, str]):
    """Flag -> text that is meant; `shown` is what /flags and /state tell of it."""

    def __init__(self, told: dict[str, str]) -> None:
        super().__init__(told)
        self.paths: dict[str, str] = {}

    def shown(self) -> dict[str, str]:
        return {**self, **self.paths}


def load(program: str, arguments: list[str], environment: dict[str, str]) -> Flags:
    """Flag -> text, from --name=value and MESOS_NAME. The command line wins; an unknown variable is passed over."""
    rows = FLAGS[program]
    aliases = {row["alias"]: name for name, row in rows.items() if "alias" in row}
    given: dict[str, str | None] = {}
    for argument in arguments:
        if not argument.startswith("--"):
            continue
        name, equals, value = argument[2:].partition("=")
        if name in given:
            die(f"Duplicate flag '{name}' on command line")
        given[name] = value if equals else None
    for variable, value in environment.items():
        name = variable[len("MESOS_") :].lower()
        if variable.startswith("MESOS_") and (name in rows or name in aliases):
            given.setdefault(name, value)
    told = {name: row["default"] for name, row in rows.items() if row["default"] is not None}
    flags = Flags({name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in told.items()})
    loaded: dict[str, str] = {}
    for name, value in given.items():
        plain = name[3:] if name.startswith("no-") else name
        flag = aliases.get(plain, plain)
        via = f" via '{name}'" if plain != name else ""
        if flag not in rows:
            die(f"Failed to load unknown flag '{plain}'{via}")
        if flag in loaded:
            die(f"Flag '{plain}' is already loaded via name '{loaded[flag]}'")
        loaded[flag] = name
        kind = rows[flag]["kind"]
        if kind != "bool" and (via or value is None):
            die(f"Failed to load non-boolean flag '{plain}'" + (via or ": Missing value"))
        if kind == "bool" and via and value:
            die(f"Failed to load boolean flag '{plain}'{via} with value '{value}'")
        text = ("false" if via else "true") if kind == "bool" and not value else str(value)
        if kind in ("path", "text_or_path") and text.startswith("file://"):
            flags.paths[flag] = text[len("file://") :]
        text = text if kind == "path" else fetched(flag, text)
        _check(flag, rows[flag], text)
        flags[flag] = text
    return flags


def fetched(flag: str, text: str) -> str:
    """What a file:// holds is the value. Flags that are paths do not come here."""
    if not text.startswith("file://"):
        return text
    try:
        return Path(text[len("file://") :]).read_text(encoding="utf-8")
    except OSError as why:
        told = f"Error reading file '{text[len('file://') :]}': {why.strerror}"
        die(f"Failed to load flag '{flag}': Failed to load value '{text}': {told}")


def _check(flag: str, row: dict[str, Any], text: str) -> None:
    pattern = _PATTERNS.get(row["kind"])
    if pattern and not re.fullmatch(pattern, text, re.ASCII):
        die(f"Failed to load flag '{flag}': Failed to load value '{text}': Not a {row['kind']}")
    if row["kind"] in ("json", "json_or_path") and not text.startswith(("/", "file://")):
        try:
            json.loads(text)
        except ValueError as why:
            die(f"Failed to load flag '{flag}': Failed to load value '{text}': {why}")
    if flag == "executor_environment_variables":
        told = json.loads(text)
        wrong = [name for name, value in told.items() if not isinstance(value, str)] if isinstance(told, dict) else [""]
        if wrong:
            die(f"Failed to load flag '{flag}': Non-string value for '{wrong[0]}' in the executor's environment")
    if "values" in row and not set(text.split(",")) <= set(row["values"]):
        die(f"Failed to load flag '{flag}': unknown value '{text}'")


def read(value: str) -> str:
    """The text of a flag that may name a file."""
    path = value[len("file://") :] if value.startswith("file://") else value
    try:
        return Path(path).read_text(encoding="utf-8") if path.startswith("/") else value
    except OSError as why:
        die(f"Error reading '{path}': {why.strerror}")


def resources(text: str) -> dict[str, Any]:
    """Name -> number, or text in brackets for ranges. Entries of one name are added."""
    found: dict[str, Any] = {}
    if text.startswith(("/", "file://")):
        die(f"Failed to parse resources: Bad value for resources, missing or extra ':' in {text}")
    if text.startswith(("[", "{")):
        return _json_resources(text)
    for pair in filter(None, text.split(";")):
        name, colon, value = pair.partition(":")
        name, value = re.sub(r"\(.*\)", "", name).strip(), value.strip()
        if not colon or ":" in value:
            die(f"Failed to parse resources: Bad value for resources, missing or extra ':' in {pair}")
        if _NUMBER.fullmatch(value):
            if float(value) < 0:
                die(f"Failed to parse resources: negative value for {name}")
            found[name] = found.get(name, 0.0) + float(value)
        elif is_ranges(value):
            if any(low > high for low, high in spans(value)):
                die(f"Failed to parse resources: Invalid range in {value}: the begin is after the end")
            found[name] = shown_ranges(value)
        elif re.fullmatch(r"\{[^{},;:]+(,[^{},;:]+)*\}", value):
            # A set, such as of disks.
            found[name] = "{" + ", ".join(part.strip() for part in value[1:-1].split(",")) + "}"
        else:
            die(f"Failed to parse resources: Bad type for resource {name} value {value}")
    return found


def _json_resources(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        rows = json.loads(text)
        for row in rows:
            if row["type"] == "SCALAR":
                found[row["name"]] = found.get(row["name"], 0.0) + float(row["scalar"]["value"])
            else:
                spans = row["ranges"]["range"]
                found[row["name"]] = "[" + ", ".join(f"{span['begin']}-{span['end']}" for span in spans) + "]"
    except (ValueError, KeyError, TypeError) as why:
        die(f"Failed to parse resources: {why!r}")
    return found


def attributes(text: str) -> dict[str, Any]:
    """Name -> number or text, with blanks gone from values. What the real agent crashes at crashes here (SIGABRT)."""
    found: dict[str, Any] = {}
    for pair in filter(None, text.split(";")):
        name, colon, value = pair.partition(":")
        value = re.sub(r"\s", "", value)
        if pair.lstrip().startswith("{") or not colon or not value:
            abort(f"Failed to parse attributes: {pair}")
        opened = [value.count(mark) for mark in "({["]
        if opened != [value.count(mark) for mark in ")}]"] or "{" in value:
            abort(f"Failed to parse attribute value: {value}")
        if "[" in value and not re.fullmatch(r"\[\d+-\d+(,\d+-\d+)*\]", value, re.ASCII):
            abort(f"Failed to parse attribute value: {value}")
        number = float(value) if _NUMBER.fullmatch(value) else math.inf
        if number != 0 and abs(number) < 1e-307:
            abort(f"Failed to parse attribute value: {value}")
        # A negative number, and one that no double holds, stay the text that they are.
        found[name] = number if 0 <= number < math.inf else shown_ranges(value) if is_ranges(value) else value
    return found


def is_ranges(value: Any) -> bool:
    return isinstance(value, str) and bool(re.fullmatch(r"\[\d+-\d+(,\s*\d+-\d+)*\]", value, re.ASCII))


def shown_ranges(text: str) -> str:
    """Ranges as Mesos prints them, with a blank after each comma."""
    return "[" + ", ".join(f"{low}-{high}" for low, high in spans(text)) + "]"


def spans(text: str) -> list[tuple[int, int]]:
    """[31000-31005,32000-32000] as pairs."""
    return [(int(low), int(high)) for low, high in re.findall(r"(\d+)-(\d+)", text)]


def holds(now: Any, before: str) -> bool:
    """Whether the ranges of today have all that those before had."""
    if not is_ranges(now):
        return False
    joined: list[list[int]] = []
    for low, high in sorted(spans(now)):
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return all(any(first <= low and high <= last for first, last in joined) for low, high in spans(before))


def domain(flags: dict[str, str]) -> None:
    """Ends the program where its domain says nothing of a region and a zone."""
    if "domain" not in flags:
        return
    try:
        told = json.loads(read(flags["domain"]))["fault_domain"]
        names = [told[part]["name"] for part in ("region", "zone")]
    except (ValueError, TypeError, KeyError):
        names = [None]
    if not all(isinstance(name, str) and name for name in names):
        die("Failed to load flag 'domain': Missing required fields: fault_domain.region.name, fault_domain.zone.name")
