# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How commands of Ceph are run: JSON out, secrets by standard input, errors with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Optional, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

Run = Callable[[list[str], Optional[str], float], "tuple[int, str, str]"]

UNREACHABLE = (
    "see that a majority of the monitors runs ('systemctl status ceph-mon@*' on their hosts) and that this host "
    "reaches their ports 3300 and 6789"
)
DENIED = "see that the keyring is this cluster's and that the key may do this"
NAMED = "correct what it names; 'sudo ceph -s' on a host of ceph_mons shows whether the cluster is well"


class CephError(Exception):
    """A command of Ceph that failed: what it said, its exit status, its words, and what to do."""

    def __init__(self, message: str, rc: int, words: tuple[str, ...], remedy: str) -> None:
        command = f"ceph {' '.join(words)}"
        self.problem = Problem("ceph_command", command, f"'{command}' ended with {rc}: {message}", message, remedy)
        super().__init__(str(self.problem))
        self.message = message
        self.rc = rc
        self.words = words
        self.remedy = remedy


def is_late(rc: int, said: str) -> bool:
    """Whether a command failed because nobody answered in its time, by its exit status and what it said."""
    # The program ends with 1 when its time is over, as with much else.
    return rc in (110, 124) or said == "timed out"


class Library(Protocol):
    """What is asked before the program; see ceph_library."""

    def ask(self, words: Sequence[str], stdin: str | None) -> tuple[int, str, str] | None:
        """Exit status, stdout and stderr as the program has them; None for what only the program can be asked."""


class Ceph:
    """The commands of `ceph` under one name and keyring.

    :param run: runs argument vector and standard input with a time limit in seconds; exit status, stdout, stderr.
    :param library: makes what is asked in the place of the program, of cluster, conf, name, keyring and timeout; None
        where it cannot be had. By default only the program is asked.
    """

    def __init__(
        self,
        run: Run,
        cluster: str = "ceph",
        conf: str = "/etc/ceph/ceph.conf",
        name: str = "client.admin",
        keyring: str | None = None,
        timeout: int = 30,
        library: Callable[[str, str, str, str | None, int], Library | None] | None = None,
    ) -> None:
        self.run, self.conf = run, conf
        self.library = library and library(cluster, conf, name, keyring, timeout)
        self.options = ["--cluster", cluster, "--conf", conf, "--name", name]
        if keyring:
            self.options += ["--keyring", keyring]
        self.timeout = timeout

    def json(self, *words: str, stdin: str | None = None) -> Any:
        """What `ceph WORDS --format json` answers; None for an empty answer.

        :param stdin: what the command is given beside its words, as by the program's option -i.
        :raises CephError: if it fails or answers no JSON.
        """
        rc, stdout, stderr = (self.library and self.library.ask(words, stdin)) or self._program(words, stdin)
        if rc != 0:
            # Some of its lines are warnings of the client, which the last one is not.
            said = (stderr.strip() or stdout.strip() or "it said nothing").splitlines()[-1]
            remedy = UNREACHABLE if is_late(rc, said) else DENIED if rc in (1, 13) else NAMED
            if "conf_read_file" in said:
                remedy = f"see that {self.conf} is there and can be read; `gpuops up --tags storage` writes it"
            raise CephError(said, rc, words, remedy)
        try:
            return json.loads(stdout) if stdout.strip() else None
        except (ValueError, RecursionError):
            raise CephError(
                f"it answered no JSON but {stdout[:200]!r}",
                rc,
                words,
                "correct what it names; 'sudo ceph -s' on a host of ceph_mons shows whether the cluster is well",
            ) from None

    def _program(self, words: Sequence[str], stdin: str | None) -> tuple[int, str, str]:
        given = ["-i", "-"] if stdin is not None else []
        argv = ["ceph", *self.options, "--connect-timeout", str(self.timeout), *words, *given, "--format", "json"]
        return self.run(argv, stdin, self.timeout + 10)
