# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the controller's pynvml along to the hosts."""

from __future__ import annotations

import base64
import importlib.util
import zlib
from typing import Any

from ansible.plugins.action import ActionBase

ARGUMENT = "_binding"


def packed_source() -> str | None:
    """The source of the controller's pynvml, compressed; None where the controller has none.

    It is read and never imported: importing it would need nothing of NVIDIA's either, but costs time per host.
    """
    specification = importlib.util.find_spec("pynvml")
    if specification is None or not specification.origin or not specification.origin.endswith(".py"):
        return None
    try:
        with open(specification.origin, "rb") as stream:
            return base64.b64encode(zlib.compress(stream.read(), 6)).decode("ascii")
    except OSError:
        return None


class BindingAction(ActionBase):
    """Runs the module of the same name with the packed pynvml as a private argument."""

    _supports_check_mode = True
    _requires_connection = True
    _supports_async = False

    MODULE = ""

    def wants_binding(self, arguments: dict[str, Any]) -> bool:
        return True

    def prepare(self, arguments: dict[str, Any]) -> None:
        """What else the controller adds to the arguments."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        arguments.pop(ARGUMENT, None)
        self.prepare(arguments)
        packed = packed_source() if self.wants_binding(arguments) else None
        if packed is not None:
            arguments[ARGUMENT] = packed
        result.update(self._execute_module(module_name=self.MODULE, module_args=arguments, task_vars=task_vars))
        # What was sent along says nothing to a reader and is large.
        invocation = result.get("invocation")
        if isinstance(invocation, dict) and isinstance(invocation.get("module_args"), dict):
            invocation["module_args"].pop(ARGUMENT, None)
        return result
