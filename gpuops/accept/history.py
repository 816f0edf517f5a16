# SPDX-License-Identifier: GPL-3.0-or-later
"""The reports of earlier acceptances, beside the inventory: by them a host is known that fails again and again."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.accept import report
from gpuops.run import records

DIRECTORY = "acceptances"
KEPT = 200


def keep(remembered: Path, document: Mapping[str, Any]) -> Path:
    """Writes a report for its owner alone; the oldest beyond those that are kept go. Raises OSError."""
    directory = remembered / DIRECTORY
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(document["started"]))
    path = directory / f"{name}.json"
    new = directory / f"{name}.new"
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
    new.replace(path)
    for old in sorted(directory.glob("*.json"))[:-KEPT]:
        with contextlib.suppress(OSError):
            old.unlink()
    return path


def earlier(remembered: Path) -> list[dict[str, Any]]:
    """The reports, the oldest first. What cannot be read is passed over."""
    found = [records.document(path) for path in sorted((remembered / DIRECTORY).glob("*.json"))]
    return [row for row in found if _is_whole(row)]


def _is_whole(found: Any) -> bool:
    keys = ("id", "host", "subject", "outcome", "evidence")
    return (
        isinstance(found, dict)
        and found.get("version") == report.VERSION
        and isinstance(found.get("started"), (int, float))
        and isinstance(found.get("hosts"), list)
        and all(isinstance(host, str) for host in found["hosts"])
        and isinstance(found.get("items"), list)
        and all(isinstance(row, dict) and all(isinstance(row.get(key), str) for key in keys) for row in found["items"])
    )
