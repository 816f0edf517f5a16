# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which packages the archives of a host have, by the indices on its disk or by those of the archives."""

from __future__ import annotations

import glob
import gzip
import lzma
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask
from ansible_collections.baremetal.gpu.plugins.module_utils.system.proxies import opener_for

# Of an index that comes in pieces this much is kept of what a piece may have cut: the longest Provides are some 20 KB.
REST_MOST = 1 << 17


def _archive_lists(root: str) -> list[str]:
    paths = glob.glob(below(root, "var/lib/apt/lists/*_Packages*"))
    return sorted(path for path in paths if not path.endswith((".diff", ".IndexDiff")))


def _list_content(path: str, run: Call) -> bytes | None:
    """The content of an index as apt keeps it on disk, None where it cannot be read."""
    openers: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
    suffix = os.path.splitext(path)[1]
    try:
        if suffix in openers:
            with openers[suffix](path, "rb") as stream:
                content = stream.read()
                return bytes(content)
        if suffix in (".lz4", ".zst", ".bz2"):
            status, text = run(["/usr/lib/apt/apt-helper", "cat-file", path])
            return text.encode() if status == 0 else None
        with open(path, "rb") as stream:
            return stream.read()
    except (OSError, EOFError, lzma.LZMAError):
        return None


def _wanted(names: Iterable[str]) -> dict[str, re.Pattern[bytes]]:
    """Per package what shows in an index that apt can install it: by its own name, or provided by another package.

    A kernel that another name was given has headers of another name, too, which provide the usual one (`*-pve`).
    """
    patterns = {}
    for name in names:
        literal = re.escape(name.encode())
        # A field goes on in lines that begin with a blank. A version and an architecture may follow the name.
        entries = rb"\nProvides:(?:[^\n]|\n(?=[ \t]))*?[\s,]" + literal + rb"(?=[\s,(:])"
        patterns[name] = re.compile(rb"\nPackage: " + literal + rb"[ \t]*\n|" + entries)
    return patterns


def _known(content: bytes, wanted: dict[str, re.Pattern[bytes]]) -> set[str]:
    # Most indices do not have the name at all, which is faster to see without a pattern.
    return {name for name, pattern in wanted.items() if name.encode() in content and pattern.search(content)}


def archive_packages(names: Iterable[str], root: str = "/", run: Call = ask) -> set[str] | None:
    """Which of these packages the apt indices on disk know; None where there is no readable index.

    The files are searched instead of asking apt-cache, which would write its cache.
    """
    wanted = _wanted(names)
    found: set[str] = set()
    readable = False
    for path in _archive_lists(root):
        if found == set(wanted):
            break
        content = _list_content(path, run)
        if content is None:
            continue
        readable = True
        found |= _known(b"\n" + content + b"\n", wanted)
    return found if readable else None


def remote_packages(
    names: Iterable[str], rows: Iterable[dict[str, Any]], machine: str, proxies: dict[str, str], timeout_s: float = 10.0
) -> set[str] | None:
    """Which of these packages the archives know, by their own indices; None where none could be read.

    For a host that has no indices yet. They are searched while they come in, and nothing is written.
    """
    architecture = {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    wanted = _wanted(names)
    found: set[str] = set()
    readable = False
    for url in _index_urls(rows, architecture):
        if found == set(wanted):
            break
        rest = b"\n"
        try:
            for chunk in _index_chunks(url, proxies, timeout_s):
                readable = True
                text = rest + chunk
                found |= _known(text, wanted)
                # A field may be cut by the end of a chunk.
                rest = text[-REST_MOST:]
            found |= _known(rest + b"\n", wanted)
        except (OSError, EOFError, ValueError, lzma.LZMAError):
            continue
    return found if readable else None


def _index_urls(rows: Iterable[dict[str, Any]], architecture: str) -> list[str]:
    """The indices of apt's sources, `main` before the other components, in which kernels are seldom."""
    urls: dict[str, bool] = {}
    for row in rows:
        base, suite = row["uri"].rstrip("/"), row["suite"]
        if suite.endswith("/"):
            urls.setdefault(f"{base}/{suite.strip('/')}".rstrip("/") + "/Packages.xz", False)
        for component in row["components"]:
            # Source packages have no architecture, and nothing of a family of yum has a component.
            urls.setdefault(f"{base}/dists/{suite}/{component}/binary-{architecture}/Packages.xz", component == "main")
    return sorted(urls, key=lambda url: not urls[url])


def _index_chunks(url: str, proxies: dict[str, str], timeout_s: float) -> Iterator[bytes]:
    with opener_for(url, proxies).open(url, timeout=timeout_s) as answer, lzma.open(answer) as stream:
        while True:
            chunk = stream.read(1 << 20)
            if not chunk:
                return
            yield chunk
