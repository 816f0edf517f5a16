# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cephfs_mounts
short_description: The files and units of a client's CephFS mounts, for a desired document
version_added: 0.1.0
description:
  - Makes the desired document of the role P(baremetal.gpu.cephfs_client#role) from a list of mounts.
positional: _input, settings
options:
  _input:
    description: The mounts, each with C(path), C(subpath), C(client), C(secret) and C(read_only).
    type: list
    elements: dict
    required: true
  settings:
    description: What holds for all mounts of the host, from the role's variables.
    type: dict
    required: true
  ours:
    description: Paths of files that an earlier run wrote. Those that are wanted no longer are listed as absent.
    type: list
    elements: str
    default: []
  scratch:
    description: Whether something is to be mounted for a moment, so that a client is needed even without mounts.
    type: bool
    default: false
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the units of a mount
  ansible.builtin.debug:
    msg: "{{ cephfs_client_mounts | baremetal.gpu.cephfs_mounts(settings) }}"
"""

RETURN = r"""
_value:
  description: A desired document with C(packages), C(files) and C(units).
  type: dict
"""

from collections.abc import Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import mounts as ceph_mounts


def cephfs_mounts(
    mounts: list[dict[str, Any]], settings: dict[str, Any], ours: Sequence[str] = (), scratch: bool = False
) -> dict[str, Any]:
    try:
        return ceph_mounts.document(mounts, settings, ours, scratch)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filter of the role cephfs_client."""

    def filters(self) -> dict[str, Any]:
        return {"cephfs_mounts": cephfs_mounts}
