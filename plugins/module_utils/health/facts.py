# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts as facts: the agent's where one watches the host, else those of a single look.

The agent knows what a look cannot: what has lasted, what was there before a reboot, and what an operator has cleared.
A second opinion without that would contradict it. So where an agent is to watch the host, and its report cannot be
relied on, a look says why, and says of nothing that it is well.
"""

from __future__ import annotations

import os
import time
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.health import probe as health_probe
from ansible_collections.baremetal.gpu.plugins.module_utils.health.evaluate import SCHEMA, judge_once
from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import OK, UNKNOWN, worst
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

KERNEL_LOG = "dev/kmsg"
# Of a GPU's part in a report. The rest says how the verdict came about, and is only told with the details.
_OF_GPU = ("uuid", "index", "pci_address", "verdict", "reasons")
PROBLEMS_MOST = 16


def of_agent(root: str = "/") -> tuple[dict[str, Any] | None, str | None]:
    """The result of an agent that is at work, and why it cannot be relied on: both None where there is no agent."""
    if not agent_result.is_configured(root):
        return None, None
    try:
        return agent_result.read(root), None
    except agent_result.Unusable as failure:
        return None, one_line(f"the report of the agent on the host cannot be used: {failure}")


def by_agent(result: dict[str, Any], report: dict[str, Any], details: bool) -> dict[str, Any]:
    """The report of an agent's result as facts tell it, with what hinders the agent."""
    agent = result.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    problems, log_error = agent.get("problems"), agent.get("log_error")
    return told(
        report,
        details,
        source="agent",
        log_error=one_line(log_error) if log_error else None,
        agent_error=None,
        problems=[one_line(text) for text in problems[:PROBLEMS_MOST]] if isinstance(problems, list) else [],
    )


def of_look(look: dict[str, Any], root: str = "/") -> tuple[dict[str, Any], str | None]:
    """The report on a snapshot and on what the kernel has logged, and why its log could not be read, else None."""
    logged, log_error = health_probe.events(os.path.join(root, KERNEL_LOG), look["boot_id"])
    return judge_once(look, logged, log_read=log_error is None), log_error


def at_best_unknown(report: dict[str, Any]) -> dict[str, Any]:
    """What is found fatal stays so, and nothing else is known to work."""

    def part(one: dict[str, Any]) -> dict[str, Any]:
        return {**one, "verdict": worst(one["verdict"], UNKNOWN)}

    return {**part(report), "devices": [part(row) for row in report["devices"]]}


def beside_agent(report: dict[str, Any], agent: dict[str, Any]) -> dict[str, Any]:
    """A look's report where the agent has one, too. What the agent does not find well, a look does not know to be."""
    worse = {
        name
        for row in agent["devices"]
        if row["verdict"] != OK
        for name in (row.get("uuid"), row.get("pci_address"))
        if name is not None
    }
    if agent["verdict"] == OK:
        return report
    whole = at_best_unknown(report)
    devices = [
        unsure if {row.get("uuid"), row.get("pci_address")} & worse else row
        for row, unsure in zip(report["devices"], whole["devices"])
    ]
    return {**whole, "devices": devices}


def nothing_seen() -> dict[str, Any]:
    """The report on a host whose agent knows more than that there is no GPU to look at."""
    nothing: dict[str, Any] = {"reasons": [], "suspected": [], "checks": {}, "devices": []}
    return {"schema": SCHEMA, "verdict": UNKNOWN, "since": time.time(), **nothing}


def told(report: dict[str, Any], details: bool, **more: Any) -> dict[str, Any]:
    """The report as facts tell it, with `more` at its head."""
    if details:
        return {**more, **report}
    node = {key: row for key, row in report.items() if key not in ("checks", "suspected")}
    return {**more, **node, "devices": [{key: row.get(key) for key in _OF_GPU} for row in report["devices"]]}
