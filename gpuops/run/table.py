# SPDX-License-Identifier: GPL-3.0-or-later
"""A table in as many characters as there are.

Its lines are those of progress: the same on a terminal, in a log and in a run's picture. Where not all fits, columns go
that a reader misses least; rich's tables would squeeze all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line

# The longest cell of a column that is not the last, and that on a terminal where not even the needed columns fit.
CELL_AT_MOST, NARROW_CELL_AT_MOST = 20, 8
# What the last column gets at least, by its wrapping.
LAST_AT_LEAST = 20


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    indent: str = "    ",
    optional: Sequence[str] = (),
    styles: Sequence[str] = (),
    cut_at: int = CELL_AT_MOST,
    last: int = LAST_AT_LEAST,
    wraps: bool = True,
) -> list[Line]:
    """Columns beside each other, within the width. Cells that are long are cut.

    :param optional: columns that are left out where not all fit, the first of them first.
    :param styles: of each row's last cell.
    :param cut_at: the longest cell of a column that is not the last.
    :param last: width that the last column needs, if it has so much.
    :param wraps: whether a last cell that is long goes on in the next line; else it is cut.
    """
    last = min(last, max(map(len, (head[-1], *(row[-1] for row in rows)))))
    kept = [place for place, _name in enumerate(head[:-1])]

    def sizes() -> dict[int, int]:
        return {place: min(cut_at, max(map(len, (head[place], *(row[place] for row in rows))))) for place in kept}

    def room() -> int:
        return width - len(indent) - sum(size + 2 for size in sizes().values())

    for name in optional:
        if room() < last:
            kept.remove(head.index(name))
    while room() < last and cut_at > NARROW_CELL_AT_MOST:
        cut_at -= 1
    fixed = sizes()

    def start(row: Sequence[str]) -> str:
        return indent + "".join(f"{cut(row[place], size):<{size}}  " for place, size in fixed.items())

    out: list[Line] = [[("faint", start(head) + head[-1])]]
    for number, row in enumerate(rows):
        style = styles[number] if styles else "plain"
        if wraps:
            parts = progress_text.wrapped(start(row), row[-1], width)
            out += [[("plain", before), (style, said)] for (_faint, before), (_plain, said) in parts]
        else:
            out.append([("plain", start(row)), (style, cut(row[-1], max(room(), 1)))])
    return out


def cut(text: str, at_most: int) -> str:
    return text if len(text) <= at_most else f"{text[: at_most - 1]}…"
