#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the tables of docs/metrics.md from the metrics that the programs of the collection publish.

.venv/bin/python tools/metric_tables.py [--check]

With --check nothing is written, and a page that would be written differently ends it with 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import dcgm, publish
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import metrics as host_metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import metrics as reconciler_metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import metrics as slurm_metrics

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
OWN = "| metric | type | labels | |"
SLURM = "| metric of Slurm | type | labels | |"
RECONCILER = "| metric of the reconciler | type | labels | |"
HOST = "| metric of a host | type | labels | |"
DCGM = "| before 4.9 | unit | since 4.9 | unit | type | |"


def rows(metrics: Metrics) -> Iterator[str]:
    for name, (kind, labels, text) in metrics.items():
        yield f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text.removesuffix('.')} |"


def dcgm_rows() -> Iterator[str]:
    for field in dcgm.FIELDS:
        cells = [
            cell for names in (dcgm.CLASSIC, dcgm.CURRENT) for cell in (f"`{field.name(names)}`", field.unit_of(names))
        ]
        yield f"| {' | '.join(cells)} | {field.kind} | {dcgm.HELP[field.reading]} |"


TABLES = {
    OWN: lambda: rows(publish.METRICS),
    SLURM: lambda: rows(slurm_metrics.METRICS),
    RECONCILER: lambda: rows(reconciler_metrics.METRICS),
    HOST: lambda: rows(host_metrics.METRICS),
    DCGM: dcgm_rows,
}


def rewritten(page: str) -> str:
    """The page with its tables as they have to be."""
    lines: list[str] = []
    inside = False
    for line in page.splitlines():
        if line in TABLES:
            inside = True
            lines += [line, "| --- " * (line.count("|") - 1) + "|", *TABLES[line]()]
        elif not line.startswith("|"):
            inside = False
        if not inside:
            lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; end with 1 if something is to be written")
    check = parser.parse_args().check
    before = PAGE.read_text(encoding="utf-8")
    after = rewritten(before)
    if before == after:
        return 0
    if not check:
        PAGE.write_text(after, encoding="utf-8")
        return 0
    sys.stderr.write(f"{PAGE}: its tables are not those of the metrics; run tools/metric_tables.py\n")
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
