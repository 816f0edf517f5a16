# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Entries of journals, with each field cut to what anybody reads.

By itself journalctl leaves out every field of more than 4096 bytes; with --all it prints them whole, however long.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import IO, Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import CUT

FIELD_AT_MOST = 4096
# An entry that takes more is not read.
ENTRY_BYTES = 32 << 20


def read(argv: Sequence[str]) -> tuple[int, list[str], str]:
    """What a journalctl with --all prints as JSON: its exit status, an entry a line, and what it says of itself.

    :raises OSError: without the program.
    """
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(list(argv), stdout=subprocess.PIPE, stderr=said) as process:
            lines = [_cut(line) for line in _lines(process.stdout)] if process.stdout else []
        said.seek(0)
        return process.returncode, lines, said.read(FIELD_AT_MOST).decode("utf-8", "replace")


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    while line := stream.readline(ENTRY_BYTES):
        yield line
        while not line.endswith(b"\n") and line:
            line = stream.readline(ENTRY_BYTES)


def _cut(line: bytes) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return line[:FIELD_AT_MOST].decode("utf-8", "replace")
    return json.dumps({name: _field(value) for name, value in row.items()})


def _field(value: Any) -> Any:
    """A text, the bytes of what is no text, or several of either."""
    if isinstance(value, str):
        # Who prints it sees that there was more.
        return value if len(value) <= FIELD_AT_MOST else value[:FIELD_AT_MOST] + CUT
    if isinstance(value, list):
        kept = value[: FIELD_AT_MOST + 1]
        return kept if all(isinstance(one, int) for one in kept) else [_field(one) for one in kept]
    return value
