# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of Ceph over one connection, with the libraries that the program `ceph` is made of.

The program takes a quarter of a second of CPU for each command: it starts, connects, and makes sense of the
descriptions of all commands that the monitors know, of which there are hundreds. A module asks for a dozen of them;
here it connects once, and makes sense only of those that begin with the same words.

Source: https://docs.ceph.com/en/reef/rados/api/python/ and, for the way of a command, the files src/ceph.in and
src/pybind/ceph_argparse.py of Ceph 16.2 and 18.2.
"""

from __future__ import annotations

import atexit
import errno
import itertools
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

try:
    import ceph_argparse
    import rados
except ImportError:
    # They come with the program and are made for the system's Python, which Ansible may have been told not to use.
    HERE = False
else:
    HERE = True

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import TIMED_OUT

# Exit status, stdout and stderr, as the program would have them.
Answer = tuple[int, str, str]

# Of what keeps a client from connecting the program passes on that a key is not accepted. That nobody answers is worth
# as much; and that a file is not there must not be taken for a command's answer that something is not there.
TOLD = (errno.EACCES, errno.ETIMEDOUT)


class Connection:
    """A connection to a cluster under one name and keyring; the first command makes it, and the end of the process
    closes it.

    :param timeout: how long connecting may take, in seconds; a command may take ten more, as with the program.
    """

    def __init__(self, cluster: str, conf: str, name: str, keyring: str | None, timeout: int) -> None:
        self._place = {"clustername": cluster, "conffile": conf, "name": name}
        self._settings = {"client_mount_timeout": str(timeout), **({"keyring": keyring} if keyring else {})}
        self._limit = timeout + 10
        self._lock = threading.Lock()
        self._cluster: Any = None
        self._described: dict[str, Any] = {}

    def ask(self, words: Sequence[str], stdin: str | None) -> Answer | None:
        """What the program answers to `ceph WORDS --format json`; None where only the program can be asked."""
        # Those go to a daemon itself, which the program finds.
        if words[0] == "tell":
            return None
        begun = time.monotonic()
        try:
            with self._lock:
                if self._cluster is None:
                    self._connect()
            asked = self._understood(words)
            if not asked:
                return _answer(-errno.EINVAL, b"", "invalid command")
            return _answer(*self._send(self._cluster, {**asked, "format": "json"}, (stdin or "").encode()))
        except rados.Error as wrong:
            return (wrong.errno if wrong.errno in TOLD else 1), "", str(wrong)
        except RuntimeError as wrong:
            # What Ceph's parser makes of everything that goes wrong on the way, the end of the time included.
            if time.monotonic() - begun < self._limit:
                return 1, "", str(wrong)
            # The thread that waits for the answer holds what it waits with, and goes with the process.
            self._cluster = None
            return TIMED_OUT, "", f"it did not end within {self._limit} s"

    def _connect(self) -> None:
        cluster = rados.Rados(conf=self._settings, **self._place)
        cluster.connect()
        status, described, said = self._send(cluster, {"prefix": "get_command_descriptions"}, b"")
        if status:
            raise RuntimeError(f"the monitors do not describe their commands: {said}")
        self._described = json.loads(described)
        self._cluster = cluster
        atexit.register(self._close)

    def _understood(self, words: Sequence[str]) -> dict[str, Any]:
        """A command by the names of its parts; nothing if the cluster knows no such command."""
        alike = {tag: row for tag, row in self._described.items() if _begins(row["sig"], words)}
        known = ceph_argparse.parse_json_funcsigs(json.dumps(alike), "cli")
        return dict(ceph_argparse.validate_command(known, list(words)) or {}) if known else {}

    def _send(self, cluster: Any, command: dict[str, Any], given: bytes) -> tuple[int, bytes, str]:
        """Status, which is negative for an error, output and message."""
        answer: tuple[int, bytes, str] = ceph_argparse.json_command(
            cluster, argdict=command, inbuf=given, timeout=self._limit
        )
        return answer

    def _close(self) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()


def connect(cluster: str, conf: str, name: str, keyring: str | None, timeout: int) -> Connection | None:
    """A connection for later; None where the libraries are not there for this Python."""
    return Connection(cluster, conf, name, keyring, timeout) if HERE else None


def _begins(signature: Sequence[Any], words: Sequence[str]) -> bool:
    """Whether a command begins with the words that a signature begins with; what follows there is described."""
    literal = list(itertools.takewhile(lambda part: isinstance(part, str), signature))
    return list(words[: len(literal)]) == literal


def _answer(status: int, output: bytes, said: str) -> Answer:
    """As the program tells it."""
    if status < 0:
        return -status, output.decode(), f"Error {errno.errorcode.get(-status, 'Unknown')}: {said}"
    return status, output.decode(), said
