# SPDX-License-Identifier: GPL-3.0-or-later
"""Scores of pairs, from NVLinks and levels that are hand-made."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import topology


def gpu(address, *remotes, down=0):
    links = [{"active": True, "remote": remote} for remote in remotes]
    return {"pci_address": address, "nvlinks": links + [{"active": False, "remote": None}] * down}


def test_links_are_counted_per_pair():
    rows = [gpu("a", "b", "b", "c"), gpu("b", "a", "a"), gpu("c", "a", down=1)]
    assert topology.nvlinks(rows) == [[0, 2, 1], [2, 0, 0], [1, 0, 0]]


def test_links_to_switches_join_every_pair_by_the_lesser_number():
    rows = [gpu("a", "s1", "s1", "s2"), gpu("b", "s1", "s2", down=1), {"pci_address": "c", "nvlinks": None}]
    assert topology.nvlinks(rows) == [[0, 2, 0], [2, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("level", "name", "score"),
    [
        (0, "board", 60),
        (10, "pix", 50),
        (20, "pxb", 40),
        (30, "phb", 30),
        (40, "node", 20),
        (50, "sys", 10),
        (None, None, 0),
        (77, None, 0),
    ],
)
def test_points_of_the_way_over_pcie(level, name, score):
    built = topology.build([gpu("a"), gpu("b")], {(0, 1): level})
    assert built["scores"] == [[None, score], [score, None]]
    assert built["kinds"] == {str(score): {"nvlinks": 0, "pcie": name}}


def test_a_pair_that_was_not_asked_has_no_score():
    built = topology.build([gpu("a", "b"), gpu("b", "a"), gpu("c")], {(0, 1): 10})
    assert built["scores"] == [[None, 150, None], [150, None, None], [None, None, None]]
