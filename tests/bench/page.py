# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/benchmarks.md, from what each benchmark has measured last. Nothing on the page is written by hand."""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.bench.harness import RESULTS, ROOT

PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

`make bench` measures what has a goal and writes this page. A benchmark compares two ways of doing the same in pairs
that take turns in one run, so that a busy machine slows both: what counts is the ratio, with an interval of 95 %. A
goal that lies within the interval, or within what a side differs from itself, is *inconclusive*. What has no baseline
is told as the median and the maximum, and the maximum has to reach the goal.

"""


def _about(name: str) -> str:
    """What the benchmark says of itself."""
    source = (Path(__file__).parent / f"bench_{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _machine(results: Sequence[dict[str, Any]]) -> str:
    told = results[0]["machine"]
    return (
        f"Measured on {told['cpus']} cores of {told['cpu']} with {told['memory_gib']} GiB, {told['system']}, "
        f"Linux {told['kernel']}, Python {told['python']}, ansible-core {told['ansible_core']}.\n\n"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---" if number < 2 else "---:" for number in range(len(columns))], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def text(results: dict[str, dict[str, Any]], left_out: Mapping[str, str] = MappingProxyType({})) -> str:
    """The page. `results` is what harness.report() keeps, by the name of the benchmark; so is why some are left out."""
    parts = [HEAD, _machine(list(results.values()))]
    for name, result in results.items():
        first, _blank, rest = _about(name).partition("\n\n")
        parts.append(f"## {name}\n\n{first}\n\n" + (f"{rest}\n\n" if rest else ""))
        at = time.strftime("%Y-%m-%d", time.gmtime(result["time"]))
        loads = " ".join(f"{load:.1f}" for load in result["load"])
        parts.append(f"Measured on {at}; the load over 1, 5 and 15 minutes was {loads} at the end.\n\n")
        parts += [_table(table["columns"], table["rows"]) for table in result["tables"]]
    if left_out:
        parts.append("## Not measured on this machine\n\n")
        parts += [f"- {name}: {why}\n" for name, why in left_out.items()]
    return "".join(parts).rstrip("\n") + "\n"


def write(names: Sequence[str], left_out: Mapping[str, str] = MappingProxyType({})) -> str:
    """Writes the page if every benchmark was measured on this machine, now or earlier, but for those that cannot be and
    are left out; the value says what was done."""
    files = {name: RESULTS / f"{name}.json" for name in names}
    missing = [name for name, file in files.items() if not file.exists()]
    not_yet = [name for name in missing if name not in left_out]
    if not_yet:
        return f"{PAGE.relative_to(ROOT)} is as it was: not measured here yet: {', '.join(not_yet)}"
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    PAGE.write_text(text(results, {name: left_out[name] for name in missing}), encoding="utf-8")
    return f"{PAGE.relative_to(ROOT)} is written"
