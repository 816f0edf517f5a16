# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How full a home is, and how many GPU hours a user has had: what the program that works as root is asked for."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import usage
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

HOME_S, HOURS_S = 5.0, 15.0
# How many days of GPU hours are told.
DAYS = 30
# The two attributes of CephFS; an empty line for one that there is not, as on every other file system.
READ = """
import os, sys
for name in ("ceph.dir.rbytes", "ceph.quota.max_bytes"):
    try:
        print(os.getxattr(sys.argv[1], name).decode())
    except OSError:
        print()
"""


def home(start: Sequence[str], path: str, run: Run) -> dict[str, Any]:
    """How many bytes a home has, and how many it may have; None for what nobody tells. It may hang.

    :param start: what a command begins with that runs as its user.
    """
    # A home that is mounted when somebody looks into it is mounted by the dot.
    status, out, _error = run([*start, "/usr/bin/python3", "-I", "-S", "-c", READ, f"{path}/."], None, HOME_S)
    lines = out.splitlines() if status == 0 else []
    used, quota = (int(line) if re.fullmatch("[0-9]{1,18}", line) else None for line in [*lines, "", ""][:2])
    return {"answers": status == 0, "used": used, "quota": quota}


def hours(user: str, run: Run, now: float) -> dict[str, Any]:
    """The GPU seconds of a user in the last days. Raises CallFailed and Refused."""
    first = datetime.date.fromtimestamp(now) - datetime.timedelta(DAYS - 1)
    found = usage.usage(Slurm(run, HOME_S), run, first.isoformat(), "", (), HOURS_S, lambda: now, user)
    return {"gpu_seconds": sum(row["gpu_seconds"] for row in found["rows"]), "jobs": found["jobs"]}
