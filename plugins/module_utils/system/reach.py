# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a host reaches the places that its packages come from."""

from __future__ import annotations

import concurrent.futures
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.system.proxies import opener_for


def url_problem(value: str) -> str | None:
    """What is wrong with the form of a URL, None if nothing is."""
    if not value or re.search(r"\s", value):
        return "it is empty or contains blanks"
    try:
        parts = urllib.parse.urlsplit(value)
        _port = parts.port
    except ValueError as failure:
        return str(failure)
    if parts.scheme not in ("http", "https", "file", "ftp"):
        return "it does not begin with http://, https://, ftp:// or file:///"
    if parts.scheme == "file":
        return None if parts.path.startswith("/") and not parts.netloc else "a file URL has three slashes: file:///path"
    return None if parts.hostname else "it names no host"


def _try(url: str, opener: urllib.request.OpenerDirector, timeout_s: float, root: str) -> tuple[int, str]:
    """HTTP status and reason; 0 where no server answered, 200 for a file that is there."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        there = os.path.exists(below(root, parts.path))
        return (200, "") if there else (404, "no such file or directory")
    request = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "baremetal.gpu"})
    try:
        with opener.open(request, timeout=timeout_s):
            return 200, ""
    except urllib.error.HTTPError as failure:
        return failure.code, f"HTTP {failure.code} {failure.reason}"
    except (OSError, ValueError) as failure:
        return 0, str(getattr(failure, "reason", failure)) or type(failure).__name__


def unreachable(target: dict[str, Any], proxies: dict[str, str], timeout_s: float = 5.0, root: str = "/") -> str | None:
    """Why a target of preflight_sources.targets() cannot be reached, None if it can.

    One of its URLs must be there. Of a target that is not `strict`, whose layout is not known, it is enough that its
    server answers; but a proxy's refusal says nothing about the server behind it.
    """
    answers = []
    for url in target["urls"]:
        opener = opener_for(url, proxies) if target["apt"] else urllib.request.build_opener()
        status, reason = _try(url, opener, timeout_s, root)
        if status and status < 400:
            return None
        answers.append((status, reason))
        if not status:
            # Nobody there: the other names would only wait as long again.
            break
    refusals = (401, 403, 407) if target["apt"] and proxies else (407,)
    # A directory that is not there is no server that answers.
    lenient = not target["strict"] and not target["urls"][0].startswith("file:")
    if lenient and any(400 <= status < 500 and status not in refusals for status, _text in answers):
        return None
    return answers[0][1] if answers else None


def reach(targets: Iterable[dict[str, Any]], proxies: dict[str, str]) -> dict[str, str | None]:
    """Name of the target -> why it cannot be reached. All are tried at once: the slowest decides how long it takes."""
    rows = list(targets)
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        answers = list(pool.map(lambda target: unreachable(target, proxies), rows))
    return {row["name"]: answer for row, answer in zip(rows, answers)}
