# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs as squeue tells them in JSON, by 22.05 and by later releases.

Users write names and comments of jobs, so every text becomes one printable line of bounded length.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import state

NAME_AT_MOST = 100
REASON_AT_MOST = 300
# How a job may ask for GPUs, and what their number is multiplied by.
_ASKED = {"tres_per_job": "", "tres_per_node": "node_count", "tres_per_socket": "node_count", "tres_per_task": "tasks"}
_TOTAL = re.compile(r"(?:^|,)gres/gpu[=:](\d{1,6})(?:,|$)")


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits or has resources. Times in Unix seconds, None where Slurm has none.

    :ivar number: by which scontrol knows it. `id` is what squeue shows, such as 12, 12_3 or 12_[4-9].
    :ivar words: its state and the flags of it, such as RUNNING and CONFIGURING.
    :ivar reason: why it waits, by Slurm's word for it; `description` has more where Slurm tells more.
    :ivar gpus: how many it has or asks for, on all its nodes.
    :ivar nodes: where it has resources: how many GPUs, and their positions in gres.conf, None where those are not told.
    :ivar ends: when its time is over at the latest.
    :ivar note: what administrators noted of it.
    """

    number: int
    id: str
    name: str
    user: str
    account: str
    partition: str
    qos: str
    words: tuple[str, ...]
    reason: str
    description: str
    cpus: int
    gpus: int
    nodes: Mapping[str, tuple[int, tuple[int, ...] | None]]
    wanted_nodes: str
    submitted: float | None
    started: float | None
    ends: float | None
    note: str = ""

    @property
    def waits(self) -> bool:
        return "PENDING" in self.words


def words(row: Mapping[str, Any]) -> str:
    """The state, with the flags of a job that ends. 22.05 has one word, later releases a list."""
    told = row.get("job_state")
    return " ".join(map(str, told)) if isinstance(told, list) else str(told)


def number(row: Mapping[str, Any], key: str) -> int:
    """A number, which later releases write as {set, infinite, number}."""
    told = row.get(key)
    if isinstance(told, dict):
        told = told.get("number")
    return int(told) if isinstance(told, (int, float)) else 0


def limit_minutes(row: Mapping[str, Any]) -> int | None:
    """The time limit in minutes; None without one."""
    return None if _is_unlimited(row) else number(row, "time_limit")


def positions(row: Mapping[str, Any]) -> dict[str, tuple[int, ...] | None]:
    """Node -> positions of the job's GPUs there."""
    return {name: None if detail is None else _positions(detail) for name, detail in _details(row).items()}


def _details(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Node -> generic resources of the job there; None where they are not told."""
    resources = row.get("job_resources") or {}
    nodes = resources.get("nodes")
    # 22.05 has a list of {nodename}, later releases {allocation: [{name}]}.
    listed = (nodes.get("allocation") if isinstance(nodes, dict) else None) or resources.get("allocated_nodes") or []
    if isinstance(listed, dict):
        listed = list(listed.values())
    names = [str(one.get("name") or one.get("nodename")) for one in listed if isinstance(one, dict)]
    details = row.get("gres_detail") or []
    if not details:
        return dict.fromkeys(names, "")
    if len(details) != len(names):
        return dict.fromkeys(names)
    return {name: str(detail) for name, detail in zip(names, details)}


def _positions(detail: str) -> tuple[int, ...] | None:
    gpus = state.gpus(detail)
    found = [index for one in gpus for index in state.positions(one)]
    # One whose positions are not told may have any.
    return tuple(sorted(found)) if found or not gpus else None


def _asked_gpus(row: Mapping[str, Any]) -> int:
    """The GPUs of a job that waits, as it asks for them. Without accounting Slurm does not add them up."""
    for key, times in _ASKED.items():
        # 22.05 writes gres:gpu:2, later releases gres/gpu:2, and gres/gpu=2 for each task.
        asked = re.sub(r"(^|,)gres[:/]", r"\1", str(row.get(key) or "")).replace("=", ":")
        found = state.count(asked)
        if found:
            return found * max(number(row, times), 1) if times else found
    return 0


def _moment(row: Mapping[str, Any], key: str) -> float | None:
    told = row.get(key)
    if isinstance(told, dict) and (told.get("infinite") or not told.get("set")):
        return None
    found = number(row, key)
    return float(found) if 0 < found < 1 << 32 else None


def _is_unlimited(row: Mapping[str, Any]) -> bool:
    told = row.get("time_limit")
    return bool(told.get("infinite")) if isinstance(told, dict) else told is None or told == 0xFFFFFFFF


def _id(row: Mapping[str, Any]) -> str:
    array, task, rest = number(row, "array_job_id"), row.get("array_task_id"), row.get("array_task_string")
    if not array:
        return str(number(row, "job_id"))
    if rest:
        return f"{array}_[{one_line(rest, 30)}]"
    is_task = bool(task.get("set")) if isinstance(task, dict) else task is not None
    return f"{array}_{number(row, 'array_task_id')}" if is_task else str(number(row, "job_id"))


def jobs(rows: Iterable[Mapping[str, Any]]) -> list[QueuedJob]:
    """Jobs of an answer, without those that nobody can read."""
    return [one for one in map(_readable, rows) if one is not None]


def _readable(row: Mapping[str, Any]) -> QueuedJob | None:
    try:
        return job(row)
    except MISSHAPEN:
        return None


def job(row: Mapping[str, Any]) -> QueuedJob:
    """A job from its part of the answer. A part of another shape raises what bounded_json.MISSHAPEN lists."""

    def text(key: str, at_most: int = NAME_AT_MOST) -> str:
        return one_line(row.get(key) or "", at_most)

    nodes = {
        one_line(name, NAME_AT_MOST): (state.count(detail or ""), None if detail is None else _positions(detail))
        for name, detail in _details(row).items()
    }
    state_words = tuple(one_line(words(row), REASON_AT_MOST).split())
    has = "PENDING" not in state_words
    resources = row.get("tres_alloc_str" if has else "tres_req_str") or row.get("tres_req_str")
    total = _TOTAL.search(str(resources or ""))
    there = sum(count for count, _positions_there in nodes.values())
    return QueuedJob(
        number(row, "job_id"),
        _id(row),
        text("name"),
        text("user_name"),
        text("account"),
        text("partition"),
        text("qos"),
        state_words,
        text("state_reason"),
        text("state_description", REASON_AT_MOST),
        number(row, "cpus"),
        int(total[1]) if total else there if has else _asked_gpus(row),
        nodes,
        text("required_nodes"),
        _moment(row, "submit_time"),
        _moment(row, "start_time") if has else None,
        # Of a job without a limit Slurm has an end far away.
        None if not has or _is_unlimited(row) else _moment(row, "end_time"),
        text("admin_comment", REASON_AT_MOST),
    )
