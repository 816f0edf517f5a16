# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A copy of the images in another directory, in which every image is whole.

It is laid out like the storage itself, so a registry can be started on it. Images can be pushed meanwhile: a manifest
is there when all of its layers are, so what the manifests need that were there at the beginning is copied first, and
their links are written last.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import layout
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.layout import Repository

CHUNK = 1 << 20
# How often a tag is read that the registry is just writing.
READS = 5
NEW = ".new"


class Damaged(Exception):
    """A blob is not what its digest says."""


class Copied(NamedTuple):
    """:ivar damaged: blobs that were left out."""

    repositories: int
    blobs: int
    bytes: int
    damaged: list[str]


class _Seen(NamedTuple):
    name: str
    tags: dict[str, str]
    revisions: set[str]
    needed: set[str]


def backup(root: str, target: str) -> Copied:
    seen = [_see(root, repository) for repository in layout.repositories(root)]
    seen = [one for one in seen if one.revisions]
    needed = set[str]().union(*(one.needed for one in seen))
    _remove_leftovers(target)
    copied, size, damaged = 0, 0, []
    for digest in sorted(needed):
        if not os.path.exists(layout.blob_path(root, digest)) or os.path.exists(layout.blob_path(target, digest)):
            continue
        try:
            size += _copy(root, target, digest)
            copied += 1
        except Damaged:
            damaged.append(digest)
    for one in seen:
        _write_links(target, one)
    _prune(target, {one.name: one for one in seen}, needed)
    return Copied(len(seen), copied, size, damaged)


def _see(root: str, repository: Repository) -> _Seen:
    """What it has now. Tags come first: a manifest is there before its tag is."""
    tags = {}
    for tag in repository.tags():
        for _time in range(READS):
            digest = repository.current(tag)
            if digest:
                tags[tag] = digest
                break
            time.sleep(0.05)
    revisions = repository.revisions()
    return _Seen(repository.name, tags, set(revisions), layout.needed(root, revisions, revisions))


def _copy(root: str, target: str, digest: str) -> int:
    """Copy a blob and compare it with its digest; its size."""
    kind, _colon, value = digest.partition(":")
    directory = layout.blob_directory(target, digest)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path, total, summed = layout.blob_path(target, digest), 0, hashlib.new(kind)
    new = f"{path}{NEW}"
    try:
        with open(layout.blob_path(root, digest), "rb") as source, open(new, "wb") as copy:
            while chunk := source.read(CHUNK):
                summed.update(chunk)
                copy.write(chunk)
                total += len(chunk)
            copy.flush()
            os.fsync(copy.fileno())
        if summed.hexdigest() != value:
            raise Damaged(digest)
        os.rename(new, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(new)
    return total


def _remove_leftovers(target: str) -> None:
    """What a copy that was killed has left takes space that this one may need."""
    for directory, _directories, names in os.walk(target):
        for name in names:
            if name == f"data{NEW}":
                os.unlink(os.path.join(directory, name))


def _write_links(target: str, seen: _Seen) -> None:
    there = Repository(target, seen.name)
    for digest in seen.needed - seen.revisions:
        if os.path.exists(layout.blob_path(target, digest)):
            _link(there.layer_path(digest), digest)
    for digest in seen.revisions:
        _link(there.revision_path(digest), digest)
    for tag, digest in seen.tags.items():
        _link(there.history_path(tag, digest), digest)
        _link(os.path.join(there.tag_path(tag), "current"), digest)


def _link(directory: str, digest: str) -> None:
    path = os.path.join(directory, "link")
    if host_files.read_text(path, 200) != digest:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        host_files.write(path, digest, layout.FILE_MODE)


def _prune(target: str, seen: dict[str, _Seen], needed: Iterable[str]) -> None:
    """Remove what the storage does not have any more, links before what they lead to."""
    for there in list(layout.repositories(target)):
        one = seen.get(there.name)
        for tag in there.tags():
            if one is None or tag not in one.tags:
                host_files.remove(there.tag_path(tag))
        for digest in there.revisions():
            if one is None or digest not in one.revisions:
                host_files.remove(there.revision_path(digest))
        for digest in there.layers():
            if one is None or digest not in one.needed:
                host_files.remove(there.layer_path(digest))
    kept = set(needed)
    for digest, _status in list(layout.blobs(target)):
        if digest not in kept:
            host_files.remove(layout.blob_directory(target, digest))
