# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The frame of every Ceph module: its common options, its errors, its diff."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Protocol

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph import library as ceph_library
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph, CephError
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, converge
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused, failure

CONNECTION: dict[str, dict[str, Any]] = {
    "cluster": {"type": "str", "default": "ceph"},
    "conf": {"type": "path", "default": "/etc/ceph/ceph.conf"},
    "client": {"type": "str", "default": "client.admin"},
    "keyring": {"type": "path", "no_log": False},
    "timeout": {"type": "int", "default": 30},
}
STATES = {"type": "str", "choices": ["present", "absent"], "default": "present"}


class Module(Protocol):
    """What is used here of Ansible's module."""

    params: dict[str, Any]
    check_mode: bool

    def exit_json(self, **result: Any) -> Any:
        """End with a result."""

    def fail_json(self, msg: Any, **result: Any) -> Any:
        """End with a reason."""


def connect(module: Module) -> Ceph:
    """The cluster that the module's options name."""
    given = module.params
    return Ceph(
        host_run.run,
        cluster=given["cluster"],
        conf=given["conf"],
        name=given["client"],
        keyring=given["keyring"],
        timeout=given["timeout"],
        library=ceph_library.connect,
    )


def guarded(
    module: Module,
    subject: str,
    work: Callable[[Ceph], dict[str, Any]],
    announced: Callable[[], dict[str, Any]] | None = None,
) -> None:
    """Do the module's work and exit with its result; errors carry what is to be done.

    :param announced: the result in check mode on a host that is yet to become one of the cluster.
    """
    try:
        ahead = announced and module.check_mode and not os.path.exists(module.params["conf"])
        result = announced() if announced and ahead else work(connect(module))
    except (CephError, Refused) as error:
        module.fail_json(**failure(subject, [error.problem]))
    module.exit_json(**result)


def problem_of(error: Exception, subject: str) -> Problem:
    """The problem that an error carries, or one made of its text."""
    if isinstance(error, (CephError, Refused)):
        return error.problem
    return Problem("failed", subject, str(error))


def settle(
    module: Module,
    ceph: Ceph,
    read: Callable[[], Any],
    plan: Callable[[Any], list[Step]],
    show: Callable[[Any], Any],
    wanted: Any,
) -> dict[str, Any]:
    """Bring something into its state and return what every module returns: changed, plan, diff.

    :param show: of what is there, the part that is managed; None for nothing.
    :param wanted: that part as it is to be; what is left out of it stays.
    """
    first: list[Any] = []

    def remembered() -> Any:
        found = read()
        first.append(found)
        return found

    steps = converge(ceph, remembered, plan, module.check_mode)
    before = show(first[0])
    after = before if not steps else {**(before or {}), **wanted} if isinstance(wanted, dict) else wanted
    return {
        "changed": bool(steps),
        "plan": [step.does for step in steps],
        "diff": {"before": text(before), "after": text(after)},
    }


def text(value: Any) -> str:
    """Something for a diff: nothing for nothing, otherwise one key a line in order."""
    return "" if value is None else json.dumps(value, indent=2, sort_keys=True, default=str) + "\n"
