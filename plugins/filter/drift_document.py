# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: drift_document
short_description: A desired document as it is sent to a host
version_added: 0.1.0
description:
  - Replaces the content of files that are marked as sensitive by its checksum, so that a secret is never among the
    arguments of a module that only compares.
positional: _input, brief
options:
  _input:
    description: The desired document of M(baremetal.gpu.host_drift_info).
    type: dict
    required: true
  brief:
    description:
      - Whether to replace the content of long files too, so that a program is not sent to every host just to be
        compared. The module then cannot show what differs in them, as it does in check mode.
    type: bool
    default: false
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Compare
  baremetal.gpu.host_drift_info:
    desired: "{{ converge_desired | baremetal.gpu.drift_document(brief=not ansible_check_mode) }}"
"""

RETURN = r"""
_value:
  description: The document as it is sent.
  type: dict
"""

from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.drift_remedy import as_sent


class FilterModule:
    """Filters of the role converge."""

    def filters(self) -> dict[str, Any]:
        return {"drift_document": as_sent}
