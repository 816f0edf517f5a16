# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put an archive of a host back, onto that host or another one.

All of the archive is read and compared before anything changes. What the inventory of today does not have as a part of
this host is never written, whatever the archive says. A journal has which parts are done: a run that was cut goes on,
and one after it changes nothing, for the programs have gone on since.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive, make, passwords
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.archive import (
    DIRECTORY,
    DUMP,
    PASSWORDS,
    Packed,
    Row,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import Part
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import json_object
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.host.versions import version_key

STATE = "/var/lib/baremetal-gpu/restore"
BEGUN, DONE = "begun", "done"
UNIT_S = 180


@contextmanager
def opened(path: str, wanted: Sequence[Part], replace: bool, run: Run, state: str = STATE) -> Iterator[Restore]:
    """An archive, read and compared. Raises Refused and OSError.

    :param path: in a directory that nobody else opens; it is unpacked there.
    :param wanted: the parts of this host as the inventory has them today.
    :param replace: whether what is there may go; it is kept in an archive.
    """
    with tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as private:
        yield Restore(archive.read(path, private), private, wanted, replace, run, state)


class Restore:
    """What is done with an archive that was read: first all that could be wrong is looked for, then each part goes
    back."""

    def __init__(
        self,
        manifest: archive.Manifest,
        private: str,
        wanted: Sequence[Part],
        replace: bool,
        run: Run,
        state: str,
    ) -> None:
        self.manifest, self._private, self._replace, self._run, self._state = manifest, private, replace, run, state
        self._journal_path = os.path.join(state, "journal.json")
        self._journal = self._read_journal()
        named = {part.name: part for part in wanted}
        self._pairs = [
            (named[packed.name], packed) for packed in manifest.parts if packed.name in named and packed.rows
        ]
        # Of another role, or of a host that is not this one any more.
        self.left_out = [packed.name for packed in manifest.parts if packed.name not in named]

    def due(self) -> list[tuple[Part, Packed]]:
        """The parts that are not put back yet."""
        return [(part, packed) for part, packed in self._pairs if self._state_of(part) != DONE]

    def packages(self) -> list[str]:
        """What has to be installed before the parts that are due can be put back."""
        dumps = any(row.kind == DUMP for _part, packed in self.due() for row in packed.rows)
        return ["mariadb-server"] if dumps else []

    def problems(self) -> list[Problem]:
        """Why it cannot be put back here."""
        host = self.manifest.host
        if not self._pairs:
            remedy = f"add the host to the groups that {host} was in, or name another host with --host"
            return [Problem("no_part", host, f"nothing in the archive of {host} is a part of this host", "", remedy)]
        found = []
        for part, packed in self.due():
            found += self._wrong_rows(part, packed) or [*self._wrong_versions(packed), *self._occupied(part, packed)]
        return found

    def put_back(self) -> list[str]:
        """The names of the parts that were put back. Nothing but what problems() has let pass may come here."""
        due = self.due()
        host_files.make_directories(self._state, 0o700)
        if self._replace and any(
            self._state_of(part) != BEGUN and self._occupied_by(part, packed) for part, packed in due
        ):
            aside = os.path.join(self._state, f"before-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}.tar.gz")
            make.make(aside, "before", [part for part, _packed in due], self._run, time.time())
        for part, packed in due:
            self._note(part, BEGUN)
            self._stop(part)
            self._account(part, packed)
            self._remove(part, packed)
            for row in packed.rows:
                self._write(part, row)
            self._note(part, DONE)
        for unit in self._journal["stopped"]:
            self._systemctl("start", unit)
        if self._journal["stopped"]:
            self._journal["stopped"] = []
            self._save()
        return [part.name for part, _packed in due]

    # --- what could be wrong ----------------------------------------------------------------------------------------

    def _wrong_rows(self, part: Part, packed: Packed) -> list[Problem]:
        own = {DUMP: f"/{part.mariadb}", PASSWORDS: passwords.SHADOW if part.people else ""}
        outside = [
            row.path
            for row in packed.rows
            if not (row.path == own[row.kind] if row.kind in own else part.has(row.path))
        ]
        if not outside:
            return []
        return [
            Problem(
                "foreign_path",
                part.name,
                f"the archive has {len(outside)} paths that do not belong to the part {part.name}",
                one_line(outside[0], 200),
                "put the directory into the inventory as it was, or take an archive that you trust",
            )
        ]

    def _wrong_versions(self, packed: Packed) -> list[Problem]:
        found = []
        for package, version in packed.versions.items():
            here = make.version_of(package, self._run) or self._candidate(package)
            if here and _release(here) < _release(version):
                cause = f"{package} {here} is older than {version}, which wrote this, and may not read it"
                remedy = f"install {package} {version} or newer here"
                found.append(Problem("older_version", package, cause, here, remedy))
        return found

    def _candidate(self, package: str) -> str:
        _status, said, _error = self._run(["apt-cache", "policy", package], None, 60)
        lines = [line.partition("Candidate:")[2].strip() for line in said.splitlines() if "Candidate:" in line]
        return lines[0] if lines and lines[0] != "(none)" else ""

    def _occupied(self, part: Part, packed: Packed) -> list[Problem]:
        if self._replace or self._state_of(part) == BEGUN:
            return []
        there = self._occupied_by(part, packed)
        if not there:
            return []
        remedy = "restore before `gpuops up` comes to the host; with --replace what is there goes, and a copy is kept"
        return [Problem("occupied", part.name, f"the host has {part.name} of its own already: {there}", there, remedy)]

    def _occupied_by(self, part: Part, packed: Packed) -> str:
        """What is there of a part and is not in the archive as it is; empty for nothing."""
        if part.mariadb and any(row.kind == DUMP for row in packed.rows) and make.has_database(part.mariadb, self._run):
            return f"the database {part.mariadb}"
        for one in packed.rows:
            kept = self._passwords(one) if one.kind == PASSWORDS else {}
            for name, hashed in passwords.read(part.people).items() if kept else ():
                if kept.get(name, hashed) != hashed:
                    return f"the password of {name}"
        same = {row.path: row for row in packed.rows}
        for path in _files(part):
            row = same.get(path)
            if row is None or _sha256(path) != row.sha256:
                return path
        return ""

    # --- what is done -----------------------------------------------------------------------------------------------

    def _stop(self, part: Part) -> None:
        for unit in part.units:
            if self._run(["systemctl", "is-active", "--quiet", unit], None, 60)[0] == 0:
                # Before it stops: a run that is cut then starts it all the same.
                if unit not in self._journal["stopped"]:
                    self._journal["stopped"].append(unit)
                    self._save()
                self._systemctl("stop", unit)

    def _systemctl(self, verb: str, unit: str) -> None:
        status, _said, error = self._run(["systemctl", verb, unit], None, UNIT_S)
        if status:
            raise Refused(
                f"{unit} does not {verb}: {one_line(error, 300)}",
                f"see 'systemctl status {unit}', then run this again",
                code="unit_failed",
                subject=unit,
            )

    def _account(self, part: Part, packed: Packed) -> None:
        """An account of the system as the package would make it, with the number that it had: all hosts of Slurm have
        to agree on slurm's. A number that another account has is not given."""
        if not part.account or _uid(part.account, -1) >= 0:
            return
        uid = ["--uid", str(packed.uid)] if _is_free(packed.uid, pwd.getpwuid) else []
        gid = ["--gid", str(packed.gid)] if _is_free(packed.gid, grp.getgrgid) else []
        made = ["--no-create-home", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin"]
        argvs = [["useradd", "--system", *uid, "--gid", part.account, *made, part.account]]
        if _gid(part.account, -1) < 0:
            argvs.insert(0, ["groupadd", "--system", *gid, part.account])
        for argv in argvs:
            status, _said, error = self._run(argv, None, 60)
            if status:
                raise Refused(f"the account {part.account} cannot be made: {one_line(error, 300)}", code="no_account")

    @staticmethod
    def _remove(part: Part, packed: Packed) -> None:
        wanted = {row.path for row in packed.rows}
        for path in _files(part):
            if path not in wanted:
                with suppress(FileNotFoundError):
                    host_files.remove(path)

    def _write(self, part: Part, row: Row) -> None:
        if row.kind == DUMP:
            self._load(row)
            return
        if row.kind == PASSWORDS:
            passwords.put_back(self._passwords(row), part.people, self._run)
            return
        uid, gid = _uid(row.owner, _uid(part.account, 0)), _gid(row.group, _gid(part.account, 0))
        # No bit that gives the rights of another account.
        mode = row.mode & 0o777
        if row.kind == DIRECTORY:
            host_files.make_directories(row.path, mode, uid, gid)
            with host_files.place(row.path) as there:
                there.give(mode, uid, gid)
            return
        host_files.make_directories(os.path.dirname(row.path))
        with open(os.path.join(self._private, str(row.member)), "rb") as file:
            host_files.write(row.path, file.read(), mode, uid, gid)

    def _passwords(self, row: Row) -> dict[str, str]:
        with open(os.path.join(self._private, str(row.member)), "rb") as file:
            content = file.read(passwords.AT_MOST + 1)
        try:
            return passwords.parsed(content)
        except Malformed as why:
            raise archive.Damaged(self.manifest.host, str(why)) from why

    def _load(self, row: Row) -> None:
        with open(os.path.join(self._private, str(row.member)), "rb") as file:
            done = subprocess.run(["mariadb"], stdin=file, capture_output=True, timeout=make.DUMP_S, check=False)
        if done.returncode:
            raise Refused(
                f"the database {row.path[1:]} was not loaded: {one_line(done.stderr.decode('utf-8', 'replace'), 300)}",
                "see `systemctl status mariadb`, then run this again",
                code="not_loaded",
            )

    # --- the journal ------------------------------------------------------------------------------------------------

    def _read_journal(self) -> dict[str, Any]:
        with suppress(OSError, Malformed):
            found = json_object(host_files.read(self._journal_path, 1 << 20))
            if isinstance(found.get("archives"), dict) and isinstance(found.get("stopped"), list):
                return found
        return {"archives": {}, "stopped": []}

    def _state_of(self, part: Part) -> str:
        states: Mapping[str, str] = self._journal["archives"].get(self.manifest.id, {})
        return states.get(part.name, "")

    def _note(self, part: Part, state: str) -> None:
        self._journal["archives"].setdefault(self.manifest.id, {})[part.name] = state
        self._save()

    def _save(self) -> None:
        host_files.write(self._journal_path, json.dumps(self._journal, sort_keys=True), 0o600)


def _release(version: str) -> tuple[int, ...]:
    """The part of a version with which a format changes: 24.11 of 24.11.5-4."""
    return version_key(version.rpartition(":")[2])[:2]


def _files(part: Part) -> Iterator[str]:
    """The files of a part that are there."""
    for root in part.paths:
        if os.path.isdir(root) and not os.path.islink(root):
            for directory, names, files in os.walk(root):
                names[:] = [name for name in names if part.has(os.path.join(directory, name))]
                yield from (path for path in (os.path.join(directory, name) for name in files) if part.has(path))
        elif os.path.lexists(root):
            yield root


def _sha256(path: str) -> str:
    try:
        return archive.sha256(host_files.read(path))
    except OSError:
        return ""


def _is_free(number: int, lookup: Callable[[int], Any]) -> bool:
    """Whether it is a number for an account of the system that no account has: Debian's are below 1000, and from 60000
    on where all hosts have the same."""
    if not (100 <= number < 1000 or 60000 <= number < 65000):
        return False
    try:
        lookup(number)
    except KeyError:
        return True
    return False


def _uid(name: str, otherwise: int) -> int:
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError:
        return otherwise


def _gid(name: str, otherwise: int) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return otherwise
