# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The snapshot file: the facts of many hosts' GPUs, for an inventory that needs no fact cache.

A file of lines, each a JSON document. The first is the header {"kind", "schema", "time", "hosts": how many}; then comes
a line [name, time, [groups]] for every host, and then, in the same order, a line [name, facts] for every host. A reader
who needs only the groups does not read the facts, which are some kilobytes per host. Times are Unix seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet

KIND = "baremetal.gpu snapshot"
SCHEMA = 2
REMEDY = "write it anew with `gpuops inventory`"


class SnapshotError(Exception):
    """The file cannot be read; the message names it and says what to do."""


class Row(NamedTuple):
    """A host of the file. `problem` says what is wrong with it; then nothing but `host` can be relied on. `line` is the
    one with its facts, empty if they were not read."""

    host: str
    time: float = 0.0
    groups: Sequence[str] = ()
    line: str = ""
    problem: str = ""

    def facts(self) -> Any:
        """The facts in full. Raises fleet.BrokenFacts."""
        try:
            host, facts = json.loads(self.line)
        except (ValueError, TypeError, RecursionError) as error:
            raise fleet.BrokenFacts(f"the facts cannot be read: {one_line(error)}") from error
        if host != self.host:
            raise fleet.BrokenFacts(f"the facts cannot be read: in their place are those of {one_line(host)}")
        return fleet.checked(facts)


def row_of(host: str, time: float, facts: Any) -> Row:
    """What the file is to have of a host. Raises fleet.BrokenFacts."""
    return Row(host, time, fleet.groups(facts), json.dumps([host, facts], separators=(",", ":")))


def write(path: str, time: float, rows: Collection[Row]) -> None:
    """Write the file in one step: a reader sees the old one or the new one. Raises OSError."""
    folder = os.path.dirname(os.path.abspath(path))
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=".snapshot-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps({"kind": KIND, "schema": SCHEMA, "time": time, "hosts": len(rows)}) + "\n")
            for row in rows:
                file.write(json.dumps([row.host, row.time, row.groups], separators=(",", ":")) + "\n")
            file.writelines(row.line + "\n" for row in rows)
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


def _hosts(path: str, text: str) -> int:
    """How many hosts the file has, by its header."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("kind") != KIND:
        raise SnapshotError(f"{path} is not a snapshot: it begins with {text[:40]!r}; {REMEDY}")
    if header.get("schema") != SCHEMA:
        raise SnapshotError(f"{path} has schema {header.get('schema')!r}, and this version reads {SCHEMA}; {REMEDY}")
    hosts = header.get("hosts")
    if not isinstance(hosts, int) or hosts < 0:
        raise SnapshotError(f"{path} does not say how many hosts it has: hosts is {hosts!r}; {REMEDY}")
    return hosts


def _row(number: int, text: str) -> Row:
    try:
        host, time, groups = json.loads(text)
        when = isinstance(time, (int, float)) and not isinstance(time, bool) and math.isfinite(time)
        if not (isinstance(host, str) and host and isinstance(groups, list) and when):
            raise ValueError("not the name, the time and the groups of a host")
    except (ValueError, TypeError, RecursionError) as error:
        return Row(f"line {number}", problem=one_line(error))
    # No generator within all(), which would take as long as parsing the line does.
    for name in groups:
        if not (isinstance(name, str) and name):
            return Row(host, problem=f"{groups!r} are not groups")
    return Row(host, time, groups)


def read(path: str, *, facts: bool) -> Iterator[Row]:
    """The hosts of a file, one at a time, with their facts or without. A line that is broken takes no other along.

    Raises SnapshotError, and FileNotFoundError if there is no file.
    """
    try:
        # What is not UTF-8 becomes a broken line, and no broken file.
        with open(path, encoding="utf-8", errors="replace") as file:
            hosts = _hosts(path, file.readline())
            rows = (_row(number, text) for number, text in enumerate(itertools.islice(file, hosts), 2))
            if facts:
                for row in list(rows):
                    yield row._replace(line=file.readline().rstrip("\n"))
            else:
                yield from rows
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SnapshotError(f"{path} cannot be read: {error.strerror}; correct that, or {REMEDY}") from error
