# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Verdicts for gpu.gather(), as facts tell them.

The rules of health take as long to load as a card to ask, so they are loaded only where verdicts are asked for.
"""

from __future__ import annotations

from typing import Any


def of_agent(root: str, details: bool) -> dict[str, Any] | None:
    """The agent's verdicts, or None where none is at work.

    Loads the rules before NVML's process is forked, which has them then.
    """
    from ansible_collections.baremetal.gpu.plugins.module_utils import facts_health

    report = facts_health.of_agent(root)
    return facts_health.told(report, details, source="agent", log_error=None) if report else None


def of_look(answer: dict[str, Any], root: str, details: bool) -> dict[str, Any]:
    """The verdicts of a single look, from what gpu.probe() answers for the subset `health`."""
    from ansible_collections.baremetal.gpu.plugins.module_utils import facts_health, snapshot

    look = answer.get("look") or snapshot.without_nvml(answer["error"], root)
    report, log_error = facts_health.of_look(look, root)
    return facts_health.told(report, details, source="look", log_error=log_error)
