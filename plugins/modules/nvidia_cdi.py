#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_cdi
short_description: Write the CDI specification of a host's NVIDIA GPUs
version_added: 0.1.0
description:
  - Writes what C(nvidia-ctk cdi generate) writes for the same host, without needing the NVIDIA Container Toolkit.
    Docker since version 25, podman and containerd then give a container the GPUs by name, such as
    C(--device nvidia.com/gpu=0).
  - The specification has every GPU by index and by UUID, C(all), the control nodes, and the driver's libraries,
    programs, sockets and firmware.
  - With NVIDIA's hook program installed, the specification has its hooks. Without it, every library is mounted under
    each of its names into a directory that the container's loader searches. For images of another family of
    distributions see O(library_directories).
  - MIG partitions are not listed.
  - Removes a YAML file of the same name from an earlier version of this module, because engines reject a device that
    two files name.
  - Run it after every change of the driver, because the libraries' names have its version.
options:
  state:
    description: Whether the specification exists.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: The file. Engines read files that end in .json in /etc/cdi and /var/run/cdi.
    type: path
    default: /etc/cdi/nvidia.json
  devices:
    description:
      - The GPUs as M(baremetal.gpu.gpu_facts) returns them in C(ansible_facts.gpu.devices).
      - By default the driver's files are read, which have a GPU's UUID only after something has opened the GPU.
    type: list
    elements: dict
  library_directories:
    description:
      - Further directories of the container into which the libraries are mounted where there is no hook program.
      - They are always mounted into the host's own, such as /usr/lib/x86_64-linux-gnu on Debian. For images of the
        Red Hat family on such a host add V(/usr/lib64).
    type: list
    elements: path
    default: []
  hooks:
    description: Whether to use NVIDIA's hook program where it is installed.
    type: str
    choices: [auto, never]
    default: auto
  engine:
    description:
      - The engine that reads the file. The module fails if this engine does not read O(path), or if it takes the GPUs
        from another file that is out of date. A correct file with precedence is noted.
      - By default O(path)'s directory, /etc/cdi and /var/run/cdi are searched.
    type: str
    choices: [docker, podman, containerd]
  take_over:
    description:
      - Overwrite or remove a file that this module did not write. With V(false) such a file is an error.
    type: bool
    default: false
  backup:
    description: Keep a copy of a file that this module did not write before it is overwritten or removed.
    type: bool
    default: true
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  check_mode:
    description: Can run in check mode and says what it would do. Before the driver is there it says that a
      specification would be written, but not its content.
  diff_mode:
    description: Shows the file before and after.
  safe_file_operations:
    description: The file is replaced in one step.
    support: full
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Give containers the GPUs by name
  baremetal.gpu.nvidia_cdi:
    devices: "{{ ansible_facts['gpu']['devices'] }}"

- name: Replace a specification that another tool wrote
  baremetal.gpu.nvidia_cdi:
    take_over: true

- name: Remove it
  baremetal.gpu.nvidia_cdi:
    state: absent
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
  sample: /etc/cdi/nvidia.json
names:
  description: The names by which a container can ask for GPUs.
  returned: if the state is present and the driver is loaded
  type: list
  elements: str
  sample: [nvidia.com/gpu=0, nvidia.com/gpu=all]
driver:
  description: Version of the driver whose libraries are in it.
  returned: if the state is present and the driver is loaded
  type: str
  sample: 550.163.01
hook:
  description: NVIDIA's hook program that it uses, or null.
  returned: if the state is present and the driver is loaded
  type: str
backup_file:
  description: The copy of what was there before.
  returned: if there was one
  type: str
notes:
  description: What an operator should know about the specification.
  returned: always
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.container import cdi
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure


def write(module: AnsibleModule, path: str, text: str) -> None:
    # An engine reads every *.yaml and *.json there, and the draft is neither.
    try:
        host_files.make_directories(os.path.dirname(path))
        with host_files.labelled(module, path):
            host_files.write(path, text)
    except OSError as error:
        module.fail_json(msg=str(error))


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path", "default": cdi.FILE},
            "devices": {"type": "list", "elements": "dict"},
            "library_directories": {"type": "list", "elements": "path", "default": []},
            "hooks": {"type": "str", "choices": ["auto", "never"], "default": "auto"},
            "engine": {"type": "str", "choices": ["docker", "podman", "containerd"]},
            "take_over": {"type": "bool", "default": False},
            "backup": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    path = module.params["path"]
    if not path.startswith("/") or not path.endswith(".json"):
        module.fail_json(msg=f"path is {path}; name an absolute path that ends in .json")
    result = {"changed": False, "path": path, "notes": []}
    before, former = cdi.written(path), cdi.former(path)
    foreign = before is not None and not cdi.is_ours(before)
    stays = foreign and not module.params["take_over"]
    if stays and module.params["state"] == "present":
        wrong = Problem(
            "foreign_file",
            path,
            "it was written by something else",
            remedy="remove it, set take_over: true to overwrite it, or leave CDI to the tool that wrote it",
        )
        module.fail_json(**failure(path, [wrong]))

    after = before if stays else None
    if stays:
        result["notes"].append(cdi.staying(path))
    if module.params["state"] == "present":
        try:
            spec, found, hook = cdi.specify(
                path,
                module.params["devices"],
                module.params["hooks"],
                module.params["library_directories"],
                module.params["engine"] or "",
            )
        except cdi.CannotTell as error:
            if module.check_mode:
                # What has to be done first was only pretended.
                result["notes"].append(f"{error}; in a real run the driver comes first")
                module.exit_json(**{**result, "changed": before is None or former is not None})
            module.fail_json(msg=f"the specification of the GPUs cannot be written: {error}")
        except Refused as error:
            module.fail_json(msg=str(error))
        after = cdi.render(spec)
        result["notes"] += found.notes
        result["names"] = [f"{cdi.KIND}={device['name']}" for device in spec["devices"]]
        result["driver"] = found.version
        result["hook"] = hook.path if hook else None

    result["changed"] = before != after or former is not None
    result["diff"] = {
        "before_header": path,
        "after_header": path,
        "before": before or "",
        "after": after or "",
    }
    if former:
        result["diff"]["before"] += cdi.written(former) or ""
    if result["changed"] and not module.check_mode:
        if foreign and not stays and module.params["backup"]:
            result["backup_file"] = module.backup_local(path)
            result["notes"].append(f"what was there is kept as {result['backup_file']}, and stays there")
        if former:
            os.unlink(former)
        if after is None and before is not None:
            os.unlink(path)
        elif after is not None and after != before:
            write(module, path, after)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
