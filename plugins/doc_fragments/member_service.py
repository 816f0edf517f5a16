# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """The program of a host among the members of its kind; the arguments are member_service.ARGUMENTS."""

    DOCUMENTATION = r"""
options:
  unit:
    description: The unit of systemd.
    type: str
    required: true
  files:
    description: What the program reads when it starts, such as its settings.
    type: list
    elements: path
    required: true
  stamp:
    description: Where the unit writes the checksums of O(files), as C(sha256sum) does, before it starts the program.
    type: path
    required: true
  only:
    description:
      - Which may be restarted now. V(idle) stands for those that do not answer, V(follower) for those that do not lead,
        V(any) for all. Followers first, the leader last, and clients see one election.
    type: str
    choices: [idle, follower, any]
    default: any
  join:
    description:
      - Whether this one is empty and joins others that have data. Then it has to do its work before the module ends, so
        that two empty ones never elect each other.
    type: bool
    default: false
  may_restart:
    description:
      - Command that tells whether a program that runs may be restarted. With another exit status than 0 it is left
        alone, and what the command prints says why.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds for all to do their work, before a restart and after it.
    type: int
    default: 120
notes:
  - A program that does not run is started.
  - A restart is due if one of O(files) is another than the one that the running program was started with, which
    O(stamp) tells.
  - One that answers is restarted only while all members do their work, and the module ends when all do again. So with
    C(throttle) set to 1 one is down at a time, and after one that did not come back no other is touched, whoever asks.
    One that does not answer may be restarted at any time.
requirements:
  - On the host nothing but Python 3.9, systemd and root.
"""
