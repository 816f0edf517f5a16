# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The device files of nodes' GPUs in gres.conf. Slurm's positions of GPUs are those of this list."""

from __future__ import annotations

import re

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# Of a thousand nodes with eight GPUs each, it has less than 1 MiB.
BYTES_AT_MOST = 8 << 20
GPUS_AT_MOST = 64
# Of one list, such as n[1-1000].
NAMES_AT_MOST = 1 << 16


class Unclear(Exception):
    """Which GPUs there are, or which a job has, cannot be told; the message says why."""


def numbers(text: str, at_most: int = GPUS_AT_MOST) -> list[int]:
    """The numbers of a list such as 0-3,8, in its order. Raises Unclear."""
    found: list[int] = []
    for part in text.split(","):
        span = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if last < first or len(found) + last - first >= at_most:
            raise Unclear(f"{one_line(text, 60)!r} is not a list of numbers")
        found += range(first, last + 1)
    return found


def names(text: str) -> list[str]:
    """The names of a list of Slurm's, such as n[1-3,08],login. Raises Unclear."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text) if text else ():
        words = re.fullmatch(r"([^\[\]]*)(?:\[([0-9][0-9,-]*)\]([^\[\]]*))?", part)
        if words is None:
            raise Unclear(f"{one_line(text, 60)!r} is not a list of names")
        if words[2] is None:
            found.append(part)
            continue
        for span in words[2].split(","):
            width = len(span.partition("-")[0])
            found += [f"{words[1]}{one:0{width}}{words[3]}" for one in numbers(span, NAMES_AT_MOST - len(found))]
    return found


def _minors(file: str) -> list[int | None]:
    """Those of device files; one None where they are unclear."""
    try:
        devices = [re.fullmatch(r"/dev/nvidia([0-9]{1,4})", name) for name in names(file)]
    except Unclear:
        devices = []
    return [int(device[1]) for device in devices if device] if devices and all(devices) else [None]


class Gres:
    """What a gres.conf says. A line whose GPUs have no device files of their own makes its nodes unclear.

    :param node: the only one that is asked for, where the text may have a thousand.
    """

    def __init__(self, text: str, node: str = "") -> None:
        # Node -> minors by position, None for what is unclear. Lines without a node are of all of them.
        self._of: dict[str, list[int | None]] = {}
        self._everyone: list[int | None] = []
        for line in text.splitlines():
            words = (word.split("=", 1) for word in line.partition("#")[0].split() if "=" in word)
            # Slurm takes the keys in any letters.
            values = {key.lower(): value for key, value in words}
            if values.get("name") == "gpu":
                self._add(values.get("nodename", ""), values.get("file", ""), node)

    def _add(self, nodes: str, file: str, node: str) -> None:
        if node and nodes and nodes != node and not re.search(r"[\[,]", nodes):
            return
        minors = _minors(file)
        try:
            listed = names(nodes)
        except Unclear:
            listed, minors = [], [None]
        for name in listed:
            self._of.setdefault(name, list(self._everyone)).extend(minors)
        if not listed:
            self._everyone += minors
            for known in self._of.values():
                known += minors

    def minors(self, node: str) -> list[int]:
        """The minors of a node's GPUs by position. Raises Unclear."""
        found = self._of.get(node, self._everyone)
        clear = [minor for minor in found if minor is not None]
        if len(clear) < len(found):
            raise Unclear("gres.conf lists a GPU without a device file of its own")
        return clear

    def known(self, node: str) -> list[int]:
        """The same for people; empty where it is unclear."""
        try:
            return self.minors(node)
        except Unclear:
            return []
