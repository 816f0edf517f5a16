# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whom an operator asks for a drain, and with which login; it brings nothing to a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.common import MASTERS_PORT
from ansible_collections.baremetal.gpu.plugins.plugin_utils.mesos.members import members


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The masters and the secret of the principal.

    :param params: beside the variables ``credentials``, secrets by principal in the inventory, and ``kept``, those of
        the file of the controller.
    :param peers: ``groups`` and ``hostvars``; the settings of the masters are read.
    """
    group, principal = params["masters_group"], params["principal"]
    rows = members(list(peers["groups"].get(group, [])), peers["hostvars"], "master", MASTERS_PORT)
    masters = params["masters"] or [row["url"] for row in rows]
    secret = params["secret"] or params["credentials"].get(principal) or params["kept"].get(principal, "")
    parts = {"masters": masters, "principal": principal if secret else "", "secret": secret}
    if masters:
        return Plan(parts=parts)
    cause = f"no host is in the group {group}, and mesos_operator_masters is empty"
    remedy = "give the URLs of the masters there, as in http://master1:5050"
    return Plan(problems=(Problem("unknown_masters", "mesos_operator_masters", cause, "", remedy),), parts=parts)
