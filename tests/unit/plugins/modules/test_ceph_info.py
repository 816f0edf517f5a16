# SPDX-License-Identifier: GPL-3.0-or-later
"""What ceph_info returns of recorded clusters. The keys of a real cluster are in tests/roles/test_ceph_modules.py."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.modules import ceph_info
from tests.unit.plugins.ceph_answers import VERSIONS, ceph


@pytest.mark.parametrize("version", VERSIONS)
def test_each_subset_returns_its_part_of_the_cluster(version: str) -> None:
    files = ceph_info.filesystems(ceph(version))
    assert files["filesystems"]["homefs"]["data_pools"] == ["home_data"]
    assert files["filesystems"]["homefs"]["daemons"][0]["state"] == "active"
    pools = ceph_info.pools(ceph(version))
    assert (pools["pools"]["home_data"]["stored"], pools["raw"]["total"]) == (121, 2 << 30)
    found = ceph_info.settings(ceph(version))["settings"]
    assert found["osd/class:ssd"] == {"osd_memory_target": "4294967296"}
