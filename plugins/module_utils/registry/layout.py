# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where docker-registry keeps what on its file system.

Blobs, which are layers and manifests, are once below `blobs` by their digest. A repository has links to them: to its
layers, to its manifests, and from each tag to one manifest. A link is a file with a digest in it, in a directory with
the digest's name. A repository may be inside another one; its own directories begin with an underscore.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json

DIGEST = re.compile(r"(sha256):([0-9a-f]{64})|(sha512):([0-9a-f]{128})", re.ASCII)
_IN_BYTES = re.compile(rb"sha256:[0-9a-f]{64}(?![0-9a-f])|sha512:[0-9a-f]{128}(?![0-9a-f])")
# The tag has no more of the digest's number than these.
_ADDITION = re.compile(r"(sha256|sha512)-([0-9a-f]{64})(?:[._-].*)?", re.ASCII | re.DOTALL)
_ROOT = "docker/registry/v2"
# As the registry makes files.
FILE_MODE = 0o660
# The registry takes no larger one.
MANIFEST_BYTES = 4 << 20


class Upload(NamedTuple):
    """A layer that is being pushed, or was not pushed to its end. `changed` is when something came last."""

    path: str
    bytes: int
    changed: float


def is_digest(text: str) -> bool:
    return bool(DIGEST.fullmatch(text))


def blob_directory(root: str, digest: str) -> str:
    kind, _colon, value = digest.partition(":")
    return os.path.join(root, _ROOT, "blobs", kind, value[:2], value)


def blob_path(root: str, digest: str) -> str:
    return os.path.join(blob_directory(root, digest), "data")


def blob_bytes(root: str, digest: str) -> int:
    """Its size; 0 where it is not there."""
    try:
        return os.stat(blob_path(root, digest), follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


def blobs(root: str) -> Iterator[tuple[str, os.stat_result]]:
    """Digests with the status of their data; those without data are left out."""
    top = os.path.join(root, _ROOT, "blobs")
    for kind in _names(top):
        for start in _names(os.path.join(top, kind)):
            for value in _names(os.path.join(top, kind, start)):
                digest = f"{kind}:{value}"
                if not is_digest(digest):
                    continue
                try:
                    yield digest, os.stat(blob_path(root, digest), follow_symlinks=False)
                except FileNotFoundError:
                    continue


def _no_trap(path: str, flags: int) -> int:
    """The account of the registry can put a link or a pipe there; root reads it, too."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _content(root: str, digest: str) -> bytes:
    try:
        with open(blob_path(root, digest), "rb", opener=_no_trap) as file:
            return file.read(MANIFEST_BYTES + 1)
    except FileNotFoundError:
        return b""


def references(root: str, digest: str) -> frozenset[str]:
    """Every digest that stands in a manifest, wherever: more than what it needs, and never less.

    Not those that it only tells of: what a signature is for (`subject`), and what stands in annotations.
    """
    content = _content(root, digest)
    # Of one that cannot be read, all counts.
    with suppress(bounded_json.Malformed):
        content = json.dumps(_without_told(bounded_json.parse_object(content))).encode()
    return frozenset(found.decode("ascii") for found in _IN_BYTES.findall(content))


def _without_told(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_told(one) for key, one in value.items() if key not in ("annotations", "subject")}
    return [_without_told(one) for one in value] if isinstance(value, list) else value


def subject(root: str, digest: str) -> str:
    """What a manifest is a signature or another addition of; empty for one that stands for itself."""
    try:
        named = bounded_json.parse_object(_content(root, digest)).get("subject")
    except bounded_json.Malformed:
        return ""
    found = named.get("digest") if isinstance(named, dict) else None
    return found if isinstance(found, str) and is_digest(found) else ""


def told_by_tag(tag: str, digests: Iterable[str]) -> str:
    """Which of the digests a tag such as sha256-0f3a….sig is an addition of; empty for any other tag.

    Clients give such tags to what they add where a registry does not list additions, as this one does not.
    """
    found = _ADDITION.fullmatch(tag)
    names = (f"{found[1]}:{found[2]}",) if found else ()
    return next((digest for digest in digests if digest.startswith(names)), "") if names else ""


class Repository:
    """One repository.

    :ivar name: as images have it, such as `alice/train`.
    """

    def __init__(self, root: str, name: str) -> None:
        self.name, self.path = name, os.path.join(root, _ROOT, "repositories", *name.split("/"))

    @property
    def space(self) -> str:
        """Its namespace."""
        return self.name.partition("/")[0]

    def layers(self) -> dict[str, float]:
        """Digests of its layers, with the time of their links."""
        return _links(os.path.join(self.path, "_layers"))

    def layer_path(self, digest: str) -> str:
        return os.path.join(self.path, "_layers", *digest.split(":"))

    def revisions(self) -> dict[str, float]:
        """Digests of its manifests, with the time of their links."""
        return _links(os.path.join(self.path, "_manifests", "revisions"))

    def revision_path(self, digest: str) -> str:
        return os.path.join(self.path, "_manifests", "revisions", *digest.split(":"))

    def tags(self) -> list[str]:
        return _names(os.path.join(self.path, "_manifests", "tags"))

    def tag_path(self, tag: str) -> str:
        return os.path.join(self.path, "_manifests", "tags", tag)

    def current(self, tag: str) -> str:
        """The manifest of a tag; empty where the registry was ended in the middle of writing the link."""
        try:
            with open(os.path.join(self.tag_path(tag), "current", "link"), encoding="ascii", errors="replace") as file:
                text = file.read(200)
        except FileNotFoundError:
            return ""
        return text if is_digest(text) else ""

    def history(self, tag: str) -> dict[str, float]:
        """Manifests that a tag has or had, with the time when it was given them."""
        return _links(os.path.join(self.tag_path(tag), "index"))

    def history_path(self, tag: str, digest: str) -> str:
        return os.path.join(self.tag_path(tag), "index", *digest.split(":"))

    def uploads(self) -> list[Upload]:
        top, found = os.path.join(self.path, "_uploads"), []
        for name in _names(top):
            path, size, changed = os.path.join(top, name), 0, 0.0
            for directory, _directories, files in os.walk(path):
                for file in files:
                    try:
                        status = os.stat(os.path.join(directory, file), follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    size, changed = size + status.st_blocks * 512, max(changed, status.st_mtime)
            found.append(Upload(path, size, changed))
        return found


def repositories(root: str) -> Iterator[Repository]:
    top = os.path.join(root, _ROOT, "repositories")
    for directory, directories, _files in os.walk(top, onerror=_raise):
        if any(name.startswith("_") for name in directories):
            yield Repository(root, os.path.relpath(directory, top))
        directories[:] = sorted(name for name in directories if not name.startswith("_"))


def _raise(error: OSError) -> None:
    """What cannot be read must not look empty."""
    if not isinstance(error, FileNotFoundError):
        raise error


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _links(path: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for kind in _names(path):
        for value in _names(os.path.join(path, kind)):
            digest = f"{kind}:{value}"
            try:
                status = os.stat(os.path.join(path, kind, value, "link"), follow_symlinks=False)
            except FileNotFoundError:
                continue
            if is_digest(digest) and stat.S_ISREG(status.st_mode):
                found[digest] = status.st_mtime
    return found


def needed(root: str, kept: Iterable[str], revisions: Container[str]) -> set[str]:
    """Manifests and all that stands in them, and in those of them that are manifests of the same repository: one of
    several architectures has others."""
    found, waiting = set(kept), list(kept)
    while waiting:
        fresh = references(root, waiting.pop()) - found
        found |= fresh
        waiting += [digest for digest in fresh if digest in revisions]
    return found


@contextmanager
def locked(root: str) -> Iterator[None]:
    """Nothing else removes or copies at the same time. The lock ends with the process, however that ends."""
    handle = os.open(os.path.join(root, ".baremetal-gpu.lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
