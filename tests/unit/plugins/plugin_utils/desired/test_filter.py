# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One filter gives every role its plan."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import roles
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Document
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan


@pytest.mark.parametrize("name", ["", "nobody", "plan", "templates", "../roles", "os"])
def test_a_name_that_is_not_a_role_with_a_plan_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(AnsibleFilterError, match=r"there is no plan for a role .*; use one of"):
        desired({}, name)


def test_every_plan_is_made_by_a_function_of_one_signature() -> None:
    for name in roles.names():
        function = import_module(f"{roles.PACKAGE}.{name}").desired
        assert list(inspect.signature(function).parameters) == ["params", "facts", "peers"], name


def test_templates_read_the_document_the_problems_as_data_and_the_parts_of_the_role() -> None:
    problem = Problem("unknown_system", "gpu1", "this system is not known", "debian9", "use Debian 12")
    plan = Plan(Document(files=[]), (problem,), {"runfile": {"due": True}})
    assert plan.as_dict() == {
        "desired": {"files": []},
        "problems": [
            {
                "code": "unknown_system",
                "subject": "gpu1",
                "cause": "this system is not known",
                "evidence": "debian9",
                "remedy": "use Debian 12",
            }
        ],
        "runfile": {"due": True},
    }
