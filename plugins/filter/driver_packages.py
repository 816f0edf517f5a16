# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_packages
short_description: The packages of an NVIDIA driver for a desired document
version_added: 0.1.0
description:
  - Lists what has to be installed and held, and what of other drivers has to go in the same transaction.
positional: _input, system
options:
  _input:
    description: Schemes of names, from the variables of the role P(baremetal.gpu.nvidia_driver#role).
    type: dict
    required: true
  system:
    description: Row of the operating system, from the same place.
    type: dict
    required: true
  method:
    description: Where the driver comes from. Without one every driver is listed as absent.
    type: str
    choices: [distro, nvidia_repo]
  branch:
    description: Branch of the driver.
    type: str
  flavour:
    description: Flavour of the kernel modules.
    type: str
    choices: [open, proprietary]
  version:
    description: Version of the driver's packages, exact or as a shell pattern.
    type: str
  hold:
    description: Whether the packages are held.
    type: bool
    default: true
  persistence:
    description: Whether the persistence daemon is among them.
    type: bool
    default: true
  fabric_manager:
    description: Whether Fabric Manager is among them.
    type: bool
    default: false
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the packages of a driver
  ansible.builtin.debug:
    msg: >-
      {{ __nvidia_driver_schemes | baremetal.gpu.driver_packages(__nvidia_driver_systems.debian13, method='distro',
         branch='550', flavour='proprietary', version='550.*') }}
"""

RETURN = r"""
_value:
  description: Items for the section C(packages) of a desired document.
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleFilterError

from ansible_collections.baremetal.gpu.plugins.module_utils import driver_packages as names


def driver_packages(
    schemes: dict[str, Any], system: dict[str, Any], method: str = "", **wanted: Any
) -> list[dict[str, Any]]:
    if not method:
        return names.no_driver_packages(schemes, system)
    try:
        return names.driver_packages(schemes, system, method, **wanted)
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filter of the role nvidia_driver."""

    def filters(self) -> dict[str, Any]:
        return {"driver_packages": driver_packages}
