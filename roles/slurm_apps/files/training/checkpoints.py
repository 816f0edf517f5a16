# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of a training, in a directory that all hosts share.

A checkpoint is two files:

    000000001200-0f3c….pt   the state
    000000001200.json       its name, size and SHA-256; written last

Both appear whole or not at all. What a full disk, a killed process or a bad block makes of them is found by the
SHA-256, and the checkpoint before it is taken. Only the run that has claimed the directory last writes there.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Callable

OWNER = "owner"
NEW = ".new"
CHUNK = 1 << 20
MOMENT_S = 3600.0
STEP = re.compile(r"([0-9]{12})\.json", re.ASCII)
STATE = re.compile(r"[0-9]{12}-[0-9a-f]{16}\.pt", re.ASCII)


class Torn(Exception):
    """Files of a checkpoint are not what was written."""


class Taken(Exception):
    """Another run has claimed the directory."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint.

    :ivar step: how many steps were done.
    :ivar path: the file with the state.
    :ivar settings: those of the run that wrote it.
    :ivar sha256: of the file, as it was written.
    """

    step: int
    path: Path
    settings: dict[str, Any]
    sha256: str


class Store:
    """The checkpoints of one training.

    :param keep: how many of the newest stay, at least 1.
    :param owner: names this run; a job that is queued again is another run.
    """

    def __init__(self, directory: Path, keep: int, owner: str) -> None:
        self.directory, self.keep, self.owner = directory, max(1, keep), owner

    def claim(self) -> None:
        """From now on no other run writes here."""
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._write(OWNER, self.owner)
        except OSError as why:
            if why.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            # What lost runs have left may be what fills the disk.
            self._remove_leftovers()
            self._write(OWNER, self.owner)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for left in self.directory.glob(f"*{NEW}"):
            left.unlink(missing_ok=True)
        named = {f"{step:012d}" for step in self._steps()}
        for state in self.directory.glob("*.pt"):
            # The name of a checkpoint comes a moment after its state.
            if STATE.fullmatch(state.name) and state.name[:12] not in named and _age(state) > MOMENT_S:
                state.unlink(missing_ok=True)

    def save(self, step: int, settings: dict[str, Any], write: Callable[[IO[bytes]], object]) -> Path:
        """Write a checkpoint, and remove the oldest.

        :param write: writes the state into a file.
        :raises Taken: nothing is changed.
        :raises OSError: such as a full disk. All checkpoints from before are still there.
        """
        self._must_be_ours()
        new = self.directory / f"{step:012d}.pt{NEW}"
        try:
            with new.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            digest = _digest(new)
            state = new.with_name(f"{step:012d}-{digest[:16]}.pt")
            row = {"step": step, "state": state.name, "bytes": new.stat().st_size, "sha256": digest}
            self._must_be_ours()
            os.replace(new, state)
            try:
                self._write(f"{step:012d}.json", json.dumps({**row, "settings": settings}))
            except OSError:
                # A state that nothing names would only take space.
                if not (self.directory / f"{step:012d}.json").exists():
                    state.unlink(missing_ok=True)
                raise
        except FileNotFoundError:
            # Whoever claims the directory removes what others have not ended.
            self._must_be_ours()
            raise
        finally:
            new.unlink(missing_ok=True)
        self._prune(step, state.name)
        return state

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest whole checkpoint, and what is wrong with those that are newer.

        :raises OSError: the file system does not answer; that is no torn checkpoint.
        """
        torn: list[str] = []
        for step in sorted(self._steps(), reverse=True):
            if checkpoint := self._read(step, torn):
                return checkpoint, torn
        return None, torn

    def _read(self, step: int, torn: list[str]) -> Checkpoint | None:
        try:
            return self._whole(step)
        except Torn as why:
            torn.append(f"{self.directory}/{step:012d}.json: {why}")
            return None

    def _whole(self, step: int) -> Checkpoint:
        checkpoint = self.named(step)
        if _digest(checkpoint.path) != checkpoint.sha256:
            raise Torn(f"{checkpoint.path.name} has another SHA-256 than what was written")
        return checkpoint

    def named(self, step: int) -> Checkpoint:
        """The checkpoint of a step, whose content another process has compared with its SHA-256.

        :raises Torn: it is not there, or has another size.
        :raises OSError: the file system does not answer.
        """
        try:
            row = json.loads((self.directory / f"{step:012d}.json").read_text(encoding="utf-8"))
            name, size, digest, settings = (row[key] for key in ("state", "bytes", "sha256", "settings"))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Torn("it is not the JSON of a checkpoint") from None
        if row["step"] != step or not isinstance(name, str) or not STATE.fullmatch(name):
            raise Torn("it is that of another checkpoint")
        if not isinstance(settings, dict):
            raise Torn("it has no settings")
        path = self.directory / name
        try:
            there = path.stat().st_size
        except FileNotFoundError:
            raise Torn(f"{name} is not there") from None
        if there != size:
            raise Torn(f"{name} has {there} bytes, and {size} were written")
        return Checkpoint(step, path, settings, digest)

    def _steps(self) -> Iterator[int]:
        for path in self.directory.glob("*.json"):
            if named := STEP.fullmatch(path.name):
                yield int(named[1])

    def _must_be_ours(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            owner = (self.directory / OWNER).read_text(encoding="utf-8")
            if owner != self.owner:
                raise Taken(f"{self.directory} now belongs to {owner[:100]!r}, and this is {self.owner!r}")
            return
        raise Taken(f"{self.directory} is no longer there, or has no owner")

    def _prune(self, step: int, state: str) -> None:
        """Newer ones, which were torn, are replaced when their steps are done again."""
        for path in self.directory.glob(f"{step:012d}-*.pt"):
            if path.name != state:
                path.unlink(missing_ok=True)
        older = sorted((one for one in self._steps() if one <= step), reverse=True)
        for one in older[self.keep :]:
            # First what names the other.
            for pattern in (f"{one:012d}.json", f"{one:012d}-*.pt"):
                for path in self.directory.glob(pattern):
                    path.unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        new = self.directory / f"{name}.{os.getpid()}{NEW}"
        try:
            with new.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self.directory / name)
        finally:
            new.unlink(missing_ok=True)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            found.update(chunk)
    return found.hexdigest()
