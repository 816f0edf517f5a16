# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mesos as the reconciler's scheduler: agents that are deactivated, drained and exchanged for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.published import agent_id_text, host_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import number, object_of, or_null, text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import operator as mesos_operator
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Failed, Operator
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Memory, Plan, Say, Seen
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.shapes import Agent, MesosStep

_AGENT = object_of(
    {
        "id": agent_id_text,
        "hostname": host_text,
        "ip": text(at_most=100),
        "state": text(r"[a-z]{1,30}"),
        "resources": object_of({"gpus": number(0, 1e6)}),
    },
    {"grace_s": or_null(number()), "drain_since": or_null(number())},
)


class MesosBackend:
    """See `Backend`."""

    plan: Plan = plan

    def __init__(self, operator: Operator) -> None:
        self.operator = operator

    def look(
        self, verdicts: Mapping[str, Mapping[str, Any]], memories: Mapping[str, Memory], say: Say
    ) -> dict[str, Seen]:
        out = any(row["fenced"] or row["ours"] or row["order"] or row["intent"] for row in memories.values())
        by_host = self._agents(out, say)
        # The machine of an agent that is not registered may be in the schedule as well.
        scheduled = self._scheduled() if out or set(verdicts) - set(by_host) else set()
        seen = {}
        for host in {*by_host, *verdicts, *memories}:
            rows = tuple(by_host.get(host, ()))
            # Mesos compares names without case.
            name = host.lower()
            one = rows[0] if len(rows) == 1 else None
            planned = (name, one.ip) in scheduled if one else any(name == row[0] for row in scheduled)
            seen[host] = Seen(rows, planned)
        return seen

    def _agents(self, with_tasks: bool, say: Say) -> dict[str, list[Agent]]:
        """Hostname -> its agents, with their tasks. What Mesos tells of a host may be the host's own words."""
        state = self.operator.get("/state" if with_tasks else "/slaves")
        tasks: dict[str, list[str]] = {}
        by_host: dict[str, list[Agent]] = {}
        try:
            for task in mesos_operator.tasks_of(state) if with_tasks else ():
                tasks.setdefault(task["agent_id"], []).append(one_line(task["id"]))
            rows = list(state["slaves"])
        except (KeyError, TypeError, ValueError, AttributeError) as why:
            raise Failed(f"the master's answer cannot be read: {type(why).__name__} {one_line(why)}") from why
        for row in rows:
            found = self._agent(row, say)
            if found is not None:
                # Where they were not asked for, there may be some.
                has = tasks.get(found["id"], []) if with_tasks else ["not asked for"]
                drain = {name: found.get(name) for name in ("grace_s", "drain_since")}
                agent = Agent(found["id"], found["state"], found["resources"]["gpus"], has, ip=found["ip"], **drain)
                by_host.setdefault(found["hostname"], []).append(agent)
        return by_host

    def _agent(self, row: Any, say: Say) -> dict[str, Any] | None:
        """An agent of Mesos; None for one that cannot be told of, which is named."""
        try:
            # One that is not connected can be taken out all the same.
            agent = {**mesos_operator.agent_of(row), "state": mesos_operator.commanded(row)}
            agent["resources"] = {"gpus": agent["resources"].get("gpus", 0)}
            return dict(_AGENT(agent, "it"))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as wrong:
            why = f"{type(wrong).__name__} {one_line(wrong)}"
        name = one_line(row.get("id"), 100) if isinstance(row, dict) else "?"
        say(f"agent {name}", f"what Mesos reports of it is ignored: {why}")
        return None

    def _scheduled(self) -> set[tuple[str, str]]:
        windows = self.operator.schedule().get("windows", [])
        return {
            (str(row.get("hostname", "")).lower(), row.get("ip", ""))
            for window in windows
            for row in window["machine_ids"]
        }

    def close(self, hosts: Sequence[str], step: Step) -> None:
        """See `plan.closing`."""

    def perform(self, host: str, step: Step) -> None:
        if not isinstance(step, MesosStep):
            return
        if step.kind == "deactivate":
            self.operator.deactivate(step.agent_id)
        elif step.kind == "drain":
            self.operator.drain(step.agent_id, step.grace_s)
        elif step.kind == "reactivate":
            self.operator.reactivate(step.agent_id)
