# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the Ceph modules share: a plan made of commands, and carrying it out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

NOT_FOUND = 2


@dataclass(frozen=True)
class Step:
    """One command: what it does in words, its arguments, and its standard input."""

    does: str
    words: tuple[str, ...]
    stdin: str | None = None


def find(ceph: Ceph, *words: str) -> Any:
    """What a command answers, or None where the thing that it asks for is not there."""
    try:
        return ceph.json(*words)
    except CephError as error:
        if error.rc == NOT_FOUND:
            return None
        raise


def act(ceph: Ceph, step: Step) -> None:
    """Run a command for its effect; some of them answer plain text whatever the format."""
    try:
        ceph.json(*step.words, stdin=step.stdin)
    except CephError as error:
        if error.rc != 0:
            raise


def converge(ceph: Ceph, read: Callable[[], Any], plan: Callable[[Any], list[Step]], pretend: bool) -> list[Step]:
    """Read, compare, act, and read again: what was done, or if only pretended would be.

    :raises Refused: before anything is changed.
    :raises CephError: if a command fails, or ended well and left something undone.
    """
    steps = plan(read())
    if pretend or not steps:
        return steps
    for step in steps:
        act(ceph, step)
    left = plan(read())
    if left:
        undone = "; ".join(step.does for step in left)
        raise CephError(f"it ended well and left undone: {undone}", 0, left[0].words, "read the log of the mon and mgr")
    return steps


def size_in_bytes(text: Any) -> int:
    """A size such as 10, '10G', '1.5 TiB' in bytes; units are powers of 1024.

    :raises Refused: if it is none.
    """
    word = str(text).strip().upper().replace(" ", "")
    number = word.rstrip("IB").rstrip("KMGTP")
    unit = word[len(number) :].rstrip("B").rstrip("I")
    try:
        # Not 'nan', 'inf' or a negative one, which float would take.
        value = float(number if number[:1].isdigit() else "")
        factor = 1024 ** ("", "K", "M", "G", "T", "P").index(unit)
    except ValueError:
        raise Refused(
            f"{text!r} is not a valid size", "write bytes, or a number with K, M, G, T or P, such as 50G"
        ) from None
    if value * factor != int(value * factor):
        raise Refused(f"the size {text!r} is not a whole number of bytes")
    return int(value * factor)


def shown(size: int) -> str:
    """Bytes for people."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} PiB"
