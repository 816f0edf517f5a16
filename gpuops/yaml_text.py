# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a YAML file that is changed without losing its comments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml


def end_of(node: Any) -> int:
    """Where a value ends; PyYAML says of one in blocks where the next begins."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return end_of(last[1] if isinstance(last, tuple) else last)


def line_end(text: str, index: int) -> int:
    found = text.find("\n", index)
    return len(text) if found < 0 else found


def differing(before: str, after: str, name: str) -> Sequence[str]:
    """What changes, as people know it of git."""
    import difflib

    return list(difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm=""))
