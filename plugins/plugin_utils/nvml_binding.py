# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Takes the controller's pynvml along to the hosts: of its 8,000 lines those that the collection uses."""

from __future__ import annotations

import base64
import importlib.util
import re
import zlib
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

ARGUMENT = "_binding"
# Calls, constants and structures of NVML, as the collection's code names them.
_NAMES = re.compile(r"\b(?:nvml[A-Z]\w*|NVML\w+|c_nvml\w+)\b")


def _used() -> set[str]:
    """What the code that runs on hosts takes from pynvml."""
    directory = Path(__file__).resolve().parent.parent / "module_utils"
    # What runs before and after a job of Slurm calls the library without pynvml.
    paths = (path for path in directory.rglob("*.py") if path.parent.name != "slurm")
    texts = (path.read_text(encoding="utf-8") for path in paths)
    # Few of the files have any; to look for the words costs a tenth of looking for the names.
    return {name for text in texts if "nvml" in text or "NVML" in text for name in _NAMES.findall(text)}


# A definition begins in the first column, or its decorator does; what is indented belongs to it, and what closes it.
# So does a text between definitions.
_BEGINNING = re.compile(r"^(?=[^\s#)\]}'\"])", re.MULTILINE)
# What gives several names to one value has none here, and is kept.
_DEFINITION = re.compile(r"(?:@.*\n)*(?:(?:def|class) +(\w+)|(\w+) *=(?!=)(?! *\w+ *=(?!=)))")
_WORD = re.compile(r"\w+")


def pruned(source: str, wanted: set[str]) -> str:
    """The source without definitions that neither `wanted` nor what is kept needs.

    They are found by their lines: to parse all of it takes many times as long. So what is named in a comment or a text
    only is kept besides. What does something when it is loaded is kept, and so are the error codes, from which pynvml
    makes classes then.
    """
    parts = _BEGINNING.split(source)
    # A text over several lines may have some that look like statements.
    if any(part.count(quotes) % 2 for part in parts for quotes in ('"""', "'''")):
        return source
    # A decorator goes with what it decorates.
    for number in reversed(range(len(parts) - 1)):
        if parts[number].startswith("@"):
            parts[number : number + 2] = [parts[number] + parts[number + 1]]
    found = [_DEFINITION.match(part) for part in parts]
    names = [match[1] or match[2] if match else "" for match in found]
    by_name: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        by_name.setdefault(name, []).append(number)
    waiting = {name for name in by_name if not name or name in wanted or name.startswith("NVML_ERROR_")}
    kept: set[int] = set()
    while waiting:
        for number in by_name.pop(waiting.pop()):
            kept.add(number)
            waiting |= by_name.keys() & set(_WORD.findall(parts[number]))
    return "".join(part for number, part in enumerate(parts) if number in kept)


def _find() -> str | None:
    """The packed source of the controller's pynvml; None where the controller has none.

    It is read and never imported: importing it would need nothing of NVIDIA's either, but costs time per host.
    """
    specification = importlib.util.find_spec("pynvml")
    if specification is None or not specification.origin or not specification.origin.endswith(".py"):
        return None
    try:
        source = Path(specification.origin).read_text(encoding="utf-8")
        packed = zlib.compress(pruned(source, _used()).encode("utf-8"), 9)
    except (OSError, UnicodeError):
        return None
    return base64.b64encode(packed).decode("ascii")


# Ansible loads this file once and forks for every host, so it is prepared here and not for every host anew.
PACKED = _find()


def packed_source() -> str | None:
    """What travels to a host; None where the controller has no pynvml."""
    return PACKED


class BindingAction(ActionBase):  # type: ignore[misc]  # ansible ships no types
    """Runs the module of the same name with the packed pynvml as a private argument."""

    _supports_check_mode = True
    _requires_connection = True
    _supports_async = False

    MODULE = ""

    def wants_binding(self, arguments: dict[str, Any]) -> bool:
        return True

    def prepare(self, arguments: dict[str, Any], variables: dict[str, Any]) -> None:
        """What else the controller adds to the arguments; `variables` are those of the host."""

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        arguments.pop(ARGUMENT, None)
        self.prepare(arguments, task_vars or {})
        packed = packed_source() if self.wants_binding(arguments) else None
        if packed is not None:
            arguments[ARGUMENT] = packed
        result.update(self._execute_module(module_name=self.MODULE, module_args=arguments, task_vars=task_vars))
        # What was sent along says nothing to a reader and is large.
        invocation = result.get("invocation")
        if isinstance(invocation, dict) and isinstance(invocation.get("module_args"), dict):
            invocation["module_args"].pop(ARGUMENT, None)
        return result
