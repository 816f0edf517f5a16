# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The snapshot file: the facts of many hosts' cards, for an inventory that needs no fact cache.

A file of lines, each a JSON document. The first is the header {"kind", "schema", "time"}; every other one is a host:
[[name, time, [groups]], facts]. The groups stand in front, so that a reader who needs only them does not parse the
facts, which are some kilobytes per host. Times are Unix seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils import fleet

KIND = "baremetal.gpu snapshot"
SCHEMA = 1
REMEDY = "write it anew with `gpuops inventory`"

_first_value = json.JSONDecoder().raw_decode


class SnapshotError(Exception):
    """The file cannot be read; the message names it and says what to do."""


class Row(NamedTuple):
    """A host of the file. `problem` says what is wrong with the line; then nothing but `host` can be relied on."""

    host: str
    time: float = 0.0
    groups: Sequence[str] = ()
    line: str = ""
    problem: str = ""

    def facts(self) -> Any:
        """The facts in full. Raises fleet.BrokenFacts."""
        try:
            return fleet.checked(json.loads(self.line)[1])
        except (ValueError, IndexError) as error:
            raise fleet.BrokenFacts(f"the facts cannot be read: {error}") from error


def line(host: str, time: float, facts: Any) -> str:
    """The line of a host. Raises fleet.BrokenFacts."""
    return json.dumps([[host, time, fleet.groups(facts)], facts], separators=(",", ":")) + "\n"


def write(path: str, time: float, lines: Iterable[str]) -> None:
    """Write the file in one step: a reader sees the old one or the new one. Raises OSError."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".snapshot-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({"kind": KIND, "schema": SCHEMA, "time": time}) + "\n")
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _check_header(path: str, text: str) -> None:
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise SnapshotError(f"{path} is no snapshot: it begins with {text[:40]!r}; {REMEDY}")
    if header.get("schema") != SCHEMA:
        raise SnapshotError(f"{path} has schema {header.get('schema')!r}, and this version reads {SCHEMA}; {REMEDY}")


def _row(number: int, text: str) -> Row:
    try:
        # Past the outer bracket.
        (host, time, groups), _end = _first_value(text, 1)
        if not (isinstance(host, str) and host and isinstance(groups, list) and isinstance(time, (int, float))):
            raise ValueError("not the name, the time and the groups of a host")
    except (ValueError, TypeError) as error:
        return Row(f"line {number}", problem=str(error))
    # No generator within all(), which would take as long as parsing the line does.
    for name in groups:
        if not (isinstance(name, str) and name):
            return Row(host, problem=f"{groups!r} are no groups")
    return Row(host, time, groups, text)


def read(path: str) -> Iterator[Row]:
    """The hosts of a file, one at a time. A line that is broken does not take the others along.

    Raises SnapshotError, and FileNotFoundError if there is no file.
    """
    try:
        # What is not UTF-8 becomes a broken line, and no broken file.
        with open(path, encoding="utf-8", errors="replace") as file:
            _check_header(path, file.readline())
            for number, text in enumerate(file, 2):
                if text != "\n":
                    yield _row(number, text)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}; correct that, or {REMEDY}") from error
