# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The way to Marathon, and the login; the arguments are marathon_arguments.SPEC."""

    DOCUMENTATION = r"""
options:
  urls:
    description: URLs of the Marathons. They are tried in turn. An instance that does not lead forwards to the leader.
    type: list
    elements: str
    required: true
  user:
    description: User for the login, if Marathon requires one.
    type: str
  password:
    description: Password of the user.
    type: str
  ca_file:
    description: File with the authority that signed Marathon's certificate, if it is not one of the system's.
    type: path
  request_timeout:
    description: Seconds that one answer may take.
    type: float
    default: 10
"""
