# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a role works out of its variables for one host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Document


@dataclass(frozen=True)
class Plan:
    """The plan of one role for one host.

    :ivar document: the desired document; empty where there are problems.
    :ivar problems: why the variables or the facts of the host do not give a document.
    :ivar parts: what else the tasks of the role read, by name.
    """

    document: Document = field(default_factory=Document)
    problems: tuple[Problem, ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def desired(self) -> dict[str, Any]:
        """The document as the module host_drift_info takes it."""
        return self.document.plain

    def as_dict(self) -> dict[str, Any]:
        """The plan as templates read it."""
        return {
            **self.parts,
            "desired": self.desired,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def built_in(value: Any) -> Any:
    """A copy of nested data in dicts and lists of Python: those of Ansible look for templates at each access."""
    # Most are words, for which a question for a Mapping takes long.
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {key: built_in(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [built_in(item) for item in value]
    return value
