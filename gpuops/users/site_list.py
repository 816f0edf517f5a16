# SPDX-License-Identifier: GPL-3.0-or-later
"""The list of users of a site: where it is, what it says today, and whose day has come."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import ledger, site
from gpuops import yaml_text
from gpuops.run import records
from gpuops.site import Site
from gpuops.users import yaml_list

USERS, GROUPS = "cluster_users", "cluster_groups"
HEADER = """---
# Who uses the cluster. `gpuops user` changes this file, and so may you; `gpuops up --tags users` follows it.
"""
COLUMNS = ("name", "full_name", "mail", "groups", "key")
LINES_AT_MOST = 10_000


@dataclass
class UserList:
    """The file of a site's users."""

    path: Path
    text: str = HEADER
    before: str = ""
    directory: Path = field(default_factory=Path)

    @property
    def users(self) -> yaml_list.Rows:
        return yaml_list.rows(self.text, USERS)

    @property
    def groups(self) -> yaml_list.Rows:
        return yaml_list.rows(self.text, GROUPS)

    def user(self, name: str) -> dict[str, Any]:
        """The row of a user. Raises Refused for a name that is not there."""
        for row in self.users:
            if row.get("name") == name:
                return row
        raise Refused(f"{self.path} has no user {name!r}", f"see `gpuops user list --all`, or `gpuops user add {name}`")

    def put(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Change users, or add them, with groups that are new. Raises Refused."""
        known = {row.get("name") for row in self.groups}
        named = dict.fromkeys(group for values in changes.values() for group in values.get("groups") or ())
        new: dict[str, Mapping[str, Any]] = {group: {} for group in named if group not in known}
        if new:
            self.text = yaml_list.put(self.text, GROUPS, new)
        self.text = yaml_list.put(self.text, USERS, changes)

    def people(self, today: date | None = None) -> site.People:
        """Raises Refused, OSError."""
        kept = ledger.read(self.directory)
        return site.people(self.users, self.groups, kept, today or date.today())

    def difference(self) -> list[str]:
        return list(yaml_text.differing(self.before, self.text, self.path.name))

    def write(self) -> None:
        """Raises OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write(os.path.realpath(self.path), self.text, None)


def find(known: Site) -> UserList:
    """The file that has the list, or that is to have it. Raises Refused, OSError."""
    above = known.directory / "group_vars"
    candidates = [above / "all.yml", above / "all.yaml"]
    if (above / "all").is_dir():
        # Ansible reads no all.yml beside a directory all.
        candidates = sorted(path for path in (above / "all").rglob("*") if path.suffix in (".yml", ".yaml"))
    there = [path for path in candidates if path.is_file()]
    texts = {path: path.read_text(encoding="utf-8") for path in there}
    having = [path for path, text in texts.items() if any(line.startswith(f"{USERS}:") for line in text.splitlines())]
    if len(having) > 1:
        listed = " and ".join(map(str, having))
        raise Refused(f"{listed} have {USERS}, of which Ansible reads one alone", f"keep one {USERS}")
    kept = next(iter(having), None) or (there[0] if there and not (above / "all").is_dir() else None)
    if kept is None:
        return UserList(above / "all" / "users.yml", directory=known.directory)
    found = UserList(kept, texts[kept], texts[kept], known.directory)
    try:
        for key in (USERS, GROUPS):
            yaml_list.rows(found.text, key)
    except Refused as why:
        raise Refused(f"{kept}: {why.problem.cause}", why.problem.remedy) from None
    return found


def values_of(row: Mapping[str, str], groups: list[str], until: date | None) -> dict[str, Any]:
    """What a line of a CSV file says of a user."""
    own = row.get("groups", "").replace(";", " ").split()
    values = {
        "full_name": row.get("full_name", "").strip() or None,
        "mail": row.get("mail", "").strip() or None,
        "groups": list(dict.fromkeys([*groups, *own])) or None,
        "ssh_keys": [row["key"].strip()] if row.get("key", "").strip() else None,
        "until": until,
    }
    return {key: value for key, value in values.items() if value is not None}


def read_csv(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file with names of columns above them. Raises Refused."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            sample = stream.readline()
            stream.seek(0)
            lines = csv.DictReader(stream, delimiter=";" if sample.count(";") > sample.count(",") else ",", strict=True)
            columns = [str(name).strip() for name in lines.fieldnames or ()]
            unknown = sorted(set(columns) - set(COLUMNS))
            if "name" not in columns or unknown:
                remedy = f"begin it with a line of column names, some of {','.join(COLUMNS)}"
                raise Refused(f"{path} has the columns {', '.join(columns)}", remedy)
            lines.fieldnames = columns
            found = []
            for number, row in enumerate(lines, 2):
                if number > LINES_AT_MOST or None in row or None in row.values():
                    cause = f"line {number} of {path} has not {len(columns)} columns"
                    raise Refused(cause, "quote a value that has the separator in it")
                found.append({key: str(value) for key, value in row.items()})
    except (OSError, UnicodeDecodeError, csv.Error) as wrong:
        raise Refused(f"{path} cannot be read: {wrong}", "give a CSV file in UTF-8") from None
    return found


def ended(known: Site) -> list[str]:
    """Users whose day has come since the last run that came to them. Nothing is told of a list that cannot be read."""
    try:
        rows = find(known).users
    except (Refused, OSError, UnicodeDecodeError):
        return []
    runs = [one for _path, one in records.earlier(known.remembered) if "users" in one.stages and not one.check]
    done = max((datetime.fromtimestamp(one.started).date() for one in runs if one.rc == 0), default=date.min)
    today = date.today()
    return [
        str(row.get("name"))
        for row in rows
        if row.get("state", site.PRESENT) == site.PRESENT
        and site.has_ended(row, today)
        and not site.has_ended(row, done)
    ]


def ended_text(names: list[str]) -> str:
    """What is said of them; empty where there are none."""
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return f"users: the last day of {listed} has passed" if names else ""
