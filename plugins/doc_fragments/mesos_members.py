# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The members of one kind, and who asks them; the arguments are mesos_arguments.MEMBERS."""

    DOCUMENTATION = r"""
options:
  program:
    description: What the members are.
    type: str
    choices: [master, agent, marathon]
    required: true
  members:
    description: All members that depend on each other. For an agent, only itself.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: The name in the inventory.
        type: str
        required: true
      url:
        description: Where it answers, such as V(http://master1:5050).
        type: str
        required: true
  user:
    description: Who asks the members over HTTP.
    type: str
    default: ""
  password:
    description: The password or secret of O(user).
    type: str
    default: ""
  gpus:
    description: How many GPUs an agent must announce; V(-1) for any number.
    type: int
    default: -1
  masters:
    description:
      - URLs of the masters, of which the leader must have the agent, or the leading Marathon. With none, the master
        that the agent names is queried, at port 5050, and a Marathon need not be registered.
    type: list
    elements: str
    default: []
  masters_user:
    description: Principal for queries of the masters.
    type: str
    default: ""
  masters_password:
    description: The secret of O(masters_user).
    type: str
    default: ""
  ca_file:
    description: File with the authority that signed the members' certificates, if not one of the system's.
    type: path
  tls_first:
    description:
      - Whether members whose URL begins with C(http) are queried with TLS first, and without it if that fails. For a
        cluster in transition to TLS or back.
    type: bool
    default: false
"""
