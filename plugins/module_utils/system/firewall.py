# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put rules of nftables into force so that a mistake does not shut the operator out.

New rules hold for a while. Where nobody confirms them in time, by a connection that is made under them, a timer puts
the former ones back.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

TABLE = "inet baremetal_gpu"
ROLLBACK = "baremetal-gpu-firewall-rollback"
# In one step with what follows it, whether the table is there or not.
NO_TABLE = f"table {TABLE}\ndelete table {TABLE}\n"
_S = 60


class Firewall:
    """:param path: of the rules that were confirmed; those that wait for it are beside it."""

    def __init__(self, path: str, run: Run) -> None:
        self._path, self._run = path, run
        self._waiting, self._former = f"{path}.waiting", f"{path}.former"

    def holds(self, rules: str) -> bool:
        """Whether exactly these rules were confirmed and are in force."""
        try:
            same = host_files.read(self._path).decode("utf-8", "replace") == stamped(rules)
        except OSError:
            return False
        return same and self._nft("list", "chain", *TABLE.split(), stamp(rules))[0] == 0

    def apply(self, rules: str, seconds: int) -> None:
        """Raises Refused; the former rules hold then."""
        self._take_back()
        host_files.make_directories(os.path.dirname(self._path))
        host_files.write(self._waiting, stamped(rules), 0o600)
        status, _said, error = self._nft("--check", "--file", self._waiting)
        if status:
            raise Refused(
                f"nft does not take the rules: {one_line(error, 300)}",
                "see firewall_also and firewall_networks",
                code="wrong_rules",
            )
        status, former, _error = self._nft("list", "table", *TABLE.split())
        host_files.write(self._former, NO_TABLE + ("" if status else former), 0o600)
        timer = ["--collect", f"--unit={ROLLBACK}", f"--on-active={seconds}", "--timer-property=AccuracySec=1s"]
        self._must(["systemd-run", *timer, "nft", "--file", self._former])
        status, _said, error = self._nft("--file", self._waiting)
        if status:
            self._take_back()
            raise Refused(f"nft does not take the rules: {one_line(error, 300)}", code="wrong_rules")

    def confirm(self, rules: str) -> None:
        """Whoever calls this has come in under the new rules. Raises Refused where the former ones are back."""
        timer = f"{ROLLBACK}.timer"
        if self._nft("list", "chain", *TABLE.split(), stamp(rules))[0] or not self._is_active(timer):
            raise Refused(
                "the new rules were not confirmed in time, and the former ones are back",
                "raise firewall_confirm_seconds",
                code="not_confirmed",
            )
        # First the file: a boot or a cut between the two leaves rules that were proved to let the operator in.
        host_files.write(self._path, stamped(rules), 0o600)
        self._must(["systemctl", "stop", timer])
        self._forget()

    def remove(self) -> bool:
        """Whether there was anything."""
        there = os.path.lexists(self._path) or self._nft("list", "table", *TABLE.split())[0] == 0
        if there:
            self._run(["systemctl", "stop", f"{ROLLBACK}.timer"], None, _S)
            self._must(["nft", NO_TABLE])
            with suppress(FileNotFoundError):
                host_files.remove(self._path)
            self._forget()
        return there

    def _take_back(self) -> None:
        """Rules that an earlier run has not confirmed are no rules to go back to."""
        timer = f"{ROLLBACK}.timer"
        if self._is_active(timer):
            self._must(["systemctl", "stop", timer])
            self._must(["nft", "--file", self._former])

    def _is_active(self, unit: str) -> bool:
        return self._run(["systemctl", "is-active", "--quiet", unit], None, _S)[0] == 0

    def _forget(self) -> None:
        for path in (self._waiting, self._former):
            with suppress(FileNotFoundError):
                host_files.remove(path)

    def _nft(self, *words: str) -> tuple[int, str, str]:
        return self._run(["nft", *words], None, _S)

    def _must(self, argv: list[str]) -> None:
        status, _said, error = self._run(argv, None, _S)
        if status:
            raise Refused(f"{argv[0]} failed: {one_line(error, 300)}", code="command_failed", subject=argv[0])


def stamp(rules: str) -> str:
    """The name of an empty chain, by which rules in force are known."""
    return f"rules_{hashlib.sha256(rules.encode()).hexdigest()[:16]}"


def stamped(rules: str) -> str:
    """The file of rules for nft, which replaces the table."""
    return f"{NO_TABLE}{rules}table {TABLE} {{\n    chain {stamp(rules)} {{\n    }}\n}}\n"
