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

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_json as shapes
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import ENTRIES_AT_MOST
from gpuops.accept import report
from gpuops.run import records

DIRECTORY = "acceptances"
KEPT = 200
_ITEM = shapes.object_of(dict.fromkeys(("id", "host", "subject", "outcome", "evidence"), shapes.text()))
SHAPE = shapes.object_of(
    {
        "version": shapes.whole(report.VERSION, report.VERSION),
        "started": shapes.number(),
        "hosts": shapes.list_of(shapes.text(), ENTRIES_AT_MOST),
        "items": shapes.list_of(_ITEM, ENTRIES_AT_MOST),
    }
)


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
    found = [records.document(path, SHAPE) for path in sorted((remembered / DIRECTORY).glob("*.json"))]
    return [row for row in found if row is not None]
