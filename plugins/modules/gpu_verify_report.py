#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_verify_report
short_description: Return a verdict on a host from its facts and the query of its GPUs
version_added: 0.1.0
description:
  - Combines the results of M(baremetal.gpu.gpu_facts) and M(baremetal.gpu.gpu_query) in one report, writes it as JSON
    on the controller, and fails with every cause and its remedy if a host does not pass.
  - The numbers of GPUs that the PCI bus, the driver, NVML and CUDA see must be the same. A GPU that one of them does
    not see is named by its PCI address. With MIG on, CUDA's number is left out, because CUDA shows one partition only.
  - Runs on the controller.
options:
  facts:
    description: The value of C(ansible_facts.gpu).
    type: dict
    required: true
  query:
    description: The answer of M(baremetal.gpu.gpu_query).
    type: dict
    required: true
  expected:
    description: How many GPUs the host must have. V(0) uses the number on the PCI bus.
    type: int
    default: 0
  directory:
    description:
      - Directory on the controller for the report, which is named after the host. It is created if it is missing.
      - An empty value means that no file is written.
    type: str
    default: ""
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  action:
    description: Runs on the controller only.
    support: full
  check_mode:
    description: Can run in check mode, where no file is written, and a host whose driver is not loaded passes, because
      what loads it was only pretended.
  diff_mode:
    description: The report is written anew in every run.
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Query NVML
  baremetal.gpu.gpu_facts:

- name: Query CUDA
  baremetal.gpu.gpu_query:
  register: query

- name: Write the report
  baremetal.gpu.gpu_verify_report:
    facts: "{{ ansible_facts['gpu'] }}"
    query: "{{ query }}"
    directory: /var/tmp/reports
"""

RETURN = r"""
report:
  description: The report.
  returned: if the host passes, or if no file was written
  type: dict
  contains:
    schema:
      description: Version of this structure.
      type: int
      sample: 1
    host:
      description: Name of the host in the inventory.
      type: str
    ok:
      description: Whether the host passes.
      type: bool
    causes:
      description: What is wrong, each with C(where), C(code), C(text) and C(remedy).
      type: list
      elements: dict
    counts:
      description: How many GPUs are C(expected), and how many C(pci), C(driver), C(nvml) and C(cuda) see; null where
        that could not be asked.
      type: dict
    driver:
      description: Versions of the C(loaded) and the C(installed) driver, and newest C(cuda) that it runs.
      type: dict
    device_nodes:
      description: The device nodes that must be there.
      type: list
      elements: str
    devices:
      description: The GPUs, as M(baremetal.gpu.gpu_query) returns them.
      type: list
      elements: dict
    containers:
      description: The query in containers, or null.
      type: dict
    cuda_runtime:
      description: The query through the CUDA runtime, or null.
      type: dict
causes:
  description: What is wrong, each with C(where), C(code), C(text) and C(remedy). Empty where the host passes.
  returned: always
  type: list
  elements: dict
file:
  description: Where the report was written.
  returned: if it was written
  type: str
"""
