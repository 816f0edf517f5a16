# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: reconciler_problems
short_description: What is wrong with the settings of the reconciler
version_added: 0.1.0
description:
  - Checks the settings as the reconciler does when it starts, so that a role can refuse them before anything changes.
positional: _input
options:
  _input:
    description: The content of the reconciler's file.
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Refuse settings that make no sense
  ansible.builtin.assert:
    that: (reconciler_settings | baremetal.gpu.reconciler_problems) == ''
"""

RETURN = r"""
_value:
  description: What is wrong, naming key, value and remedy; empty if nothing is.
  type: str
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler import settings as reconciler_settings


def problems(settings: Any) -> str:
    try:
        reconciler_settings.settings_of(settings, "the reconciler's settings")
    except reconciler_settings.Wrong as wrong:
        return str(wrong)
    return ""


class FilterModule:
    """Filter of the role gpu_reconciler."""

    def filters(self) -> dict[str, Any]:
        return {"reconciler_problems": problems}
