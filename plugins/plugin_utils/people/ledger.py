# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ledger: which number each user and group was ever given. None is given twice, not even after a removal.

It lies beside the inventory and is no secret. Its name begins with a dot because Ansible reads everything else in the
directory of an inventory as inventory.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

FILE = ".users-ledger.json"
FIRST, LAST = 10001, 59999
# Below are accounts of the system, above what files can belong to, and two of the kernel between.
LEAST, MOST, NEVER = 1000, 2**31 - 2, (65534, 65535)


@dataclass(frozen=True)
class Ledger:
    """:ivar first, last: the range of numbers that are given to those who have none of their own."""

    users: Mapping[str, int] = field(default_factory=dict)
    groups: Mapping[str, int] = field(default_factory=dict)
    first: int = FIRST
    last: int = LAST

    def owner(self, number: int) -> str:
        """Who was given a number; a user's group has that of the user."""
        for kind, given in (("user", self.users), ("group", self.groups)):
            for name, one in given.items():
                if one == number:
                    return f"the {kind} {name}"
        return ""

    def free(self, taken: set[int]) -> int:
        """The lowest number that was never given. Raises Refused where there is none."""
        used = {*self.users.values(), *self.groups.values(), *taken, *NEVER}
        for number in range(self.first, self.last + 1):
            if number not in used:
                return number
        raise Refused(
            f"all numbers from {self.first} to {self.last} were given",
            f"raise `last` in {FILE} beside the inventory",
            code="no_number",
            subject=FILE,
        )

    def text(self) -> str:
        rows = {
            "first": self.first,
            "last": self.last,
            "users": dict(sorted(self.users.items(), key=lambda row: row[1])),
            "groups": dict(sorted(self.groups.items(), key=lambda row: row[1])),
        }
        return json.dumps(rows, indent=2) + "\n"


def parse(text: str, path: str = FILE) -> Ledger:
    """Raises Refused for what is no ledger: numbers that nobody knows any more could be given a second time."""
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or set(content) - {"first", "last", "users", "groups"}:
            raise ValueError("it has other keys than first, last, users and groups")
        found = Ledger(
            _numbers(content, "users"),
            _numbers(content, "groups"),
            content.get("first", FIRST),
            content.get("last", LAST),
        )
        if not all(_is_number(one) for one in (found.first, found.last)) or found.first > found.last:
            raise ValueError("first and last are not a range of numbers")
    except (ValueError, RecursionError) as wrong:
        raise Refused(
            f"{path} cannot be read: {wrong}",
            f"bring it back, such as with `git checkout -- {path}`; without it a number could be given twice",
            code="torn_ledger",
            subject=path,
        ) from None
    return found


def _is_number(value: Any) -> bool:
    return type(value) is int and LEAST <= value <= MOST


def _numbers(content: Mapping[str, Any], kind: str) -> dict[str, int]:
    rows = content.get(kind, {})
    if not isinstance(rows, dict) or not all(map(_is_number, rows.values())):
        raise ValueError(f"{kind} is not a mapping of names to numbers")
    if len(set(rows.values())) < len(rows):
        raise ValueError(f"{kind} has a number twice")
    return rows


def read(directory: str | Path) -> Ledger:
    """The ledger beside an inventory; an empty one where there is none. Raises Refused, OSError."""
    path = Path(directory) / FILE
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        return Ledger()
    except UnicodeDecodeError:
        return parse("", str(path))


def add(
    directory: str | Path, users: Mapping[str, int], groups: Mapping[str, int], check: bool = False
) -> tuple[str, str]:
    """Write numbers that were given into the ledger; its text before and after. Raises Refused, OSError."""
    path = Path(directory) / FILE
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Two runs may begin at once.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        before = read(directory)
        for kind, given, new in (("user", before.users, users), ("group", before.groups, groups)):
            for name, number in new.items():
                if name in given and given[name] != number:
                    raise _taken(path, f"the {kind} {name}", number, f"it has {given[name]}")
                owner = "" if name in given else before.owner(number)
                if owner:
                    raise _taken(path, f"the {kind} {name}", number, f"{owner} has it")
        after = replace(before, users={**before.users, **users}, groups={**before.groups, **groups})
        there = path.exists()
        if after.text() != before.text() or (not there and (users or groups)):
            if not check:
                files.write(os.path.realpath(path), after.text())
        elif not there:
            return "", ""
        return before.text() if there else "", after.text()
    finally:
        os.close(descriptor)


def _taken(path: Path, who: str, number: int, why: str) -> Refused:
    return Refused(
        f"{who} cannot have the number {number}: by {path.name} {why}",
        "run it again: another run has given numbers meanwhile",
        code="number_taken",
        subject=who,
        evidence=str(number),
    )
