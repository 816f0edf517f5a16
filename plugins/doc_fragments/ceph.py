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
    description: Ceph's configuration file, from which the monitors are known.
    type: path
    default: /etc/ceph/ceph.conf
  client:
    description: Name of the key with which the commands are run.
    type: str
    default: client.admin
  keyring:
    description: File with that key. By default where Ceph looks for it.
    type: path
  timeout:
    description: Seconds that the cluster has to answer a command.
    type: int
    default: 30
requirements:
  - The command C(ceph) on the host, and a key that may do this.
"""

    CHANGES = r"""
attributes:
  check_mode:
    description: Can run in check mode. It reads the cluster and says what it would do, without doing it.
    support: full
  diff_mode:
    description: Shows what is managed before and after. The two are the same in check mode. Secrets are not in it.
    support: full
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
"""
