# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificates

ROW = {
    "name": {"type": "str", "required": True},
    "names": {"type": "list", "elements": "str", "required": True},
    "certificate": {"type": "path"},
    "key": {"type": "path", "no_log": False},
}


class ActionModule(ActionBase):
    """Makes certificates on the controller; nothing is sent to the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, params = self.validate_argument_spec(
            argument_spec={
                "path": {"type": "path", "required": True},
                "certificates": {"type": "list", "elements": "dict", "default": [], "options": ROW},
                "authority": {"type": "path"},
                "days": {"type": "int", "default": 365},
                "renew": {"type": "int", "default": 30},
                "held": {"type": "list", "elements": "str", "default": []},
            }
        )
        warnings: list[str] = []
        try:
            if not certificates.HAS_CRYPTOGRAPHY:
                raise Refused("Python has no package cryptography here", "install ansible-core as it is published")
            result.update(certificates.keep(params, self._task.check_mode, warnings.append))
        except (OSError, ValueError, Refused, certificates.Unreadable) as error:
            result.update(failed=True, changed=False, msg=f"{params['path']} cannot be used: {error}")
        for warning in warnings:
            self._display.warning(warning)
        return result
