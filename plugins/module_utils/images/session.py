# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a running container has changed, as a layer on top of the image that it was started from.

What is mounted is no part of it, and so are neither homes nor data. The environment of the container is not either: an
image made of the layer has the environment of the image below. Files in which secrets usually are stay out.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# A container by its name or id.
CONTAINER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{1,127}", re.ASCII)
ASK_S = 60.0
# Names that are left out wherever they are.
NAMES = frozenset(
    {
        ".Xauthority",
        ".aws",
        ".azure",
        ".bash_history",
        ".git-credentials",
        ".gnupg",
        ".kube",
        ".lesshst",
        ".mysql_history",
        ".netrc",
        ".node_repl_history",
        ".pgpass",
        ".psql_history",
        ".pypirc",
        ".python_history",
        ".rediscli_history",
        ".sqlite_history",
        ".ssh",
        ".viminfo",
        ".wget-hsts",
        ".zsh_history",
        "history.sqlite",
    }
)
CACHE = ".cache/pip"
# Ends of paths that are left out.
ENDS = (
    ".cache/huggingface/token",
    CACHE,
    ".config/gcloud",
    ".config/gh",
    ".config/rclone",
    ".docker/config.json",
    ".huggingface/token",
    ".ipython/profile_default/security",
    ".jupyter/jupyter_server_config.json",
    ".jupyter/lab/user-settings/tokens",
    ".local/share/jupyter/runtime",
    ".local/share/keyrings",
)
# What belongs to a container and not to an image, or is nobody's to keep.
PLACES = (
    ".dockerenv",
    "dev",
    "etc/hostname",
    "etc/hosts",
    "etc/resolv.conf",
    "etc/sudoers.d/session",
    "proc",
    "root",
    "run",
    "sys",
    "tmp",
    "var/log",
    "var/run",
    "var/tmp",
)
OPAQUE, REDIRECT, METACOPY = (f"trusted.overlay.{name}" for name in ("opaque", "redirect", "metacopy"))
WHITEOUT, ALL_OF_BELOW = ".wh.", ".wh..wh..opq"


def is_left_out(path: str) -> bool:
    """Whether a path, from the root of the container and without its first slash, stays out of an image."""
    return _is_secret(path) or any(path == place or path.startswith(f"{place}/") for place in PLACES)


def _is_secret(path: str) -> bool:
    parts = path.split("/")
    if any(part in NAMES or (part.startswith(".env") and part[4:5] in ("", ".")) for part in parts):
        return True
    return any(f"/{path}/".find(f"/{end}/") >= 0 for end in ENDS)


class Links:
    """Further names (hard links) that files of a tree have, in which secrets usually are."""

    def __init__(self, top: str) -> None:
        self._top, self._found = top, set[tuple[int, int]]()
        for directory, _directories, names in os.walk(top):
            below = os.path.relpath(directory, top)
            for name in names:
                path = name if below == "." else f"{below}/{name}"
                # What pip keeps is no secret, and installers link it into environments.
                if _is_secret(path) and f"/{CACHE}/" not in f"/{path}":
                    self._found |= self._linked(path)

    def _linked(self, path: str) -> set[tuple[int, int]]:
        status = os.lstat(os.path.join(self._top, path))
        is_linked = stat.S_ISREG(status.st_mode) and status.st_nlink > 1
        return {(status.st_dev, status.st_ino)} if is_linked else set()

    def __contains__(self, path: str) -> bool:
        return bool(self._found) and bool(self._linked(path) & self._found)


def inspect(run: host_run.Run, engine: str, container: str) -> dict[str, Any]:
    """``upper`` (the directory of what was changed), ``image`` (its id), ``sources`` (the image's names with digest).

    Raises Refused.
    """
    if not CONTAINER.fullmatch(container):
        raise Refused(f"{container!r} is not a container", f"give its name or id, as `{engine} ps` has it")
    found = _asked(run, [engine, "container", "inspect", container])
    driver = found.get("GraphDriver") or {}
    upper = (driver.get("Data") or {}).get("UpperDir")
    if driver.get("Name") not in ("overlay2", "overlay") or not upper:
        raise Refused(
            f"{engine} keeps {container} by the driver {driver.get('Name')!r}, and only overlay can be read",
            "configure the engine with its default, overlay2",
            code="no_overlay",
        )
    image = _asked(run, [engine, "image", "inspect", str(found["Image"])])
    return {
        "upper": str(upper),
        "image": str(found["Image"]),
        "sources": [str(name) for name in image.get("RepoDigests") or []],
        "running": bool((found.get("State") or {}).get("Running")),
        "layers": len((image.get("RootFS") or {}).get("Layers") or []),
    }


def _asked(run: host_run.Run, words: list[str]) -> dict[str, Any]:
    status, out, err = run(words, None, ASK_S)
    try:
        if status != 0:
            raise ValueError(err)
        row = json.loads(out)[0]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise Refused(
            f"{' '.join(words)} fails: {untrusted_text.one_line(error)}",
            f"see `{words[0]} ps --all`",
            code="no_container",
        ) from None
    return dict(row)


@contextlib.contextmanager
def paused(run: host_run.Run, engine: str, container: str, running: bool) -> Iterator[None]:
    """Nothing changes meanwhile."""
    if running:
        status, _out, err = run([engine, "pause", container], None, ASK_S)
        if status != 0:
            raise Refused(f"{container} cannot be paused: {untrusted_text.one_line(err)}", code="not_paused")
    try:
        yield
    finally:
        if running:
            run([engine, "unpause", container], None, ASK_S)


class _Counted:
    """Writes into a file, and knows the digest and the size of it."""

    def __init__(self, stream: Any, at_most: int) -> None:
        self._stream, self._at_most = stream, at_most
        self.digest, self.size = hashlib.sha256(), 0

    def write(self, block: bytes) -> int:
        self.size += len(block)
        if self.size > self._at_most:
            raise Refused(
                f"what the container has changed is more than {self._at_most >> 20} MiB",
                "keep data and environments in the home, or raise the limit with --at-most",
                code="session_too_large",
            )
        self.digest.update(block)
        return int(self._stream.write(block))

    def flush(self) -> None:
        self._stream.flush()


def write_layer(upper: str, target: str, at_most: int) -> dict[str, Any]:
    """Write the changes as a layer; the same changes give the same bytes. Raises Refused and OSError.

    :return: ``digest`` and ``size`` of the file, ``diff_id`` of what it unpacks to, ``left_out``, the paths that are
        not in it.
    """
    left_out: list[str] = []
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "wb") as stream:
        packed: Any = _Counted(stream, at_most)
        with gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=packed, mtime=0) as zipped:
            plain: Any = _Counted(zipped, 1 << 62)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for path in _changed(upper, left_out):
                    _add(archive, upper, path)
    return {
        "digest": f"sha256:{packed.digest.hexdigest()}",
        "size": packed.size,
        "diff_id": f"sha256:{plain.digest.hexdigest()}",
        "left_out": sorted(left_out),
    }


def _changed(upper: str, left_out: list[str]) -> Iterator[str]:
    """Paths below, in an order that does not change."""
    links = Links(upper)
    for directory, directories, names in os.walk(upper):
        below = os.path.relpath(directory, upper)
        directories.sort()
        for name in sorted(directories + names):
            path = name if below == "." else f"{below}/{name}"
            if is_left_out(path) or path in links:
                left_out.append(path)
                if name in directories:
                    directories.remove(name)
            else:
                yield path


def _add(archive: tarfile.TarFile, upper: str, path: str) -> None:
    full = os.path.join(upper, path)
    status = os.lstat(full)
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        # It was there in the image, and the container has removed it.
        directory, _slash, name = path.rpartition("/")
        archive.addfile(_whiteout(os.path.join(directory, WHITEOUT + name)))
        return
    if stat.S_ISSOCK(status.st_mode) or stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode):
        return
    attributes = os.listxattr(full, follow_symlinks=False)
    if REDIRECT in attributes or METACOPY in attributes:
        raise Refused(
            f"/{path} was moved within the container in a way that cannot be saved",
            "copy the directory in place of moving it, and save again",
            code="overlay_redirect",
        )
    row = archive.gettarinfo(full, path)
    row.uname = row.gname = ""
    row.mtime = int(row.mtime)
    if row.isreg():
        with open(full, "rb") as stream:
            archive.addfile(row, stream)
    else:
        archive.addfile(row)
    if row.isdir() and OPAQUE in attributes:
        archive.addfile(_whiteout(f"{path}/{ALL_OF_BELOW}"))


def _whiteout(path: str) -> tarfile.TarInfo:
    row = tarfile.TarInfo(path)
    row.mode = 0o600
    return row
