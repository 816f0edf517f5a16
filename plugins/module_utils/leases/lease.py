# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who has which GPU since when, whatever the scheduler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

SLURM, MESOS, DOCKER, KUBERNETES = "slurm", "mesos", "docker", "kubernetes"
# Host -> minor of a GPU's device file -> UUID, as the hosts tell them.
Uuids = Mapping[str, Mapping[int, str]]


class Lease(NamedTuple):
    """GPUs that a scheduler has given a job on a host. Times in Unix seconds; None for what nobody has told.

    :ivar job: the job or task, as the scheduler's commands name it. `name` is what its user calls it.
    :ivar gpus: the UUID of each of its GPUs there; None for one that is not known.
    :ivar expected_end: when its time is over at the latest.
    """

    scheduler: str
    job: str
    name: str
    user: str | None
    host: str
    gpus: tuple[str | None, ...]
    started: float | None
    expected_end: float | None
