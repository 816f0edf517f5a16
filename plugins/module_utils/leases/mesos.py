# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases from the tasks of Mesos. It tells neither which GPUs of a host a task has, nor for whom it runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import MESOS, Lease


def leases(tasks: Iterable[Mapping[str, Any]], hosts: Mapping[str, str]) -> list[Lease]:
    """A lease for each task with GPUs.

    :param tasks: as `mesos.operator` tells them.
    :param hosts: the host of each agent by its id. A task of an agent that is not there has no lease.
    """
    found = []
    for task in tasks:
        count = int(task["resources"].get("gpus") or 0)
        host = hosts.get(task["agent_id"])
        if count > 0 and host:
            found.append(Lease(MESOS, task["id"], task["name"], None, host, (None,) * count, None, None))
    return found
