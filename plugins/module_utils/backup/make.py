# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Make an archive of the parts of this host, while its programs run."""

from __future__ import annotations

import io
import json
import os
import pwd
import shutil
import sqlite3
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive, etcd, passwords, slurm_state
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.archive import (
    DIRECTORY,
    DUMP,
    FILE,
    PASSWORDS,
    Packed,
    Row,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import SNAPSHOT, Part
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# slurmctld replaces a file by two renames, between which it has another name.
TRIES, TRY_S = 10, 0.02
# What SQLite has beside a database.
BESIDE = ("-wal", "-shm", "-journal")
DUMP_S = 3600


def make(path: str, host: str, parts: Sequence[Part], run: Run, now: float) -> archive.Manifest:
    """Write an archive to a path, and compare what was written. Raises Refused and OSError; nothing is there then."""
    manifest = archive.Manifest(host, int(now), system=_system())
    if any(part.saved_by == "slurmctld" for part in parts):
        # The jobs that run when a backup begins are in it.
        slurm_state.save(run)
    with archive.new_file(path) as file, tempfile.TemporaryDirectory(dir=os.path.dirname(path)) as private:
        writer = archive.Writer(file)
        for part in parts:
            manifest.parts.append(_Packing(writer, part, private, run).packed())
        writer.close(manifest)
        file.flush()
        written = archive.read(file.name)
        if written.id != manifest.id:
            raise archive.Damaged(path, "it was not written as it is")
    return manifest


def _system() -> str:
    fields = dict(
        line.split("=", 1) for line in host_files.read_text("/etc/os-release", 65536).splitlines() if "=" in line
    )
    return one_line(fields.get("PRETTY_NAME", "").strip('"'), 100)


def version_of(package: str, run: Run) -> str:
    """The version of a package that is installed; empty if it is not."""
    status, said, _error = run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Status} ${Version}", package], None, 60
    )
    state, _blank, version = said.strip().partition(" ")
    return version if status == 0 and state == "installed" else ""


class _Packing:
    def __init__(self, writer: archive.Writer, part: Part, private: str, run: Run) -> None:
        self._writer, self._part, self._private, self._run = writer, part, private, run
        self._found = Packed(part.name)

    def packed(self) -> Packed:
        if self._part.not_needed:
            self._found.not_needed = self._part.not_needed
            return self._found
        with suppress(KeyError):
            account = pwd.getpwnam(self._part.account)
            self._found.uid, self._found.gid = account.pw_uid, account.pw_gid
        versions = {name: version_of(name, self._run) for name in self._part.packages}
        self._found.versions = {name: version for name, version in versions.items() if version}
        with self._frozen():
            for path in self._part.paths:
                self._take(path)
        for path in self._part.sqlite:
            self._copy_sqlite(path)
        if self._part.saved_by == "etcd" and etcd.member() is not None:
            copy = os.path.join(self._private, "etcd")
            etcd.save(copy, self._run)
            self._add_copy(copy, Row(FILE, SNAPSHOT))
        if self._part.mariadb:
            self._dump(self._part.mariadb)
        hashes = passwords.read(self._part.people) if self._part.people else {}
        if hashes:
            content = io.BytesIO(json.dumps(hashes, sort_keys=True).encode())
            self._found.rows.append(self._writer.add(Row(PASSWORDS, passwords.SHADOW), content))
        return self._found

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        unit = self._part.frozen
        if unit:
            self._signal("SIGSTOP")
        try:
            yield
        finally:
            if unit:
                self._signal("SIGCONT")

    def _signal(self, name: str) -> None:
        status, _said, error = self._run(
            ["systemctl", "kill", "--kill-whom=all", f"--signal={name}", self._part.frozen], None, 60
        )
        if status and name == "SIGCONT":
            raise Refused(
                f"{self._part.frozen} stands still: {one_line(error)}",
                f"sudo systemctl kill --signal=SIGCONT {self._part.frozen}",
                code="stands_still",
            )

    def _take(self, path: str) -> bool:
        """Put in what is at a path; false if nothing is there, and it may have another name now."""
        if not self._part.has(path) or any(path in (one, *(one + end for end in BESIDE)) for one in self._part.sqlite):
            return True
        if self._part.saved_by == "etcd" and path == SNAPSHOT:
            return True
        status = None
        # An operator's own links lead where he keeps things.
        with suppress(FileNotFoundError), host_files.place(path, follow=True) as there:
            status = there.status()
        if status is None:
            return False
        if stat.S_ISDIR(status.st_mode) and not os.path.islink(path):
            self._found.rows.append(Row.of(DIRECTORY, path, status))
            self._take_below(path)
        elif stat.S_ISREG(status.st_mode):
            return self._take_file(path)
        elif not stat.S_ISSOCK(status.st_mode):
            self._found.passed_over.append(path)
        return True

    def _take_below(self, directory: str) -> None:
        """Files before directories: what slurmctld has in files tells what it has in directories."""
        taken: set[str] = set()
        # Again for a file that had another name meanwhile.
        for look in range(TRIES):
            with os.scandir(directory) as entries:
                new = [entry for entry in entries if entry.name not in taken]
            if look and not new:
                return
            for entry in sorted(new, key=lambda entry: (entry.is_dir(follow_symlinks=False), entry.name)):
                if self._take(entry.path):
                    taken.add(entry.name)
            time.sleep(TRY_S)

    def _take_file(self, path: str) -> bool:
        for attempt in range(TRIES):
            try:
                with host_files.place(path, follow=True) as there, os.fdopen(there.open(), "rb") as file:
                    status = os.fstat(file.fileno())
                    with tempfile.SpooledTemporaryFile(max_size=32 << 20, dir=self._private) as content:
                        shutil.copyfileobj(file, content, archive.CHUNK)
                        self._found.rows.append(self._writer.add(Row.of(FILE, path, status), content))
                return True
            except FileNotFoundError:
                pass
            except host_files.Unsafe as why:
                if attempt == TRIES - 1:
                    raise Refused(str(why), code="unsafe", subject=path) from why
            time.sleep(TRY_S)
        return False

    def _copy_sqlite(self, path: str) -> None:
        if not os.path.lexists(path):
            return
        copy = os.path.join(self._private, "sqlite")
        try:
            host_files.check(path)
            status = os.stat(path, follow_symlinks=False)
            source, target = sqlite3.connect(f"{Path(path).as_uri()}?mode=ro", uri=True), sqlite3.connect(copy)
            try:
                source.backup(target)
                if target.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                    raise sqlite3.DatabaseError("it is damaged")
            finally:
                target.close()
                source.close()
        except (sqlite3.Error, host_files.Unsafe) as why:
            raise Refused(f"the database {path} was not copied: {why}", code="not_copied", subject=path) from why
        self._add_copy(copy, Row.of(FILE, path, status))

    def _dump(self, database: str) -> None:
        if not has_database(database, self._run):
            return
        copy = os.path.join(self._private, "dump")
        argv = ["mariadb-dump", "--single-transaction", "--routines", "--skip-dump-date", "--databases", database]
        with open(copy, "wb") as file:
            try:
                done = subprocess.run(argv, stdout=file, stderr=subprocess.PIPE, timeout=DUMP_S, check=False)
                wrong = done.stderr.decode("utf-8", "replace") if done.returncode else ""
            except (OSError, subprocess.TimeoutExpired) as why:
                wrong = str(why)
        if wrong:
            raise Refused(
                f"the database {database} was not dumped: {one_line(wrong, 300)}",
                "see `systemctl status mariadb` there",
                code="not_dumped",
                subject=database,
            )
        self._add_copy(copy, Row(DUMP, f"/{database}"))

    def _add_copy(self, copy: str, row: Row) -> None:
        with open(copy, "rb") as file:
            self._found.rows.append(self._writer.add(row, file))
        os.unlink(copy)


def has_database(database: str, run: Run) -> bool:
    """Whether MariaDB has tables there. Raises Refused if it does not answer."""
    question = f"SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = '{database}'"
    status, said, error = run(["mariadb", "--skip-column-names", "--batch", "--execute", question], None, 60)
    if status == 127:
        return False
    if status:
        raise Refused(
            f"MariaDB does not answer: {one_line(error, 300)}",
            "see `systemctl status mariadb` there",
            code="no_mariadb",
        )
    return said.strip() != "0"
