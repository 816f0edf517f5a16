# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lets slurmctld write down what it knows.

It writes the state of all jobs within 5 s (SAVE_MAX_WAIT in src/slurmctld/state_save.c) after a job was submitted or
changed, and every 5 minutes, but not when a job starts. One that starts again from a state in which a job waits ends
that job where it runs.
"""

from __future__ import annotations

import re
import time
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run

WRITES_S = 6
COMMAND_S = 60
JOBS_AT_MOST = 20


def save(run: Run, wait: Callable[[float], None] = time.sleep) -> bool:
    """Whether the state of the jobs that run now is on the disk; not where none runs, or slurmctld does not answer."""
    status, said, _error = run(["squeue", "--noheader", "--states=running", "--format=%A"], None, COMMAND_S)
    for job in re.findall(r"^\d+$", said, re.MULTILINE)[:JOBS_AT_MOST] if status == 0 else ():
        status, said, _error = run(["scontrol", "--oneliner", "show", "job", job], None, COMMAND_S)
        requeue = re.search(r"\bRequeue=([01])\b", said)
        # What it is already: only that it was changed counts.
        if requeue and run(["scontrol", "update", f"jobid={job}", f"requeue={requeue[1]}"], None, COMMAND_S)[0] == 0:
            wait(WRITES_S)
            return True
    return False
