# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The way to the masters, and the login; the arguments are mesos_arguments.SPEC."""

    DOCUMENTATION = r"""
options:
  masters:
    description: URLs of the masters. The leader is found among them.
    type: list
    elements: str
    required: true
  principal:
    description: Principal for the login, if the masters require one.
    type: str
  secret:
    description: Secret of the principal.
    type: str
  ca_file:
    description: File with the authority that signed the masters' certificates, if it is not one of the system's.
    type: path
  request_timeout:
    description: Seconds that one answer may take.
    type: float
    default: 10
"""
