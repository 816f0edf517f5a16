# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
short_description: The settings of a role
version_added: 0.1.0
description:
  - Returns the variables of a role on this host, by their names without that of the role. The names and the types are
    those of C(meta/argument_specs.yml), so a new setting is described there and is in no other list.
  - They are the options of the entry point V(main), or of all where there is no V(main). What only other entry points
    have is left out, since it may be made from the role's own plan. So is a variable that is not defined.
options:
  _terms:
    description: The name of the role.
    required: true
author: baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Show the settings of the role cuda
  ansible.builtin.debug:
    msg: "{{ lookup('baremetal.gpu.settings', 'cuda') }}"
"""

RETURN = r"""
_value:
  description:
    - The values by name. Text such as C(-e) gives it is a number or a truth value where the specification says so.
  type: list
  elements: dict
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.module_utils.common.validation import check_type_bool, check_type_float, check_type_int
from ansible.plugins.lookup import LookupBase

from ansible_collections.baremetal.gpu.plugins.plugin_utils import role_variables

TYPES: Mapping[str, Callable[[Any], Any]] = {
    "bool": check_type_bool,
    "float": check_type_float,
    "int": check_type_int,
}


class LookupModule(LookupBase):
    def run(self, terms: Sequence[str], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        return [self._settings(role, variables or {}) for role in terms]

    def _settings(self, role: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        prefix = f"{role}_"
        options = {
            name.removeprefix(prefix): option
            for name, option in role_variables.settings_of(role).items()
            if name.startswith(prefix) and name in variables
        }
        # All at once: Ansible has a cost for each template.
        values = self._templar.template({name: variables[prefix + name] for name in options})
        return {name: typed(values[name], option["type"]) for name, option in options.items()}


def typed(value: Any, kind: str) -> Any:
    """Text as what it means. What means nothing of the kind is left as it is: the role refuses it."""
    if not isinstance(value, str) or kind not in TYPES:
        return value
    try:
        return TYPES[kind](value)
    except TypeError:
        return value
