# SPDX-License-Identifier: GPL-3.0-or-later
"""One file with the archives of a site's controller and hosts, and the files of that kind in a directory."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.backup import archive, shelf
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    json_object,
    mapping_of,
    object_of,
    text,
    whole,
)

PREFIX, ENDING, OF_HOST = "site", ".tar", ".tar.gz"
# Its members: the controller's, and one for each host.
CONTROLLER, HOST = "controller", "host-"
MEMBERS_AT_MOST = 1000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\.tar\.gz", re.ASCII)
_SHAPE = object_of(
    {
        "format": whole(1, 1),
        "made": whole(),
        "version": text(),
        "archives": mapping_of(text(_NAME.pattern), text(r"[0-9a-f]{64}"), MEMBERS_AT_MOST),
    }
)


@dataclass(frozen=True)
class Kept:
    """An archive in a directory; ``problem`` says why it is of no use."""

    path: Path
    made: int = 0
    hosts: tuple[str, ...] = ()
    size: int = 0
    problem: str = ""


def write(path: Path, archives: Mapping[str, Path], version: str, now: float) -> None:
    """Raises OSError and archive.Damaged; nothing is there then.

    :param archives: by their names, `CONTROLLER` and `HOST` with the name of a host behind it.
    """
    manifest = {"format": 1, "made": int(now), "version": version, "archives": {}}
    hashes = {f"{name}{OF_HOST}": _sha256(source) for name, source in archives.items()}
    manifest["archives"] = hashes
    with archive.new_file(str(path)) as file:
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for name, source in archives.items():
                _add(tar, f"{name}{OF_HOST}", source)
            info = tarfile.TarInfo(archive.MANIFEST)
            content = json.dumps(manifest).encode()
            info.size, info.mode = len(content), 0o600
            tar.addfile(info, io.BytesIO(content))
        file.flush()
        read(Path(file.name))


def _add(tar: tarfile.TarFile, name: str, source: Path) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = source.stat().st_size, 0o600
    with source.open("rb") as file:
        tar.addfile(info, file)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, directory: Path | None = None) -> Kept:
    """Compare every byte of an archive of a site. Raises archive.Damaged and OSError.

    :param directory: where the archives of the hosts are written.
    """
    content = None
    hashes: dict[str, str] = {}
    try:
        with tarfile.open(path, mode="r|") as tar:
            for info in tar:
                source = tar.extractfile(info) if info.isreg() else None
                if source is None or content is not None or len(hashes) >= MEMBERS_AT_MOST:
                    raise archive.Damaged(str(path), f"the member {info.name[:60]!r} is none of ours")
                if info.name == archive.MANIFEST:
                    content = source.read(1 << 20)
                elif _NAME.fullmatch(info.name) and info.name not in hashes:
                    hashes[info.name] = archive.copy(source, str(directory / info.name) if directory else "")[1]
                else:
                    raise archive.Damaged(str(path), f"the member {info.name[:60]!r} is none of ours")
        found = _SHAPE(json_object(content or b""), "manifest")
    except (tarfile.TarError, EOFError, ValueError, Malformed) as why:
        raise archive.Damaged(str(path), str(why) or type(why).__name__) from why
    if found["archives"] != hashes:
        raise archive.Damaged(str(path), "its content is not that of its manifest")
    members = (name.removesuffix(OF_HOST) for name in hashes)
    hosts = tuple(name.removeprefix(HOST) for name in members if name.startswith(HOST))
    return Kept(path, found["made"], hosts, path.stat().st_size)


def listed(directory: Path) -> list[Kept]:
    """The archives of a directory, the oldest first, each read whole."""
    found = []
    for name in shelf.kept(str(directory), PREFIX, ENDING):
        try:
            found.append(read(Path(name)))
        except (archive.Damaged, OSError) as why:
            found.append(Kept(Path(name), problem=str(why)))
    return found


def member(path: Path, name: str, private: Path) -> Path:
    """The archive of the controller or of a host, whole: that of a site has it, or the file is one itself.

    Raises archive.Damaged and OSError.
    """
    if path.name.endswith(OF_HOST):
        target = private / path.name
        shutil.copyfile(path, target)
    else:
        target = private / f"{name}{OF_HOST}"
        hosts = read(path, private).hosts
        if not target.exists():
            raise archive.Damaged(
                str(path), f"it has nothing of {name.removeprefix(HOST)}, only of the hosts {', '.join(hosts)}"
            )
    archive.read(str(target))
    return target
