# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the agent knows of earlier, kept over restarts, crashes and power cuts."""

from __future__ import annotations

import json
import os
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils import host_write

SCHEMA = 1


def write_atomically(path: str, text: str, mode: int = 0o644, durable: bool = False) -> None:
    """Replace a file in one step; a reader sees the old content or the new one, never a part.

    With `durable` the new content is on the disk when this returns. Without, a power cut may bring the old one back.
    """
    host_write.write(path, text, mode, durable=durable)


class State:
    """The history of the verdicts in one file.

    A file that cannot be read is moved aside and named in `lost`; the agent then begins anew instead of not at all.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lost: str | None = None
        self._written = ""

    def load(self) -> dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            return {}
        try:
            kept = json.loads(text)
            if kept["schema"] != SCHEMA:
                raise ValueError(f"schema {kept['schema']}, this agent reads schema {SCHEMA}")
            history: dict[str, Any] = kept["history"]
        except (ValueError, KeyError, TypeError) as failure:
            aside = f"{self.path}.unreadable"
            os.replace(self.path, aside)
            self.lost = f"{self.path} cannot be read ({failure}); it is kept as {aside}, and the history begins anew"
            return {}
        self._written = text
        return history

    def save(self, history: dict[str, Any]) -> None:
        """Written only if something is new: a quiet host does not wear its disk."""
        text = json.dumps({"schema": SCHEMA, "history": history}, separators=(",", ":"), sort_keys=True)
        if text != self._written:
            write_atomically(self.path, text, mode=0o600, durable=True)
            self._written = text
