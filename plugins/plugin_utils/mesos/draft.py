# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the settings and files of one program of Mesos on one host are put together in; see plan.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem, Refused
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos import render as mesos_render

Row = dict[str, Any]

AGENT, MARATHON, OPERATOR = "mesos-agent", "marathon", "operator"
# Before the names of those who log in to Marathon, among the principals.
HTTP = "http:"
# The code of most problems: a variable has a value with which the program would not do its work.
INVALID = "invalid_setting"


def problem(cause: str, remedy: str) -> Problem:
    """A problem of the settings of the host."""
    return Problem(INVALID, "", cause, "", remedy)


class Draft:
    """What the functions of plan.py and plan_agent.py put together."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.params, self.host = params, str(params["host"])
        self.settings: dict[str, Any] = {}
        # Flags that come from variables of the role, with the variable's name.
        self.owned: dict[str, str] = {}
        self.notes: dict[str, str] = {}
        self.libprocess: dict[str, Any] = {}
        self.problems: list[Problem] = []
        self.remarks: list[str] = []
        self.files: list[doc.Entry] = []
        self.joining: list[str] = []

    def attempt(self, make: Callable[[], Any]) -> Any:
        """What it makes, None where it refuses; why is among the problems then."""
        try:
            return make()
        except Refused as why:
            self.problems.append(why.problem)
        except ValueError as why:
            self.problems.append(Problem(INVALID, self.params["prefix"], str(why)))
        return None

    def set(self, name: str, value: Any, owner: str) -> None:
        self.settings[name] = value
        self.owned[name] = owner

    def file(self, path: str, content: str, mode: str, secret: bool) -> None:
        user = self.params["user"]
        self.files.append(doc.File(path, content, mode, user, user, sensitive=secret or None))

    def refuse(self, cause: str, remedy: str, code: str = INVALID, subject: str = "", evidence: Any = "") -> None:
        """Note a problem; without a subject it is one of the host."""
        self.problems.append(Problem(code, subject or self.host, cause, str(evidence), remedy))


def zookeeper(draft: Draft, chroot: str, login: Mapping[str, str], what: str) -> str:
    """The URL of a chroot. Raises Refused, which begins with `what` of the variables is wrong."""
    user, password = login.get("user") or None, login.get("password") or None
    try:
        return mesos_render.zk_url(draft.params["zookeeper"], chroot, user, password)
    except Refused as why:
        cause = f"{what}: {why.problem.cause}"
        raise Refused(cause, why.problem.remedy, code=INVALID, subject=what) from why


def set_master(draft: Draft, chroot: str) -> None:
    """Where the leading master is found. Whoever looks for it reads its node, and must not be able to write there."""
    draft.set("master", zookeeper(draft, chroot, {}, "mesos_common_zookeeper"), "mesos_common_zookeeper")


def set_address(draft: Draft, hostname: str, owner: str) -> None:
    """Without `ip` a program announces what its host's name stands for, which may be 127.0.1.1."""
    params = draft.params
    draft.set("hostname", hostname, owner)
    draft.set("port", params["port"], f"{params['prefix']}_port")
    if not {"ip", "ip_discovery_command"} & set(params["flags"]):
        draft.settings["ip"] = params["node"]["own_ip"].get(params["address"])
