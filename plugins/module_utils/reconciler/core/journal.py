# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One line for everything that the reconciler decides, begins and ends: JSON in files, words in systemd's journal.

The newest lines are in PATH. A file that is full becomes PATH.1, that one PATH.2, and so on; the oldest goes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

FILE_BYTES = 16 << 20
FILES = 5
WARNING, INFO = "<4>", "<6>"


def words(row: Mapping[str, Any]) -> str:
    """A row for people: ``gpu1: begin 3: deactivate: fatal: …``, with what else is short behind it."""
    host = "" if row["host"] == "*" else f"{row['host']}: "
    step = row.get("step") or {}
    named = [row.get(key, step.get(key)) for key in ("kind", "result", "why")]
    parts = [" ".join(str(row[key]) for key in ("what", "number") if key in row), *(str(one) for one in named if one)]
    if row["what"] == "would":
        # The reason says it all.
        parts = [str(row["why"])]
    rest = [f"{key} {row[key]}" for key in ("by", "uuid", "seconds", "mode", "nodes") if row.get(key) is not None]
    rest += [f"{key} {', '.join(map(str, row[key]))}" for key in ("waiting", "hosts") if row.get(key)]
    joined = "; ".join(rest)
    text = one_line(f"{host}{': '.join(parts)}{f' ({joined})' if rest else ''}")
    # A terminal has no use for the priority of sd-daemon(3).
    return f"{WARNING if row['what'] == 'problem' else INFO}{text}" if "JOURNAL_STREAM" in os.environ else text


class Journal:
    """Lines of JSON: {time, host, what, ...}. What was begun is on the disk before it is done.

    No file is larger than `file_bytes`, unless by a single line, and there are `files` of them at most, two or more. A
    line that was cut ends before the next begins, so readers lose that line and no other.

    A disk that is full stops nobody: ZooKeeper has what is needed to go on, and the line is told all the same.
    """

    def __init__(
        self, path: Path | None, out: TextIO = sys.stdout, file_bytes: int = FILE_BYTES, files: int = FILES
    ) -> None:
        self.path, self.out = path, out
        self.file_bytes, self.files = file_bytes, files
        self.problem = ""

    def write(self, host: str, what: str, **more: Any) -> dict[str, Any]:
        row = {"time": round(time.time(), 3), "host": host, "what": what, **more}
        line = json.dumps(row, separators=(",", ":"), sort_keys=False)
        self._say(words(row))
        if self.path is not None:
            self._keep(self.path, line, durable=what in ("begin", "end"))
        return row

    def _keep(self, path: Path, line: str, durable: bool) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = self._open(path, len(line) + 1)
            try:
                _append(descriptor, line)
                if durable:
                    os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
            self.problem = ""
        except OSError as why:
            if not self.problem:
                self.problem = f"{path} cannot be written: {why.strerror}"
                self._say(words({"host": "*", "what": "problem", "why": self.problem}))

    def _say(self, line: str) -> None:
        """Where nobody takes it, as with a file on a full disk, there is the file of ours."""
        with contextlib.suppress(OSError):
            self.out.write(f"{line}\n")
            self.out.flush()

    def _open(self, path: Path, more: int) -> int:
        """The file with room for so many bytes, locked until it is closed: a look by hand may be beside the service."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    # A pipe that nobody reads is full one day, and then waits.
                    raise OSError(errno.EINVAL, "it is not a regular file")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                if _is(descriptor, path):
                    if not size or size + more <= self.file_bytes:
                        return descriptor
                    self._turn(path)
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _turn(self, path: Path) -> None:
        """Renames only, the oldest first: a cut leaves a number out, and no line is lost with it."""
        numbered = [path] + [path.with_name(f"{path.name}.{number}") for number in range(1, self.files)]
        # Without a gap, all of them move by one; after a cut, those above the gap are in their place.
        last = next((place for place, name in enumerate(numbered) if not name.exists()), self.files - 1)
        for place in range(last, 0, -1):
            os.replace(numbered[place - 1], numbered[place])
        for number in range(self.files, self.files + 100):
            # More than that were kept before the setting was changed.
            older = path.with_name(f"{path.name}.{number}")
            if not older.exists():
                break
            older.unlink()
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _is(descriptor: int, path: Path) -> bool:
    """Whether it is still the file of that name, which another may have turned meanwhile."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _append(descriptor: int, line: str) -> None:
    """Raises OSError where not all of it can be written; nothing of it is left then."""
    size = os.fstat(descriptor).st_size
    cut = size and os.pread(descriptor, 1, size - 1) != b"\n"
    rest = (f"\n{line}\n" if cut else f"{line}\n").encode()
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
