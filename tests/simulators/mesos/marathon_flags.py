# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line and variables of the stand-in for Marathon.

It reads them as Scallop and Main.scala of mesosphere/marathon 1.10.26 do.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from grammar import die

FLAGS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))[
    "marathon"
]
# Not in 1.10.26.
NEWER = ("mesos_offer_constraints", "min_mesos_offer_constraints_update_interval")
_HOST = r"[A-Za-z0-9_.-]+(:\d+)?"
_PATTERNS = {
    "int": r"-?\d+",
    "zk_url": rf"zk://([^/@\s]+:[^/@\s]+@)?{_HOST}(,{_HOST})*(/[^/\s]+)+",
    "master_url": rf"zk://([^/@\s]+:[^/@\s]+@)?{_HOST}(,{_HOST})*(/[^/\s]+)+|https?://{_HOST}(,{_HOST})*/?",
}
_WITHOUT_VALUE = ("toggle", "presence")


def stop(text: str) -> None:
    die(f"[scallop] Error: {text}")


def of_environment(environment: dict[str, str]) -> list[str]:
    """MARATHON_X=y as --x y, and without a value as --x. What Marathon tells its own tasks is passed over."""
    found = []
    for name, value in environment.items():
        if name.startswith("MARATHON_") and not name.startswith("MARATHON_APP_"):
            found += [f"--{name[len('MARATHON_') :].lower()}", *([value] if value else [])]
    return found


def load(arguments: list[str], environment: dict[str, str]) -> dict[str, str]:
    """Flag -> text. Exits with status 1 where Marathon would."""
    known = {name: row for name, row in FLAGS.items() if name not in NEWER}
    # A default in angle brackets, or from a variable, is one in words.
    defaults = {name: str(row["default"]) for name, row in known.items() if row["default"] not in (None, [])}
    flags = {name: text for name, text in defaults.items() if not text.startswith(("<", "env "))}
    if environment.get("MESOSPHERE_HTTP_CREDENTIALS"):
        flags["http_credentials"] = environment["MESOSPHERE_HTTP_CREDENTIALS"]
    left = [*of_environment(environment), *arguments]
    given = set()
    while left:
        argument = left.pop(0)
        if not argument.startswith("--"):
            stop(f"Excess arguments provided: '{argument}'")
        name, equals, value = argument[2:].partition("=")
        off = name.startswith("disable_") and name not in known
        name = name[len("disable_") :] if off else name
        row = known.get(name)
        if row is None or (off and row["kind"] != "toggle"):
            stop(f"Unknown option '{argument[2:].partition('=')[0]}'")
        if name in given:
            stop(f"Bad arguments for option '{name}': '{value}' - you should provide exactly one argument")
        given.add(name)
        if row["kind"] in _WITHOUT_VALUE:
            if equals:
                stop(f"Bad arguments for option '{name}': '{value}' - too many arguments for flag option")
            flags[name] = "false" if off else "true"
            continue
        if not equals:
            if not left or left[0].startswith("--"):
                stop(f"Bad arguments for option '{name}': '' - you should provide exactly one argument")
            value = left.pop(0)
        _check(name, row, value)
        flags[name] = value
    if "master" not in flags:
        stop("Required option 'master' not found")
    return flags


def _check(name: str, row: dict[str, Any], value: str) -> None:
    pattern = _PATTERNS.get(row["kind"])
    if pattern and not re.fullmatch(pattern, value, re.ASCII):
        stop(f"Bad arguments for option '{name}': '{value}' - bad {row['kind']}")
    if "values" in row:
        parts = value.split(",") if row["kind"] == "text_list" else [value]
        wrong = [part for part in parts if part not in row["values"]]
        if wrong:
            stop(f"Bad arguments for option '{name}': '{', '.join(wrong)}' - not one of {', '.join(row['values'])}")
