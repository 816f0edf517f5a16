# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program writes to a terminal that a test has made for it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable


def read_to_end(terminal: int, heard: Callable[[str], None]) -> str:
    """All of it, when the program has closed its side; ``heard`` is told what there is so far, again and again."""
    written = b""
    while True:
        select.select([terminal], [], [])
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # how a terminal ends
            break
        if not chunk:
            break
        written += chunk
        heard(written.decode(errors="replace"))
    os.close(terminal)
    return written.decode()
