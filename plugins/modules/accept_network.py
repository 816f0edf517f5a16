#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_network
short_description: Measure the network between two hosts
version_added: 0.1.0
description:
  - With O(state=listening) it starts a listener on the host, with O(state=measured) it measures against that of another
    host, and with O(state=ended) it ends the listener.
  - The listener runs as user V(nobody), writes no file, and obeys only clients that know O(token). It ends by itself
    after O(idle) seconds without such a client.
  - Measures TCP, with several streams in each direction, one direction after the other, and round trips of 8 bytes.
    That shows a link, a cable or a route that is slower than the others. It says nothing of RDMA, and a link of 100
    Gbit/s and more is not filled by it.
  - A peer that cannot be reached does not make the module fail.
options:
  state:
    description: What to do.
    type: str
    choices: [listening, measured, ended]
    required: true
  token:
    description: The secret by which both sides know each other.
    type: str
    required: true
  port:
    description:
      - The port to listen on, V(0) for any. With O(state=measured) that of O(address), and with O(state=ended) the one
        that O(state=listening) has returned.
    type: int
    default: 0
  idle:
    description: Seconds without a client after which the listener ends.
    type: float
    default: 120
  peer:
    description: Name of the other host in the inventory.
    type: str
  address:
    description: Name or address of the other host.
    type: str
  seconds:
    description: How long each direction is measured.
    type: float
    default: 2
  streams:
    description: How many connections there are at a time.
    type: int
    default: 4
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode nothing is started or measured.
seealso:
  - module: baremetal.gpu.accept_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Listen
  baremetal.gpu.accept_network:
    state: listening
    token: "{{ token }}"
  register: listener

- name: Measure the way to the other host
  baremetal.gpu.accept_network:
    state: measured
    token: "{{ token }}"
    peer: gpu2
    address: 10.0.0.2
    port: "{{ hostvars['gpu2'].listener.port }}"
"""

RETURN = r"""
port:
  description: The port of the listener. Null in check mode.
  returned: with O(state=listening)
  type: int
ended:
  description: Whether the host has no listener any more.
  returned: always
  type: bool
measured:
  description:
    - C(peer), C(error) (why it could not be measured, or null), C(latency_us) (the median round trip), C(send_gbit_s)
      and C(receive_gbit_s). Null where nothing was measured.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import network


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "required": True, "choices": ["listening", "measured", "ended"]},
            "token": {"type": "str", "required": True, "no_log": True},
            "port": {"type": "int", "default": 0},
            "idle": {"type": "float", "default": 120},
            "peer": {"type": "str"},
            "address": {"type": "str"},
            "seconds": {"type": "float", "default": 2},
            "streams": {"type": "int", "default": 4},
        },
        required_if=[("state", "measured", ["peer", "address"])],
        supports_check_mode=True,
    )
    given = module.params
    for name, least, most in (("seconds", 0.1, 60), ("streams", 1, 64), ("idle", 5, 3600), ("port", 0, 65535)):
        if not least <= given[name] <= most:
            module.fail_json(msg=f"{name} is {given[name]}; set it to {least} to {most}")
    result: dict[str, object] = {"changed": False, "ended": given["state"] == "ended", "measured": None}
    if given["state"] == "listening":
        result["port"] = None
        if not module.check_mode:
            try:
                result["port"] = network.listen(given["token"], given["port"], given["idle"])
            except OSError as failure:
                where = f"port {given['port']}" if given["port"] else "any port"
                module.fail_json(msg=f"the host cannot listen on {where}: {failure.strerror}")
    elif given["state"] == "measured" and not module.check_mode:
        measured = network.measure(given["address"], given["port"], given["token"], given["seconds"], given["streams"])
        result["measured"] = {"peer": given["peer"], **measured}
    elif given["state"] == "ended" and not module.check_mode:
        network.end(given["port"], given["token"])
    module.exit_json(**result)


if __name__ == "__main__":
    main()
