# SPDX-License-Identifier: GPL-3.0-or-later
"""Files by URL, checked by their SHA-256 and completed where a cut left a part of them."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from pathlib import Path

from .manifest import Download, ManifestError

CHUNK = 1 << 20


def fetch(download: Download, directory: Path) -> Path:
    """Fetch a file into a directory under its own name; one that is there with the right content stays."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / download.url.rsplit("/", 1)[-1]
    if target.exists() and digest(target) == download.sha256:
        return target
    partial = target.with_name(f".{target.name}.part")
    offset = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer, partial.open("ab") as stream:
            if offset and answer.status != 206:
                stream.truncate(0)
            while block := answer.read(CHUNK):
                stream.write(block)
    except (urllib.error.URLError, OSError) as error:
        raise ManifestError(f"{download.url}: {error}; run again to go on from byte {offset}") from error
    found = digest(partial)
    if found != download.sha256:
        partial.unlink()
        raise ManifestError(
            f"{download.url}: its SHA-256 is {found}, not {download.sha256}; nothing was kept. "
            "Check the URL, and the checksum against the publisher's."
        )
    partial.replace(target)
    return target


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            found.update(block)
    return found.hexdigest()
