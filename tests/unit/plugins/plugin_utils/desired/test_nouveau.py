# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role nouveau, without a host."""

from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.nouveau import desired
from tests.unit.plugins.plugin_utils.desired.recorded_plans import canonical, plan_by_ansible, recorded

RECORDED = recorded("nouveau")


@pytest.mark.parametrize("case", RECORDED)
def test_the_plan_is_the_recorded_one(case: str):
    assert canonical(desired(RECORDED[case]["params"], {}, {}).as_dict()) == canonical(RECORDED[case]["plan"])


def test_the_tasks_of_the_role_read_this_plan_and_keep_nouveau_off_unless_it_is_allowed(tmp_path):
    plan, finished = plan_by_ansible(tmp_path, "nouveau", {}, {})
    assert canonical(plan) == canonical(desired({"state": "blacklisted"}, {}, {}).as_dict())
    assert finished == plan["desired"]
