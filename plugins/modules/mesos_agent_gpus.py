#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_agent_gpus
short_description: Change the GPUs that the Mesos agent of a host offers
version_added: 0.1.0
description:
  - An agent does not come back with fewer GPUs under its id. So the module stops it, writes the new list, removes its
    checkpoint and starts it under a new id.
  - Its tasks would be lost with the old id. So drain the agent before. The module does not touch an agent with tasks,
    or another one than the drained one.
  - The next run continues an interrupted one.
options:
  uuids:
    description: UUIDs of the GPUs to offer, at least one.
    type: list
    elements: str
    required: true
  devices:
    description: The GPUs of the host as in RV(baremetal.gpu.gpu_facts#module:ansible_facts.gpu.devices).
    type: list
    elements: dict
    required: true
  agent_id:
    description: The agent that was drained. Needed for an agent with a checkpoint.
    type: str
  unit:
    description: Unit of the agent.
    type: str
    default: mesos-agent.service
  work_dir:
    description: Its work_dir.
    type: path
    default: /var/lib/mesos/agent
  environment_file:
    description: The file with its environment, as the role mesos_agent writes it.
    type: path
    default: /etc/baremetal-gpu/mesos/agent.env
  url:
    description: URL of the agent on the host itself; by default from its environment.
    type: str
    default: ""
  ca_file:
    description: File with the authority that signed the agent's certificate, by default from its environment.
    type: path
  wait:
    description: Seconds in which the agent must register.
    type: float
    default: 60
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Says whether the list would change, and which agent would have to be drained.
  diff_mode:
    description: Shows the lists.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Give out the GPUs that are well
  baremetal.gpu.mesos_agent_gpus:
    uuids: [GPU-8f6cd1ee-5b3d-4c0a-9e3f-2b1f0d6c7a10]
    devices: "{{ ansible_facts['gpu'].devices }}"
    agent_id: "{{ drained.agent.id }}"
"""

RETURN = r"""
agent_id:
  description: The agent before, null for none with a checkpoint.
  returned: success
  type: str
new_agent_id:
  description: The agent afterwards; the same where nothing was changed.
  returned: success
  type: str
listed:
  description: The GPUs that it gave out before, null where its environment does not name them.
  returned: success
  type: list
  elements: str
resumed:
  description: Whether a run before this one was cut, so that the agent needs no further drain.
  returned: success
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.node_orders import alone, run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.replace import Place, Replacement


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "uuids": {"type": "list", "elements": "str", "required": True},
            "devices": {"type": "list", "elements": "dict", "required": True},
            "agent_id": {"type": "str"},
            "unit": {"type": "str", "default": "mesos-agent.service"},
            "work_dir": {"type": "path", "default": "/var/lib/mesos/agent"},
            "environment_file": {"type": "path", "default": "/etc/baremetal-gpu/mesos/agent.env"},
            "url": {"type": "str", "default": ""},
            "ca_file": {"type": "path"},
            "wait": {"type": "float", "default": 60},
        },
        supports_check_mode=True,
    )
    given = module.params
    place = Place(
        given["unit"], given["work_dir"], given["environment_file"], given["url"], given["ca_file"], given["wait"]
    )
    try:
        if not given["uuids"]:
            raise Refused("no GPU is to be given out", "drain the agent with `gpuops drain`, and leave it so")
        before = mesos_replace.latest(place.work_dir)
        cut = mesos_replace.pending(place)
        drained = given["agent_id"] or (cut or {}).get("agent_id")
        one = Replacement(place, drained, given["uuids"], given["devices"], run)
        listed = mesos_replace.listed(place.environment)
        changed = cut is not None or one.differs()
        if changed and not module.check_mode:
            if before is not None and drained is None:
                raise Refused(f"agent {before} has a checkpoint", "drain it and give agent_id")
            with alone(place):
                one.carry_out()
        after = mesos_replace.latest(place.work_dir)
    except Refused as why:
        module.fail_json(**failure(given["unit"], [why.problem]))
    except OSError as why:
        wrong = Problem(
            "os_error", str(why.filename), str(why.strerror), remedy="see `df -h`, `findmnt` and `sudo dmesg` there"
        )
        module.fail_json(**failure(str(why.filename), [wrong]))
    module.exit_json(
        changed=changed,
        agent_id=before,
        new_agent_id=after,
        listed=listed,
        resumed=cut is not None,
        diff={
            "before": "\n".join(listed or ["unknown"]) + "\n",
            "after": "\n".join(one.gpus[number] for number in sorted(one.gpus)) + "\n",
        },
    )


if __name__ == "__main__":
    main()
