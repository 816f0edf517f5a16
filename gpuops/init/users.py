# SPDX-License-Identifier: GPL-3.0-or-later
"""The people of a site to be: rows of cluster_users and cluster_groups, from answers or a file."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import site
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people.ledger import Ledger
from gpuops.users import site_list

COLUMNS = site_list.COLUMNS


def file(path: Path) -> dict[str, Any]:
    """``users`` and ``groups`` of a file, YAML or CSV with the columns COLUMNS. Raises OSError, ValueError, Refused."""
    if path.suffix.lower() not in (".yml", ".yaml", ".json"):
        rows = [{key: str(value or "") for key, value in row.items()} for row in site_list.read_csv(path)]
        return {"users": [{"name": row["name"].strip(), **site_list.values_of(row, [], None)} for row in rows]}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from error
    if isinstance(content, Mapping):
        return {"users": content.get(site_list.USERS) or [], "groups": content.get(site_list.GROUPS) or []}
    return {"users": content or []}


def read(users: Any, groups: Any, wrong: list[str]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of both lists; names alone are rows, too, and a group that only a user has becomes one of the list.

    :param wrong: is given what is wrong, each with what to do.
    """
    people, known = _rows("users", users, wrong), _rows("groups", groups, wrong)
    names = [row.get("name") for row in known]
    for row in people:
        of = row.get("groups")
        fresh = [name for name in of if name not in names] if isinstance(of, list) else []
        known += [{"name": name} for name in fresh]
        names += fresh
    found = site.people(people, known, Ledger(), date.today())
    wrong += [f"{problem.cause}; {problem.remedy}" for problem in found.problems]
    return people, known


def _rows(what: str, given: Any, wrong: list[str]) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        wrong.append(f"{what} is {type(given).__name__}; write a list of names, or of mappings with `name`")
        return []
    rows = [{"name": item} if isinstance(item, str) else item for item in given]
    wrong += [
        f"{what} has {row!r}; write a name, or a mapping with `name`" for row in rows if not isinstance(row, dict)
    ]
    # YAML reads a day as a date.
    return [
        {str(key): str(value) if isinstance(value, date) else value for key, value in row.items()}
        for row in rows
        if isinstance(row, dict)
    ]
