# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered on a host of a file into which settings were merged: which of them are ours, what those have
replaced, and what the unit that reads the file has not read yet."""

from __future__ import annotations

import hashlib
import json
import os
import urllib.parse
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.config import merge
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files

DIRECTORY = "/var/lib/baremetal-gpu/config_merge"


SIZE_AT_MOST = 16 << 20


class Unreadable(Exception):
    """The record is there and is none."""


def _is_pending(told: Any) -> bool:
    return (
        isinstance(told, dict)
        and all(isinstance(told.get(key), str) for key in ("action", "boot_id"))
        and isinstance(told.get("monotonic"), (int, float))
    )


class Record:
    """The record of one file, named by its path without links."""

    def __init__(self, directory: str, path: str) -> None:
        self.path = os.path.join(directory, urllib.parse.quote(path, safe="") + ".json")
        self.claims: merge.Claims | None = None
        # What was at the place of a claim before.
        self.replaced: merge.Claims = {}
        # What is remembered once a file of that checksum is there: a run that is cut leaves the file before or after.
        self.next: dict[str, Any] | None = None
        self.pending: dict[str, Any] | None = None

    def load(self) -> None:
        """Read it; without one nothing is claimed and nothing pending."""
        try:
            data = bounded_json.parse_object(host_files.read(self.path, SIZE_AT_MOST))
            claims, replaced, after = _rows(data["claims"]), _rows(data.get("replaced")) or {}, data.get("next")
            if after is not None:
                after = {"file": str(after["file"]), **{name: _rows(after[name]) for name in ("claims", "replaced")}}
            pending = data["pending"]
            if not (pending is None or _is_pending(pending)):
                raise ValueError("what is pending has not its form")
            self.claims, self.replaced, self.next, self.pending = claims, replaced, after, pending
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.claims = self.pending = None
            raise Unreadable(str(error)) from None

    def announce(self, text: str | None, claims: merge.Claims | None, replaced: merge.Claims) -> None:
        """What is to be remembered once the file has this text, or, with None, is gone."""
        self.next = {"file": checksum(text), "claims": claims, "replaced": replaced}

    def settle(self, text: str | None) -> None:
        """Remember what goes with the file that is there."""
        if self.next is not None and self.next["file"] == checksum(text):
            self.claims, self.replaced = self.next["claims"], self.next["replaced"] or {}
        self.next = None

    def text(self) -> str:
        """The record as it is written."""
        data: dict[str, Any] = {
            "schema": 1,
            "claims": _listed(self.claims),
            "replaced": _listed(self.replaced),
            "next": None,
        }
        if self.next is not None:
            rows = {name: _listed(self.next[name]) for name in ("claims", "replaced")}
            data["next"] = {"file": self.next["file"], **rows}
        return json.dumps({**data, "pending": self.pending}, indent=2) + "\n"


def checksum(text: str | None) -> str:
    """Of a file's text; of a file that is not there it is empty."""
    return "" if text is None else hashlib.sha256(text.encode("utf-8")).hexdigest()


def _rows(listed: Any) -> merge.Claims | None:
    return None if listed is None else {tuple(path): value for path, value in listed}


def _listed(rows: merge.Claims | None) -> list[Any] | None:
    return None if rows is None else [[list(path), value] for path, value in rows.items()]
