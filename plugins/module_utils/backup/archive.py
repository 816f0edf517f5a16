# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive of what one host alone knows: its format, and the way in and out.

It is a tar file with members that are numbers, and with a manifest as its last one, which has path, owner, mode and
SHA-256 of each. So nothing in it leads anywhere: whoever reads it decides which of the paths are written.
"""

from __future__ import annotations

import grp
import gzip
import hashlib
import io
import json
import os
import pwd
import stat
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.parts import NAME, PATH
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    list_of,
    mapping_of,
    object_of,
    one_of,
    text,
    whole,
)

FORMAT = 1
MANIFEST = "manifest.json"
MANIFEST_AT_MOST = 256 << 20
FILES_AT_MOST = 1_000_000
CHUNK = 1 << 20
FILE, DIRECTORY, DUMP, PASSWORDS = "file", "directory", "dump", "passwords"
_OWNER = text(r"[A-Za-z0-9_.-]{1,64}\$?", 65, "the name of an account")
_ROW = object_of(
    {"kind": one_of(FILE, DIRECTORY, DUMP, PASSWORDS), "path": PATH},
    {
        "owner": _OWNER,
        "group": _OWNER,
        "mode": whole(0, 0o7777),
        "member": whole(0, FILES_AT_MOST),
        "size": whole(),
        "sha256": text(r"[0-9a-f]{64}", 64),
    },
)
_PART = object_of(
    {"name": NAME, "rows": list_of(_ROW, FILES_AT_MOST)},
    {
        "uid": whole(0, 1 << 31),
        "gid": whole(0, 1 << 31),
        "versions": mapping_of(NAME, text(r"[A-Za-z0-9.+:~-]{1,100}", 100)),
        "passed_over": list_of(text(), 10000),
        "not_needed": text(),
    },
)
_SHAPE = object_of(
    {
        "format": whole(1),
        "host": NAME,
        "made": whole(),
        "parts": list_of(_PART),
    },
    {"system": text()},
)


@dataclass
class Row:
    """A file, a directory, a dump of MariaDB, whose path is its database's name below /, or passwords of people."""

    kind: str
    path: str
    owner: str = "root"
    group: str = "root"
    mode: int = 0o600
    member: int = -1
    size: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, kind: str, path: str, status: os.stat_result) -> Row:
        owner, group = str(status.st_uid), str(status.st_gid)
        with suppress(KeyError):
            owner = pwd.getpwuid(status.st_uid).pw_name
        with suppress(KeyError):
            group = grp.getgrgid(status.st_gid).gr_name
        return cls(kind, path, owner, group, stat.S_IMODE(status.st_mode))


@dataclass
class Packed:
    """A part as it is in an archive.

    :ivar uid: the number of its account, 0 for none; and so ``gid``.
    """

    name: str
    uid: int = 0
    gid: int = 0
    rows: list[Row] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    not_needed: str = ""


@dataclass
class Manifest:
    host: str
    made: int
    parts: list[Packed] = field(default_factory=list)
    system: str = ""
    format: int = FORMAT

    @property
    def id(self) -> str:
        return hashlib.sha256(self.as_json()).hexdigest()

    def as_json(self) -> bytes:
        parts = [{**asdict(part), "rows": [_row(row) for row in part.rows]} for part in self.parts]
        return json.dumps({**asdict(self), "parts": parts}, sort_keys=True).encode()


def _row(row: Row) -> dict[str, Any]:
    found = asdict(row)
    return found if row.member >= 0 else {key: found[key] for key in found if key not in ("member", "size", "sha256")}


class Damaged(Refused):
    """An archive that is not as it was made, or was never one."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is not a complete archive: {why}",
            "take another one; `gpuops backup --list` shows them",
            code="damaged",
        )


class Writer:
    """Writes an archive member by member."""

    def __init__(self, file: IO[bytes]) -> None:
        # What is read of a slurmctld is text that packs well; more than this takes time and saves little.
        self._tar = tarfile.open(  # noqa: SIM115  # close() closes it
            fileobj=file, mode="w:gz", compresslevel=3, format=tarfile.PAX_FORMAT
        )
        self._count = 0

    def add(self, row: Row, source: IO[bytes]) -> Row:
        """Put all of a file in; the row gets its size and hash. `source` can be read from any place again."""
        row.size = source.seek(0, os.SEEK_END)
        source.seek(0)
        hashing = _Hashing(source)
        row.member, self._count = self._count, self._count + 1
        self._tar.addfile(_member(str(row.member), row.size), hashing)
        row.sha256 = hashing.hash.hexdigest()
        return row

    def close(self, manifest: Manifest) -> None:
        content = manifest.as_json()
        self._tar.addfile(_member(MANIFEST, len(content)), io.BytesIO(content))
        self._tar.close()


def _member(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o600
    return info


class _Hashing:
    def __init__(self, source: IO[bytes]) -> None:
        self._source, self.hash = source, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.hash.update(data)
        return data


@contextmanager
def new_file(path: str) -> Iterator[IO[bytes]]:
    """A file that only its owner reads, and that takes its place when it is whole."""
    with host_files.place(path) as there:
        draft = f"/proc/self/fd/{there.directory}/{host_files.DRAFT}{os.urandom(8).hex()}"
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(draft, f"/proc/self/fd/{there.directory}/{there.name}")
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft)
                raise
        there.sync()


def read(path: str, directory: str = "") -> Manifest:
    """The manifest of an archive, of which every byte was compared.

    :param directory: where each member is written by its number; nowhere if it is left out.
    :raises Damaged: also for what somebody has made up.
    """
    hashes: dict[int, tuple[int, str]] = {}
    content = None
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for info in tar:
                source = tar.extractfile(info) if info.isreg() else None
                if source is None or content is not None or info.size < 0:
                    raise Damaged(path, f"the member {info.name[:60]!r} is none of ours")
                if info.name == MANIFEST:
                    if info.size > MANIFEST_AT_MOST:
                        raise Damaged(path, "its manifest is too large")
                    content = source.read()
                elif info.name == str(len(hashes)) and len(hashes) < FILES_AT_MOST:
                    hashes[len(hashes)] = copy(source, os.path.join(directory, info.name) if directory else "")
                else:
                    raise Damaged(path, f"the member {info.name[:60]!r} is none of ours")
            # Its checksum is at the end.
            while stream.read(CHUNK):
                pass
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError) as why:
        if isinstance(why, OSError) and why.errno is not None:
            raise
        raise Damaged(path, str(why) or type(why).__name__) from why
    manifest = _manifest(path, content)
    told = {row.member: (row.size, row.sha256) for part in manifest.parts for row in part.rows if row.member >= 0}
    if told != hashes:
        raise Damaged(path, "its content is not that of its manifest")
    return manifest


def copy(source: IO[bytes], path: str) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    with open(path, "xb") if path else io.BytesIO() as target:
        while True:
            data = source.read(CHUNK)
            if not data:
                return size, digest.hexdigest()
            size += len(data)
            digest.update(data)
            if path:
                target.write(data)


def _manifest(path: str, content: bytes | None) -> Manifest:
    if content is None:
        raise Damaged(path, "it has no manifest")
    try:
        raw = json_object(content, MANIFEST_AT_MOST)
        if isinstance(raw.get("format"), int) and raw["format"] > FORMAT:
            raise Refused(f"{path} was made by a newer version", "install that version here", code="newer_format")
        found = _SHAPE(raw, "manifest")
    except Malformed as why:
        raise Damaged(path, str(why)) from why
    parts = [Packed(**{**part, "rows": [Row(**row) for row in part["rows"]]}) for part in found.pop("parts")]
    for part in parts:
        for row in part.rows:
            if (row.kind == DIRECTORY) == (row.member >= 0):
                raise Damaged(path, f"{row.path} has no content, or one too many")
    return Manifest(**found, parts=parts)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
