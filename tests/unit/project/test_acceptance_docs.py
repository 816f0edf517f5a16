# SPDX-License-Identifier: GPL-3.0-or-later
"""What docs/acceptance.md says of the items is true: their number, their names, and the stages."""

from __future__ import annotations

import re

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept.item import STAGES
from tests.unit.project.tree import ROOT, tracked

TEXT = (ROOT / "docs" / "acceptance.md").read_text()
KINDS = ("accept", "gpuops", "not yet")
BUYERS = TEXT[TEXT.index("## What buyers ask for") :]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in BUYERS.splitlines()
    if line.startswith("|") and not line.startswith(("| item ", "| --- "))
]


def test_every_row_says_whether_it_is_automatic():
    assert {row[1] for row in ROWS} <= set(KINDS)
    assert all(len(row) in (2, 3) for row in ROWS)


def test_the_sum_below_the_tables_is_that_of_the_tables():
    kinds = [row[1] for row in ROWS]
    told = re.search(r"Of these (\d+) items, (\d+) are automatic, (\d+) of them by `gpuops accept` itself", BUYERS)
    assert told
    assert [int(number) for number in told.groups()] == [
        len(kinds),
        len(kinds) - kinds.count("not yet"),
        kinds.count("accept"),
    ]


def test_every_item_that_is_named_is_there():
    sources = "".join((ROOT / path).read_text() for path in tracked("plugins/plugin_utils/accept", ".py"))
    for name in re.findall(rf"`((?:{'|'.join(STAGES)})\.[a-z_0-9]+)`", BUYERS):
        # Some are put together from the names of kinds of jobs, or of copies.
        stage, _dot, rest = name.partition(".")
        assert f'"{name}"' in sources or (f'f"{stage}.{{' in sources and f'"{rest}"' in sources), name


def test_every_stage_has_a_section():
    for stage in STAGES:
        assert f"\n## Stage {stage}\n" in TEXT
