# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from typing import Any

from ansible import constants
from ansible.errors import AnsibleError
from ansible.module_utils.common.validation import check_type_bool, check_type_dict

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.variables import DEFAULTS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.nvml_binding import BindingAction
from ansible_collections.baremetal.gpu.plugins.plugin_utils.one_scheduler import two_schedulers
from ansible_collections.baremetal.gpu.plugins.plugin_utils.refusal import refusal
from ansible_collections.baremetal.gpu.plugins.plugin_utils.role_variables import options_of, unsuitable
from ansible_collections.baremetal.gpu.plugins.plugin_utils.stages import ROLES_OF_A_NODE

# The role whose arguments become this module's.
OWN = "gpu_preflight"
# What those that a host goes through share, and they.
JUDGED_ROLES = ("converge", *ROLES_OF_A_NODE)
# Every variable of the other roles that holds a URL, whatever it is called.
_URL = re.compile(r"(nvidia_driver|cuda|container_runtime)_.*_(url|uri)$")

# Read here, once for all hosts: Ansible forks a process for each of them, which would read it again.
for role in (OWN, *JUDGED_ROLES):
    options_of(role)


def checksum(path: str, cache: str) -> str:
    """SHA-256 of a file. It is large and the same for every host, so it is worked out once in a run."""
    state = os.stat(path)
    key = hashlib.sha256(f"{path} {state.st_mtime_ns} {state.st_size}".encode()).hexdigest()
    note = os.path.join(cache, f"runfile-{key}")
    try:
        with open(note, encoding="ascii") as stream:
            return stream.read()
    except OSError:
        pass
    total = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            total.update(chunk)
    # Other hosts work on it at the same time: the note has to appear whole.
    with open(f"{note}.{os.getpid()}", "w", encoding="ascii") as stream:
        stream.write(total.hexdigest())
    os.replace(f"{note}.{os.getpid()}", note)
    return total.hexdigest()


class ActionModule(BindingAction):
    MODULE = "baremetal.gpu.gpu_preflight_info"

    def prepare(self, arguments: dict[str, Any], variables: dict[str, Any]) -> None:
        if check_type_bool(arguments.get("from_variables", False)):
            self.take_own(arguments, variables)
            self.take_from_host(arguments, variables)
            # The module judges the others, with what is in the host.
            problems = unsuitable(JUDGED_ROLES, variables, self._templar.template, DEFAULTS)
            problems = [*problems, *two_schedulers(variables["inventory_hostname"], variables.get("group_names", ()))]
            arguments["_unsuitable"] = [problem.as_dict() for problem in problems]
        self.check_runfile(arguments)

    def take_own(self, arguments: dict[str, Any], variables: dict[str, Any]) -> None:
        """The role's own. Without a good value of these no host is looked at."""
        own = {name: self.resolved(name, variables) for name in options_of(OWN) if name in variables}
        if problems := unsuitable([OWN], own, lambda value: value):
            raise refusal(variables["inventory_hostname"], problems)
        arguments.setdefault("host", variables["inventory_hostname"])
        for name, value in own.items():
            arguments.setdefault(name.removeprefix(f"{OWN}_"), value)
        arguments["kernels"] = arguments.get("kernels") or self.resolved(
            "nvidia_driver_kernels", variables, "installed"
        )

    def take_from_host(self, arguments: dict[str, Any], variables: dict[str, Any]) -> None:
        """What is set for the other roles."""

        def given(names: Iterable[str]) -> dict[str, Any]:
            return {name: self.resolved(name, variables) for name in names if name in variables}

        runfile = {name: f"nvidia_driver_runfile_{name}" for name in ("url", "path", "sha256")}
        found = {
            "variables": given(DEFAULTS),
            "urls": given(filter(_URL.match, variables)),
            "runfile": {option: self.resolved(name, variables, "") for option, name in runfile.items()},
        }
        for option, values in found.items():
            arguments[option] = {**values, **check_type_dict(arguments.get(option) or {})}

    def resolved(self, name: str, variables: dict[str, Any], otherwise: Any = None) -> Any:
        try:
            return self._templar.template(variables.get(name, otherwise))
        except AnsibleError as failure:
            remedy = f"set what it is made of, or {name} itself"
            problem = Problem("variable", name, f"{name} has no value: {failure}", "", remedy)
            raise refusal(variables["inventory_hostname"], [problem]) from None

    def check_runfile(self, arguments: dict[str, Any]) -> None:
        variables, runfile = arguments.get("variables"), arguments.get("runfile")
        if not isinstance(variables, dict) or not isinstance(runfile, dict) or not runfile.get("path"):
            return
        if variables.get("nvidia_driver_method") != "runfile":
            return
        path = self._loader.path_dwim(str(runfile["path"]))
        try:
            arguments["runfile"] = {**runfile, "found_sha256": checksum(path, constants.DEFAULT_LOCAL_TMP)}
        except OSError as failure:
            arguments["runfile"] = {**runfile, "error": str(failure.strerror)}
