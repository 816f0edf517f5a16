# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m tests.bench [NAME ...]``: every benchmark, or the named ones.

A benchmark is a module bench_NAME.py here with a function `run(quick)` that returns Comparisons and Figures. With
--quick it runs on less and says nothing about the goal. What was measured in full last, of each, becomes
docs/benchmarks.md, which says also what could not be measured and why.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from tests.bench import harness, page


def names() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="small and fast, to see that it works")
    given = parser.parse_args()
    unknown = set(given.names) - set(names())
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names())}")
    left_out: dict[str, str] = {}
    for name in given.names or names():
        try:
            measured = importlib.import_module(f"tests.bench.bench_{name}").run(given.quick)
        except harness.NotHere as why:
            if given.names:
                raise
            left_out[name] = str(why)
            print(f"{name}: left out; {why}\n")
            continue
        harness.report(name, measured, not given.quick)
    if not given.quick:
        print(page.write(names(), left_out))


if __name__ == "__main__":
    main()
