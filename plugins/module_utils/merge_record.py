# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is remembered on a host of a file into which settings were merged: which of them are ours, and what the unit
that reads the file has not read yet."""

from __future__ import annotations

import json
import os
import urllib.parse
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import bounded_json, host_write, merge

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
        self.pending: dict[str, Any] | None = None

    def load(self) -> None:
        """Read it; without one nothing is claimed and nothing pending."""
        try:
            data = bounded_json.parse_object(host_write.read(self.path, SIZE_AT_MOST))
            claims, pending = data["claims"], data["pending"]
            if not (pending is None or _is_pending(pending)):
                raise ValueError("what is pending has not its form")
            self.claims = None if claims is None else {tuple(path): value for path, value in claims}
            self.pending = pending
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.claims = self.pending = None
            raise Unreadable(str(error)) from None

    def text(self) -> str:
        """The record as it is written."""
        claims = None if self.claims is None else [[list(path), value] for path, value in self.claims.items()]
        return json.dumps({"schema": 1, "claims": claims, "pending": self.pending}, indent=2) + "\n"
