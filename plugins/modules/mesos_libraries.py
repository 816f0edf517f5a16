#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mesos_libraries
short_description: Make the libraries of Mesos known to a host's loader, and report missing ones
version_added: 0.1.0
description:
  - Runs C(ldd) on the programs of Mesos and on those that an agent starts for a task, in the environment of tasks,
    which has no C(LD_LIBRARY_PATH). If a library is missing, it fails with the package that has it.
  - For programs of an archive without an rpath, it writes a file in C(/etc/ld.so.conf.d). That file names a directory
    with links to libmesos and to those libraries of the archive that the host lacks. None of the host's libraries is
    replaced.
options:
  home:
    description: Directory with C(sbin) or C(bin), C(lib) and C(libexec/mesos).
    type: path
    required: true
  private:
    description:
      - Whether the directory is that of an archive. Otherwise, as for packages, the loader is not configured.
    type: bool
    default: true
  started:
    description:
      - Whether a program from there has started. Then nothing is changed, and an executor must find its libraries
        without a change.
    type: bool
    default: false
  family:
    description: Family of the operating system, which determines the names of packages.
    type: str
    choices: [Debian, RedHat]
    required: true
requirements:
  - On the host nothing but Python 3.9, ldd, ldconfig and root.
extends_documentation_fragment: [baremetal.gpu.attributes.changes]
attributes:
  diff_mode:
    description: Shows the links.
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Have the programs of an archive find their libraries
  baremetal.gpu.mesos_libraries:
    home: /opt/mesos/5e0c0f2a9d71
    family: Debian
"""

RETURN = r"""
programs:
  description: Path of each program that is there, by its name.
  returned: success
  type: dict
  sample: {mesos-agent: /opt/mesos/5e0c0f2a9d71/sbin/mesos-agent}
shown:
  description: Libraries of the archive that the loader is shown.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import libraries as mesos_libraries
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.libraries import Needs


def listed(links: dict[str, str]) -> str:
    return "".join(f"{name} -> {target}\n" for name, target in links.items())


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "home": {"type": "path", "required": True},
            "private": {"type": "bool", "default": True},
            "started": {"type": "bool", "default": False},
            "family": {"type": "str", "choices": ["Debian", "RedHat"], "required": True},
        },
        supports_check_mode=True,
    )
    home = module.params["home"]
    try:
        before = after = mesos_libraries.links(home)
        chosen: dict[str, str] = {}
        told: Needs
        changed = False
        if module.params["private"] and not module.params["started"]:
            chosen, told = mesos_libraries.to_show(home, host_run.run)
        else:
            told = mesos_libraries.needs(mesos_libraries.started(home), host_run.run)
            if not module.params["started"]:
                # What is shown of an archive that was there before goes away when the program starts.
                told = mesos_libraries.without(told)
        why = mesos_libraries.problem(home, told, module.params["family"])
        if not why and module.params["started"]:
            why = mesos_libraries.strangers(home if module.params["private"] else "", told)
        if why:
            module.fail_json(msg=why)
        if module.params["private"] and not module.params["started"]:
            changed = not mesos_libraries.is_shown(home, chosen)
            after = mesos_libraries.wanted_links(home, chosen)
            if changed and not module.check_mode:
                mesos_libraries.show(home, chosen, host_run.run)
    except Refused as wrong:
        module.fail_json(msg=str(wrong))
    except OSError as wrong:
        found = Problem(
            "os_error", str(wrong.filename), str(wrong.strerror), remedy="see `df -h`, `findmnt` and `sudo dmesg` there"
        )
        module.fail_json(**failure(str(wrong.filename), [found]))
    module.exit_json(
        changed=changed,
        programs=mesos_libraries.programs(home),
        shown=sorted(after),
        diff={"before": listed(before), "after": listed(after)},
    )


if __name__ == "__main__":
    main()
