# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: drift_remedy
short_description: How to repair the drift of a host
version_added: 0.1.0
description:
  - Turns a desired document and the answer of M(baremetal.gpu.host_drift_info) into the lists over which the
    remediation of the role P(baremetal.gpu.converge#role) loops.
positional: _input, found
options:
  _input:
    description: The desired document.
    type: dict
    required: true
  found:
    description: The answer of M(baremetal.gpu.host_drift_info).
    type: dict
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show which packages are going to be installed
  ansible.builtin.debug:
    msg: "{{ (converge_desired | baremetal.gpu.drift_remedy(converge_result)).install }}"
"""

RETURN = r"""
_value:
  description: What to do, by task.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.drift_remedy import remedy


class FilterModule:
    """Filters of the role converge."""

    def filters(self) -> dict[str, Any]:
        return {"drift_remedy": remedy}
