# SPDX-License-Identifier: GPL-3.0-or-later
"""Drawings of a report as SVG. Colours come from the page's style, and no drawing has what no table has too."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils import untrusted_document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress import text as progress_text

# What two GPUs have in common at best, in words, by the names that the facts use.
PCIE = {
    "board": "one board",
    "pix": "one PCIe switch",
    "pxb": "several PCIe switches",
    "phb": "one PCIe host bridge",
    "node": "one NUMA node",
    "sys": "different NUMA nodes",
}


# More of them no host has, and no drawing shows.
MOST_GPUS = 64


def scores(topology: Any) -> list[list[float | None]]:
    """How close every two GPUs are, as many rows as columns; none for anything else."""
    found = untrusted_document.mapping(topology).get("scores")
    if not isinstance(found, list) or not 0 < len(found) <= MOST_GPUS:
        return []
    if any(not isinstance(row, list) or len(row) != len(found) for row in found):
        return []
    return [[untrusted_document.number(score) for score in row] for row in found]


def link(topology: Mapping[str, Any], score: float) -> tuple[str, str]:
    """(class for the drawing, words) of what joins two GPUs. A class is one of ours, whatever the host's facts are."""
    kind = untrusted_document.mapping(untrusted_document.mapping(topology.get("kinds")).get(f"{score:.0f}"))
    nvlinks = untrusted_document.number(kind.get("nvlinks"))
    if nvlinks:
        return "nvlink", f"{nvlinks:g} NVLinks"
    name = kind.get("pcie")
    known = isinstance(name, str) and name in PCIE
    return (f"pcie-{name}", PCIE[str(name)]) if known else ("unknown", "not known")


def pairs(topology: Any) -> list[tuple[int, int, str, str]]:
    """Every pair of GPUs: (one, other, class, words)."""
    found = scores(topology)
    return [
        (one, other, *link(topology, score))
        for one in range(len(found))
        for other in range(one + 1, len(found))
        if (score := found[one][other]) is not None
    ]


def topology(host: str, found: Any) -> str:
    """The GPUs of a host in a circle, and a line for each pair; empty with fewer than two."""
    rows = pairs(found)
    if not rows:
        return ""
    count, size, radius = len(scores(found)), 220, 84
    centres = [
        (
            size / 2 + radius * math.sin(2 * math.pi * number / count),
            size / 2 - radius * math.cos(2 * math.pi * number / count),
        )
        for number in range(count)
    ]
    parts = [
        f'<svg class="topology" viewBox="0 0 {size} {size}" width="{size}" height="{size}" role="img" '
        f'aria-label="{escape(f"How the {count} GPUs of {host} are joined; the table has the same", quote=True)}">'
    ]
    for one, other, kind, words in sorted(rows, key=lambda row: row[2] == "nvlink"):
        (x1, y1), (x2, y2) = centres[one], centres[other]
        parts.append(
            f'<line class="{escape(kind, quote=True)}" x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}">'
            f"<title>{one} and {other}: {escape(words)}</title></line>"
        )
    for number, (x, y) in enumerate(centres):
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="15"/><text x="{x:.0f}" y="{y + 5:.0f}">{number}</text>')
    return "".join([*parts, "</svg>"])


def timeline(run: Mapping[str, Any] | None, most: int = 60) -> str:
    """When each host was at which stage; the hosts that took longest where there are many."""
    spans = (run or {}).get("spans") or {}
    total = float((run or {}).get("seconds") or 0)
    if not spans or not run or total <= 0:
        return ""
    names = sorted(spans, key=lambda name: -max((end for _begin, end in spans[name].values()), default=0))[:most]
    names = [name for name in spans if name in names]
    stages = list(run.get("stages") or {})
    left, width, row = 130, 720, 22
    height = row * len(names) + 34
    parts = [
        f'<svg class="timeline" viewBox="0 0 {left + width + 40} {height}" role="img" '
        f'aria-label="When each host was at which stage; the table has how long stages took">'
    ]
    for number in range(5):
        x = left + width * number / 4
        parts.append(
            f'<line class="grid" x1="{x:.0f}" y1="0" x2="{x:.0f}" y2="{height - 22}"/>'
            f'<text class="axis" x="{x:.0f}" y="{height - 6}">{progress_text.clock(total * number / 4)}</text>'
        )
    for place, name in enumerate(names):
        y = place * row
        parts.append(f'<text class="name" x="{left - 8}" y="{y + 15}">{escape(name[:18])}</text>')
        for stage, (begin, end) in spans[name].items():
            state = (run.get("cells") or {}).get(name, {}).get(stage, "ok")
            x, length = left + width * begin / total, max(2.0, width * (end - begin) / total)
            words = f"{name}, {stage}: {state}, {progress_text.clock(end - begin)}"
            parts.append(
                f'<rect class="s{stages.index(stage) % 8 if stage in stages else 0} {escape(state)}" x="{x:.1f}" '
                f'y="{y + 3}" width="{length:.1f}" height="{row - 6}" rx="2"><title>{escape(words)}</title></rect>'
            )
    return "".join([*parts, "</svg>"])


def stage_classes(run: Mapping[str, Any] | None) -> Sequence[tuple[str, str]]:
    """(class, stage) for the key of the timeline."""
    return [(f"s{number % 8}", stage) for number, stage in enumerate((run or {}).get("stages") or {})]
