# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The one list of a site's users: what is wrong with it, and what each role makes of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people.ledger import FILE, LEAST, MOST, NEVER, Ledger

# As it is in paths, addresses of the portal and names of Slurm, without quoting.
NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
# One with options would be for something else than a login.
KEY = re.compile(
    r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)"
    r"|sk-ssh-ed25519@openssh\.com|sk-ecdsa-sha2-nistp256@openssh\.com) [A-Za-z0-9+/]{40,8000}={0,3}(?: [ -~]{0,200})?",
    re.ASCII,
)
TEXT = re.compile(r"[^\x00-\x1f\x7f:,]{0,100}")
MAIL = re.compile(r"[^\s@:,<>\"'\\]{1,64}@[A-Za-z0-9.-]{1,190}", re.ASCII)
SHELL = re.compile(r"/[A-Za-z0-9_./-]{1,100}", re.ASCII)
SIZE = re.compile(r"[0-9]{1,12}[KMGTP]?", re.ASCII)
PRESENT, CLOSED, REMOVED = STATES = ("present", "closed", "removed")
USER_KEYS = (
    *("name", "uid", "gid", "full_name", "mail", "groups", "ssh_keys", "shell", "home_size", "limits"),
    *("state", "confirm", "until"),
)
GROUP_KEYS = ("name", "gid", "limits")
# Accounts of the system that packages make, perhaps only later than those of people.
SYSTEM_NAME = re.compile(
    "_apt|adm|admin|alertmanager|backup|bin|ceph|daemon|docker|games|gnats|grafana|irc|list|lp|mail|man|mesos|"
    "messagebus|munge|mysql|news|nginx|nobody|nvidia-persistenced|nslcd|operator|polkitd|postgres|prometheus|proxy|"
    "registry|root|rpc|shutdown|slurm|slurmrestd|sshd|sssd|staff|statd|sudo|sync|sys|tty|users|uucp|uuidd|video|"
    "wheel|www-data|zookeeper",
    re.ASCII,
)
# Of homes, by the state of the user.
HOMES = {PRESENT: "present", CLOSED: "archived", REMOVED: "absent"}


@dataclass(frozen=True)
class User:
    """A user of the list. `state` is that of today."""

    name: str
    uid: int
    gid: int
    state: str
    groups: tuple[str, ...]
    row: Mapping[str, Any]
    ended: bool = False


@dataclass
class People:
    """What the list says.

    :ivar groups: the number of each group.
    :ivar problems: where there are any, nothing of it is to be used.
    """

    users: list[User] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    group_rows: list[Mapping[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def people(
    users: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], ledger: Ledger, today: date
) -> People:
    """Read the list. Who has no number yet gets the next one that was never given."""
    found = People(problems=[*_wrong_rows(users, "cluster_users"), *_wrong_rows(groups, "cluster_groups")])
    if found.problems:
        return found
    found.problems += _wrong_groups(groups)
    found.problems += _wrong_users(users, {str(row["name"]) for row in groups})
    if found.problems:
        return found
    found.group_rows = list(groups)
    found.problems += _wrong_numbers(users, groups, ledger)
    if found.problems:
        return found
    taken = {row[key] for row in (*users, *groups) for key in ("uid", "gid") if row.get(key) is not None}
    try:
        for row in groups:
            found.groups[row["name"]] = _number(row, "gid", ledger.groups, ledger, taken)
        for row in users:
            uid = _number(row, "uid", ledger.users, ledger, taken)
            ended = row.get("state", PRESENT) == PRESENT and has_ended(row, today)
            state = CLOSED if ended else row.get("state", PRESENT)
            gid = uid if row.get("gid") is None else row["gid"]
            found.users.append(User(row["name"], uid, gid, state, tuple(row.get("groups") or ()), row, ended))
    except Refused as why:
        found.problems.append(why.problem)
    return found


def has_ended(row: Mapping[str, Any], today: date) -> bool:
    """Whether the day has come from which on a user is closed."""
    until = last_day(row)
    return until is not None and until <= today


def last_day(row: Mapping[str, Any]) -> date | None:
    """The day from which on a user is closed."""
    return _day(row.get("until"))


def _number(row: Mapping[str, Any], key: str, given: Mapping[str, int], ledger: Ledger, taken: set[int]) -> int:
    number = row.get(key)
    if number is None:
        number = given.get(row["name"])
    if number is None:
        number = ledger.free(taken)
    taken.add(number)
    return int(number)


# --- what is wrong ---------------------------------------------------------------------------------------------------


def _wrong(code: str, subject: object, cause: str, remedy: str, evidence: object = "") -> Problem:
    return Problem(code, one_line(subject, 80), cause, one_line(evidence, 100), remedy)


def _wrong_rows(rows: Any, variable: str) -> Iterator[Problem]:
    kind, keys = ("user", USER_KEYS) if variable == "cluster_users" else ("group", GROUP_KEYS)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        yield _wrong("wrong_list", variable, f"{variable} is not a list", f"write `{variable}: []`")
        return
    seen: set[str] = set()
    for row in rows:
        name = row.get("name") if isinstance(row, Mapping) else None
        if not isinstance(name, str) or not NAME.fullmatch(name):
            cause = f"{variable} has {one_line(repr(name or row), 80)} as the name of a {kind}"
            remedy = "give at most 32 lower-case letters, digits, '_', '.' and '-', with a letter first"
            yield _wrong("bad_name", variable, cause, remedy)
            continue
        if SYSTEM_NAME.fullmatch(name):
            cause = f"the {kind} {name} of {variable} has the name of an account of the system"
            yield _wrong("system_name", name, cause, "give another name")
        if name in seen:
            yield _wrong("twice", name, f"{variable} has the {kind} {name} twice", "take one of them out")
        seen.add(name)
        unknown = sorted(map(str, set(row) - set(keys)))
        if unknown:
            cause = f"the {kind} {name} has unknown keys: {one_line(', '.join(unknown), 100)}"
            yield _wrong("unknown_key", name, cause, f"keys of a {kind} are {', '.join(keys)}")
        for key in ("uid", "gid"):
            number = row.get(key)
            if number is None:
                continue
            if (
                not isinstance(number, int)
                or isinstance(number, bool)
                or not LEAST <= number <= MOST
                or number in NEVER
            ):
                cause = f"the {kind} {name} has the {key} {one_line(repr(number), 40)}"
                yield _wrong("bad_number", name, cause, f"give a number from {LEAST} on, or none")
        if not isinstance(row.get("limits") or {}, Mapping):
            yield _wrong("bad_limits", name, f"the limits of the {kind} {name} are not a mapping", "give {MaxJobs: 4}")


def _wrong_groups(groups: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    numbers: dict[int, str] = {}
    for row in groups:
        other = numbers.setdefault(row["gid"], row["name"]) if row.get("gid") is not None else row["name"]
        if other != row["name"]:
            cause = f"the groups {other} and {row['name']} have the gid {row['gid']}"
            yield _wrong("number_twice", row["name"], cause, "give one of them another, or none")


def _wrong_users(users: Sequence[Mapping[str, Any]], groups: set[str]) -> Iterator[Problem]:
    for row in users:
        name = row["name"]
        for key, form, example in (
            ("full_name", TEXT, "a name without ':' and ','"),
            ("mail", MAIL, f"an address such as {name}@example.org"),
            ("shell", SHELL, "a path such as /bin/bash"),
            ("home_size", SIZE, "a size such as 200G"),
        ):
            value = row.get(key)
            if value not in (None, "") and not form.fullmatch(str(value)):
                cause = f"{key} of {name} is {one_line(repr(value), 80)}"
                yield _wrong("bad_value", name, cause, f"give {example}")
        if name in groups:
            yield _wrong("name_twice", name, f"{name} is a user and a group", "give the group another name")
        for key in ("groups", "ssh_keys"):
            given = row.get(key) or []
            if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(x, str) for x in given):
                yield _wrong("bad_value", name, f"{key} of {name} is not a list of texts", f"write `{key}: []`")
                break
        else:
            yield from _wrong_lists(row, groups)
        yield from _wrong_state(row)


def _wrong_lists(row: Mapping[str, Any], groups: set[str]) -> Iterator[Problem]:
    name = row["name"]
    for group in row.get("groups") or []:
        if group not in groups:
            cause = f"{name} is to be in the group {one_line(group, 40)}, which cluster_groups does not have"
            yield _wrong("unknown_group", name, cause, f"add `- name: {one_line(group, 40)}` to cluster_groups")
    for number, key in enumerate(row.get("ssh_keys") or [], 1):
        if not KEY.fullmatch(key.strip()):
            cause = f"key {number} of {name} is not a public key without options"
            remedy = "give a line of a file such as ~/.ssh/id_ed25519.pub"
            yield _wrong("bad_key", name, cause, remedy, key[:40])


def _wrong_state(row: Mapping[str, Any]) -> Iterator[Problem]:
    name, state = row["name"], row.get("state", PRESENT)
    if state not in STATES:
        cause = f"{name} has the state {one_line(repr(state), 40)}"
        yield _wrong("bad_state", name, cause, f"give one of {', '.join(STATES)}")
    if state == REMOVED and row.get("confirm") != name:
        cause = f"{name} is to be removed with the home, and confirm is not {name}"
        yield _wrong("not_confirmed", name, cause, f"add `confirm: {name}`, or keep the data with `state: closed`")
    if row.get("until") not in (None, "") and _day(row["until"]) is None:
        cause = f"until of {name} is {one_line(repr(row['until']), 40)}"
        yield _wrong("bad_day", name, cause, "give a day such as 2027-03-31")


def _day(value: Any) -> date | None:
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        return None


def _wrong_numbers(
    users: Sequence[Mapping[str, Any]], groups: Sequence[Mapping[str, Any]], ledger: Ledger
) -> Iterator[Problem]:
    """Numbers that the list gives itself: those of the ledger, or such as nobody ever had."""
    numbers: dict[int, str] = {}
    shared = {row["gid"] for row in groups if row.get("gid") is not None} | set(ledger.groups.values())
    for kind, key, rows, given in (("user", "uid", users, ledger.users), ("group", "gid", groups, ledger.groups)):
        for row in rows:
            name, number = row["name"], row.get(key)
            known = given.get(name)
            if number is not None and known is not None and number != known:
                cause = f"the {kind} {name} has the {key} {number}, and was given {known} before"
                remedy = f"take `{key}: {number}` out; for another person give another name"
                yield _wrong("other_number", name, cause, remedy, number)
                continue
            number = known if number is None else number
            if number is None:
                continue
            owner = ledger.owner(number) if known is None else ""
            other = numbers.setdefault(number, f"the {kind} {name}")
            if owner or other != f"the {kind} {name}":
                cause = f"the {kind} {name} has the {key} {number}, which is that of {owner or other}"
                remedy = f"give another {key}, or none; {FILE} has those that were given"
                yield _wrong("number_taken", name, cause, remedy, number)
    for row in users:
        gid = row.get("gid")
        if gid is None or gid in shared or gid in (row.get("uid"), ledger.users.get(row["name"])):
            continue
        owner = ledger.owner(gid) or next((one for number, one in numbers.items() if number == gid), "")
        others = [one["name"] for one in users if one is not row and one.get("gid") == gid]
        if owner or others:
            cause = f"{row['name']} has the gid {gid}, which is that of {owner or others[0]}"
            remedy = "give another gid, or put the group with that gid into cluster_groups"
            yield _wrong("number_taken", row["name"], cause, remedy, gid)


# --- what the roles make of it ---------------------------------------------------------------------------------------


def as_lists(found: People) -> dict[str, Any]:
    """The lists of the roles. Of a list with problems they are empty, so nothing is done by half of it."""
    users = [] if found.problems else found.users
    names = [] if found.problems else list(found.groups)
    rows = {} if found.problems else {row["name"]: row for row in found.group_rows}
    return {
        "accounts": [_account(user, found.groups) for user in users],
        "groups": [{"name": name, "gid": found.groups[name]} for name in names],
        "homes": [_home(user) for user in users],
        "slurm_users": [_slurm(user) for user in users],
        "slurm_accounts": [
            {"name": name, **({"limits": dict(rows[name]["limits"])} if rows[name].get("limits") else {})}
            for name in names
        ],
        "registry_users": [{"name": user.name} for user in users if user.state == PRESENT],
        "ended": [user.name for user in users if user.ended],
        "problems": [problem.as_dict() for problem in found.problems],
    }


def _account(user: User, groups: Mapping[str, int]) -> dict[str, Any]:
    row = user.row
    primary = next((name for name, gid in groups.items() if gid == user.gid), user.name)
    until = _day(row.get("until"))
    return {
        "name": user.name,
        "uid": user.uid,
        "gid": user.gid,
        "group": primary,
        "listed": row.get("uid") is not None,
        "full_name": str(row.get("full_name") or ""),
        "groups": [name for name in user.groups if name != primary],
        "ssh_keys": [" ".join(key.split()) for key in row.get("ssh_keys") or []],
        "shell": str(row.get("shell") or ""),
        "state": user.state,
        "until": until.isoformat() if until else "",
    }


def _home(user: User) -> dict[str, Any]:
    size = user.row.get("home_size")
    found = {"name": user.name, "uid": user.uid, "gid": user.gid, "state": HOMES[user.state]}
    if size not in (None, ""):
        found["size"] = str(size)
    if user.state == REMOVED:
        found["confirm"] = user.name
    return found


def _slurm(user: User) -> dict[str, Any]:
    found: dict[str, Any] = {"name": user.name, "state": HOMES[user.state]}
    if user.groups:
        found["accounts"] = list(user.groups)
    if user.row.get("limits"):
        found["limits"] = dict(user.row["limits"])
    return found
