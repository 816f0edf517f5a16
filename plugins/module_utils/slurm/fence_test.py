# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a bad GPU can be taken out of service: a job that is submitted as holders are starts."""

from __future__ import annotations

import time
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import HOLDER_WAITS, PARTITION, Slurm

POLL_S = 1.0
# Slurm may name a limit before it has looked at a job, and no node before one has registered.
SURE_AFTER = 4
NO_ROOM = ("Resources", "Priority", "ReqNodeNotAvail", "NodeDown")


def prove(
    slurm: Slurm,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """{proven, why}: not proven where no GPU is free now. Raises Refused where it does not start for another reason."""
    try:
        job = slurm.probe()
    except CallFailed as why:
        raise _refused("slurmctld refuses a job that would keep a bad GPU out of service", str(why)) from why
    end, seen = clock() + timeout_s, [""]
    try:
        while True:
            waits = slurm.waits(job)
            if waits is None:
                return {"proven": True, "why": f"job {job} has started"}
            seen = [*seen, waits] if waits == seen[-1] else [waits]
            if waits not in HOLDER_WAITS and len(seen) >= SURE_AFTER:
                raise _refused("a job that would keep a bad GPU out of service does not start", waits)
            if clock() >= end or (waits in NO_ROOM and len(seen) >= SURE_AFTER):
                return {"proven": False, "why": f"no GPU is free now, so job {job} has not started ({waits})"}
            sleep(POLL_S)
    finally:
        slurm.cancel([job])


def _refused(cause: str, evidence: str) -> Refused:
    return Refused(
        f"{cause}: a node with a bad GPU would stay closed",
        f"see 'sacctmgr show qos {PARTITION}' and 'sacctmgr show assoc account={PARTITION}': the user slurm is to have "
        "that account and that QOS without limits, and the partition is to be up; 'sudo journalctl -u slurmctld' "
        "tells more",
        code="no_fence",
        subject=PARTITION,
        evidence=evidence,
    )
