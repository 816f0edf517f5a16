# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From the name that somebody logs in with to the Unix account, which has to exist. Nobody gets one by logging in."""

from __future__ import annotations

import grp
import os
import pwd
import re
from collections.abc import Collection
from typing import Callable, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# As it is in paths, URLs, and arguments of Slurm's commands, without quoting.
NAME = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
LEAST_UID = 1000
NOBODY = 65534
NO_SHELLS = ("nologin", "false")
# One answer for all that nobody outside has to tell apart.
NO_ACCOUNT = "ask the operators for an account, and log in with its name"


class Account(NamedTuple):
    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[str, ...]


def name_of(
    login: str,
    domains: Collection[str] = (),
    look: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
    needs_domain: bool = False,
) -> str:
    """The name of the account that a login is for. Raises Refused.

    :param login: as it was typed, or as a provider of logins tells it.
    :param domains: what may stand behind an @; others' users are not ours, whatever their names.
    :param needs_domain: whether one has to stand there, because somebody else than the site gives the names.
    """
    # Small letters of a few others are those of ASCII.
    if not login.isascii():
        raise _refused(login, "it has letters that no account has")
    name, at, domain = login.strip().lower().partition("@")
    if needs_domain and not at:
        raise _refused(login, "it has no domain, and so may be of anybody")
    if at and domain not in domains:
        raise _refused(login, "it is of another domain")
    if not NAME.fullmatch(name):
        raise _refused(login, "an account has lower case letters, digits, '.', '_' and '-', 32 at most")
    # `find` says of an account with capitals what is wrong with it.
    given = login.strip().partition("@")[0]
    return given if given != name and _is_there(given, look) and not _is_there(name, look) else name


def _is_there(name: str, look: Callable[[str], pwd.struct_passwd]) -> bool:
    try:
        return look(name).pw_name == name
    except (KeyError, ValueError):
        return False


def find(
    name: str,
    allowed_groups: Collection[str] = (),
    least_uid: int = LEAST_UID,
    look: Callable[[str], pwd.struct_passwd] = pwd.getpwnam,
    groups_of: Callable[[str, int], list[int]] = os.getgrouplist,
    group: Callable[[int], grp.struct_group] = grp.getgrgid,
) -> Account:
    """The account of a person who may have sessions. Raises Refused.

    :param allowed_groups: the person is in one of them; none for everybody who has an account.
    """
    if not NAME.fullmatch(name):
        raise _capitals(name) if NAME.fullmatch(name.lower()) else _refused(name, "it is not the name of an account")
    try:
        row = look(name)
    except KeyError:
        for other in (name.upper(), name.capitalize()):
            if other != name and _is_there(other, look):
                raise _capitals(other) from None
        raise _refused(name, "there is no such account on this host") from None
    # A directory of users may know a person by further names.
    if row.pw_name.lower() == name != row.pw_name:
        raise _capitals(row.pw_name)
    if row.pw_name != name:
        raise _refused(name, f"the account is called {one_line(row.pw_name, 40)}")
    if row.pw_uid < least_uid or row.pw_uid == NOBODY:
        raise _refused(name, "it is an account of the system")
    if not row.pw_dir.startswith("/") or row.pw_dir == "/":
        raise _refused(name, "it has no home")
    if row.pw_shell.rpartition("/")[2] in NO_SHELLS:
        raise _refused(name, "it is closed: its shell does not allow a login", code="closed_account")
    names = [one for one in (_group(gid, group) for gid in groups_of(name, row.pw_gid)) if one]
    if allowed_groups and not set(allowed_groups) & set(names):
        raise _refused(name, f"it is in none of the groups {', '.join(sorted(allowed_groups))}")
    return Account(name, row.pw_uid, row.pw_gid, row.pw_dir, row.pw_shell, tuple(names))


def _group(gid: int, look: Callable[[int], grp.struct_group]) -> str:
    """Its name. A group of which only the number is known gives no rights here."""
    try:
        return look(gid).gr_name
    except KeyError:
        return ""


def _capitals(name: str) -> Refused:
    return _refused(
        name,
        "there is such an account, and its name has capital letters",
        "ask the operators for an account whose name has lower case letters alone: sessions, jobs and images need that",
    )


def _refused(login: str, why: str, remedy: str = NO_ACCOUNT, code: str = "no_account") -> Refused:
    return Refused(f"{one_line(repr(login), 80)} cannot have sessions: {why}", remedy, code=code, subject="login")
