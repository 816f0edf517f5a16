# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module as Ansible runs any; but every role asks it first, so what its tasks share is made ready here."""

from __future__ import annotations

from ansible.plugins.action.normal import ActionModule as AsAnyModule

from ansible_collections.baremetal.gpu.plugins.plugin_utils import before_forks

before_forks.load_plugins()
before_forks.freeze()


class ActionModule(AsAnyModule):
    pass
