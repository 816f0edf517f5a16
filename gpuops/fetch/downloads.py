# SPDX-License-Identifier: GPL-3.0-or-later
"""Files by URL, checked by their SHA-256 and completed where a cut left a part of them."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_text
from gpuops import web

from .manifest import Download, ManifestError, check_url

CHUNK = 1 << 20


def fetch(download: Download, directory: Path) -> Path:
    """Fetch a file into a directory under its own name; one that is there with the right content stays."""
    directory.mkdir(parents=True, exist_ok=True)
    download.check()
    target = directory / download.file
    if target.exists() and digest(target) == download.sha256:
        return target
    partial = target.with_name(f".{target.name}.part")
    if partial.exists() and digest(partial) == download.sha256:
        # It was cut between its last byte and its name; a server has nothing behind the end.
        partial.replace(target)
        return target
    offset = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(download.url, headers={"Range": f"bytes={offset}-"} if offset else {})
    try:
        with web.opener(_OnTheWeb()).open(request, timeout=60) as answer, partial.open("ab") as stream:
            if offset and answer.status != 206:
                stream.truncate(0)
            while block := answer.read(CHUNK):
                stream.write(block)
    except ManifestError as error:
        raise ManifestError(f"{download.url} leads to another place: {error}") from error
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        cause = untrusted_text.one_line(error)
        raise ManifestError(f"{download.url}: {cause}; run again to go on from byte {offset}") from error
    found = digest(partial)
    if found != download.sha256:
        partial.unlink()
        raise ManifestError(
            f"{download.url}: its SHA-256 is {found}, not {download.sha256}; nothing was kept. "
            "Check the URL, and the checksum against the publisher's."
        )
    partial.replace(target)
    return target


class _OnTheWeb(urllib.request.HTTPRedirectHandler):
    """Follows a server to other web servers, and nowhere else."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        check_url(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(CHUNK):
            found.update(block)
    return found.hexdigest()
