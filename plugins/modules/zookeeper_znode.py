#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: zookeeper_znode
short_description: Create a node of ZooKeeper that only its owner may change
version_added: 0.1.0
description:
  - Creates a node without content, such as the chroot of a scheduler, and sets its ACL. The nodes above it are created
    too, open to everyone like ZooKeeper's own.
  - What the node holds, and the ACLs of nodes below it, stay as they are.
  - Uses ZooKeeper's protocol directly, without TLS, and authenticates with the scheme C(digest), as Mesos and Marathon
    do.
options:
  servers:
    description: Servers of the ensemble; the first that accepts a session is used.
    type: list
    elements: dict
    required: true
    suboptions:
      host:
        description: Name or IP address.
        type: str
        required: true
      port:
        description: The port for clients.
        type: int
        default: 2181
  path:
    description: The node.
    type: str
    required: true
  user:
    description: The owner, who may do everything with the node.
    type: str
    required: true
  password:
    description: The password of the owner.
    type: str
    required: true
  everyone:
    description:
      - What everyone else may do. Clients that look for the leading Mesos master must read C(/mesos).
    type: str
    choices: [nothing, read]
    default: nothing
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the ACL before and after, without passwords and their checksums.
seealso:
  - name: Access control of ZooKeeper
    description: Schemes and permissions.
    link: https://zookeeper.apache.org/doc/current/zookeeperProgrammers.html#sc_ZooKeeperAccessControl
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Make the chroot of Mesos
  baremetal.gpu.zookeeper_znode:
    servers:
      - host: zk1
      - host: zk2
      - host: zk3
    path: /mesos
    user: mesos
    password: "{{ mesos_zookeeper_password }}"
    everyone: read
  no_log: true
  run_once: true
"""

RETURN = r"""
created:
  description: Whether the node was made, or would be in check mode.
  returned: success
  type: bool
acl:
  description: The ACL of the node, without checksums of passwords.
  returned: success
  type: list
  elements: str
  sample: ["digest:mesos all", "world:anyone read"]
"""

import re

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper import client


def ensure(session: client.Session, path: str, wanted: list[client.Acl], check: bool) -> list[client.Acl] | None:
    """Make a node and set its ACL where it is another; the ACL before, None if there was no node."""
    before = session.get_acl(path)
    if before is not None and set(before) == set(wanted):
        return before
    if check:
        return before
    if before is None:
        parts = path.strip("/").split("/")
        for number in range(1, len(parts)):
            parent = "/" + "/".join(parts[:number])
            if session.get_acl(parent) is None:
                session.create(parent, [client.Acl(client.ALL, "world", "anyone")])
        session.create(path, wanted)
    else:
        session.set_acl(path, wanted)
    return before


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "servers": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "host": {"type": "str", "required": True},
                    "port": {"type": "int", "default": 2181},
                },
            },
            "path": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password": {"type": "str", "required": True, "no_log": True},
            "everyone": {"type": "str", "choices": ["nothing", "read"], "default": "nothing"},
        },
        supports_check_mode=True,
    )
    given = module.params
    if not re.fullmatch(r"(/[^/\s]+)+", given["path"]):
        module.fail_json(msg=f"path is {given['path']!r}: it must begin with a slash, have no empty part and no space")
    if ":" in given["user"] or not given["user"] or not given["password"]:
        module.fail_json(msg=f"{given['path']}: give a user without a colon, and a password")
    owner = client.Acl(client.ALL, "digest", client.digest_id(given["user"], given["password"]))
    readers = [client.Acl(client.PERMISSIONS["read"], "world", "anyone")] if given["everyone"] == "read" else []
    wanted = [owner, *readers]
    try:
        with client.connect(given["servers"]) as session:
            session.authenticate(given["user"], given["password"])
            before = ensure(session, given["path"], wanted, module.check_mode)
    except (client.Failure, OSError) as wrong:
        module.fail_json(
            msg=f"{given['path']}: {wrong}. If the node belongs to another user or has another password, change its "
            "ACL as that user, then run again"
        )
    told = client.in_words(wanted)
    module.exit_json(
        changed=before is None or set(before) != set(wanted),
        created=before is None,
        acl=told,
        diff={
            "before": "".join(f"{line}\n" for line in client.in_words(before or [])),
            "after": "".join(f"{line}\n" for line in told),
        },
    )


if __name__ == "__main__":
    main()
