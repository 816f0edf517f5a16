# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before a job: whether its GPUs are fit for use, and how it finds them.

A job with a GPU whose verdict is fatal is not refused here. A Prolog that fails makes Slurm drain the whole node and
hold the job. The TaskProlog refuses it, with the note that is left here. Without a verdict the job may start.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, UNKNOWN
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import gpus, settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Unclear
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.job import Job
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.notes import DIRECTORY, Notes


def explanation(node: str, judged: Sequence[gpus.Gpu]) -> list[str]:
    """What the user reads of a job that may not run."""
    lines = []
    for gpu in judged:
        if gpu.is_fatal:
            lines.append(f"GPU {gpu.name} of {node} is out of order, so this job does not run on it.")
            for reason in gpu.reasons:
                lines += [f"{reason.code}: {reason.text}", f"remedy: {reason.remedy}"]
    return lines


def prolog(job: Job, root: str = "/", directory: str = DIRECTORY, library: str = settings.LIBRARY) -> dict[str, Any]:
    """Leaves the notes, and answers what is logged. Raises OSError where a note cannot be written."""
    notes = Notes(job.number, directory)
    # A job that was requeued may have been here before.
    notes.remove()
    try:
        minors = gpus.minors(job.gpus, job.node, root)
    except Unclear as failure:
        return {"verdict": UNKNOWN, "why": str(failure)}
    judged, why = gpus.judged(minors, root)
    told: dict[str, Any] = {"gpus": {f"/dev/nvidia{gpu.minor}": gpu.verdict for gpu in judged}}
    if why:
        told["why"] = why
    fatal = [gpu for gpu in judged if gpu.is_fatal]
    if fatal:
        notes.refuse(explanation(job.node, fatal))
        codes = {gpu.name: [reason.code for reason in gpu.reasons] for gpu in fatal}
        return {**told, "verdict": FATAL, "refused": codes}
    try:
        notes.keep({"gpus": settings.read(minors, library)})
    except settings.Failed as failure:
        told["settings"] = str(failure)
    return {**told, "verdict": UNKNOWN if any(gpu.verdict == UNKNOWN for gpu in judged) else "usable"}
