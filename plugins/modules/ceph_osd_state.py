#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: ceph_osd_state
short_description: Drain OSDs of a Ceph cluster, and remove them from it
version_added: 0.1.0
description:
  - Moves the data of OSDs to others, waits until the cluster no longer depends on them, and removes them from its map.
  - Refuses, before any change, if the other OSDs have too few failure domains or too little space for all copies.
  - Repeat an interrupted run. Until an OSD is removed, the change can be undone; the result says how.
  - Does not touch the hosts of the OSDs; M(baremetal.gpu.ceph_osd_local) does.
options:
  osds:
    description: Numbers of the OSDs. With O(state=drained) and O(state=absent) an OSD that does not exist is ignored.
    type: list
    elements: int
    required: true
  state:
    description:
      - V(drained) moves the data away. V(out) does the same for an OSD that will return on another disk.
      - V(absent) removes the OSDs, which must be stopped.
      - V(destroyed) keeps their numbers and places for new disks.
    type: str
    choices: [out, drained, absent, destroyed]
    required: true
  lost:
    description:
      - With O(state=out) and O(state=destroyed), the disk is broken for good, so the module does not wait for its data.
      - Refused if the OSD runs, or if data may be on that disk alone. Placement groups that are peering, as right after
        a failure, get a minute.
    type: bool
    default: false
  wait:
    description: Seconds in which the data must have moved.
    type: int
    default: 3600
extends_documentation_fragment:
  - baremetal.gpu.ceph
  - baremetal.gpu.ceph.changes
author:
  - baremetal.gpu contributors (@baremetal-gpu)
seealso:
  - module: baremetal.gpu.ceph_osd_local
"""

EXAMPLES = r"""
- name: Move the data of an OSD to others
  baremetal.gpu.ceph_osd_state:
    osds: [7]
    state: drained
    wait: 86400
"""

RETURN = r"""
plan:
  description: What was done, or in check mode would be done.
  returned: success
  type: list
  elements: str
  sample: [move the data of osd.7 to others, take the weight 7.2777 off osd.7]
fsid:
  description: UUID of the cluster.
  returned: success
  type: str
osds:
  description: The OSDs that are in the map, with C(uuid), C(up), C(in), C(destroyed) and C(weight).
  returned: success
  type: dict
  sample: {"7": {"up": true, "in": true}}
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import module as ceph_module
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.osd import removal as ceph_osd_removal
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, act
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

INTERVAL_S = 5
# The mgr hears of a placement group every five seconds, and tells the monitors as often.
PASSING_S = 60


class Removal:
    """One call of the module on one cluster."""

    def __init__(self, ceph: Ceph, given: dict[str, Any]) -> None:
        self.ceph = ceph
        self.numbers = sorted(set(given["osds"]))
        self.state = given["state"]
        self.lost = given["lost"]
        self.wait = given["wait"]

    def run(self, pretend: bool) -> dict[str, Any]:
        """Do it, or in check mode say what would be done."""
        found = ceph_osd_removal.read(self.ceph)
        # A disk is often given up right after it has failed; nothing is known of the other copies until then.
        end_of_patience = time.monotonic() + PASSING_S
        while self.lost and ceph_osd_removal.is_passing(found) and time.monotonic() < end_of_patience:
            time.sleep(INTERVAL_S)
            found = ceph_osd_removal.read(self.ceph)
        ceph_osd_removal.refuse(found, self.numbers, self.state, self.lost)
        before = ceph_osd_removal.show(found, self.numbers)
        drain = [] if self.lost else ceph_osd_removal.draining(found, self.numbers, self.state)
        end = ceph_osd_removal.ending(found, self.numbers, self.state)
        if not pretend:
            self._carry_out(found, drain, end)
            found = ceph_osd_removal.read(self.ceph) if drain or end else found
        steps = [*drain, *end]
        after = self._wanted(before) if steps else before
        return {
            "changed": bool(steps),
            "plan": [step.does for step in steps],
            "fsid": found["fsid"],
            "osds": {str(number): osd for number, osd in found["osds"].items()},
            "diff": {"before": ceph_module.text(before), "after": ceph_module.text(after)},
        }

    def _wanted(self, before: dict[str, Any]) -> dict[str, Any]:
        if self.state == ceph_osd_removal.ABSENT:
            return {}
        if self.state == ceph_osd_removal.OUT:
            return {name: {**row, "in": False} for name, row in before.items()}
        if self.state == ceph_osd_removal.DRAINED:
            return {name: {**row, "in": False, "weight": 0} for name, row in before.items()}
        return {name: {**row, "in": row["in"] and self.lost, "destroyed": True} for name, row in before.items()}

    def _carry_out(self, found: dict[str, Any], drain: list[Step], end: list[Step]) -> None:
        before = ceph_osd_removal.show(found, self.numbers)
        for step in drain:
            act(self.ceph, step)
        there = [
            number
            for number in self.numbers
            if number in found["osds"] and not found["osds"][number]["destroyed"] and not self.lost
        ]
        why = self._until(lambda: ceph_osd_removal.waits_for(self.ceph, there))
        if why:
            back = ceph_osd_removal.way_back(drain, before)
            raise Refused(
                f"after {self.wait} s data are still needed from there: {why}. No OSD was removed",
                "see 'sudo ceph -s', and run it again, which waits on" + (f"; to take it back: {back}" if back else ""),
            )
        if end:
            running = self._until(self._running, 60)
            if running:
                raise Refused(f"{running} still runs, and was not removed", "stop it, and run it again")
        for step in end:
            act(self.ceph, step)

    def _running(self) -> str:
        rows = self.ceph.json("osd", "dump")["osds"]
        return ", ".join(f"osd.{row['osd']}" for row in rows if row["osd"] in self.numbers and row["up"])

    def _until(self, why: Any, most: int | None = None) -> str:
        """Wait until nothing speaks against it; what still does."""
        deadline = time.monotonic() + (self.wait if most is None else most)
        while True:
            said = str(why())
            if not said or time.monotonic() >= deadline:
                return said
            time.sleep(INTERVAL_S)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **ceph_module.CONNECTION,
            "osds": {"type": "list", "elements": "int", "required": True},
            "state": {"type": "str", "choices": ["out", "drained", "absent", "destroyed"], "required": True},
            "lost": {"type": "bool", "default": False},
            "wait": {"type": "int", "default": 3600},
        },
        supports_check_mode=True,
    )
    listed = ", ".join(f"osd.{number}" for number in module.params["osds"])
    ceph_module.guarded(module, listed, lambda ceph: Removal(ceph, module.params).run(module.check_mode))


if __name__ == "__main__":
    main()
