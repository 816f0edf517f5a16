# SPDX-License-Identifier: GPL-3.0-or-later
"""What has a grammar ends where the grammar ends: a line break behind it is another text, and may be another line."""

from __future__ import annotations

import re

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import snapshots as ceph_snapshots
from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.health import evaluate as health

UUID = "GPU-8f6cd1ee-5b3d-4c0a-9e3f-2b1f0d6c7a10"
GRAMMARS = [
    (cdi.UUID, UUID),
    (cdi.DEVICE_NAME, "0"),
    (cdi.KIND_PATTERN, "nvidia.com/gpu"),
    (health._UUID, UUID),
    (ceph_snapshots.REPEAT, "24h"),
]


@pytest.mark.parametrize(("grammar", "text"), GRAMMARS)
def test_a_line_break_behind_it_is_no_part_of_it(grammar: re.Pattern[str], text: str) -> None:
    assert grammar.match(text)
    assert not grammar.match(f"{text}\n")
