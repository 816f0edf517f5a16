# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm's own commands, run on a host that has the configuration of the cluster and by root.

What takes a GPU out of service are jobs and reservations of the operator's, which are known by their names:

    the guard of a node    a reservation; running jobs go on, and no other job starts on the node
    a holder               a job with one GPU and one core in the partition `gpuops`, which sleeps

With accounting, holders have an account and a QOS of their own, which no limit of the site's reaches. The role
slurm_accounts makes them.

Users write names and comments of jobs. So jobs are read as JSON, and only what belongs to the user slurm in that
partition is a holder.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.files import read_text
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import queue, state
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import Gres

PARTITION = "gpuops"
# Of the holders, where the cluster has accounting.
ACCOUNT = QOS = PARTITION
# A limit on time cannot be set to none where an account above has one, so their time has an end, within the QOS's.
HOLDER_DAYS = 365
# Debian's packages make it, with the same uid everywhere. slurmctld runs as it.
USER = "slurm"
GRES_CONF = "/etc/slurm/gres.conf"
# A guard whose maker is gone ends by itself after so many minutes.
GUARD_MINUTES = 10
# Begins what is noted of a job that was signalled.
SIGNALLED = "gpuops: SIGTERM"
# Begins what is noted of a job that the Prolog of a node refused.
REFUSED = "gpuops: refused by "
REFUSAL = re.compile(rf"{REFUSED}([^;]*)(?:; )?")
# Slurm's number for none.
NO_UID = 4294967294
REASON_AT_MOST = 300
WAITING_AT_MOST = 500
# Who looks only for those of a user finds some, however long the queue is before them.
EACH_USER_AT_LEAST = 20
# Before the reason of a drain of the reconciler's, and before that of an operator's.
FENCE_MARK = "gpuops: "
OPERATOR_MARK = "gpuops drain: "
# Of the HealthCheckProgram, which acts in the place of the reconciler: its drains are the reconciler's.
HEALTH_CHECK_MARK = f"{FENCE_MARK}health check: "

# States and flags of a job that has resources. squeue --json of 22.05 lists those that ended lately, too.
HAS_RESOURCES = {
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "RESIZING",
    "SIGNALING",
    "STAGE_OUT",
    "STOPPED",
}

# Slurm's words for what a holder may have to wait for. With any other one it waits in vain.
HOLDER_WAITS = {
    "",
    "None",
    "Priority",
    "Resources",
    "Dependency",
    "BeginTime",
    "Cleaning",
    "Reservation",
    "ReqNodeNotAvail",
    "NodeDown",
}

_ACCOUNTING = re.compile(r"^AccountingStorageType\s*=\s*accounting_storage/slurmdbd\s*$", re.MULTILINE)
# What sbatch says where the role has not made them yet.
_NOT_MADE = re.compile(r"invalid (account|qos)", re.IGNORECASE)
_UID = re.compile(r"^\s*UserName=(\S{1,100})\((\d{1,10})\)", re.MULTILINE)
_NAME = re.compile(r"gpuops-hold-(\d{1,4}(?:-\d{1,4})*)")
_AFTER = re.compile(r"after=((?:\d{1,10}(?:,\d{1,10})*)?)")
_GUARD = re.compile(r"ReservationName=gpuops-(\S+) .*?EndTime=(\S+) .*?Users=slurm ")
_CONTROLLER = re.compile(r"^Slurmctld\(\w+\) at (\S{1,253}) is (UP|DOWN)$", re.MULTILINE)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

PROBE = f"{PARTITION}-probe"
HOLDER = """\
#!/bin/sh
# Keeps a GPU that is not to be used from users' jobs. The reconciler ends it once the GPU is well.
exec sleep infinity
"""
NOTHING = "#!/bin/sh\n"


@dataclass(frozen=True)
class Job:
    """A job that has resources on a node, or a holder that waits for them.

    :ivar positions: of its GPUs on the node, in the order of gres.conf; None where slurmctld does not tell them.
    :ivar can_requeue: whether slurmctld would queue it again: a batch job that its user lets.
    :ivar note: what administrators noted of it.
    :ivar limit_min: its time limit in minutes; None without one.
    :ivar ends: when that is reached, in Unix seconds.
    """

    id: int
    user: str
    state: str
    positions: tuple[int, ...] | None
    can_requeue: bool = False
    note: str = ""
    limit_min: int | None = None
    ends: float | None = None


@dataclass(frozen=True)
class Holder:
    """A job of the operator's.

    :ivar node: where it runs or is to run.
    :ivar targets: positions of the GPUs that it is for, one of which is enough.
    :ivar position: of the GPU that it has; None while it waits.
    :ivar after: jobs of which the first that ends lets it start, as they were when it was submitted.
    :ivar waits: whether it still waits for that.
    :ivar reserved: whether it starts inside the guard of its node.
    :ivar started: when it got its GPU, in Unix seconds; 0 while it waits.
    :ivar reason: Slurm's word for why it waits.
    :ivar submitted: when it was, in Unix seconds.
    """

    id: int
    node: str
    state: str
    targets: tuple[int, ...]
    position: int | None
    after: tuple[int, ...]
    waits: bool
    reserved: bool
    started: float = 0.0
    reason: str = ""
    submitted: float = 0.0

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for what does not come, such as the end of a limit."""
        return self.position is None and self.state == "PENDING" and self.reason not in HOLDER_WAITS

    @property
    def keeps(self) -> tuple[int, ...]:
        """Positions of the GPUs that no user's job gets: the one that it has, or those of which it gets the next."""
        if self.position is not None:
            return (self.position,)
        return () if self.is_stuck else self.targets


class Slurm:
    """The cluster's slurmctld. Every method raises CallFailed."""

    def __init__(self, run: Run = host_run.run, timeout_s: float = 5.0, gres_conf: str = GRES_CONF) -> None:
        self._run, self._timeout_s, self._gres_conf = run, timeout_s, gres_conf

    def _call(self, argv: Sequence[str], stdin: str | None = None, tolerated: str | None = None) -> str:
        """What a command prints. A failure of which it says `tolerated` is none."""
        status, out, error = self._run([f"/usr/bin/{argv[0]}", *argv[1:]], stdin, self._timeout_s)
        if status and not (tolerated and tolerated in error):
            why = one_line(error or out, 300) or f"exit status {status}"
            raise CallFailed(f"{argv[0]} {argv[1]}: {why}", "see 'scontrol ping' and 'sudo journalctl -u slurmctld'")
        return out

    def nodes(self, *names: str) -> dict[str, dict[str, Any]]:
        """The nodes by name, or some of them; see `state.parse`."""
        argv = ["scontrol", "--details", "-o", "show", "node", *([",".join(names)] if names else [])]
        rows = (state.parse(line) for line in self._call(argv).splitlines())
        return {row["name"]: row for row in rows if row}

    def controllers(self) -> dict[str, bool]:
        """The hosts of slurmctld, the primary controller first, and whether each answers."""
        # The exit status tells whether any does, and what cannot be asked is told by the other methods.
        _status, out, _error = self._run(["/usr/bin/scontrol", "ping"], None, self._timeout_s)
        return {name: state == "UP" for name, state in _CONTROLLER.findall(out)}

    def gres(self) -> Gres:
        """The device files of the nodes' GPUs."""
        return Gres(read_text(self._gres_conf))

    def guards(self) -> dict[str, float]:
        """Nodes with a guard, and when it ends, in Unix seconds."""
        found = {}
        for line in self._call(["scontrol", "-o", "show", "reservation"]).splitlines():
            row = _GUARD.match(line)
            if row:
                found[row[1]] = state.seconds(row[2])
        return found

    def holders(self) -> list[Holder]:
        """The operator's jobs that wait or run."""
        argv = ["squeue", "--json", "--all", f"--user={USER}", f"--partition={PARTITION}"]
        rows = (_holder(row) for row in self._jobs(argv))
        return [row for row in rows if row is not None]

    def jobs_on(self, node: str) -> list[Job]:
        """Users' jobs that have resources on a node."""
        rows = self._jobs(
            ["squeue", "--json", "--all", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING", f"--nodelist={node}"]
        )
        found = []
        for row in rows:
            positions = queue.positions(row)
            is_there = node in positions and HAS_RESOURCES & set(queue.words(row).split())
            if is_there and row.get("partition") != PARTITION:
                limit = queue.limit_minutes(row)
                found.append(
                    Job(
                        queue.number(row, "job_id"),
                        one_line(row.get("user_name"), 100),
                        queue.words(row),
                        positions[node],
                        bool(row.get("requeue")) and bool(row.get("batch_flag")),
                        one_line(row.get("admin_comment") or "", 1000),
                        limit,
                        float(queue.number(row, "end_time")) if limit is not None else None,
                    )
                )
        return found

    def uids(self) -> dict[str, int]:
        """The uid of each user as slurmctld knows it, NO_UID where the host had no such account when slurmctld asked.

        Empty on a cluster without accounting.
        """
        argv = ["/usr/bin/scontrol", "show", "assoc_mgr", "flags=users"]
        status, out, _error = self._run(argv, None, self._timeout_s)
        return {} if status else {name: int(uid) for name, uid in _UID.findall(out)}

    def partitions(self) -> dict[str, dict[str, Any]]:
        """The partitions by name; see `state.parse_partition`."""
        lines = self._call(["scontrol", "--all", "-o", "show", "partition"]).splitlines()
        return {row["name"]: row for row in map(state.parse_partition, lines) if row}

    def jobs(self) -> list[queue.QueuedJob]:
        """Jobs that have resources, holders among them."""
        argv = ["squeue", "--json", "--all", "--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"]
        return [one for one in queue.jobs(self._jobs(argv)) if HAS_RESOURCES & set(one.words)]

    def ids(self) -> set[int]:
        """The numbers of all jobs that slurmctld knows: those that wait, have resources, or ended lately."""
        told = self._call(["squeue", "--noheader", "--all", "--states=all", "--format=%A"])
        return {int(word) for word in told.split() if word.isdigit()}

    def waiting(self, at_most: int = WAITING_AT_MOST) -> tuple[list[queue.QueuedJob], int]:
        """Jobs that wait, the next of each partition first, and how many wait: each has 9 kB of JSON.

        They are holders, the first at_most jobs of users, and of each user without one among these the next ones.
        """
        told = self._call(["squeue", "--noheader", "--all", "--states=PENDING", "--format=%A|%P|%u"])
        rows = [row for row in (line.strip().split("|") for line in told.splitlines()) if row[0].isdigit()]
        if not rows:
            return [], 0
        wanted, shown, first, further = [], Counter[str](), 0, 0
        for number, partition, user in (([*row, "", ""])[:3] for row in rows):
            if (partition, user) != (PARTITION, USER):
                if first < at_most:
                    first += 1
                elif shown[user] < min(EACH_USER_AT_LEAST, at_most) and further < at_most:
                    further += 1
                else:
                    continue
                shown[user] += 1
            wanted.append(int(number))
        argv = ["squeue", "--json", "--all", "--states=PENDING", f"--jobs={','.join(map(str, wanted))}"]
        found = {one.number: one for one in queue.jobs(self._jobs(argv, tolerated="Invalid job id"))}
        return [found[one] for one in wanted if one in found and found[one].waits], len(rows)

    def count_waiting(self) -> Counter[tuple[str, str]]:
        """How many jobs of users wait, by partition and by what squeue prints as the reason. Takes a line of each job.

        A job that may start in one of several partitions counts in the first that it names.
        """
        told = self._call(["squeue", "--noheader", "--all", "--states=PENDING", "--format=%P|%u|%r"])
        rows = (line.split("|") for line in told.splitlines())
        return Counter(
            (row[0].split(",")[0], row[2].strip())
            for row in rows
            if len(row) == 3 and (row[0], row[1]) != (PARTITION, USER)
        )

    def _jobs(self, argv: Sequence[str], tolerated: str | None = None) -> list[dict[str, Any]]:
        told = self._call(argv, tolerated=tolerated)
        if tolerated and not told:
            return []
        try:
            rows = list(json.loads(told)["jobs"])
        except (ValueError, KeyError, TypeError, RecursionError) as why:
            raise CallFailed(f"squeue's answer cannot be read: {type(why).__name__} {one_line(why, 200)}") from why
        return [row for row in rows if isinstance(row, dict)]

    # What changes something. Each may be done twice.

    def guard(self, node: str) -> None:
        """Close a node to jobs that are not there yet, or keep it closed for longer."""
        name = f"reservationname={_guard_name(node)}"
        end = f"now+{GUARD_MINUTES}minutes"
        if node in self.guards():
            self._call(["scontrol", "update", name, f"endtime={end}"])
            return
        flags = "flags=ignore_jobs,flex"
        self._call(
            [
                "scontrol",
                "create",
                "reservation",
                name,
                f"users={USER}",
                "starttime=now",
                f"endtime={end}",
                flags,
                f"nodes={node}",
            ]
        )

    def unguard(self, node: str) -> None:
        """Open it again. Holders inside go on outside."""
        for holder in self.holders():
            if holder.node == node and holder.reserved:
                self._call(["scontrol", "update", f"jobid={holder.id}", "reservationname="])
        if node in self.guards():
            self._call(["scontrol", "delete", f"reservationname={_guard_name(node)}"])

    def hold(self, node: str, targets: Sequence[int], count: int, after: Iterable[int], inside: bool) -> None:
        """Submit holders: as many as may have to start until one has a target.

        :param after: jobs of which the first that ends lets them start.
        :param inside: whether they start inside the guard of the node.
        """
        ids = sorted(after)
        dependency = "?".join(f"afterany:{one}" for one in ids)
        name = "-".join(map(str, targets))
        argv = [
            f"--nodelist={node}",
            f"--job-name=gpuops-hold-{name}",
            f"--comment=after={','.join(map(str, ids))}",
            *([f"--dependency={dependency}"] if ids else []),
            *([f"--reservation={_guard_name(node)}"] if inside else []),
        ]
        owned = self._owned()
        try:
            self._submit([*argv, *owned])
        except CallFailed as why:
            # On a cluster that the role has not looked at since: better held within limits than not at all.
            if not owned or not _NOT_MADE.search(str(why)):
                raise
            owned = []
            self._submit(argv)
        for _number in range(count - 1):
            self._submit([*argv, *owned])

    def probe(self) -> int:
        """Submit a job as holders are, which ends at once: its number. The reconciler leaves it, as it is no holder."""
        return int(self._submit([f"--job-name={PROBE}", *self._owned()], NOTHING).split(";")[0])

    def waits(self, job: int) -> str | None:
        """Slurm's word for why one of the operator's jobs waits, and None for one that does not wait any more."""
        argv = ["squeue", "--json", "--all", f"--user={USER}", f"--partition={PARTITION}", f"--jobs={job}"]
        for row in self._jobs(argv, tolerated="Invalid job id"):
            if queue.number(row, "job_id") == job and "PENDING" in queue.words(row).split():
                return one_line(row.get("state_reason") or "", 100)
        return None

    def _owned(self) -> list[str]:
        """What gives a job the holders' account and QOS; nothing on a cluster without accounting."""
        told = self._call(["scontrol", "show", "config"])
        return [f"--account={ACCOUNT}", f"--qos={QOS}"] if _ACCOUNTING.search(told) else []

    def _submit(self, words: Sequence[str], script: str = HOLDER) -> str:
        argv = [
            "sbatch",
            "--parsable",
            f"--uid={USER}",
            f"--partition={PARTITION}",
            "--no-requeue",
            "--ntasks=1",
            "--cpus-per-task=1",
            "--mem=1",
            "--gres=gpu:1",
            f"--time={HOLDER_DAYS}-0",
            "--output=/dev/null",
            "--chdir=/",
            *words,
        ]
        return self._call(argv, script)

    def cancel(self, jobs: Iterable[int]) -> None:
        """End holders. One that is gone already is no fault."""
        for job in sorted(jobs):
            self._call(["scancel", f"--user={USER}", str(job)], tolerated="Invalid job id")

    def signal(self, jobs: Iterable[Mapping[str, Any]], why: str) -> None:
        """Send users' jobs a SIGTERM, which they may use for a checkpoint, and note it in them: rows of {id, note}."""
        for row in jobs:
            self._call(["scancel", "--full", "--signal=TERM", str(row["id"])], tolerated="Invalid job id")
            self._note(row["id"], row["note"], f"{SIGNALLED}: {why}")

    def refuse(self, job: int, node: str, why: str) -> None:
        """Note in a user's job that a node refused it. The last refusal is the one that is kept."""
        for one in queue.jobs(self._jobs(["squeue", "--json", "--all", f"--jobs={job}"])):
            if one.number == job:
                # By its number the last task of an array would be the whole array.
                self._note(one.id, REFUSAL.sub("", one.note).rstrip("; "), f"{REFUSED}{node}: {why}")

    def _note(self, job: int | str, before: str, text: str) -> None:
        note = one_line("; ".join(filter(None, [before, text])), REASON_AT_MOST)
        self._call(["scontrol", "update", f"jobid={job}", f"admincomment={note}"], tolerated="Invalid job id")

    def requeue(self, jobs: Iterable[int]) -> None:
        """End users' jobs and queue them again."""
        for job in sorted(jobs):
            self._call(["scontrol", "requeue", str(job)], tolerated="Invalid job id")

    def drain(self, node: str, reason: str) -> None:
        """No new job on the node; those that run go on. On one that is drained, the reason is replaced."""
        self._call(
            ["scontrol", "update", f"nodename={node}", "state=drain", f"reason={one_line(reason, REASON_AT_MOST)}"]
        )

    def resume(self, node: str) -> None:
        self._call(["scontrol", "update", f"nodename={node}", "state=resume"])


def _guard_name(node: str) -> str:
    if not _NODE.fullmatch(node):
        raise CallFailed(f"{one_line(node, 100)} is not the name of a node")
    return f"gpuops-{node}"


def _holder(row: Mapping[str, Any]) -> Holder | None:
    name = _NAME.fullmatch(str(row.get("name")))
    if name is None or row.get("user_name") != USER or row.get("partition") != PARTITION:
        return None
    words = set(queue.words(row).split())
    # One that ends has its GPU for a moment, which nobody is told to have then.
    if "COMPLETING" in words or not words & {"PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"}:
        return None
    after = _AFTER.fullmatch(str(row.get("comment")))
    positions = queue.positions(row)
    place = next(iter(positions.values()), None)
    node = next(iter(positions), None) or str(row.get("required_nodes") or "")
    return Holder(
        queue.number(row, "job_id"),
        node,
        "PENDING" if "PENDING" in words else "RUNNING",
        tuple(map(int, name[1].split("-"))),
        place[0] if place else None,
        tuple(map(int, after[1].split(","))) if after and after[1] else (),
        bool(row.get("dependency")),
        bool(row.get("resv_name")),
        0.0 if "PENDING" in words else float(queue.number(row, "start_time")),
        one_line(row.get("state_reason") or "", 100) if "PENDING" in words else "",
        float(queue.number(row, "submit_time")),
    )
