# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Frees what no image needs any more, and mends what an ended registry has left behind.

Both are for the time when nothing writes. docker-registry has a garbage collection of its own. It takes layers of a
push whose manifest comes later, and the parts of an image for several architectures; this one takes nothing that is
young, and nothing that stands in a manifest that stays.
"""

from __future__ import annotations

import hashlib
import os
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import layout
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.layout import Repository

DAY_S = 86400.0
_EMPTY = f"sha256:{hashlib.sha256().hexdigest()}"


class Ages(NamedTuple):
    """:ivar untagged_s: how long a manifest without a tag is kept; 0 for ever. ``grace_s``: what is younger stays."""

    untagged_s: float
    grace_s: float


class Freed(NamedTuple):
    manifests: int
    blobs: int
    bytes: int


class _Marked(NamedTuple):
    """What a repository keeps: manifests, and everything that they need."""

    repository: Repository
    revisions: set[str]
    needed: set[str]
    layers: set[str]


def collect(root: str, ages: Ages, now: float) -> Freed:
    """Everything is read before anything is removed. What cannot be read ends it with OSError.

    Cut at any point, it leaves links to what is there: a link goes before what it leads to.
    """
    marked = [_mark(root, repository, ages, now) for repository in layout.repositories(root)]
    live = set[str]().union(*(one.needed | one.layers for one in marked))
    dead = [
        (digest, status.st_size)
        for digest, status in layout.blobs(root)
        if digest not in live and now - status.st_mtime > ages.grace_s
    ]
    manifests = sum(_sweep(one, ages, now) for one in marked)
    remove_uploads(root, ages.grace_s, now)
    for digest, _size in dead:
        host_files.remove(layout.blob_directory(root, digest))
    return Freed(manifests, len(dead), sum(size for _digest, size in dead))


def _mark(root: str, repository: Repository, ages: Ages, now: float) -> _Marked:
    revisions = repository.revisions()
    # What is added to which manifest, such as a signature: it stays with that one, and does not keep it.
    additions = {(digest, layout.subject(root, digest)) for digest in revisions}
    tagged = set[str]()
    for tag in repository.tags():
        digest, of = repository.current(tag), layout.told_by_tag(tag, revisions)
        if of:
            additions.add((digest, of))
        else:
            tagged.add(digest)
    additions = {(digest, of) for digest, of in additions if digest in revisions and of in revisions}
    added = {digest for digest, _of in additions}
    young = {digest for digest, linked in revisions.items() if now - linked <= ages.grace_s}
    kept = {
        digest
        for digest, linked in revisions.items()
        if digest in tagged or not ages.untagged_s or (now - linked <= ages.untagged_s and digest not in added)
    }
    needed = layout.needed(root, kept | young | {of for digest, of in additions if digest in young}, revisions)
    while more := {digest for digest, of in additions if of in needed} - needed:
        needed = layout.needed(root, needed | more, revisions)
    layers = {
        digest for digest, linked in repository.layers().items() if digest in needed or now - linked <= ages.grace_s
    }
    return _Marked(repository, needed & set(revisions), needed, layers)


def _sweep(marked: _Marked, ages: Ages, now: float) -> int:
    """Remove the links of a repository; how many manifests it has lost."""
    repository = marked.repository
    gone = set(repository.revisions()) - marked.revisions
    for tag in repository.tags():
        if repository.current(tag) in gone or layout.told_by_tag(tag, gone):
            host_files.remove(repository.tag_path(tag))
    for digest in gone:
        for tag in repository.tags():
            if digest in repository.history(tag):
                host_files.remove(repository.history_path(tag, digest))
        host_files.remove(repository.revision_path(digest))
    for digest in set(repository.layers()) - marked.layers:
        host_files.remove(repository.layer_path(digest))
    return len(gone)


def remove_uploads(root: str, idle_s: float, now: float) -> Freed:
    """Remove pushes of layers to which nothing was added for so long. A client that goes on after all begins again.

    It can be done while the registry runs: none of it was acknowledged.
    """
    idle = [
        upload
        for repository in layout.repositories(root)
        for upload in repository.uploads()
        if now - upload.changed > idle_s
    ]
    for upload in idle:
        host_files.remove(upload.path)
    return Freed(0, len(idle), sum(upload.bytes for upload in idle))


class Mended(NamedTuple):
    tags: list[str]
    blobs: list[str]


def mend(root: str) -> Mended:
    """Undo what a registry leaves that ends in the middle of writing a small file.

    It writes links and manifests in place, links of layers anew with each push. What such a link says stands in its
    path, too. A tag without a manifest gets the last one back that it had. A manifest that is not what its digest says
    is removed, because the registry would take it for there, when it is pushed again.
    """
    _mend_links(root)
    return Mended(list(_mend_tags(root)), list(_mend_blobs(root)))


def _mend_links(root: str) -> None:
    for repository in layout.repositories(root):
        paths = {
            **{repository.layer_path(digest): digest for digest in repository.layers()},
            **{repository.revision_path(digest): digest for digest in repository.revisions()},
        }
        for path, digest in paths.items():
            link = os.path.join(path, "link")
            if os.stat(link).st_size != len(digest):
                host_files.write(link, digest, layout.FILE_MODE)


def _mend_tags(root: str) -> list[str]:
    mended = []
    for repository in layout.repositories(root):
        revisions = repository.revisions()
        for tag in repository.tags():
            link = os.path.join(repository.tag_path(tag), "current", "link")
            if repository.current(tag) or not os.path.exists(link):
                continue
            # The registry writes the history of a tag first, and then the tag.
            had = sorted((when, digest) for digest, when in repository.history(tag).items() if digest in revisions)
            if had:
                host_files.write(link, had[-1][1], layout.FILE_MODE)
            else:
                host_files.remove(link)
            mended.append(f"{repository.name}:{tag}")
    return mended


def _mend_blobs(root: str) -> list[str]:
    found = [(status.st_mtime, status.st_size, digest) for digest, status in layout.blobs(root)]
    # What was cut was written last, and manifests are small; layers take their place when they are whole.
    since = max((changed for changed, _size, _digest in found), default=0.0) - DAY_S
    mended = []
    for changed, size, digest in found:
        suspicious = (size == 0 and digest != _EMPTY) or (changed >= since and size <= layout.MANIFEST_BYTES)
        if suspicious and not _is_whole(root, digest):
            host_files.remove(layout.blob_directory(root, digest))
            mended.append(digest)
    return mended


def _is_whole(root: str, digest: str) -> bool:
    kind, _colon, value = digest.partition(":")
    with open(layout.blob_path(root, digest), "rb") as file:
        return hashlib.new(kind, file.read()).hexdigest() == value
