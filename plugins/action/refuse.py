# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, failure

FIELDS = {
    "code": {"type": "str", "default": "refused"},
    "subject": {"type": "str", "default": ""},
    "cause": {"type": "str", "required": True},
    "evidence": {"type": "str", "default": ""},
    "remedy": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """Fails on the controller; nothing is sent to the host."""

    TRANSFERS_FILES = False
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "problems": {"type": "list", "elements": "dict", "required": True, "options": FIELDS},
                "warnings": {"type": "list", "elements": "str", "default": []},
                "note": {"type": "str", "default": ""},
            }
        )
        host = str((task_vars or {}).get("inventory_hostname", ""))
        problems = [
            Problem(**{**{name: row[name] for name in FIELDS}, "subject": row["subject"] or host})
            for row in arguments["problems"]
        ]
        result["changed"] = False
        if arguments["warnings"]:
            result["warnings"] = [f"{host}: {warning}" for warning in arguments["warnings"]]
        if problems:
            result.update(failed=True, **failure(host, problems, arguments["note"]))
        return result
