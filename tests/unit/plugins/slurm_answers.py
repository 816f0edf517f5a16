# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers of Slurm 24.11.5 that were captured on the lab. Of jobs only the fields that are read were kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

JOBS = json.loads((Path(__file__).parent / "module_utils" / "slurm" / "squeue_24.11.5.json").read_text())["jobs"]
NODE = (
    "NodeName=gpu1 Arch=x86_64 CoresPerSocket=2  CPUAlloc=1 CPUEfctv=2 CPUTot=2 CPULoad=9.36 AvailableFeatures=nvlink "
    "ActiveFeatures=nvlink Gres=gpu:a100:2 GresDrain=N/A GresUsed=gpu:a100:1(IDX:0) NodeAddr=192.0.2.10 "
    "NodeHostName=gpu1 Version=24.11.5 RealMemory=22057 AllocMem=50 FreeMem=11887 Sockets=1 Boards=1 State=MIXED "
    "ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all  BootTime=2026-11-26T23:05:00 "
    "CfgTRES=cpu=2,mem=22057M,billing=2,gres/gpu=2 AllocTRES=cpu=1,mem=50M,gres/gpu=1 CurrentWatts=0 AveWatts=0 "
)
INVALID = NODE.replace("State=MIXED", "State=IDLE+DRAIN+INVALID_REG").replace("gpu1", "gpu2") + (
    " Reason=gres/gpu count reported lower than configured (1 < 2) [slurm@2026-11-27T18:43:02]"
)
PARTITIONS = (
    "PartitionName=all AllowGroups=ALL Default=YES QoS=N/A DefaultTime=NONE Hidden=NO MaxNodes=UNLIMITED "
    "MaxTime=1-00:00:00 MinNodes=0 Nodes=gpu1 State=UP TotalCPUs=2 TotalNodes=1\n"
    "PartitionName=gpuops AllowGroups=slurm Default=NO Hidden=YES MaxTime=UNLIMITED Nodes=gpu1 State=UP TotalNodes=1\n"
)
GUARD = (
    "ReservationName=gpuops-gpu1 StartTime=2026-11-27T14:27:00 EndTime=2036-11-27T14:37:00 Duration=00:10:00 "
    "Nodes=gpu1 NodeCnt=1 CoreCnt=2 Features=(null) PartitionName=(null) Flags=FLEX,IGNORE_JOBS,SPEC_NODES TRES=cpu=2 "
    "Users=slurm Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE\n"
)
# Waits for ever: its account has a limit on time.
STUCK = {
    **JOBS[2],
    "job_id": 99,
    "job_state": ["PENDING"],
    "job_resources": None,
    "gres_detail": [],
    "required_nodes": "gpu1",
    "state_reason": "QOSMaxWallDurationPerJobLimit",
    "state_description": "",
}


def printed_reason(job: dict[str, Any]) -> str:
    """What squeue prints as the reason: a description, where there is one."""
    return str(job["state_description"] or job["state_reason"])


class Answers:
    """In the place of Slurm's commands. `fails` is a part of the name of one that fails."""

    def __init__(self, jobs: list[dict[str, Any]]) -> None:
        self.jobs, self.fails = jobs, ""
        self.calls: list[list[str]] = []
        self.ping = "Slurmctld(primary) at head1 is UP\n"
        self.reservations = "No reservations in the system\n"
        self.node, self.partitions = NODE, PARTITIONS

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        self.calls.append(argv)
        if self.fails and self.fails in argv[0]:
            return 1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)"
        if argv[0].endswith("sacctmgr"):
            return 0, "cluster\n", ""
        waiting = [job for job in self.jobs if "PENDING" in job["job_state"]]
        if "--states=PENDING" in argv:
            if "--format=%P|%u|%r" in argv:
                rows = ([job["partition"], job["user_name"], printed_reason(job)] for job in waiting)
                return 0, "".join(f"{'|'.join(row)}\n" for row in rows), ""
            if "--json" not in argv:
                return 0, "".join(f"{job['job_id']}\n" for job in waiting), ""
            ids = argv[-1].removeprefix("--jobs=").split(",")
            return 0, json.dumps({"jobs": [job for job in waiting if str(job["job_id"]) in ids]}), ""
        if argv[1] == "ping":
            return 0, self.ping, ""
        if argv[-1] == "reservation":
            return 0, self.reservations, ""
        if "--user=slurm" in argv:
            ours = [job for job in self.jobs if (job["user_name"], job["partition"]) == ("slurm", "gpuops")]
            return 0, json.dumps({"jobs": ours}), ""
        if "--json" in argv:
            return 0, json.dumps({"jobs": [job for job in self.jobs if job not in waiting]}), ""
        return 0, self.partitions if argv[-1] == "partition" else f"{self.node}\n{INVALID}\n", ""


def gres_conf(directory: Path) -> str:
    """The path of a gres.conf in which the first GPU has the minor 3, and the second 1."""
    conf = directory / "gres.conf"
    conf.write_text("".join(f"NodeName=gpu1 Name=gpu Type=a100 File=/dev/nvidia{minor}\n" for minor in (3, 1)))
    return str(conf)
