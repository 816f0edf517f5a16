# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""After a job: what it has left on its GPUs is ended, what it has changed is put back, and the rest is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import gpus, left, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Unclear
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.job import Job
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.notes import DIRECTORY, Notes

TOLD_AT_MOST = 16


def _minors(job: Job, before: Mapping[str, Any], root: str) -> list[int]:
    known = [int(minor) for minor in before if minor.isdigit() and len(minor) < 5]
    return known or gpus.minors(job.gpus, job.node, root)


def _told(processes: Sequence[left.Process]) -> list[str]:
    return [f"{process.pid} {process.name}" for process in processes[:TOLD_AT_MOST]]


def _end_left(job: Job, pids: Sequence[int], kill: bool) -> tuple[list[left.Process], list[left.Process]]:
    """Processes that were ended, and those that stay."""
    found = [process for process in map(left.look, sorted(set(pids))) if process is not None]
    if not found:
        return [], []
    other_job = left.has_other_job(job.uid, job.number)
    mine = [one for one in found if kill and left.may_be_ended(one, job.uid, job.number, other_job)]
    stubborn = left.end(mine)
    return [one for one in mine if one not in stubborn], [one for one in found if one not in mine or one in stubborn]


def epilog(
    job: Job, kill: bool = True, root: str = "/", directory: str = DIRECTORY, library: str = settings.LIBRARY
) -> dict[str, Any]:
    """Answers what is logged. `unclean` is in it where something stays as it should not be."""
    notes = Notes(job.number, directory)
    kept = notes.read().get("gpus")
    before = {minor: row for minor, row in kept.items() if isinstance(row, dict)} if isinstance(kept, dict) else {}
    notes.remove()
    try:
        minors = _minors(job, before, root)
        now = settings.read(minors, library)
        ended, stay = _end_left(job, [pid for row in now.values() for pid in row["processes"]], kill)
        if ended:
            now = settings.read(minors, library)
        changes = {minor: settings.to_put_back(before.get(minor, {}), row) for minor, row in now.items()}
        changes = {minor: values for minor, values in changes.items() if values}
        refused = settings.put_back(changes, library) if changes else {}
    except (Unclear, settings.Failed) as failure:
        return {"why": str(failure), "unclean": True}
    rest = {minor: settings.to_tell(before.get(minor, {}), row) for minor, row in now.items()}
    found = {
        "ended": _told(ended),
        "left": _told(stay),
        "put_back": changes,
        "refused": refused,
        "changed": {minor: values for minor, values in rest.items() if values},
    }
    told: dict[str, Any] = {name: value for name, value in found.items() if value}
    if stay or refused or found["changed"]:
        told["unclean"] = True
    return told
