# SPDX-License-Identifier: GPL-3.0-or-later
"""What the benchmark of placement tells. The figures are made up."""

from __future__ import annotations

from tests.bench import bench_placement
from tests.bench.openb import Outcome

FOUND = {
    "default": {
        "fgd": Outcome(4.6, 0.73, 1.0, 10),
        "bestfit": Outcome(6.9, 0.75, 1.0, 10),
        "lasting": Outcome(4.3, 0.55, 1.0, 10),
    },
    "whole only": {"fgd": Outcome(1.5, 0.6, 1.0, 10), "lasting": Outcome(0.0, 0.7, 1.0, 10)},
}


def test_both_figures_of_every_policy_and_mix_are_told_and_a_bad_one_is_no_success():
    rows = {(row.what, row.quantity): row for row in bench_placement.compared(FOUND, 10)}
    assert len(rows) == 6
    assert rows["default, against fgd", "left over"].verdict == "yes"
    assert rows["default, against fgd", "8-GPU pods placed"].verdict == "no"
    assert rows["default, against bestfit", "8-GPU pods placed"].verdict == "no"
    assert rows["default, against bestfit", "left over"].verdict == ""
    assert [rows["whole only, against fgd", figure].verdict for figure in ("left over", "8-GPU pods placed")] == [
        "yes",
        "yes",
    ]
