# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that tells the SSH jump which sessions a key reaches: those of users who have it in their home.

systemd starts it as root for each question, at a socket that the jump's account alone can open. It reads each user's
file as that user, and only of users with a session that runs. It takes {"key": "ssh-ed25519 …", "user": "alice"} and
prints {"targets": ["alice//192.0.2.7/25012"]}, or {"problem": {…}}. Without a user it prints {"known": true} where
anybody has the key: it says nothing of whose it is, because anybody can have the public key of somebody else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object, object_of, text
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, session, settings, ssh
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.ssh import Target

BYTES_AT_MOST = 16 << 10
QUESTION = object_of({"key": text(ssh.KEY.pattern, 8200)}, {"user": text(accounts.NAME.pattern)})
# No more than a pipe takes, so that nobody's file keeps the others waiting.
FILE_AT_MOST = 64 << 10
AT_ONCE = 64
READ_S = 3.0
# Somebody's own jobs may have the name of sessions, too.
TARGETS_AT_MOST = 50
Read = Callable[[Sequence[Account]], Iterable["tuple[str, set[str]]"]]


def authorized_keys(
    people: Sequence[Account], timeout_s: float = READ_S, site_keys: str = ssh.SITE_KEYS
) -> Iterator[tuple[str, set[str]]]:
    """The keys of each: those of the site's list, and those of the home, read by processes of theirs. Of a home that
    does not answer there are none."""
    for start in range(0, len(people), AT_ONCE):
        begun = [(one, _reader(one)) for one in people[start : start + AT_ONCE]]
        end = time.monotonic() + timeout_s
        for one, process in begun:
            # Root wrote them, and they are there while the home is not.
            found = ssh.keys(files.read_text(f"{site_keys}/{one.name}", FILE_AT_MOST))
            try:
                # One that has ended is read even after the time of all.
                out, _error = process.communicate(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                sys.stderr.write(f"the home of {one.name} does not answer\n")
                out = b""
            yield one.name, found | ssh.keys(out.decode("utf-8", "replace"))


def _reader(one: Account) -> subprocess.Popen[bytes]:
    # A named pipe in the place of the file keeps nobody waiting.
    words = ["/usr/bin/dd", f"if={one.home}/{ssh.AUTHORIZED_KEYS}", f"bs={FILE_AT_MOST}", "count=1"]
    return subprocess.Popen(
        [*words, "iflag=nonblock,fullblock", "status=none"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        user=one.uid,
        group=one.gid,
        extra_groups=os.getgrouplist(one.name, one.gid),
    )


def answer(given: bytes, known: Settings, run: Run = host_run.run, read: Read = authorized_keys) -> dict[str, Any]:
    """What a question is answered. Raises Refused, Malformed."""
    question = QUESTION(json_object(given, BYTES_AT_MOST), "question")
    running = session.running(run) if known.ssh_ports else []
    if "user" not in question:
        found = (_account(name, known) for name in sorted({one.user for one in running}))
        has = [name for name, keys in read([one for one in found if one]) if question["key"] in keys]
        return {"known": bool(has)}
    own = [one for one in running if one.user == question["user"]]
    return {"targets": [str(one) for one in _targets(own, question, known, run, read)]}


def _targets(
    running: Sequence[Session], question: Mapping[str, str], known: Settings, run: Run, read: Read
) -> list[Target]:
    """The sessions of one user, where that has the key."""
    account = _account(question["user"], known) if running else None
    if account is None or known.ssh_ports is None or question["key"] not in dict(read([account])).get(account.name, ()):
        return []
    # The latest, of a user who has more.
    own = sorted(running, key=lambda one: int(one.job))[-TARGETS_AT_MOST:]
    addresses = {node: session.address(node, run) for node in sorted({one.node for one in own})}
    return [Target(one.user, one.server, addresses[one.node], ssh.port(int(one.job), known.ssh_ports)) for one in own]


def _account(name: str, known: Settings) -> Account | None:
    try:
        return known.person(name)
    except Refused:
        # Who has lost the account, or the group, since the session began.
        return None


def main(words: Sequence[str] | None = None, path: str = settings.PATH) -> int:
    if sys.argv[1:] if words is None else words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    try:
        told = answer(sys.stdin.buffer.read(BYTES_AT_MOST + 1), settings.read(path))
    except (Refused, Malformed) as why:
        problem = why if isinstance(why, Refused) else Refused(str(why), code="malformed")
        told = {"problem": problem.problem.as_dict()}
        sys.stderr.write(f"{problem}\n")
    sys.stdout.write(json.dumps(told) + "\n")
    return 1 if "problem" in told else 0
