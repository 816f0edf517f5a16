# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of real clusters, recorded by tests/roles/ceph/capture.sh, as a `ceph` for the Ceph modules' functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph

DIRECTORY = Path(__file__).parent / "ceph_captured"
VERSIONS = ("16.2.15", "18.2.7")


def captured(version: str) -> dict[str, Any]:
    """Command -> {rc, answer}, of one of VERSIONS, or of a cluster that has a name of its own."""
    name = f"ceph-{version}" if version in VERSIONS else version
    return dict(json.loads((DIRECTORY / f"{name}.json").read_text(encoding="utf-8")))


class Answers:
    """Runs commands of `ceph` from a record, and writes down what was run."""

    def __init__(self, version: str) -> None:
        self.record = captured(version)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        begin = argv.index("--connect-timeout") + 2
        words = tuple(argv[begin : argv.index("--format")])
        self.asked.append(words)
        entry = self.record[" ".join(words)]
        return entry["rc"], "" if entry["answer"] is None else json.dumps(entry["answer"]), ""


def ceph(version: str) -> Ceph:
    return Ceph(Answers(version))
