# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm as the portal's scheduler: sessions are its jobs."""

from __future__ import annotations

import pwd
import re
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.leases import slurm as slurm_leases
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Found
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import Job, Session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import cluster, diagnosis, state, submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Submitter, Wanted

# Why jobs wait that stand before a new one.
_IN_LINE = {"Resources", "Priority"}


class SlurmBackend:
    """See `Backend`."""

    gives_port = False
    keeps_ended = False
    has_queue = True
    submit_s = 60

    def __init__(
        self,
        read: Callable[[], Mapping[str, Any]] = lambda: cluster.read(Slurm()),
        sessions: Callable[[], Mapping[Job, Session]] = session.read,
    ) -> None:
        self._read, self._sessions = read, sessions

    def look(self) -> tuple[Found, Mapping[Job, Session]]:
        return document(self._read()), self._sessions()

    def address(self, one: Session) -> str:
        return session.address(one.node)


def document(found: Mapping[str, Any]) -> Found:
    """What `slurm.cluster.read` has, in the words of every scheduler."""
    return {
        "nodes": [node(row) for row in found["nodes"]],
        "jobs": [job(row) for row in found["jobs"]],
        "leases": slurm_leases.leases(found["jobs"], {}),
        "waiting_total": found["waiting_total"],
    }


def node(row: Mapping[str, Any]) -> dict[str, Any]:
    takes_jobs = state.is_open(row)
    problem = None if takes_jobs else diagnosis.node_problem(row)
    closed = "" if takes_jobs else "its partition is closed"
    return {
        **row,
        "models": models(str(row["gres"])),
        "takes_jobs": takes_jobs,
        "problem": problem.cause if problem else closed,
    }


def job(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "in_line": row["reason"] in _IN_LINE and not row["holder"]}


def models(gres: str) -> dict[str, int]:
    """Model -> how many GPUs of it a node has. GPUs without a type have the empty one."""
    found: dict[str, int] = {}
    for one in state.gpus(gres):
        words = one.split(":")
        kind = words[1] if len(words) > 1 and not words[1].isdigit() else ""
        found[kind] = found.get(kind, 0) + state.count(one)
    return found


class SlurmOrders:
    """See `Orders`."""

    gives_port = False

    def __init__(self, run: Run = host_run.run) -> None:
        self._run = run

    def look(self) -> Mapping[str, Any]:
        return {}

    def submit(self, wanted: Wanted, server: str, variables: Mapping[str, str], image: str = "") -> Job:
        return Submitter(self._run).submit(wanted, submission.script(wanted))

    def cancel(self, user: str, job: Job) -> None:
        """Whose it is goes by the number of the account, whose name scancel would not know once it is gone."""
        argv = ["/usr/bin/squeue", "--noheader", "--all", "--states=all", f"--jobs={job}", "--format=%U %j"]
        status, out, error = self._run(argv, None, 20.0)
        if status and "Invalid job id" in error:
            return
        if status:
            raise _no_answer("squeue", error or out)
        told = set(out.splitlines())
        if not told:
            return
        # A name may have anything in it, and an array has a line of each task.
        row = re.fullmatch(rf"([0-9]{{1,10}}) {session.JOB}", next(iter(told)))
        if len(told) > 1 or row is None or _owner(int(row[1])) not in ("", user):
            raise Refused(f"{job} is not a session of {one_line(user, 100)}", code="not_yours", subject=str(job))
        status, out, error = self._run(["/usr/bin/scancel", str(job)], None, 20.0)
        if status and "Invalid job id" not in error:
            raise _no_answer("scancel", error or out)

    def extend(self, user: str, job: Job, hours: int, most: int) -> int:
        """Give a session of a user that runs more hours, and in all no more than `most`; its new limit in minutes.

        Slurm lets root go beyond every limit, so those of the partition, the account and the QOS are looked at here.
        """
        fields = r"([0-9]{1,10})\|([^|\n]+)\|([A-Za-z0-9_.-]+)\|([^|\n]*)\|([^|\n]*)\|"
        found = re.fullmatch(
            rf"{fields}{session.JOB}\n?",
            self._told(
                *("/usr/bin/squeue", "--noheader", "--all", "--states=RUNNING"),
                *(f"--jobs={job}", "--format=%U|%l|%P|%a|%q|%j"),
            ),
        )
        if found is None or _owner(int(found[1])) != user:
            cause = f"{job} is not a running session of {one_line(user, 100)}"
            raise Refused(cause, "start it again", code="not_yours", subject=str(job))
        limit, partition, account, qos = minutes(found[2]), *found.groups()[2:]
        asked = self._told("/usr/bin/scontrol", "-o", "show", "partition", partition)
        of_partition = state.parse_partition(asked) or {"max_time": ""}
        only = (f"users={user}", *(f"{name}={value}" for name, value in (("accounts", account), ("qos", qos)) if value))
        own = self._told("/usr/bin/scontrol", "-o", "show", "assoc_mgr", *only, "flags=assoc,qos")
        bounds = [(most * 60, "the portal")]
        if minutes(of_partition["max_time"]):
            bounds.append((minutes(of_partition["max_time"]), f"the partition {partition}"))
        bounds += [(int(one), "your account or QOS in Slurm") for one in re.findall(r"\bMaxWallPJ=([0-9]{1,9})\b", own)]
        bound, whose = min(bounds)
        if not limit or limit >= bound:
            cause = f"it has {limit // 60} hours, and {whose} allows no more than {bound // 60}"
            remedy = "save your work before the session ends, and start another one"
            raise Refused(cause, remedy, code="no_more_time", subject=str(job))
        wanted = min(limit + hours * 60, bound)
        self._told("/usr/bin/scontrol", "update", f"JobId={job}", f"TimeLimit={wanted}")
        return wanted

    def _told(self, *argv: str) -> str:
        status, out, error = self._run(list(argv), None, 20.0)
        if status:
            raise _no_answer(argv[0].rpartition("/")[2], error or out)
        return out


def minutes(text: str) -> int:
    """A limit as Slurm writes it, such as 1-12:00:00; 0 for none."""
    found = re.fullmatch(r"(?:([0-9]{1,5})-)?(?:([0-9]{1,6}):)?([0-9]{1,2}):[0-9]{2}", text)
    days, hours, rest = (int(one or 0) for one in found.groups()) if found else (0, 0, 0)
    return (days * 24 + hours) * 60 + rest


def _owner(uid: int) -> str:
    """The name of an account; empty where nobody has the number any more."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


def _no_answer(program: str, said: str) -> CallFailed:
    return CallFailed(f"{program}: {one_line(said, 300)}", "see `scontrol ping` on the host of the portal")
