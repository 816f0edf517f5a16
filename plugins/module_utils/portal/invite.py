# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that sets a password as root for whoever has an invitation.

systemd starts it for each question, at a socket that the hub's account alone can open. It takes {"user": …, "code": …,
"password": …} from its standard input and prints {"name": …}, or {"problem": {…}}, whose cause is for the operators'
log alone. Invitations are files that `gpuops user invite` has written: {"uid", "salt", "hash", "until"}. Of a code the
host has only the hash, so nobody can read one here.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object, object_of, text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, login, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings

DIRECTORY = "/var/lib/baremetal-gpu-portal-invitations"
PLACES = "/run/baremetal-gpu-portal-invite"
CHPASSWD, CHPASSWD_S = "/usr/sbin/chpasswd", 30.0
SHORTEST = 12
FILE_AT_MOST = 4096
# The letters of a code: none that looks like another one. 20 of them are 100 bits, in groups of 5.
LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"
CODE_LETTERS, GROUP = 20, 5


def _password(value: Any, where: str) -> str:
    """What is wrong with it is told without it."""
    if not isinstance(value, str) or len(value.encode("utf-8")) > login.PASSWORD_AT_MOST:
        raise Malformed(f"{where} is none")
    return value


QUESTION = object_of({"user": text(accounts.NAME.pattern), "code": text(at_most=100), "password": _password})


def hashed(code: str, salt: str) -> str:
    """A code is as good as a key, so one round is enough. However it is typed, it is the same."""
    plain = "".join(one for one in code.lower() if one in LETTERS)
    return hashlib.sha256(f"{salt}:{plain}".encode()).hexdigest()


def weak(password: str) -> str:
    """What is wrong with a new password; empty where nothing is."""
    if len(password) < SHORTEST:
        return f"a password has {SHORTEST} characters or more. To do: take a longer one, such as four words"
    if not password.isprintable():
        return "a password has printable characters alone. To do: take another one"
    return ""


def answer(
    given: bytes,
    known: Settings,
    run: Run = host_run.run,
    directory: str = DIRECTORY,
    places: str = PLACES,
    pause_s: float = login.PAUSE_S,
    clock: Callable[[], float] = time.time,
) -> Mapping[str, Any]:
    """What a question comes to. Raises Refused, Malformed."""
    question = QUESTION(json_object(given, login.BYTES_AT_MOST), "question")
    if known.hub["login"]["kind"] != "pam":
        raise Malformed("question asks for a password, and this portal takes none of the host's")
    account, password = known.person(question["user"]), question["password"]
    if weak(password):
        raise Refused(weak(password), code="weak_password", subject="password")
    try:
        # A code is good once, also for two who bring it at the same time.
        with login.one_at_a_time(places, account.name):
            path = os.path.join(directory, account.name)
            why = _wrong(_read(path), question["code"], account.uid, clock())
            if why:
                time.sleep(pause_s)
                raise Refused(f"no invitation of {account.name}: {why}", code="no_account", subject="login")
            status, _out, error = run([CHPASSWD], f"{account.name}:{password}\n", CHPASSWD_S)
            if status:
                cause = f"chpasswd does not set the password of {account.name}: {one_line(error, 200)}"
                raise CallFailed(cause, "the operators see what it says; a directory of users has passwords of its own")
            files.remove(path)
    except OSError as why:
        remedy = f"the operators see `ls -ld {directory} {places}`"
        raise CallFailed(f"invitations cannot be read: {why}", remedy) from why
    return {"name": account.name}


def _read(path: str) -> Mapping[str, Any]:
    try:
        content = json.loads(files.read(path, FILE_AT_MOST))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _wrong(kept: Mapping[str, Any], code: str, uid: int, now: float) -> str:
    salt, known, until = kept.get("salt"), kept.get("hash"), kept.get("until")
    if not isinstance(salt, str) or not isinstance(known, str) or not isinstance(until, (int, float)):
        return "there is none"
    if not hmac.compare_digest(hashed(code, salt).encode(), known.encode()):
        return "the code is another one"
    if now >= until:
        return "it has expired"
    # The name may be another person's by now.
    return "" if kept.get("uid") == uid else f"it is for the uid {kept.get('uid')}"


def main(words: Sequence[str] | None = None, path: str = settings.PATH) -> int:
    if sys.argv[1:] if words is None else words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    signal.alarm(login.ANSWER_S)
    told: Mapping[str, Any]
    try:
        told = answer(sys.stdin.buffer.read(login.BYTES_AT_MOST + 1), settings.read(path))
    except (Refused, Malformed) as why:
        problem = why if isinstance(why, Refused) else Refused(one_line(why, 300), code="malformed")
        told = {"problem": problem.problem.as_dict()}
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "problem" in told else 0
