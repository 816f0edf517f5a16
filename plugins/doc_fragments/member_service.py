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
    description: Files that the program reads when it starts, such as its settings.
    type: list
    elements: path
    required: true
  stamp:
    description: >-
      File in which the unit writes the checksums of O(files), as C(sha256sum) does, before it starts the program.
    type: path
    required: true
  only:
    description:
      - Which members may restart now. V(idle) are those that do not answer, V(follower) those that do not lead, V(any)
        all. With followers first and the leader last, clients see one election.
    type: str
    choices: [idle, follower, any]
    default: any
  join:
    description:
      - Whether this member is empty and joins others that have data. Then it must work before the module ends, so that
        two empty ones never elect each other.
    type: bool
    default: false
  may_restart:
    description:
      - Command that decides whether a running program may be restarted. With an exit status other than 0 it is left
        alone, and the command's output is the reason.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds in which all must work, before a restart and after it.
    type: int
    default: 120
notes:
  - A program that does not run is started.
  - A restart is due if O(stamp) shows that one of O(files) changed after the program started.
  - A member that answers restarts only while all members work, and the module ends when all work again. So with
    C(throttle) set to 1 one is down at a time, and after one that did not come back no other is touched. A member that
    does not answer may restart at any time.
requirements:
  - Only Python 3.9, systemd and root on the host.
"""
