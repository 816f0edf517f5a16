# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations


class ModuleDocFragment:
    """What holds of most modules; a module that differs says so itself."""

    LOOKS = r"""
attributes:
  check_mode:
    description: Can run in check mode and returns the same there.
    support: full
  diff_mode:
    description: Nothing is changed, so there is nothing to show.
    support: none
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
"""

    CHANGES = r"""
attributes:
  check_mode:
    description: Can run in check mode and returns what it would do.
    support: full
  diff_mode:
    description: Shows the state before and after.
    support: full
  platform:
    description: Where the module runs.
    support: full
    platforms: linux
"""
