# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The manager of a host, and a bcrypt that it cannot load."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("ceph_mgr"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("ceph_mgr", case)


def test_a_mgr_that_would_not_load_its_modules_is_refused_with_both_ways_out() -> None:
    document = ceph_roles.documents("ceph_mgr")["defect_refused"]
    (problem,) = desired(document["params"], "ceph_mgr", document["facts"])["problems"]
    assert problem["evidence"] == document["params"]["version"]
    assert "set ceph_mgr_bcrypt to stub" in problem["remedy"]
    assert "ceph_common_repositories" in problem["remedy"]
