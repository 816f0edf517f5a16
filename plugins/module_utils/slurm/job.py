# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The job that a Prolog or an Epilog is about, from the environment that slurmd gives it.

Only numbers and the node's own name are taken: what a user can name, such as the job, is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple


class Job(NamedTuple):
    """`gpus` are the positions of its GPUs in the node's list, such as 0,3."""

    number: int
    uid: int
    node: str
    gpus: str


def of_environment(environment: Mapping[str, str]) -> Job:
    """Raises ValueError where it is none."""
    values = {}
    for name, pattern in (
        ("SLURM_JOB_ID", "[0-9]{1,10}"),
        ("SLURM_JOB_UID", "[0-9]{1,10}"),
        ("SLURMD_NODENAME", "[A-Za-z0-9][A-Za-z0-9._-]{0,252}"),
        ("SLURM_JOB_GPUS", "[0-9,-]{0,1000}"),
    ):
        values[name] = environment.get(name, "")
        if not re.fullmatch(pattern, values[name]):
            raise ValueError(f"{name} is not what slurmd sets")
    return Job(
        int(values["SLURM_JOB_ID"]),
        int(values["SLURM_JOB_UID"]),
        values["SLURMD_NODENAME"],
        values["SLURM_JOB_GPUS"],
    )
