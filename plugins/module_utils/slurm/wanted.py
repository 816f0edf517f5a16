# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of QOS, accounts and users: what it says, and all that is wrong with it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import limits

ROOT = "root"
# Without them slurmctld has no use for an account; and root is whom operators submit as.
ALWAYS = (ROOT, "slurm")
ADMIN_LEVELS = ("None", "Operator", "Administrator")
# sacctmgr takes quotes away, and puts bars between its columns.
TEXT = re.compile(r"[^\x00-\x1f\x7f'\"|\\]{1,200}")


@dataclass(frozen=True)
class Qos:
    """A QOS; `values` by the names of limits.QOS_FIELDS."""

    name: str
    description: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Account:
    """An account; `values` by the names of limits.ASSOCIATION_FIELDS. What is empty stays as it is."""

    name: str
    parent: str = ""
    description: str = ""
    organization: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class User:
    """A user; `values` are those of the association with each of the accounts."""

    name: str
    accounts: tuple[str, ...]
    present: bool = True
    default_account: str = ""
    admin_level: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What is to be there. Accounts stand behind their parents."""

    qos: tuple[Qos, ...] = ()
    accounts: tuple[Account, ...] = ()
    users: tuple[User, ...] = ()

    def resources(self) -> set[str]:
        """The kinds of resources that are limited."""
        found = {kind for one in self.qos for kind in limits.resources(limits.QOS_FIELDS, one.values)}
        for values in (*(one.values for one in self.accounts), *self._of_users()):
            found.update(limits.resources(limits.ASSOCIATION_FIELDS, values))
        return found

    def has_limits(self) -> bool:
        """Whether anything is limited, weighted or preferred."""
        return any((*(one.values for one in self.qos), *(one.values for one in self.accounts), *self._of_users()))

    def _of_users(self) -> list[Mapping[str, str]]:
        return [one.values for one in self.users]


def read(
    qos: Sequence[Mapping[str, Any]], accounts: Sequence[Mapping[str, Any]], users: Sequence[Mapping[str, Any]]
) -> tuple[Wanted, list[Problem]]:
    """The list, or all that is wrong with it. The rows are those of the module slurm_accounts."""
    problems: list[Problem] = []
    for what, rows in (("QOS", qos), ("account", accounts), ("user", users)):
        problems += _name_problems(what, rows)
    if problems:
        return Wanted(), problems
    found = Wanted(
        tuple(_qos(row, problems) for row in qos),
        tuple(_account(row, problems) for row in accounts),
        tuple(_user(row, problems) for row in users),
    )
    ordered, circle = _parents_first(found.accounts)
    if circle:
        listed = ", ".join(circle)
        problems.append(_problem("circle", circle[0], f"the accounts {listed} are each other's parents", listed))
    return Wanted(found.qos, tuple(ordered), found.users), problems


def _problem(code: str, subject: str, cause: str, evidence: str = "", remedy: str = "correct it") -> Problem:
    return Problem(code, subject, cause, evidence, remedy)


def _name_problems(what: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    seen: set[str] = set()
    for row in rows:
        name = str(row.get("name"))
        if not limits.NAME.fullmatch(name):
            cause = (
                f"Slurm cannot have {name!r} as the name of a {what}: it takes lower-case letters, digits and _ . - @"
            )
            yield _problem("bad_name", name[:64], cause, name[:64], "choose another, or leave it out of the lists")
        if name in seen:
            cause = f"the {what} {name} is listed twice"
            yield _problem("listed_twice", name, cause, remedy="leave one of the two")
        seen.add(name)


def _values(
    what: str, row: Mapping[str, Any], fields: Mapping[str, limits.Field], problems: list[Problem]
) -> dict[str, str]:
    found = {}
    given = row.get("limits") or {}
    for key, value in given.items() if isinstance(given, Mapping) else ():
        subject = f"{what} {row['name']}"
        if key not in fields:
            cause = f"{subject} has the limit {str(key)[:64]!r}, which is not known here"
            problems.append(_problem("no_limit", subject, cause, str(key)[:64], f"use one of {', '.join(fields)}"))
            continue
        try:
            found[key] = limits.wanted(fields[key], value)
        except ValueError as form:
            cause = f"{subject} has {key}: {str(value)[:64]}"
            problems.append(_problem("bad_limit", subject, cause, str(value)[:64], f"write {form}"))
    return found


def _text(what: str, row: Mapping[str, Any], key: str, problems: list[Problem]) -> str:
    text = str(row.get(key) or "")
    if text and not TEXT.fullmatch(text):
        cause = f"the {key} of the {what} {row['name']} has quotes, a bar, a line's end, or more than 200 characters"
        problems.append(_problem("bad_text", str(row["name"]), cause, text[:64]))
        return ""
    return text


def _qos(row: Mapping[str, Any], problems: list[Problem]) -> Qos:
    values = _values("QOS", row, limits.QOS_FIELDS, problems)
    if row["name"] in values.get("Preempt", "").split(","):
        problems.append(_problem("preempts_itself", row["name"], f"the QOS {row['name']} would preempt its own jobs"))
    return Qos(row["name"], _text("QOS", row, "description", problems), values)


def _account(row: Mapping[str, Any], problems: list[Problem]) -> Account:
    name, parent = row["name"], str(row.get("parent") or "")
    if parent and not limits.NAME.fullmatch(parent):
        problems.append(_problem("bad_name", name, f"the parent of the account {name} has no usable name", parent[:64]))
    if parent and name == ROOT:
        problems.append(_problem("root", name, "the account root is above all others", parent, "take its parent out"))
    return Account(
        name,
        parent,
        _text("account", row, "description", problems),
        _text("account", row, "organization", problems),
        _values("account", row, limits.ASSOCIATION_FIELDS, problems),
    )


def _user(row: Mapping[str, Any], problems: list[Problem]) -> User:
    name, accounts = row["name"], [str(one) for one in row.get("accounts") or ()]
    present = row.get("state", "present") == "present"
    default, level = str(row.get("default_account") or ""), str(row.get("admin_level") or "")
    for account in accounts:
        if not limits.NAME.fullmatch(account):
            cause = f"the user {name} has an account without a usable name"
            problems.append(_problem("bad_name", name, cause, account[:64]))
    if present and not accounts:
        problems.append(_problem("no_account", name, f"the user {name} has no account", remedy="name one"))
    if default and default not in accounts:
        cause = f"the default account of {name} is none of the accounts that the user has"
        problems.append(_problem("no_account", name, cause, default[:64], "add it to them"))
    if level and level not in ADMIN_LEVELS:
        cause = f"{name} has an unknown level of administration"
        problems.append(_problem("bad_level", name, cause, level[:64], f"use one of {', '.join(ADMIN_LEVELS)}"))
    if not present and name in ALWAYS:
        problems.append(_problem("needed", name, f"Slurm needs its user {name}", remedy="take its state out"))
    values = _values("user", row, limits.ASSOCIATION_FIELDS, problems)
    return User(name, tuple(dict.fromkeys(accounts)), present, default, level, values)


def _parents_first(accounts: Sequence[Account]) -> tuple[list[Account], list[str]]:
    """The accounts in an order in which they can be made, and those that are in a circle."""
    waiting = {one.name: one for one in accounts}
    ordered: list[Account] = []
    while ready := [one for one in waiting.values() if one.parent not in waiting]:
        ordered += ready
        for one in ready:
            del waiting[one.name]
    return ordered, sorted(waiting)
