# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Leases from the jobs of Slurm, as `slurm.cluster.read` has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import SLURM, Lease, Uuids
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster


def leases(jobs: Iterable[Mapping[str, Any]], uuids: Uuids) -> list[Lease]:
    """A lease for each host on which a job has GPUs."""
    return [
        Lease(
            SLURM,
            job["id"],
            job["name"],
            job["user"] or None,
            node["name"],
            gpus(node, uuids),
            job["started"],
            job["ends"],
        )
        for job, node in cluster.holdings(jobs)
    ]


def gpus(node: Mapping[str, Any], uuids: Uuids) -> tuple[str | None, ...]:
    """The UUIDs of a job's GPUs on a node."""
    known = uuids.get(node["name"], {})
    return tuple(None if minor is None else known.get(minor) for minor in node["minors"])
