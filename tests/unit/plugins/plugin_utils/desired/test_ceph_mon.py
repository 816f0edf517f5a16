# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The monitor of a host."""

from __future__ import annotations

import pytest

from tests.unit.plugins.plugin_utils.desired import ceph_roles


@pytest.mark.parametrize("case", ceph_roles.documents("ceph_mon"))
def test_the_plan_is_as_recorded(case: str) -> None:
    ceph_roles.check("ceph_mon", case)
