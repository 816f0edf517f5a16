#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of variables in the READMEs of roles from meta/argument_specs.yml and defaults/main.yml.

.venv/bin/python tools/role_tables.py [--check] [ROLE...]

A README says which variables are in which of its tables and in what order; what a row says of one comes from the
specification. A new variable gets a row behind that of the variable before it in the specification. With --check
nothing is written, and a README that would be written differently ends it with 1.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs_reference import ROOT, TABLE_HEAD, defaults_of, entry_points_of, options_table, value

HEADING = re.compile(r"\| (?:[Vv]ariable|name \| type) \|")


class RoleTables:
    """The tables of one role."""

    def __init__(self, role: Path) -> None:
        self._options: dict[str, Any] = {}
        for entry_point in entry_points_of(role).values():
            # What several entry points take is told as the first tells it.
            self._options = {**(entry_point.get("options") or {}), **self._options}
        self._defaults = defaults_of(role)

    def rewritten(self, readme: str) -> str:
        """A README with its tables as they have to be."""
        return "".join(self._lines(readme))

    def missing(self, readme: str) -> list[str]:
        """The variables that are in no table of a README."""
        rows = {line.split("|")[1].strip() for line in self._lines(readme) if line.startswith("|")}
        return [name for name in self._options if f"`{name}`" not in rows]

    def with_rows(self, readme: str) -> str:
        """A README with a row for the name of each variable that is in no table."""
        lines, names = readme.splitlines(keepends=True), list(self._options)
        for name in self.missing(readme):
            # That of the last variable comes before the first.
            before = f"| `{names[names.index(name) - 1]}"
            places = [place for place, line in enumerate(lines, 1) if re.match(rf"{re.escape(before)}[`.\[]", line)]
            if places:
                lines.insert(places[-1], f"| `{name}` |\n")
        return "".join(lines)

    def _lines(self, readme: str) -> Iterator[str]:
        inside = False
        done: set[str] = set()
        for line in readme.splitlines(keepends=True):
            if HEADING.match(line):
                inside, done = True, set()
                yield from (f"{row}\n" for row in TABLE_HEAD)
            elif not line.startswith("|"):
                inside = False
                yield line
            elif not inside:
                yield line
            elif not line.startswith("| --- "):
                yield from self._rows(line, done)

    def _rows(self, line: str, done: set[str]) -> Iterator[str]:
        """The rows in the place of one. Of a variable that the specification does not know, the row is the README's."""
        names = re.findall(r"`(\w+)(?:[\[.][^`]*)?`", line.split("|")[1])
        known = [name for name in names if name in self._options]
        if not known:
            yield line
        for name in known:
            if name not in done:
                done.add(name)
                yield from self._rows_of(name)

    def _rows_of(self, name: str) -> Iterator[str]:
        first, *others = options_table({name: self._options[name]}, self._defaults, links=False)
        default = self._defaults.get(name)
        if isinstance(default, str) and "{{" in default:
            # What it is, the description tells in words.
            first = first.replace(f"| {value(default)} |", "| computed |", 1)
        yield from (f"{row}\n" for row in (first, *others))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, and show what differs")
    parser.add_argument("roles", nargs="*", metavar="ROLE")
    given = parser.parse_args()
    wrong = 0
    for path in sorted((ROOT / "roles").glob("*/README.md")):
        if given.roles and path.parent.name not in given.roles:
            continue
        current = path.read_text(encoding="utf-8")
        tables = RoleTables(path.parent)
        desired = tables.rewritten(tables.with_rows(current))
        for name in tables.missing(desired):
            wrong += 1
            print(f"{path}: no table has {name}, nor the variable before it")
        if current == desired:
            continue
        if given.check:
            wrong += 1
            lines = (text.splitlines(keepends=True) for text in (current, desired))
            sys.stdout.writelines(difflib.unified_diff(*lines, str(path), "what the specification says"))
        else:
            path.write_text(desired, encoding="utf-8")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
