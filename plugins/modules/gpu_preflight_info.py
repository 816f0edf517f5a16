#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_preflight_info
short_description: Find everything that would keep a host from becoming a GPU node
version_added: 0.1.0
description:
  - Examines a host once and compares it with the roles' variables. Returns every problem with its remedy, the cautions,
    and the plan of what would be installed.
  - Changes nothing. Uses the network only with O(check_network), and then only if something would be installed.
  - A problem does not make the module fail; the role P(baremetal.gpu.gpu_preflight#role) fails then. Cautions are shown
    as warnings.
options:
  variables:
    description:
      - The variables of the other roles, such as C(nvidia_driver_branch) and C(cuda_versions), by name. Those that are
        left out have the roles' defaults. An invalid value is a problem like any other.
    type: dict
    default: {}
  from_variables:
    description:
      - Whether unset options come from the host's variables. O(variables), O(urls) and O(runfile) are then those of the
        other roles; the other options are variables of the role P(baremetal.gpu.gpu_preflight#role), such as
        C(gpu_preflight_kernels) for O(kernels).
      - The variables of the roles that a node goes through are then checked against their argument specifications, and
        a mismatch is a problem like any other. Ansible itself checks only when a role begins, which for most is after
        others have changed the host.
    type: bool
    default: false
  kernels:
    description:
      - The kernels that the driver must be built for, V(running), V(installed) or a list of kernel releases.
    type: raw
    default: running
  disk_mib:
    description:
      - How much space each stage needs, by stage (C(driver), C(cuda), C(container_runtime)) and path in MiB. Needs
        count only for what is not installed yet, and those on one file system are added up.
    type: dict
    default: {}
  urls:
    description:
      - Variables that hold a URL, by name. Each is checked for its form, and with O(check_network) for its server.
    type: dict
    default: {}
  runfile:
    description:
      - Where NVIDIA's installer comes from (C(url), or C(path) on the controller) and its C(sha256). Checked for the
        method C(runfile). A file on the controller is read there and its checksum compared.
    type: dict
    default: {}
  check_network:
    description:
      - Whether to check, if something would be installed, that the package sources and O(urls) answer. It also searches
        the indices of the package sources for kernel headers if the host has no package lists yet, and resolves the
        host's own name if C(/etc/hosts) does not have it.
    type: bool
    default: false
  accept:
    description:
      - Codes of problems that count as cautions.
    type: list
    elements: str
    default: []
  refuse:
    description:
      - Codes of cautions that count as problems.
    type: list
    elements: str
    default: []
  host:
    description:
      - The name of the host in the plan and the report. The host's own name if left out.
    type: str
  publish:
    description:
      - Whether to set the facts C(gpu) and C(gpu_plan) as well, for the plays that follow.
    type: bool
    default: false
  nvml_timeout:
    description:
      - Seconds that NVML has for all its answers together.
    type: int
    default: 30
  _binding:
    description:
      - The controller's pynvml, packed. The action plugin sets it; playbooks do not.
    type: str
  _unsuitable:
    description:
      - The host's variables that do not match the roles' specifications, with O(from_variables). The action plugin sets
        it; playbooks do not.
    type: list
    elements: dict
    default: []
requirements:
  - On the host nothing but Python 3.9.
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  facts:
    description: Returns facts only if asked to by O(publish).
    support: partial
  action:
    description: An action plugin takes the controller's pynvml along, and what O(from_variables)
      asks for.
    support: full
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: See what would keep this host from running branch 550
  baremetal.gpu.gpu_preflight_info:
    variables:
      nvidia_driver_branch: 550
      cuda_versions: ['12.4']
  register: preflight

- name: Show it
  ansible.builtin.debug:
    msg: "{{ preflight.report }}"
"""

RETURN = r"""
problems:
  description: What is in the way.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description: Short name of the problem, for O(accept).
      type: str
      sample: branch_too_new
    subject:
      description: The host.
      type: str
    cause:
      description: What is wrong.
      type: str
    evidence:
      description: The value that is wrong.
      type: str
    remedy:
      description: What to do.
      type: str
cautions:
  description: What deserves a look but is not in the way, in the form of RV(problems).
  returned: always
  type: list
  elements: dict
plan:
  description: What the roles would do on this host.
  returned: always
  type: dict
  contains:
    host:
      description: Name of the host.
      type: str
    os:
      description: Key in the table of supported systems, family, codename and machine type.
      type: dict
    gpus:
      description: The GPUs with address, model and architecture.
      type: list
      elements: dict
    driver:
      description: Branch, flavour, method, version and main packages; null where no driver is to be there.
      type: dict
    cuda:
      description: The CUDA toolkits by version.
      type: list
      elements: str
    runtime:
      description: Container engine and its access to the GPUs.
      type: dict
    reboot_expected:
      description: Whether a reboot may be needed.
      type: bool
    reboot_reasons:
      description: Why.
      type: list
      elements: str
    steps:
      description: What is to be done, in words. Empty on a host that is as it should be.
      type: list
      elements: str
    installs:
      description: Whether something is to be installed.
      type: bool
gpu:
  description: The facts of M(baremetal.gpu.gpu_facts).
  returned: always
  type: dict
host:
  description: What was found out about the host, such as C(os), C(kernels), C(headers), C(secure_boot) and C(disk).
  returned: always
  type: dict
report:
  description: The problems in words, empty if there are none.
  returned: always
  type: str
advice:
  description: The cautions in words.
  returned: always
  type: list
  elements: str
ansible_facts:
  description: The facts C(gpu) with RV(gpu) and C(gpu_plan) with RV(plan).
  returned: with O(publish)
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import facts as gpu_facts
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import nvml
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import checks as preflight
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import gather
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import report as preflight_report
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import sources as preflight_sources
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import system as preflight_system
from ansible_collections.baremetal.gpu.plugins.module_utils.system import addresses, proxies, reach
from ansible_collections.baremetal.gpu.plugins.module_utils.system.archives import remote_packages
from ansible_collections.baremetal.gpu.plugins.module_utils.system.kernels import headers_package

DISK_PATHS = ("/", "/boot", "/usr", "/var")


def ask_archives(host: dict) -> None:
    """A fresh host has no package lists, so the archives themselves are asked for the headers of its kernels."""
    names = {
        headers_package(kernel, host["os"]["family"]): kernel
        for kernel, state in host["headers"].items()
        if state == "unknown"
    }
    if host["os"]["family"] != "debian":
        return
    known = remote_packages(names, host["repositories"], host["os"]["machine"], proxies.apt_proxies())
    if known is not None:
        host["headers"].update({kernel: "available" if name in known else "missing" for name, kernel in names.items()})


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "variables": {"type": "dict", "default": {}},
            "from_variables": {"type": "bool", "default": False},
            "kernels": {"type": "raw", "default": "running"},
            "disk_mib": {"type": "dict", "default": {}},
            "urls": {"type": "dict", "default": {}},
            "runfile": {"type": "dict", "default": {}},
            "check_network": {"type": "bool", "default": False},
            "accept": {"type": "list", "elements": "str", "default": []},
            "refuse": {"type": "list", "elements": "str", "default": []},
            "host": {"type": "str"},
            "publish": {"type": "bool", "default": False},
            "nvml_timeout": {"type": "int", "default": 30},
            # Filled in by the action plugin.
            "_binding": {"type": "str", "no_log": True},
            "_unsuitable": {"type": "list", "elements": "dict", "default": []},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    # What means nothing is told with all the other problems.
    kernels = wanted["kernels"] if preflight_system.good_kernels(wanted["kernels"]) else "installed"
    gpus = gpu_facts.gather(binding_source=nvml.unpack(wanted["_binding"]), deadline_s=wanted["nvml_timeout"])
    network = wanted["check_network"]
    paths = {path for stage in wanted["disk_mib"].values() for path in stage} | set(DISK_PATHS)
    host = gather.gather(
        kernels=kernels,
        disk_paths=sorted(paths),
        find_headers=gpus["present"] is not False,
        resolver=addresses.resolve if network else None,
    )
    options = {key: wanted[key] for key in ("disk_mib", "urls", "runfile", "accept", "refuse")}
    options.update(
        unsuitable=wanted["_unsuitable"], kernels=wanted["kernels"], host=wanted["host"] or host["hostname"]["name"]
    )
    verdict = preflight.judge(host, gpus, wanted["variables"], options)

    if network and "headers_unknown" in [row["code"] for row in verdict["cautions"]]:
        ask_archives(host)
        verdict = preflight.judge(host, gpus, wanted["variables"], options)

    # A converged host makes no request.
    if network and verdict["plan"]["installs"]:
        urls = preflight_sources.urls_in_use(host, bool(gpus["present"]), wanted["variables"], wanted["urls"])
        through = proxies.proxies(host["os"]["family"])
        answers = reach.reach(preflight_sources.targets(host, urls), through)
        for row in preflight_sources.judge_reach(answers):
            verdict["cautions" if row["code"] in wanted["accept"] else "problems"].append(row)

    for row in verdict["problems"] + verdict["cautions"]:
        row["subject"] = options["host"]
    summary = {key: value for key, value in host.items() if key not in ("packages", "repositories")}
    words = {
        "report": preflight_report.report(options["host"], verdict["problems"]),
        "advice": [str(Problem(**row)) for row in verdict["cautions"]],
    }
    for caution in words["advice"]:
        module.warn(f"{options['host']}: {caution}")
    facts = {"ansible_facts": {"gpu": gpus, "gpu_plan": verdict["plan"]}} if wanted["publish"] else {}
    module.exit_json(changed=False, gpu=gpus, host=summary, **verdict, **words, **facts)


if __name__ == "__main__":
    main()
