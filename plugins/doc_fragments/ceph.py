# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """How a module reaches a cluster, and what holds of all that do."""

    DOCUMENTATION = r"""
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  conf:
    description: Ceph's configuration file, which names the monitors.
    type: path
    default: /etc/ceph/ceph.conf
  client:
    description: Name of the key for the commands.
    type: str
    default: client.admin
  keyring:
    description: File with that key. By default where Ceph looks for it.
    type: path
  timeout:
    description: Seconds in which the cluster must answer a command.
    type: int
    default: 30
requirements:
  - The command C(ceph) on the host, and a key that may do this.
"""

    CHANGES = r"""
attributes:
  check_mode:
    description: Can run in check mode. It reads the cluster and returns what it would do.
    support: full
  diff_mode:
    description: Shows the managed state before and after, the same in check mode. It has no secrets.
    support: full
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
"""
