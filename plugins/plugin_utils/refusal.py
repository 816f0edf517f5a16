# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How an action plugin fails with problems as data."""

from __future__ import annotations

from collections.abc import Iterable

from ansible.errors import AnsibleActionFail

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure


def refusal(host: str, problems: Iterable[Problem]) -> AnsibleActionFail:
    """The exception for an action plugin to raise. The result of the task has `msg` and `problems`."""
    result = failure(host, problems)
    return AnsibleActionFail(str(result["msg"]), result=result)
