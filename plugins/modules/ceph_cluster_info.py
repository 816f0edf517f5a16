#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_cluster_info
short_description: Return the state of a Ceph cluster, and wait until it is as expected
version_added: 0.1.0
description:
  - Returns quorum, mgrs, OSDs, placement groups, ranks of file systems, standby MDSs and health in short form, and what
    differs from O(expected).
  - Reads only those of mgrs, OSDs and file systems that O(expected) names, or all if it names none.
  - With O(wait) it repeats this until everything is as expected O(polls) times in a row. A difference does not make the
    module fail; use RV(problems) with C(failed_when).
options:
  cluster:
    description: Name of the cluster, as in the names of its files.
    type: str
    default: ceph
  expected:
    description: Desired state of the cluster. What is left out is not checked.
    type: dict
    default: {}
    suboptions:
      fsid:
        description: UUID of the cluster.
        type: str
      mons:
        description: Names of the monitors, all of which should be in the quorum.
        type: list
        elements: str
      mgrs:
        description: How many mgrs should run, one of them active, with every enabled module loaded.
        type: int
      osds:
        description: Numbers of all OSDs. These and no others should be up and in, with all placement groups clean.
        type: list
        elements: int
      filesystems:
        description: Names of the file systems whose ranks should all be active.
        type: list
        elements: str
      standbys:
        description: How many MDSs should be standby, to go with O(expected.filesystems).
        type: int
        default: 0
      health:
        description: Whether there should be no health check with a finding.
        type: bool
        default: false
      warnings:
        description:
          - Whether warnings of Ceph count, too. Otherwise they are returned as warnings, except for those of settings
            that the roles set.
        type: bool
        default: true
      ignored:
        description: Health checks that are ignored.
        type: list
        elements: str
        default: []
  wait:
    description: Seconds to wait for the expected state.
    type: int
    default: 0
  polls:
    description: How many times in a row it must be as expected.
    type: int
    default: 1
  interval:
    description: Seconds between two checks.
    type: int
    default: 2
requirements:
  - The key of client.admin on the host.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Wait until the cluster is healthy
  baremetal.gpu.ceph_cluster_info:
    wait: 120
    polls: 3
    expected:
      mgrs: 2
      health: true
  register: cluster
  failed_when: cluster.problems | length > 0
"""

RETURN = r"""
cluster:
  description: The state, as it was last seen; null if the cluster did not answer.
  returned: success
  type: dict
  contains:
    fsid:
      description: UUID of the cluster.
      type: str
    mons:
      description: Monitors in the quorum.
      type: list
      elements: str
    mgrs:
      description: The C(active) one, the C(standbys), and C(failed_modules) with the reason of each.
      type: dict
    osds:
      description: The OSDs, with C(id), C(uuid), C(up) and C(in).
      type: list
      elements: dict
    pgs:
      description: The C(total) of placement groups, and how many are in each of C(states).
      type: dict
    filesystems:
      description: File systems, with C(name), the state of every one of C(ranks), and C(standby_wanted).
      type: list
      elements: dict
    standbys:
      description: MDS that stand by.
      type: list
      elements: str
    health:
      description:
        - The C(status), the C(checks) that are not muted with what they say, and which of them are C(warnings).
      type: dict
problems:
  description: What is not as expected, as M(baremetal.gpu.refuse) takes it.
  returned: success
  type: list
  elements: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import readiness as ceph_readiness
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "default": "ceph"},
            "expected": {
                "type": "dict",
                "default": {},
                "options": {
                    "fsid": {"type": "str"},
                    "mons": {"type": "list", "elements": "str"},
                    "mgrs": {"type": "int"},
                    "osds": {"type": "list", "elements": "int"},
                    "filesystems": {"type": "list", "elements": "str"},
                    "standbys": {"type": "int", "default": 0},
                    "health": {"type": "bool", "default": False},
                    "warnings": {"type": "bool", "default": True},
                    "ignored": {"type": "list", "elements": "str", "default": []},
                },
            },
            "wait": {"type": "int", "default": 0},
            "polls": {"type": "int", "default": 1},
            "interval": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    given = module.params
    ceph = Ceph(host_run.run, cluster=given["cluster"], library=ceph_library.connect)
    deadline = time.monotonic() + given["wait"]
    cluster, problems, good = None, [], 0
    while True:
        try:
            cluster = ceph_readiness.summary(ceph_readiness.gather(ceph, given["expected"]))
            problems = ceph_readiness.problems(cluster, given["expected"])
        except CephError as error:
            cluster, problems = None, [error.problem]
        good = 0 if problems else good + 1
        # A look that is good is followed up even when the time is over.
        if good >= given["polls"] or (problems and time.monotonic() >= deadline):
            break
        time.sleep(given["interval"])
    for text in ceph_readiness.warnings(cluster, given["expected"]) if cluster else ():
        module.warn(text)
    module.exit_json(changed=False, cluster=cluster, problems=[problem.as_dict() for problem in problems])


if __name__ == "__main__":
    main()
