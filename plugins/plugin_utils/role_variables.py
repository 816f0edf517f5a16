# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What inventory and command line give for the variables of roles, held against the roles' argument specifications.

Ansible does that when a role begins: for the last of them that is after the others have changed the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem

ROLES = Path(__file__).resolve().parent.parent.parent / "roles"


@functools.cache
def _entry_points(role: str) -> dict[str, dict[str, Any]]:
    try:
        text = (ROLES / role / "meta" / "argument_specs.yml").read_text(encoding="utf-8")
    except OSError as failure:
        raise AnsibleError(
            f"{role} is not a role of this collection with an argument specification: {failure}"
        ) from None
    return {name: row.get("options", {}) for name, row in yaml_load(text)["argument_specs"].items()}


def options_of(role: str) -> dict[str, dict[str, Any]]:
    """The options of all a role's entry points by name."""
    return {name: option for options in _entry_points(role).values() for name, option in options.items()}


def settings_of(role: str) -> dict[str, dict[str, Any]]:
    """Those of the entry point main; of all where there is no main. Further ones are arguments of an entry point."""
    return _entry_points(role).get("main") or options_of(role)


def unsuitable(
    roles: Iterable[str],
    variables: Mapping[str, Any],
    resolve: Callable[[Any], Any],
    known: Collection[str] = (),
) -> list[Problem]:
    """What does not suit the roles.

    :param roles: names of roles of this collection.
    :param variables: all variables of the host, as they were written.
    :param resolve: gives the value of what was written.
    :param known: variables that somebody else judges.
    :return: one problem for each. The evidence is the value, unless it is a structure or a secret.
    """
    problems = []
    for role in roles:
        given = [name for name in variables if name.startswith(f"{role}_") and name not in known]
        options = options_of(role) if given else {}
        for name in given:
            if name not in options:
                continue
            try:
                value = resolve(variables[name])
                errors = ArgumentSpecValidator({name: options[name]}).validate({name: value}).error_messages
            except AnsibleError:
                # It is made of what is known later only, such as a fact that the role gathers: left to the role.
                continue
            problems += [_problem(role, name, value, bool(options[name].get("no_log")), error) for error in errors]
    return problems


def _problem(role: str, name: str, value: Any, secret: bool, error: str) -> Problem:
    # The value is the evidence.
    why = "" if secret else ": " + error.removesuffix(f", got: {value}")
    return Problem(
        "variable",
        name,
        f"{name} does not suit the role {role}{why}",
        str(value) if isinstance(value, (str, int, float)) and not secret else "",
        f"set {name} to a value that `ansible-doc -t role baremetal.gpu.{role}` allows",
    )
