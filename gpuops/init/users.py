# SPDX-License-Identifier: GPL-3.0-or-later
"""The people of a site to be: rows of cluster_users and cluster_groups, from answers or a file of a spreadsheet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml

COLUMNS = ("name", "full_name", "mail", "groups", "key", "until")
# As the role users takes them.
USER = ("name", "uid", "gid", "full_name", "mail", "groups", "ssh_keys", "shell", "home_size", "limits", "state")
KEYS = (*USER, "confirm", "until")
_NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
_KEY = re.compile(r"(ssh-|ecdsa-|sk-)[!-~]+ [A-Za-z0-9+/=]+( .*)?", re.ASCII)
NAME_RULE = "take small letters, digits and . _ -, 32 at most"


def file(path: Path) -> dict[str, Any]:
    """``users`` and ``groups`` of a file: YAML, or CSV with the columns COLUMNS. Raises OSError, ValueError."""
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() in (".yml", ".yaml", ".json"):
        try:
            content = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is no YAML: {error}") from error
        if isinstance(content, Mapping):
            return {"users": content.get("cluster_users") or [], "groups": content.get("cluster_groups") or []}
        return {"users": content or []}
    return {"users": _of_spreadsheet(path, text)}


def _of_spreadsheet(path: Path, text: str) -> list[dict[str, Any]]:
    first = text.partition("\n")[0]
    lines = list(csv.reader(text.splitlines(), delimiter=";" if first.count(";") > first.count(",") else ","))
    columns = [cell.strip().lower() for cell in lines[0]] if lines else []
    if "name" in columns:
        lines = lines[1:]
        unknown = [name for name in columns if name not in COLUMNS]
        if unknown:
            raise ValueError(f"{path} has a column {unknown[0]!r}; there are {', '.join(COLUMNS)}")
    else:
        columns = list(COLUMNS)
    found = []
    for number, cells in enumerate(lines, 1):
        if len(cells) > len(columns):
            raise ValueError(
                f"{path} has {len(cells)} fields in row {number}, and {len(columns)} columns; quote commas"
            )
        row: dict[str, Any] = {key: cell.strip() for key, cell in zip(columns, cells, strict=False) if cell.strip()}
        if "groups" in row:
            row["groups"] = re.split(r"[\s;|,]+", row["groups"])
        if "key" in row:
            row["ssh_keys"] = [row.pop("key")]
        if row:
            found.append(row)
    return found


def read(users: Any, groups: Any, wrong: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of both lists; names alone are rows, too, and a group that only a user has becomes one of the list.

    :param wrong: is given what is wrong, each with what to do.
    """
    people = _rows("users", users, KEYS, wrong)
    known = _rows("groups", groups, ("name", "gid", "limits"), wrong)
    names = [row["name"] for row in known]
    for row in people:
        of = row.get("groups") or []
        if not isinstance(of, list):
            wrong.append(f"users: groups of {row['name']} is {of!r}; write a list of names")
            continue
        fresh = [name for name in of if name not in names]
        known += _rows("groups", fresh, ("name",), wrong)
        names += fresh
        keys = row.get("ssh_keys") or []
        wrong += [
            f"users: a key of {row['name']} is no public SSH key on one line; give that of a file *.pub"
            for key in (keys if isinstance(keys, list) else [keys])
            if not (isinstance(key, str) and _KEY.fullmatch(key))
        ]
    return people, known


def _rows(what: str, given: Any, keys: Iterable[str], wrong: list[str]) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        wrong.append(f"{what} is {type(given).__name__}; write a list of names, or of mappings with `name`")
        return []
    found: dict[str, dict[str, Any]] = {}
    for item in given:
        row = {"name": item} if isinstance(item, str) else item
        if not (isinstance(row, Mapping) and isinstance(row.get("name"), str) and _NAME.fullmatch(row["name"])):
            name = row.get("name") if isinstance(row, Mapping) else row
            wrong.append(f"{what} has {name!r}, which is not a name of an account; {NAME_RULE}")
            continue
        wrong += [f"{what}: {row['name']} has {key!r}; there are {', '.join(keys)}" for key in row if key not in keys]
        if row["name"] in found:
            wrong.append(f"{what} has {row['name']} twice; take one out")
        # YAML reads a date as one.
        found[row["name"]] = {key: str(value) if isinstance(value, date) else value for key, value in row.items()}
    return list(found.values())
