# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What slurmctld says of its nodes, as scontrol prints it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.node import cpu_ids

SCONTROL = "/usr/bin/scontrol"
TIMEOUT_S = 20.0
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
# A drained node is in nobody's way: who drained it wants it so.
IN_SERVICE = {"IDLE", *BUSY}
NOT_ANSWERING = {"POWERED_DOWN", "NOT_RESPONDING", "UNKNOWN"}
NOT_IN_SERVICE = {"DOWN", "INVALID_REG", *NOT_ANSWERING}
# Words of a node that is well and to which slurmctld gives no job all the same: the first that it has counts. Each with
# the mark that some commands print in the place of the word.
CLOSED = {
    "MAINTENANCE": "maintenance",
    "MAINT": "maintenance",
    "$": "maintenance",
    "FAIL": "failing",
    "FAILING": "failing",
    "FAILED": "failing",
    "ERROR": "failing",
    "BLOCKED": "failing",
    "REBOOT": "rebooting",
    "REBOOT_REQUESTED": "rebooting",
    "REBOOT_ISSUED": "rebooting",
    "@": "rebooting",
    "^": "rebooting",
    "POWER_DOWN": "powering_down",
    "POWERING_DOWN": "powering_down",
    "!": "powering_down",
    "%": "powering_down",
    "POWERING_UP": "powering_up",
    "POWER_UP": "powering_up",
    "#": "powering_up",
    "RESERVED": "reserved",
}


def gres(text: str) -> str:
    """Generic resources without the sockets that scontrol adds: gpu:a100:2 for gpu:a100:2(S:0-1)."""
    value = re.sub(r"\([^)]*\)", "", text)
    return "" if value == "(null)" or text == "(null)" else value


def positions(text: str) -> list[int]:
    """The numbers in (IDX:0-1,3) of generic resources, of all their types."""
    found: list[int] = []
    for listed in re.findall(r"\(IDX:([0-9,-]+)\)", text):
        found += cpu_ids(listed)
    return found


def gpus(text: str) -> list[str]:
    """The GPUs among generic resources, each type by itself, such as gpu:a100:2(S:0-1)."""
    return [one for one in re.split(r",(?=[a-z])", text) if one.startswith("gpu")]


def count(text: str) -> int:
    """How many GPUs are in generic resources such as gpu:a100:2(IDX:0-1),gpu:t4:1."""
    counts = (re.match(r"gpu(?::[^:(]*[^:(0-9][^:(]*)?(?::(\d{1,6}))?(?:\(|$)", one) for one in gpus(text))
    return sum(int(one[1] or 1) for one in counts if one)


def seconds(text: str) -> float:
    """A time of Slurm's in Unix seconds; 0 for what is none, such as None and Unknown."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def _words(state: str) -> set[str]:
    """Flags stand behind a plus; marks behind the state alone."""
    return set(re.split(r"[+*~#!%^@$-]+", state)) - {""}


def closed(state: str) -> str:
    """Why a node in this state is given no jobs though it is well, as in CLOSED; empty for one that is given some."""
    words = _words(state) | set(re.findall(r"[#!%^@$]", state))
    return next((kind for word, kind in CLOSED.items() if word in words), "")


def is_open(node: Mapping[str, Any]) -> bool:
    """Whether slurmctld would start a user's job on a node that has room for it."""
    is_closed = node.get("takes_jobs") is False or closed(str(node.get("state") or ""))
    return bool(node["in_service"]) and not node["drained"] and not is_closed


def unfenced(node: Mapping[str, Any], gpus: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The GPUs of a node whose verdict is fatal and that users' jobs can get all the same.

    :param node: with `fenced`, see `cluster.fenced`.
    :param gpus: all of the node, with `verdict` and `minor`, which is None for one that NVML does not list any more.
    """
    if not is_open(node):
        return []
    rows, fenced = list(gpus), list(node.get("fenced") or ())
    # A fenced GPU that NVML does not list has a minor that no other GPU of the node has.
    listed = {row["minor"] for row in rows} - {None}
    gone_fenced = len([minor for minor in fenced if minor not in listed])
    fatal = [row for row in rows if row["verdict"] == FATAL]
    gone = [row for row in fatal if row["minor"] is None]
    return [row for row in fatal if row["minor"] in listed - set(fenced)] + gone[gone_fenced:]


def parse(line: str) -> dict[str, Any] | None:
    """A node from its line of `scontrol -o show node`; None where the line tells of none."""
    name = re.match(r"NodeName=(\S+)", line)
    state = re.search(r" State=(\S+)", line)
    if name is None or state is None:
        return None
    resources = re.search(r" Gres=(\S+)", line)
    used = re.search(r" GresUsed=(\S+)", line)
    cores = re.search(r" CPUAlloc=(\d{1,6}) .*?CPUTot=(\d{1,6}) ", line)
    # Other fields may follow.
    reason = re.search(r" Reason=(.*?)(?: \[([^@\]\s]*)@([0-9T:-]+)\](?: [A-Z]\w*=.*)?)?\s*$", line)
    started = re.search(r" SlurmdStartTime=(\S+)", line)
    memory = re.search(r" RealMemory=(\d{1,12}) AllocMem=(\d{1,12})", line)
    partitions = re.search(r" Partitions=(\S+)", line)
    words = _words(state[1])
    # A star stands behind the state of a node that does not answer.
    silent = "*" in state[1] or bool(words & NOT_IN_SERVICE)
    drained = "DRAIN" in words or bool(words & {"DRAINED", "DRAINING"})
    in_service = bool(words & IN_SERVICE) and not silent
    takes_jobs = in_service and not drained and not closed(state[1])
    gpus_left = (count(resources[1]) if resources else 0) - (count(used[1]) if used else 0)
    free_cpus = int(cores[2]) - int(cores[1]) if cores else 0
    return {
        "name": name[1],
        "state": state[1],
        "gres": gres(resources[1]) if resources else "",
        "used": positions(used[1]) if used else [],
        "gpus": count(resources[1]) if resources else 0,
        "gpus_used": count(used[1]) if used else 0,
        "free_cpus": free_cpus,
        "cpus": int(cores[2]) if cores else 0,
        "memory_mib": int(memory[1]) if memory else 0,
        "free_memory_mib": max(int(memory[1]) - int(memory[2]), 0) if memory else 0,
        "partitions": partitions[1].split(",") if partitions else [],
        "reason": reason[1] if reason else "",
        "reason_by": (reason[2] if reason else None) or "",
        "reason_since": (reason[3] if reason else None) or "",
        # Of the slurmd that has registered last, by the clock of its host.
        "slurmd_started": seconds(started[1]) if started else 0.0,
        "registers_less": "INVALID_REG" in words,
        "answers": "*" not in state[1] and not words & NOT_ANSWERING,
        "down": "DOWN" in words,
        "busy": bool(words & BUSY),
        "drained": drained,
        "silent": silent,
        "in_service": in_service,
        # What a user's job can have now. Guards, partitions and holders are told elsewhere: see `cluster.node_rows`.
        "takes_jobs": takes_jobs,
        "gpus_free": max(min(gpus_left, free_cpus), 0) if takes_jobs else 0,
        "gpus_held": 0,
        "fenced": [],
    }


def parse_partition(line: str) -> dict[str, Any] | None:
    """A partition from its line of `scontrol -o show partition`; None where the line tells of none."""
    name = re.match(r"PartitionName=(\S+)", line)
    state = re.search(r" State=(\S+)", line)
    if name is None or state is None:
        return None
    total = re.search(r" TotalNodes=(\d{1,6})", line)
    limit = re.search(r" MaxTime=(\S+)", line)
    return {
        "name": name[1],
        "state": state[1],
        "default": " Default=YES" in line,
        "hidden": " Hidden=YES" in line,
        "nodes": int(total[1]) if total else 0,
        "max_time": limit[1] if limit else "",
    }


def nodes(run: Run) -> dict[str, dict[str, Any]] | None:
    """The nodes by name; None where slurmctld does not answer, or Slurm is not installed."""
    if not os.path.exists(SCONTROL):
        return None
    status, out, _error = run([SCONTROL, "-o", "show", "node"], None, TIMEOUT_S)
    if status:
        return None
    found = (parse(line) for line in out.splitlines())
    return {node["name"]: node for node in found if node}


def configured(path: str) -> dict[str, dict[str, Any]]:
    """The nodes of a slurm.conf, where nobody can tell whether they have jobs: each may."""
    found: dict[str, dict[str, Any]] = {}
    for line in read_text(path).splitlines():
        name = re.match(r"NodeName=(\S+)", line)
        if name and name[1] != "DEFAULT":
            resources = re.search(r" Gres=(\S+)", line)
            found[name[1]] = {
                "name": name[1],
                "state": "UNKNOWN",
                "gres": resources[1] if resources else "",
                "used": [],
                "free_cpus": 0,
                "gpus": count(resources[1]) if resources else 0,
                "gpus_used": 0,
                "cpus": 0,
                "memory_mib": 0,
                "free_memory_mib": 0,
                "partitions": [],
                "reason": "slurmctld does not answer",
                "reason_by": "",
                "reason_since": "",
                "busy": True,
                "drained": False,
                "silent": True,
                "in_service": False,
                "takes_jobs": False,
                "gpus_free": 0,
                "gpus_held": 0,
                "fenced": [],
            }
    return found
