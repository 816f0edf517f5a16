# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of the SSH jump, which runs as an account without rights.

portal-jump keys TYPE KEY       sshd asks it: prints the line by which a key reaches the sessions of its owner
portal-jump connect TYPE KEY    in that line: connects to the one that $SSH_ORIGINAL_COMMAND names, as USER HOST
"""

from __future__ import annotations

import json
import os
import socket
import sys
import syslog
import threading
from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, ssh
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.local_program import exchange
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.ssh import Target

SOCKET = "/run/baremetal-gpu-portal-keys.sock"
ASK_S, CONNECT_S = 20.0, 10.0
ANSWER_AT_MOST = 1 << 20
CHUNK = 256 << 10
# A node that has gone without a word is noticed in a minute.
KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))


def _asked(question: dict[str, str], path: str) -> Any:
    """Raises OSError, ValueError."""
    told = json.loads(exchange(path, question, ASK_S, ANSWER_AT_MOST))
    if not isinstance(told, dict) or "problem" in told:
        raise ValueError(one_line(told, 300))
    return told


def is_known(key: str, path: str = SOCKET) -> bool:
    """Whether anybody has it who has a session. Raises OSError, ValueError, KeyError."""
    return bool(_asked({"key": key}, path)["known"])


def reached_by(key: str, user: str, path: str = SOCKET) -> list[Target]:
    """The sessions of a user, where that has the key. Raises OSError, ValueError, KeyError."""
    return [ssh.target(one) for one in _asked({"key": key, "user": user}, path)["targets"]]


def chosen(wanted: str, targets: Sequence[Target]) -> Target | None:
    """The session that is meant: USER HOST, where HOST is the name that was typed, such as portal or train.portal."""
    words = wanted.split()
    if len(words) != 2:
        return None
    server = words[1].partition(".")[0] if "." in words[1] else ""
    # The latest, where a job of the user's own has the name, too.
    return next((one for one in reversed(targets) if (one.user, one.server) == (words[0], server)), None)


def connect(target: Target) -> None:
    """Until one of the two ends is closed. Raises OSError."""
    with socket.create_connection((target.address, target.port), CONNECT_S) as session:
        session.settimeout(None)
        session.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            session.setsockopt(socket.IPPROTO_TCP, option, value)
        threading.Thread(target=_send, args=(session,), daemon=True).start()
        with open(1, "wb", buffering=0, closefd=False) as out:
            while data := session.recv(CHUNK):
                view = memoryview(data)
                while view:
                    view = view[out.write(view) :]


def _send(session: socket.socket) -> None:
    try:
        while data := os.read(0, CHUNK):
            session.sendall(data)
        session.shutdown(socket.SHUT_WR)
    except OSError:
        # The other direction tells how it ends.
        return


def _connected(key: str, wanted: str, path: str) -> int:
    user = wanted.split()[0] if wanted.split() else ""
    try:
        targets = reached_by(key, user, path) if accounts.NAME.fullmatch(user) and ssh.KEY.fullmatch(key) else []
    except (OSError, *MISSHAPEN) as why:
        return _cannot_ask(why)
    target = chosen(wanted, targets)
    if target is None:
        names = ", ".join(f"{one.server}.portal" if one.server else "portal" for one in targets)
        sys.stderr.write(f"There is no such session.{f' Those that run: {names}.' if names else ''}\n")
        return 1
    syslog.syslog(f"{target.user} connects to {target}")
    try:
        connect(target)
    except OSError as why:
        sys.stderr.write(f"The session cannot be reached: {why}. It may have ended, or not be ready yet.\n")
        return 1
    return 0


def _cannot_ask(why: BaseException) -> int:
    syslog.syslog(syslog.LOG_ERR, f"whose key it is cannot be asked: {one_line(why, 300)}")
    sys.stderr.write(
        "Whose key it is cannot be asked at present. To do: try again in a minute, or tell the operators.\n"
    )
    return 1


def main(words: Sequence[str] | None = None, path: str = SOCKET) -> int:
    given = sys.argv[1:] if words is None else list(words)
    if len(given) != 3 or given[0] not in ("keys", "connect"):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    key = " ".join(given[1:])
    if given[0] == "connect":
        return _connected(key, os.environ.get("SSH_ORIGINAL_COMMAND", ""), path)
    try:
        if ssh.KEY.fullmatch(key) and is_known(key, path):
            print(ssh.authorized(key))
    except (OSError, *MISSHAPEN) as why:
        return _cannot_ask(why)
    return 0
