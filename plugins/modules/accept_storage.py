#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: accept_storage
short_description: Measure the shared storage as a host has it
version_added: 0.1.0
description:
  - Measures bandwidth, operations a second and the time of an fsync with C(fio), in one file of a directory, and reads
    how full the file systems of the host are.
  - Everything in the directory is done with the rights of its owner. The file goes when the module ends, also when it
    is killed. What a host that lost its power has left goes with the next run.
  - Storage that fails does not make the module fail. Without C(fio) nothing is measured.
options:
  directories:
    description:
      - Directories of the shared storage, such as homes. The first one that is there is measured. One that belongs to
        root, and in which others may write, is left alone.
    type: list
    elements: path
    default: []
  mib:
    description: Size of the file in MiB. A directory with less than four times as much room is left alone.
    type: int
    default: 256
  seconds:
    description: How long each of the five parts takes, at most.
    type: float
    default: 3
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: In check mode nothing is measured.
seealso:
  - module: baremetal.gpu.accept_info
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Measure a home
  baremetal.gpu.accept_storage:
    directories: [/home/alice]
  register: storage
"""

RETURN = r"""
storage:
  description: What was found. Null in check mode.
  returned: always
  type: dict
  contains:
    has_fio:
      description: Whether C(fio) is installed.
      type: bool
    spaces:
      description: The local file systems, with C(path), C(total_bytes) and C(free_bytes).
      type: list
      elements: dict
    measured:
      description:
        - The C(directory), C(error) (why there are no figures, or null), C(is_fault) (whether that is a fault of the
          storage), C(space) as above, C(write_mb_s) and C(read_mb_s) in 10^6 bytes a second, C(write_iops) and
          C(read_iops) of 4 KiB, and C(fsync_ms). Null where nothing was measured.
      type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.accept import storage


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "directories": {"type": "list", "elements": "path", "default": []},
            "mib": {"type": "int", "default": 256},
            "seconds": {"type": "float", "default": 3},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name, least, most in (("mib", 1, 65536), ("seconds", 0.1, 600)):
        if not least <= given[name] <= most:
            module.fail_json(msg=f"{name} is {given[name]}; set it to {least} to {most}")
    if module.check_mode:
        module.exit_json(changed=False, storage=None)
    options = storage.Options(given["mib"], given["seconds"])
    module.exit_json(changed=False, storage=storage.gather(given["directories"], options))


if __name__ == "__main__":
    main()
