# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How commands of Ceph are run: JSON out, secrets by standard input, errors with a remedy."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Optional

Run = Callable[[list[str], Optional[str], float], "tuple[int, str, str]"]

UNREACHABLE = (
    "see that a majority of the monitors runs ('systemctl status ceph-mon@*' on their hosts) and that this host "
    "reaches their ports 3300 and 6789"
)
DENIED = "see that the keyring is this cluster's and that the key may do this"


class CephError(Exception):
    """A command of Ceph that failed: what it said, its exit status, its words, and what to do."""

    def __init__(self, message: str, rc: int, words: tuple[str, ...], remedy: str) -> None:
        super().__init__(f"'ceph {' '.join(words)}' ended with {rc}: {message}. To do: {remedy}")
        self.message = message
        self.rc = rc
        self.words = words
        self.remedy = remedy


class Ceph:
    """The command `ceph` under one name and keyring.

    :param run: runs argument vector and standard input with a time limit in seconds; exit status, stdout, stderr.
    """

    def __init__(
        self,
        run: Run,
        cluster: str = "ceph",
        conf: str = "/etc/ceph/ceph.conf",
        name: str = "client.admin",
        keyring: str | None = None,
        timeout: int = 30,
    ) -> None:
        self.run, self.conf = run, conf
        self.options = ["--cluster", cluster, "--conf", conf, "--name", name]
        if keyring:
            self.options += ["--keyring", keyring]
        self.timeout = timeout

    def json(self, *words: str, stdin: str | None = None) -> Any:
        """What `ceph WORDS --format json` answers; None for an empty answer.

        :raises CephError: if it fails or answers no JSON.
        """
        argv = ["ceph", *self.options, "--connect-timeout", str(self.timeout), *words, "--format", "json"]
        rc, stdout, stderr = self.run(argv, stdin, self.timeout + 10)
        if rc != 0:
            # Some of its lines are warnings of the client, which the last one is not.
            said = (stderr.strip() or stdout.strip() or "it said nothing").splitlines()[-1]
            remedy = DENIED if rc in (1, 13) else UNREACHABLE if rc in (110, 124) else "read what it said"
            if "conf_read_file" in said:
                remedy = f"see that {self.conf} is there and can be read; playbooks/storage.yml writes it"
            raise CephError(said, rc, words, remedy)
        try:
            return json.loads(stdout) if stdout.strip() else None
        except ValueError:
            raise CephError(f"it answered no JSON but {stdout[:200]!r}", rc, words, "read what it said") from None
