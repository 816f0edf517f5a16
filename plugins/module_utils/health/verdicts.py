# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts for gpu.gather(), as facts tell them.

The rules of health take as long to load as a GPU to ask, so they are loaded only where verdicts are asked for.
"""

from __future__ import annotations

from typing import Any


def of_agent(root: str, details: bool) -> tuple[dict[str, Any] | None, str | None]:
    """The agent's verdicts, or why they cannot be had; both None where there is no agent.

    Loads the rules before NVML's process is forked, which has them then.
    """
    from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts

    result, error = health_facts.of_agent(root)
    return health_facts.by_agent(result, result["health"], details) if result else None, error


def of_look(answer: dict[str, Any] | None, root: str, details: bool, agent_error: str | None) -> dict[str, Any]:
    """The verdicts of a single look, from what gpu.probe() answers for the subset `health`.

    `answer` is None where there is no GPU to look at. With `agent_error` nothing is well: the agent knew more.
    """
    from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import snapshot
    from ansible_collections.baremetal.gpu.plugins.module_utils.health import facts as health_facts

    log_error = None
    if answer is None:
        report = health_facts.nothing_seen()
    else:
        look = answer.get("look") or snapshot.without_nvml(answer["error"], root)
        report, log_error = health_facts.of_look(look, root)
    if agent_error:
        report = health_facts.at_best_unknown(report)
    return health_facts.told(report, details, source="look", log_error=log_error, agent_error=agent_error, problems=[])
