# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mgr
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

# As the first manager's start leaves it for some seconds: what is on is known, what else there is, is not.
STARTING = {"always_on_modules": ["balancer"], "enabled_modules": ["restful"], "disabled_modules": []}
KNOWN = {**STARTING, "disabled_modules": [{"name": "prometheus", "can_run": True, "error_string": ""}]}


def test_a_manager_that_has_just_started_is_no_manager_without_the_module():
    assert mgr.is_unknown(STARTING, ["prometheus"])
    with pytest.raises(Refused, match="no manager has reported its modules"):
        mgr.plan(STARTING, ["prometheus"], enabled=True)


def test_what_is_on_needs_no_answer_of_a_manager():
    assert not mgr.is_unknown(STARTING, ["restful", "balancer"])
    assert mgr.plan(STARTING, ["restful"], enabled=True) == []


def test_a_module_that_the_manager_does_not_have_is_refused():
    assert not mgr.is_unknown(KNOWN, ["telegraf"])
    with pytest.raises(Refused, match="has no module telegraf"):
        mgr.plan(KNOWN, ["telegraf"], enabled=True)
    assert [step.does for step in mgr.plan(KNOWN, ["prometheus"], enabled=True)] == ["switch the module prometheus on"]
