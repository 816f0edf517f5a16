# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that checks passwords and accounts as root for the hub, which so reads no hash of a password.

systemd starts it for each question, at a socket that the hub's account alone can open. It takes one object of JSON from
its standard input and prints one: {"do": "login", "user": …, "password": …} or {"do": "account", "user": …} ->
{"name": …}, or {"problem": {…}}, whose cause is for the operators' log alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    object_of,
    one_of,
    text,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, pam, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings

BYTES_AT_MOST, ANSWER_S = 16 << 10, 60
LOGIN, ACCOUNT = "login", "account"
# The codes of problems that an account has; all others are of whoever was to tell.
NO_ACCOUNT, CLOSED = OF_ACCOUNTS = ("no_account", "closed_account")
# PAM takes no longer one.
PASSWORD_AT_MOST = 500
# Of one name a password is checked at a time, and one after a wrong one so much later, whoever asks.
PLACES, PAUSE_S = "/run/baremetal-gpu-portal-login", 1.0


def _password(value: Any, where: str) -> str:
    """What is wrong with it is told without it."""
    if not isinstance(value, str) or not 0 < len(value.encode("utf-8")) <= PASSWORD_AT_MOST or "\0" in value:
        raise Malformed(f"{where} is none")
    return value


QUESTION = object_of(
    {"do": one_of(LOGIN, ACCOUNT), "user": text(accounts.NAME.pattern)},
    {"password": _password},
)
Check = Callable[..., pam.Answer]


@contextlib.contextmanager
def one_at_a_time(places: str, name: str) -> Iterator[None]:
    with open(os.path.join(places, name), "a", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def answer(
    given: bytes, known: Settings, check: Check = pam.check, places: str = PLACES, pause_s: float = PAUSE_S
) -> Mapping[str, Any]:
    """What a question comes to. Raises Refused, Malformed.

    An account that may have no sessions is refused before its password is looked at.
    """
    question = QUESTION(json_object(given, BYTES_AT_MOST), "question")
    login = known.hub["login"]
    name = known.person(question["user"]).name
    try:
        if question["do"] == ACCOUNT:
            found = check(login["pam_service"], name)
            # Others tell that it does not know, or that a password is old, with which nobody need have come.
            if found.status in (pam.PERMISSION_DENIED, pam.ACCOUNT_EXPIRED):
                raise _refused(f"the account {name} is closed or has expired: {one_line(found.text, 200)}")
            return {"name": name}
        if login["kind"] != "pam" or "password" not in question:
            raise Malformed("question has no password, or this portal takes none of the host's")
        with one_at_a_time(places, name):
            found = check(login["pam_service"], name, question["password"])
            if found.status != pam.SUCCESS:
                time.sleep(pause_s)
                raise _refused(f"PAM refuses {name}: {one_line(found.text, 200)}")
    except OSError as why:
        raise CallFailed(
            f"passwords cannot be checked: {why}",
            "the operators see that the host has the package libpam0g, and `ls -ld /run`",
        ) from why
    return {"name": name}


def _refused(cause: str) -> Refused:
    return Refused(cause, "ask the operators to open it", code=CLOSED, subject="login")


def main(words: Sequence[str] | None = None, path: str = settings.PATH, places: str = PLACES) -> int:
    if sys.argv[1:] if words is None else words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    signal.alarm(ANSWER_S)
    told: Mapping[str, Any]
    try:
        told = answer(sys.stdin.buffer.read(BYTES_AT_MOST + 1), settings.read(path), places=places)
    except (Refused, Malformed) as why:
        problem = why if isinstance(why, Refused) else Refused(one_line(why, 300), code="malformed")
        told = {"problem": problem.problem.as_dict()}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "problem" in told else 0
