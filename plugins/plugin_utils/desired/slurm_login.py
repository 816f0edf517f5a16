# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of Slurm on a host where users log in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param peers: ``cluster``, the plan of slurm_common.
    """
    return Plan(
        {
            "packages": [{"name": "slurm-client"}],
            "files": [
                {"path": "/etc/slurm", "state": "directory", "mode": "0755"},
                {
                    "path": "/etc/slurm/slurm.conf",
                    "content": peers["cluster"]["slurm_conf"],
                    "mode": "0644",
                    "owner": "root",
                    "group": "root",
                },
            ],
        }
    )
