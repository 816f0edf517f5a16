# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Arguments that the modules for Mesos share, and the way to the masters or members that they describe."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.units import Unit
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import replace as mesos_replace
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Operator, http_transport, tls_first
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.watch import Cluster, Masters

SPEC: dict[str, dict[str, Any]] = {
    "masters": {"type": "list", "elements": "str", "required": True},
    "principal": {"type": "str"},
    "secret": {"type": "str", "no_log": True},
    "ca_file": {"type": "path"},
    "request_timeout": {"type": "float", "default": 10},
}
# As in the documentation fragment mesos_members.
MEMBERS: dict[str, dict[str, Any]] = {
    "program": {"type": "str", "choices": ["master", "agent", "marathon"], "required": True},
    "members": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {"name": {"type": "str", "required": True}, "url": {"type": "str", "required": True}},
    },
    "user": {"type": "str", "default": ""},
    "password": {"type": "str", "default": "", "no_log": True},
    "gpus": {"type": "int", "default": -1},
    "masters": {"type": "list", "elements": "str", "default": []},
    "masters_user": {"type": "str", "default": ""},
    "masters_password": {"type": "str", "default": "", "no_log": True},
    "ca_file": {"type": "path"},
    "tls_first": {"type": "bool", "default": False},
}
# Seconds that a member has for an answer.
ANSWER_S = 5.0


def members(params: Mapping[str, Any], unit: Unit | None = None) -> Cluster:
    """Raises Failed for a CA file that cannot be read. `own` names this host's member; `unit` is the one that it has to
    stay up in."""
    login = (params["user"], params["password"]) if params["user"] else None
    gpus = params["gpus"] if params["gpus"] >= 0 else None
    plain = http_transport(ANSWER_S, params["ca_file"])
    transport = tls_first(plain) if params["tls_first"] else plain
    own = (params["masters_user"], params["masters_password"]) if params.get("masters_user") else None
    masters = Masters(params.get("masters") or (), own, transport)
    # Marathon's own HTTP has nothing of libprocess.
    ways = plain if params["program"] == "marathon" else transport
    age = unit.up_s if unit is not None else None
    ended = functools.partial(how_ended, unit, params.get("work_dir") or "") if unit is not None else None
    return Cluster(params["program"], params["members"], ways, login, gpus, masters, params.get("own", ""), age, ended)


def how_ended(unit: Unit, work_dir: str) -> str:
    """How a unit that is not active ended, in words; empty for one that is. `work_dir` is that of an agent."""
    state, status = unit.ended()
    if state not in ("inactive", "failed"):
        return ""
    if state == "inactive" and status == 0 and work_dir:
        try:
            agent_id = mesos_replace.latest(work_dir)
        except Refused:
            agent_id = None
        if agent_id:
            return (
                f"{unit.unit} ended by itself with 0 and kept its id {one_line(agent_id)}, as an agent does that the "
                f"masters have marked gone: they refuse this id for good. To do, where the host is to come back as a "
                f"new agent: 'rm {work_dir}/meta/slaves/latest', and run again"
            )
    how = "" if status is None else f", and its program ended with {status}"
    return f"{unit.unit} is {state}{how}"


def operator(params: Mapping[str, Any]) -> Operator:
    """Raises Failed for masters that are no URLs, and for a CA file that cannot be read."""
    transport = http_transport(params["request_timeout"], params["ca_file"])
    return Operator(params["masters"], transport, params["principal"], params["secret"])
