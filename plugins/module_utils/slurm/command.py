# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program that slurmd's Prolog, Epilog and HealthCheckProgram start, as root.

It also adds the GPUs of a job to its container, as the job's user.

A fault of its own never fails a job: it is logged, and the exit code is 0. UNCLEAN is the exit code of an Epilog that
has left something and was asked to say so.

Every job waits for it, so each word imports what it needs, and nothing else is imported here.
"""

from __future__ import annotations

# `socket` itself brings enumerations and selectors along, which take longer to make than the line takes to write.
import _socket
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.job import Job, of_environment

NAME = "baremetal-gpu-slurm"
LOG = "/dev/log"
LOG_TIMEOUT_S = 1.0
DAEMON, WARNING, INFO = 3 << 3, 4, 6
LINE_AT_MOST = 4000
# Of each of two calls, within the five seconds that a Prolog has.
NOTE_TIMEOUT_S = 1.5
# A code that no fault of Python itself ends with.
UNCLEAN = 10


def log(told: Mapping[str, Any], is_warning: bool, path: str = LOG) -> None:
    """One line of JSON to the system's log. A log that does not take it holds nobody up."""
    text = one_line(json.dumps(told), LINE_AT_MOST)
    priority = DAEMON | (WARNING if is_warning else INFO)
    to = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    to.settimeout(LOG_TIMEOUT_S)
    try:
        to.connect(path)
        to.send(f"<{priority}>{NAME}[{os.getpid()}]: {text}".encode())
    except OSError as failure:
        sys.stderr.write(f"{NAME}: {failure}: {text}\n")
    finally:
        to.close()


def run(words: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
    if words[0] == "health-check":
        from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import health_check
        from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

        return health_check.check(words[1], float(words[2]), Slurm())
    job = of_environment(environment)
    if words[0] == "prolog":
        from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import prolog

        told = prolog.prolog(job)
        if "refused" in told:
            told.update(note_refusal(job, told["refused"]))
        return {"job": job.number, **told}
    from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import epilog

    return {"job": job.number, **epilog.epilog(job, kill="--keep-left" not in words)}


def note_refusal(job: Job, refused: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Users read in the queue why their job waits again. Answers what is logged: the job is refused in any case."""
    from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
    from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm

    why = ", ".join(f"{name} is out of order ({', '.join(codes)})" for name, codes in refused.items())
    try:
        Slurm(timeout_s=NOTE_TIMEOUT_S).refuse(job.number, job.node, why)
    except CallFailed as failure:
        return {"not_noted": one_line(failure, 300)}
    return {}


def add_gpus(bundle: str) -> int:
    """The exit code of a container's start: without its GPUs it is not started, and its user reads why."""
    from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
    from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import container

    try:
        container.add_gpus(bundle)
    except (Refused, OSError) as failure:
        sys.stderr.write(f"{one_line(failure, LINE_AT_MOST)}\n")
        return 1
    return 0


def main(words: Sequence[str] | None = None) -> int:
    """``prolog``, ``epilog [--keep-left] [--fail-if-unclean]``, ``health-check NODE SECONDS``, ``container BUNDLE``."""
    given = sys.argv[1:] if words is None else list(words)
    if given[:1] == ["container"] and len(given) == 2:
        return add_gpus(given[1])
    if given[:1] not in (["prolog"], ["epilog"], ["health-check"]):
        sys.stderr.write(f"{NAME}: {main.__doc__}\n")
        return 2
    try:
        told = run(given, os.environ)
    except Exception as failure:
        told = {"why": f"{type(failure).__name__}: {one_line(failure, 300)}"}
    if given[0] == "health-check" and not told:
        return 0
    worth_a_look = {"refused", "drained", "why", "left", "changed", "unclean", "settings"}
    log({"what": given[0], **told}, bool(worth_a_look & told.keys()))
    return UNCLEAN if told.get("unclean") and "--fail-if-unclean" in given else 0
