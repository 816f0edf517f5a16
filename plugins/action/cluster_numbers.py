# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure
from ansible_collections.baremetal.gpu.plugins.plugin_utils.people import ledger


class ActionModule(ActionBase):
    """Writes the ledger on the controller; nothing is sent to the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, params = self.validate_argument_spec(
            argument_spec={
                "path": {"type": "path", "required": True},
                "users": {"type": "dict", "required": True},
                "groups": {"type": "dict", "required": True},
                "refused": {"type": "dict", "default": {}},
            }
        )
        lost = [
            Problem(**row)
            for problems in params["refused"].values()
            for row in problems
            if row.get("code") == "unknown_numbers"
        ]
        if lost:
            result.update(failed=True, changed=False, **failure(ledger.FILE, lost[:1], "Nothing was changed."))
            return result
        numbers = [{str(name): int(one) for name, one in params[kind].items()} for kind in ("users", "groups")]
        try:
            before, after = ledger.add(params["path"], *numbers, check=self._task.check_mode)
        except Refused as why:
            result.update(failed=True, changed=False, **failure(ledger.FILE, [why.problem]))
            return result
        except OSError as why:
            problem = Problem("not_written", ledger.FILE, f"{params['path']}/{ledger.FILE} cannot be written: {why}")
            result.update(failed=True, changed=False, **failure(ledger.FILE, [problem]))
            return result
        header = {"before_header": ledger.FILE, "after_header": ledger.FILE}
        result.update(changed=before != after, diff={**header, "before": before, "after": after})
        return result
