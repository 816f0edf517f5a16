#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: refuse
short_description: Fail a host with problems that programs can read
version_added: 0.1.0
description:
  - Fails if there are problems, with a message for people and the problems themselves for programs such as C(gpuops).
  - Runs on the controller; nothing is sent to the host.
options:
  problems:
    description: The problems. Without any the task passes.
    type: list
    elements: dict
    required: true
    suboptions:
      code:
        description: What kind of problem it is, in lower case with underscores.
        type: str
        default: refused
      subject:
        description: What has the problem. By default the host.
        type: str
        default: ''
      cause:
        description: What is wrong, in one or more sentences.
        type: str
        required: true
      evidence:
        description: What was read, such as a value or the output of a command.
        type: str
        default: ''
      remedy:
        description: What to do about it.
        type: str
        default: ''
  warnings:
    description: What is worth a warning and keeps nothing from going on.
    type: list
    elements: str
    default: []
  note:
    description: A sentence about all problems, such as what was or was not changed.
    type: str
    default: ''
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  platform:
    platforms: posix
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Stop if settings conflict
  baremetal.gpu.refuse:
    problems: "{{ __cuda_plan['problems'] }}"
"""

RETURN = r"""
msg:
  description: All problems as text, with the name of the host.
  returned: failed
  type: str
problems:
  description: The problems.
  returned: failed
  type: list
  elements: dict
  contains:
    code:
      description: What kind of problem it is.
      type: str
      sample: repository_key
    subject:
      description: What has the problem.
      type: str
      sample: cuda
    cause:
      description: What is wrong.
      type: str
      sample: cuda_repo_key_sha256 is not set, so the key of the repository cannot be checked
    evidence:
      description: What was read; may be empty.
      type: str
    remedy:
      description: What to do about it; may be empty.
      type: str
      sample: set cuda_repo_key_sha256 to the checksum of the key
"""
