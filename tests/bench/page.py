# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/benchmarks.md, from what each benchmark has measured last.

Nothing on the page is written by hand. Of benchmarks that were measured before the page had them, recorded.json has the
figures, without the machine; they stay until the benchmark is run again.
"""

from __future__ import annotations

import ast
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.bench.harness import RESULTS, ROOT

RECORDED = Path(__file__).with_name("recorded.json")
PAGE = ROOT / "docs" / "benchmarks.md"

HEADING = "## "
HEAD = """# Benchmarks

`make bench` measures what has a goal and writes this page. A benchmark compares two ways to do the same thing. They
take turns in one run, so that a busy machine slows both down, and the result is the ratio with a 95 % interval. If the
goal lies within that interval, or within the variation of one side, the result is *inconclusive*. Without a baseline
the table shows the median and the maximum, and the maximum must reach the goal. Each benchmark names the machine on
which it was last measured; do not compare seconds of two machines.

"""


def _about(name: str) -> str:
    """What the benchmark says of itself."""
    source = (Path(__file__).parent / f"bench_{name}.py").read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source)) or ""


def _machine(told: Mapping[str, Any]) -> str:
    return (
        f"{told['cpus']} cores of {told['cpu']} with {told['memory_gib']} GiB, {told['system']}, "
        f"Linux {told['kernel']}, Python {told['python']}, ansible-core {told['ansible_core']}"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---" if number < 2 else "---:" for number in range(len(columns))], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _section(name: str, result: Mapping[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d", time.gmtime(result["time"]))
    loads = " ".join(f"{load:.1f}" for load in result["load"])
    measured = f"{at} on {_machine(result['machine'])}; the load over 1, 5 and 15 minutes was {loads} at the end"
    return _with_tables(name, measured, result["tables"])


def _recorded(name: str) -> str:
    result = json.loads(RECORDED.read_text(encoding="utf-8")).get(name)
    return (
        _with_tables(name, f"{result['date']} in the lab; these figures are rounded", result["tables"])
        if result
        else ""
    )


def _with_tables(name: str, measured: str, tables: Sequence[Mapping[str, Any]]) -> str:
    first, _blank, rest = _about(name).partition("\n\n")
    return (
        f"{HEADING}{name}\n\n{first}\n\n"
        + (f"{rest}\n\n" if rest else "")
        + f"Measured on {measured}.\n\n"
        + "".join(_table(table["columns"], table["rows"]) for table in tables)
    )


def _written_before() -> dict[str, str]:
    """The sections of the page by the names of the benchmarks."""
    try:
        before = PAGE.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    sections = before.split(f"\n{HEADING}")[1:]
    return {section.partition("\n")[0]: HEADING + section.rstrip("\n") + "\n\n" for section in sections}


def write(names: Sequence[str], left_out: Mapping[str, str] = MappingProxyType({})) -> str:
    """Writes the page if everything was measured, now or earlier, and says whether it has.

    What was measured in another checkout, or on another machine, stays as the page has it.

    :param left_out: those that cannot be measured here, and why.
    """
    files = {name: RESULTS / f"{name}.json" for name in names}
    results = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    before = _written_before()
    sections = {
        name: _section(name, results[name]) if name in results else before.get(name) or _recorded(name)
        for name in names
    }
    missing = [name for name in names if not sections[name]]
    not_yet = [name for name in missing if name not in left_out]
    if not_yet:
        return f"{PAGE.relative_to(ROOT)} is as it was: not measured here yet: {', '.join(not_yet)}"
    why = [f"- {name}: {left_out[name]}\n" for name in missing]
    parts = [HEAD, *sections.values(), *(["## Not measured on this machine\n\n", *why] if why else [])]
    PAGE.write_text("".join(parts).rstrip("\n") + "\n", encoding="utf-8")
    return f"{PAGE.relative_to(ROOT)} is written"
