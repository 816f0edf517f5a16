# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""munge with the key of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

KEY = "/etc/munge/munge.key"
# munged refuses shorter keys.
SHORTEST = 32


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host."""
    key = str(params["key"])
    if len(key) < SHORTEST:
        problem = Problem(
            "short_key",
            "munge_key",
            f"the key of munge has {len(key)} characters, and munge takes {SHORTEST} or more",
            remedy="set munge_key, or slurm_common_secrets_path to a file that the role may make",
        )
        return Plan(problems=(problem,))
    return Plan(
        doc.Document(
            packages=[doc.Package("munge")],
            files=[doc.File(KEY, key, "0400", "munge", "munge", sensitive=True)],
            units=[doc.Unit.running("munge.service", restart_on=[KEY, "munge"])],
        )
    )
