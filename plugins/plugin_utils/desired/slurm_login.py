# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of Slurm on a host where users log in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param peers: ``cluster``, the plan of slurm_common.
    """
    return Plan(
        doc.Document(
            packages=[doc.Package("slurm-client")],
            files=[
                doc.Directory("/etc/slurm", owner=None, group=None),
                doc.File("/etc/slurm/slurm.conf", peers["cluster"]["slurm_conf"]),
            ],
        )
    )
