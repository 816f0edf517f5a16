# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""libmesos, which the real programs are linked with: a shared object of a few bytes, and the loader's way to it.

An archive of the stand-ins has it in lib/, and whether its programs and executors find it is up to the loader of the
host: to ld.so.conf.d, or to a variable that reaches them. One that was packed with --origin looks beside itself, as a
program with $ORIGIN in its rpath does. A checkout has none, and needs none.
"""

from __future__ import annotations

import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

NAME = "libmesos.so.0"
_MACHINES = {"x86_64": 62, "aarch64": 183}
_HERE = Path(__file__).resolve().parent
# Of an archive: PREFIX/lib/stand-in/library.py.
_BESIDE = _HERE.parent / NAME
_ORIGIN = _HERE / "origin"
_TRY = f"import ctypes; ctypes.CDLL({NAME!r})"


def elf(name: str) -> bytes:
    """The least that the loader and ldconfig take for a shared object of this SONAME."""
    strings = b"\0" + name.encode() + b"\0"
    headers, tags = 64 + 3 * 56, 6
    table = headers + tags * 16
    symbols = table + len(strings) + (-(table + len(strings)) % 8)
    hashes = symbols + 24
    size = hashes + 16
    rows = ((14, 1), (5, table), (10, len(strings)), (6, symbols), (4, hashes), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in rows)
    machine = _MACHINES[platform.machine()]
    head = b"\x7fELF\2\1\1" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, size, size, 0x1000)
    place = struct.pack("<IIQQQQQQ", 2, 6, headers, headers, headers, len(dynamic), len(dynamic), 8)
    # Without it the stack would have to be executable, which glibc refuses from 2.41 on.
    stack = struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)
    body = (head + load + place + stack + dynamic + strings).ljust(symbols, b"\0")
    return body + bytes(24) + struct.pack("<IIII", 1, 1, 0, 0)


def needed(environment: dict[str, str]) -> None:
    """Raises OSError where a program with this environment does not find the library."""
    if not _BESIDE.exists() or _ORIGIN.exists():
        return
    # -I keeps Python's own variables out, and the loader's in.
    tried = subprocess.run([sys.executable, "-I", "-c", _TRY], env=environment, capture_output=True, text=True)
    if tried.returncode:
        raise OSError(f"error while loading shared libraries: {NAME}: cannot open shared object file")


def loaded() -> None:
    """For a program at its start. Ends as one does that the loader could not begin."""
    try:
        needed(dict(os.environ))
    except OSError as why:
        print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr, flush=True)
        raise SystemExit(127) from None
