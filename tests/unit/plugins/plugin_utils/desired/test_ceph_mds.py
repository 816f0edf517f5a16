# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metadata server of a host, and what a cluster is like that is ready."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("ceph_mds"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("ceph_mds", case)


def test_osds_are_expected_only_by_a_run_that_has_started_all_of_them() -> None:
    document = ceph_roles.documents("ceph_mds")["by_default"]
    hosts = document["peers"]["hosts"]
    assert "osds" not in desired(document["params"], "ceph_mds", {}, {"hosts": hosts})["expected"]
    started = {host: {**row, "osds": row["osds"] or [2]} for host, row in hosts.items()}
    assert desired(document["params"], "ceph_mds", {}, {"hosts": started})["expected"]["osds"] == [0, 3, 1, 2]
