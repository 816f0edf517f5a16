# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What one part of the host exporter has seen."""

from __future__ import annotations

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Sample

COMPLAINTS_AT_MOST = 20


class Part:
    """Samples, and what is wrong, in sentences. A series comes once, whatever the names of files are."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.complaints: list[str] = []
        self._left_out = 0
        self._seen: set[tuple[str, tuple[Any, ...]]] = set()

    def add(self, name: str, labels: dict[str, Any], value: float) -> None:
        """A sample. The first of a series counts: node_exporter refuses a file in which one comes twice."""
        series = name, tuple(labels.values())
        if series not in self._seen:
            self._seen.add(series)
            self.samples.append((name, labels, value))

    def complain(self, text: str) -> None:
        if len(self.complaints) < COMPLAINTS_AT_MOST:
            self.complaints.append(text)
        else:
            self._left_out += 1

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        more = [f"{self._left_out} more like these"] if self._left_out else []
        return {"samples": self.samples, "complaints": self.complaints + more}
