# SPDX-License-Identifier: GPL-3.0-or-later
"""What is kept of runs: a directory each with run.json, the output and the events, for its owner alone.

How long the next run will take and where it may go on are read from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from ansible_collections.baremetal.gpu.plugins.module_utils.host import untrusted_json as shapes
from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from gpuops.site.secrecy import Redactor

KEPT = 20
RECORD = "run.json"
OUTPUT = "output.log"
# Of each process that worked beside others.
OUTPUT_OF = "output-{}.log"
EVENTS = "events.jsonl"
RETRY = "hosts.retry"
PRIVATE = "ansible-runner"

DONE, UNFINISHED = "done", "unfinished"
# A time that is none at all is no number, or larger.
SECONDS_MOST = 1e12


@dataclass
class Record:
    """A run that has ended, or was cut.

    :ivar started: seconds since the epoch.
    :ivar stages: how long each stage took, in seconds.
    :ivar hosts: what became of each host: done, failed, unreachable or unfinished.
    :ivar cells: what became of each host at each stage, as progress has it.
    :ivar spans: when each host began and left each stage, in seconds since the run began.
    """

    playbook: str
    limit: str = ""
    tags: str = ""
    check: bool = False
    started: float = 0.0
    seconds: float = 0.0
    rc: int | None = None
    interrupted: bool = False
    stages: dict[str, float] = field(default_factory=dict)
    hosts: dict[str, str] = field(default_factory=dict)
    changed: int = 0
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    spans: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    @property
    def kind(self) -> tuple[str, str, bool]:
        """Runs of one kind take about as long as each other."""
        return self.playbook, self.tags, self.check

    def left(self) -> list[str]:
        """The hosts that are not done."""
        return [host for host, state in self.hosts.items() if state != DONE]


# A table for each host.
TABLES = shapes.mapping_of(shapes.text(), shapes.object_of({}, keep=True), untrusted_document.ENTRIES_AT_MOST)
_SECONDS = shapes.number(-SECONDS_MOST, SECONDS_MOST)
SHAPE = shapes.object_of(
    {"playbook": shapes.text()},
    {
        **dict.fromkeys(("limit", "tags"), shapes.text()),
        **dict.fromkeys(("started", "seconds"), _SECONDS),
        "stages": shapes.mapping_of(shapes.text(), _SECONDS),
        "hosts": shapes.mapping_of(shapes.text(), shapes.anything, untrusted_document.ENTRIES_AT_MOST),
        "cells": TABLES,
        "spans": TABLES,
    },
)


class Run:
    """The directory of a run that is under way."""

    def __init__(self, directory: Path, redact: Redactor) -> None:
        self.directory = directory
        self.redact = redact
        self._outputs = {0: _private(directory / OUTPUT)}
        self._events = _private(directory / EVENTS)
        (directory / PRIVATE).mkdir(mode=0o700)

    def output(self, text: str, process: int = 0) -> None:
        """The output of a process; those that work beside others have numbers from 1."""
        if process not in self._outputs:
            self._outputs[process] = _private(self.directory / OUTPUT_OF.format(process))
        self._outputs[process].write(self.redact(text) + "\n")
        # Somebody may be reading along.
        self._outputs[process].flush()

    def event(self, row: Mapping[str, Any]) -> None:
        self._events.write(json.dumps(self.redact.document(row)) + "\n")
        self._events.flush()

    def document(self, name: str, content: Any) -> None:
        """Write a further file of the run."""
        with _private(self.directory / name) as file:
            file.write(json.dumps(self.redact.document(content)))

    def save(self, record: Record) -> None:
        """Write what is known; at the beginning too, so that a run that is killed is one that can be gone on with."""
        new = self.directory / f"{RECORD}.new"
        with _private(new) as file:
            json.dump(asdict(record), file, indent=1)
        new.replace(self.directory / RECORD)
        with _private(self.directory / RETRY) as file:
            file.writelines(f"{host}\n" for host in record.left())

    def close(self) -> None:
        for file in self._outputs.values():
            file.close()
        self._events.close()
        shutil.rmtree(self.directory / PRIVATE, ignore_errors=True)


def _private(path: Path) -> TextIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8")


class Busy(Exception):
    """Another run of gpuops is at work on the site."""


def lock(remembered: Path, name: str = "lock", what: str = "gpuops up") -> TextIO:
    """Held until it is closed, or its process ends. Raises Busy, OSError.

    :param name: of the file; commands that may run at the same time have locks of their own.
    :param what: the commands that hold it, as one calls them.
    """
    remembered.mkdir(mode=0o700, exist_ok=True)
    file = os.fdopen(os.open(remembered / name, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as taken:
        owner = file.read().strip() or "unknown"
        file.close()
        raise Busy(
            f"another {what} is at work on this site, process {owner}. Wait until it ends, or stop it with Ctrl-C"
        ) from taken
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def begin(remembered: Path, secrets: set[str]) -> Run:
    """A directory for a new run; the oldest beyond those that are kept go. Raises OSError."""
    runs = remembered / "runs"
    for directory in (remembered, runs):
        directory.mkdir(mode=0o700, exist_ok=True)
    kept = directories(remembered)
    for path in kept[: max(0, len(kept) - KEPT + 1)]:
        shutil.rmtree(path, ignore_errors=True)
    name = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1000):
        path = runs / (f"{name}-{number}" if number else name)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return Run(path, Redactor(secrets))
    raise FileExistsError(f"{runs}: a thousand runs in one second")


def document(path: Path, shape: shapes.Shape = shapes.anything) -> Any:
    """The content of a file of JSON, cleaned; None where there is none, or none of this shape."""
    try:
        content = untrusted_document.load(str(path))
        shape(content, path.name)
    except (OSError, ValueError):
        return None
    return content


def directories(remembered: Path) -> list[Path]:
    """The directories of runs, the oldest first."""
    try:
        return sorted(path for path in (remembered / "runs").iterdir() if path.is_dir())
    except OSError:
        return []


def earlier(remembered: Path) -> list[tuple[Path, Record]]:
    """The runs that are remembered, the oldest first. What cannot be read is passed over."""
    found = []
    for path in directories(remembered):
        content = document(path / RECORD, SHAPE)
        if content is not None:
            known = {key: content[key] for key in Record.__dataclass_fields__ if key in content}
            found.append((path, Record(**known)))
    return found


def expected(runs: Iterable[Record], kind: tuple[str, str, bool], of_last: int = 3) -> dict[str, float]:
    """How long each stage takes, in seconds: the median of the last runs of the kind that came to their end."""
    rows = [record for record in runs if record.kind == kind and record.rc == 0]
    stages: dict[str, list[float]] = {}
    for record in rows[-of_last:]:
        for stage, seconds in record.stages.items():
            stages.setdefault(stage, []).append(seconds)
    return {stage: statistics.median(values) for stage, values in stages.items()}


def most_hosts(runs: Iterable[Record]) -> int | None:
    """Of any of the runs; None where there is none."""
    return max((len(record.hosts) for record in runs), default=None)
