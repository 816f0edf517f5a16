# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Submit a batch job for a user, find it again, and learn how it ended.

The script of a job has everything that it asks for, so that its user can read and submit it, too. Its comment has the
hash of its content, by which a later run finds the same job. It leaves how it ended in a file `result` beside its
output, which outlives what slurmctld remembers:

    DIRECTORY/output.log, result          of a job
    DIRECTORY/TASK/output.log, result     of each task of an array

What is in the user's directories is read and made as that user, never as root.
"""

from __future__ import annotations

import json
import pwd
import re
import shlex
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line, several_lines
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis, queue
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.node import ranges

MARK = "gpuops-job:"
TASKS_AT_MOST = 1000
OUTPUT_AT_MOST = 20000
OUTPUT_LINES_TOLD = 5
POLL_S = 2.0
# Slurm gives processes of a cancelled job half a minute by default before it kills them.
CANCEL_S = 120.0
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
TASK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,-]{0,99}", re.ASCII)
WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", re.ASCII)
ACCOUNT = re.compile(r"[a-z_][a-z0-9_.-]{0,31}", re.ASCII)
# A job that failed and is queued again has both words, until its processes are gone.
QUEUED_AGAIN = "REQUEUED"
# Seconds before the end of its time in which a job that can continue saves its state.
SAVE_S = 120
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
DIRECTORY = re.compile(r"(/[A-Za-z0-9_+@=-][A-Za-z0-9._+@=-]*|/\.[A-Za-z0-9_+@=-][A-Za-z0-9._+@=-]*)+", re.ASCII)
# Numbers, and what they are at least.
LEAST = {
    "gpus": 0,
    "cpus": 1,
    "memory_mib": 0,
    "minutes": 0,
    "parallel": 0,
    "nodes": 1,
    "least_nodes": 0,
    "processes": 1,
}
# Prints in a word, and with the home, what keeps its user from writing to a path there: nothing where that is well.
LOOK_AT_HOME = """
case "$1" in "$HOME"/*) ;; *) echo elsewhere; exit ;; esac
if ! test -d "$HOME"; then echo "absent $HOME"; exit; fi
test -w "$HOME" && test -x "$HOME" || echo "closed $HOME"
"""
LOOK_S = 5.0
# Options of sbatch that a script may have further, and what they look like.
WORDS = ("partition", "account", "qos", "constraint")
RESULT = re.compile(r"(?P<path>/[^\n]*)/result:(?P<content>[0-9a-f]{16}) (?P<status>[0-9]{1,3})")


@dataclass(frozen=True)
class Task:
    """One task of an array. Its variables are in the environment of its command."""

    name: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Wanted:
    """A job.

    :ivar command: shell command that it runs.
    :ivar minutes: its time limit; 0 for that of the partition.
    :ivar tasks: those of an array; without one it is a single job.
    :ivar parallel: how many tasks run at a time; 0 for as many as there is room for.
    :ivar nodes: on how many nodes it runs, with so many GPUs on each.
    :ivar least_nodes: on how many it starts where there are not more; 0 for as many as `nodes`.
    :ivar processes: how many srun starts on a node.
    :ivar resumable: its command continues where it was. SIGUSR1 tells it to save its state and to end, and the exit
        status of RequeueExit that it is to be queued again.
    :ivar once: it is never queued again, whatever becomes of its node.
    """

    name: str
    user: str
    command: str
    directory: str
    gpus: int = 0
    gpu_type: str = ""
    cpus: int = 1
    memory_mib: int = 0
    minutes: int = 0
    partition: str = ""
    account: str = ""
    qos: str = ""
    constraint: str = ""
    tasks: Sequence[Task] = ()
    parallel: int = 0
    nodes: int = 1
    least_nodes: int = 0
    processes: int = 1
    resumable: bool = False
    once: bool = False

    @property
    def parts(self) -> list[str]:
        """Directory of the job, or of each task."""
        return [f"{self.directory}/{task.name}" for task in self.tasks] or [self.directory]


@dataclass
class Found:
    """What there is of a job.

    :ivar live: rows of squeue of those of its jobs that wait or run, by the number of the job or array.
    :ivar results: directory -> (hash of the content, exit status) as the job has left it.
    """

    live: dict[int, list[Mapping[str, Any]]] = field(default_factory=dict)
    results: dict[str, tuple[str, int]] = field(default_factory=dict)


# --- the script ------------------------------------------------------------------------------------------------------


def problems(job: Wanted) -> list[Problem]:
    """Why a job cannot be made; nothing in its script may be more than one word, but for the command."""
    found = []

    def refuse(cause: str, remedy: str) -> None:
        found.append(Problem("invalid_job", one_line(job.name, 100), cause, "", remedy))

    for key, value, pattern, form in (
        ("name", job.name, NAME, "letters, digits, '.', '_' and '-', 63 characters at most"),
        ("user", job.user, ACCOUNT, "the name of an account, which has lower case letters"),
        ("directory", job.directory, DIRECTORY, "a path below / of letters, digits and . _ + @ = -"),
    ):
        if not pattern.fullmatch(value):
            refuse(f"{key} is {one_line(repr(value), 200)}", f"give {form}")
    for key in ("gpu_type", *WORDS):
        value = getattr(job, key)
        if value and not WORD.fullmatch(value):
            refuse(f"{key} is {one_line(repr(value), 200)}", "give one word of letters, digits, '.', '_' and '-'")
    for key, least in LEAST.items():
        if getattr(job, key) < least:
            refuse(f"{key} is {getattr(job, key)}", f"give at least {least}")
    if job.least_nodes > job.nodes:
        refuse(f"least_nodes is {job.least_nodes}, and nodes is {job.nodes}", "give at most as many")
    if not job.command.strip():
        refuse("command is empty", "give what the job runs")
    if "\0" in job.command:
        refuse("command has a null character", "leave it out")
    if len(job.tasks) > TASKS_AT_MOST:
        refuse(f"it has {len(job.tasks)} tasks", f"divide it into jobs of {TASKS_AT_MOST} tasks at most")
    names = [task.name for task in job.tasks]
    for task in job.tasks:
        if not TASK.fullmatch(task.name) or names.count(task.name) > 1:
            refuse(f"a task is called {one_line(repr(task.name), 200)}", "give each task a name of its own")
        for name, value in task.environment.items():
            if not VARIABLE.fullmatch(name) or "\0" in value:
                refuse(f"task {one_line(task.name, 100)} has the variable {one_line(repr(name), 200)}", "rename it")
    return found


def _header(job: Wanted) -> list[str]:
    """The options of sbatch that say what the job needs."""
    gpus = f"gpu:{job.gpu_type}:{job.gpus}" if job.gpu_type else f"gpu:{job.gpus}"
    return [
        f"--job-name={job.name}",
        f"--chdir={job.directory}",
        f"--output={job.directory}/{'slurm.log' if job.tasks else 'output.log'}",
        f"--open-mode={'append' if job.tasks or job.resumable else 'truncate'}",
        f"--cpus-per-task={job.cpus}",
        *([f"--gres={gpus}"] if job.gpus else []),
        *([f"--mem={job.memory_mib}M"] if job.memory_mib else []),
        *([f"--time={job.minutes}"] if job.minutes else []),
        *([f"--nodes={job.least_nodes or job.nodes}-{job.nodes}"] if job.nodes > 1 or job.processes > 1 else []),
        *([f"--ntasks-per-node={job.processes}"] if job.nodes > 1 or job.processes > 1 else []),
        *(["--requeue", f"--signal=B:USR1@{SAVE_S}"] if job.resumable else []),
        *(["--no-requeue"] if job.once else []),
        *(f"--{key}={getattr(job, key)}" for key in WORDS if getattr(job, key)),
    ]


def _hash(*parts: object) -> str:
    return sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def contents(job: Wanted) -> list[str]:
    """The hash of what each task is, or of the job; what was done under another hash counts as not done."""
    common = (_header(job), job.command)
    return [_hash(common, task.name, dict(task.environment)) for task in job.tasks] or [_hash(common)]


def content(job: Wanted) -> str:
    """The hash of the whole job."""
    return _hash(contents(job), job.parallel)


# In a directory that everybody writes to, somebody else may have taken the name: what is there would be run.
IS_OWN = (
    'test -O . && test -z "$(find . -maxdepth 0 -perm -002)" || '
    '{ echo "$PWD is not a directory to which only you write. To do: choose another directory for the job"; exit 1; }'
)
# The output of a job that is queued again stays.
FIRST_START = ['test "${SLURM_RESTART_COUNT:-0}" != 0 || : >output.log']
# The command has a process group of its own: scancel --full sends SIGTERM to that of the script, and srun would answer
# it with SIGKILL to the processes that it has started. SIGUSR1 it passes on. With `set -m` bash may write how a command
# has ended among its output, so its own error output goes to /dev/null meanwhile. In a group, which bash reads whole
# before, so that an error of syntax in the command is told.
TOLD_TO_SAVE = [
    "child= told=1",
    'trap \'told=1; test -z "$child" || kill -s USR1 -- "-$child" 2>/dev/null\' TERM USR1',
    "{",
    "set -m",
]
# The shell waits for what the signal ends.
SURVIVES = ["trap : TERM USR1"]
IN_THE_BACKGROUND = [") 2>&3 3>&- &", "child=$!", "set +m", "} 3>&2 2>/dev/null"]
# A signal ends `wait`, too.
WAIT = ['while test -n "$told"; do told=; wait "$child"; status=$?; done']


def script(job: Wanted, numbers: Sequence[int] = ()) -> str:
    """The batch script.

    :param numbers: of the tasks that are to run, of an array.
    """
    options = [*_header(job), f"--comment={MARK}{content(job)}"]
    if job.tasks:
        options.append(f"--array={ranges(numbers)}" + (f"%{job.parallel}" if job.parallel else ""))
    lines = ["#!/bin/bash -l", *(f"#SBATCH {option}" for option in options), "", f"directory={job.directory}"]
    if job.tasks:
        lines.append('case "$SLURM_ARRAY_TASK_ID" in')
        for number, (task, told) in enumerate(zip(job.tasks, contents(job))):
            words = " ".join(f"{name}={shlex.quote(value)}" for name, value in sorted(task.environment.items()))
            export = f" export {words};" if words else ""
            lines.append(f"{number}) directory=$directory/{task.name} content={told};{export} ;;")
        write = ">>" if job.resumable else ">"
        lines += ["esac", 'mkdir -p "$directory" && cd "$directory" || exit 1', IS_OWN]
        lines.append(f"exec {write}output.log 2>&1 || exit 1")
    else:
        lines += [f"content={contents(job)[0]}", 'cd "$directory" || exit 1', IS_OWN]
    lines.append("rm -f result")
    # A parenthesis of its own line, so that a command may end with a comment.
    if job.resumable:
        lines += [*FIRST_START, *TOLD_TO_SAVE, "(", *SURVIVES, job.command.rstrip("\n"), *IN_THE_BACKGROUND, *WAIT]
    else:
        lines += ["(", job.command.rstrip("\n"), ")", "status=$?"]
    lines += ['echo "$content $status" >result.new && mv result.new result', 'exit "$status"']
    return "\n".join(lines) + "\n"


# --- on the host -----------------------------------------------------------------------------------------------------


class Submitter:
    """Submits as the user of a job. Every method raises CallFailed."""

    def __init__(
        self,
        run: Run = host_run.run,
        timeout_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run, self._timeout_s, self._clock, self._sleep = run, timeout_s, clock, sleep

    def _call(
        self, argv: Sequence[str], stdin: str | None = None, tolerated: str | None = None, remedy: str = ""
    ) -> str:
        status, out, error = self._run(list(argv), stdin, self._timeout_s)
        if status and not (tolerated is not None and tolerated in error):
            why = one_line((error or out).strip(), 300) or f"exit status {status}"
            program = next((word for word in argv if word.startswith("/usr/bin/") and not word.endswith("/env")), "")
            raise CallFailed(
                f"{program.rpartition('/')[2] or argv[0]}: {why}",
                remedy or "see `scontrol ping` on that host, and that the user may submit such a job there",
                code="call_failed",
            )
        return out

    def as_user(self, user: str) -> list[str]:
        """What a command begins with that runs as a user, with nothing of root's environment."""
        try:
            row = pwd.getpwnam(user)
        except KeyError:
            raise Refused(
                f"there is no account {one_line(user, 100)}",
                "name a user whom the hosts of the cluster know",
                code="no_account",
                subject=user,
            ) from None
        environment = {"HOME": row.pw_dir, "USER": user, "LOGNAME": user, "SHELL": row.pw_shell or "/bin/sh"}
        words = [f"{key}={value}" for key, value in environment.items()]
        # Not root's directory, in which the user may not be.
        start = ["/usr/bin/env", "-i", "--chdir=/", *words, "PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"]
        return ["/usr/sbin/runuser", "-u", user, "--", *start]

    def rows(self, job: Wanted) -> list[Mapping[str, Any]]:
        """Jobs with the name, of the user, that slurmctld remembers."""
        argv = ["/usr/bin/squeue", "--json", "--all", "--states=all", f"--user={job.user}", f"--name={job.name}"]
        try:
            found = list(json.loads(self._call(argv))["jobs"])
        except (ValueError, KeyError, TypeError, RecursionError) as why:
            raise CallFailed(f"squeue's answer cannot be read: {type(why).__name__} {one_line(why, 200)}") from why
        return [
            row
            for row in found
            # squeue --json of 22.05 lists the jobs of everybody.
            if isinstance(row, dict) and row.get("name") == job.name and row.get("user_name") == job.user
        ]

    def find(self, job: Wanted) -> Found:
        """Raises Refused where there is no such account, and where a job of that name is the user's own."""
        self.as_user(job.user)
        found = Found()
        for row in self.rows(job):
            if _has_ended(set(queue.words(row).split())):
                continue
            if not str(row.get("comment") or "").startswith(MARK):
                number = number_of(row)
                raise Refused(
                    f"job {number} has the same name, and was not submitted from here",
                    f"give another name, or end it with `scancel {number}`",
                    code="foreign_job",
                    subject=job.name,
                )
            found.live.setdefault(number_of(row), []).append(row)
        found.results = self.results(job)
        return found

    def results(self, job: Wanted) -> dict[str, tuple[str, int]]:
        """What the job has left of its tasks that have ended."""
        depth = "2" if job.tasks else "1"
        find = ["/usr/bin/find", job.directory, "-mindepth", depth, "-maxdepth", depth, "-name", "result"]
        grep = ["-type", "f", "-size", "-2", "-exec", "/usr/bin/grep", "-Hm1", "^[0-9a-f]", "{}", "+"]
        # It may not be there yet, and what another program has called `result` does not match.
        _status, out, _error = self._run([*self.as_user(job.user), *find, *grep], None, self._timeout_s)
        rows = (RESULT.fullmatch(line) for line in out.splitlines())
        return {row["path"]: (row["content"], int(row["status"])) for row in rows if row}

    def script_of(self, number: int) -> str:
        """The script of a job; empty where slurmctld does not tell it."""
        argv = ["/usr/bin/scontrol", "write", "batch_script", str(number), "-"]
        status, out, _error = self._run(argv, None, self._timeout_s)
        return several_lines(out) if status == 0 else ""

    def submit(self, job: Wanted, text: str) -> int:
        start = self.as_user(job.user)
        try:
            self._call([*start, "/usr/bin/mkdir", "-p", "--", job.directory])
        except CallFailed as why:
            raise self.not_written(job.user, job.directory, why.problem.cause) from why
        told = self._call([*start, "/usr/bin/sbatch", "--parsable"], text)
        number = re.match(r"([0-9]{1,10})(?:;|\s|$)", told)
        if number is None:
            raise CallFailed(f"sbatch's answer cannot be read: {one_line(told, 200)}")
        return int(number[1])

    def not_written(self, user: str, path: str, cause: str) -> CallFailed:
        """Why a user cannot write somewhere: a home that is missing or closed, or else `cause`."""
        argv = [*self.as_user(user), "/bin/sh", "-c", LOOK_AT_HOME, "sh", path]
        found, _space, home = one_line(self._run(argv, None, LOOK_S)[1].strip(), 300).partition(" ")
        if found == "absent":
            return CallFailed(
                f"{user} has no home on this host: {home} is not there",
                f"an administrator makes it: `sudo mkhomedir_helper {user}` on this host; where homes are on CephFS, "
                f"list {user} in cephfs_homes_users and run `gpuops up --tags storage`",
                code="no_home",
                subject=user,
            )
        if found == "closed":
            return CallFailed(
                f"{user} may not write to their home, {home}",
                f"an administrator sees with `ls -ld {home}` on this host who owns it, and whether that is right",
                code="closed_home",
                subject=user,
            )
        remedy = f"see that {user} may write below the home, and that it has room: remove files there, or ask for more"
        if found == "elsewhere":
            remedy = f"see with `ls -ld {path}` whether it is there, and that {user} may write there"
        return CallFailed(cause, remedy, code="call_failed")

    def cancel(self, job: Wanted, numbers: Collection[int]) -> None:
        """End jobs, and wait for their end. One that is gone already is no fault."""
        for number in sorted(numbers):
            self._call(["/usr/bin/scancel", f"--user={job.user}", str(number)], tolerated="Invalid job id")
        end = self._clock() + CANCEL_S
        while set(numbers) & set(self.find(job).live) and self._clock() < end:
            self._sleep(POLL_S)

    def wait(self, job: Wanted, number: int, until: str, timeout_s: float) -> list[Mapping[str, Any]]:
        """The rows of the job once it has `started` or `ended`. Raises Refused when the time is over."""
        end = self._clock() + timeout_s
        # What slurmctld has forgotten has ended, and what it told last counts.
        seen: dict[int, Mapping[str, Any]] = {}
        while True:
            now = [row for row in self.rows(job) if number_of(row) == number]
            seen.update({queue.number(row, "array_task_id"): row for row in now})
            states = [set(queue.words(row).split()) for row in now]
            has_started = any("RUNNING" in one for one in states)
            if all(_has_ended(one) for one in states) or (until == "started" and has_started):
                return list(seen.values())
            if self._clock() >= end:
                raise _late(job, number, now, until, timeout_s)
            self._sleep(POLL_S)

    def output(self, job: Wanted, directory: str) -> str:
        """The end of what a job or a task has printed; empty where there is none."""
        argv = [*self.as_user(job.user), "/usr/bin/tail", "-c", str(OUTPUT_AT_MOST), f"{directory}/output.log"]
        status, out, _error = self._run(argv, None, self._timeout_s)
        return several_lines(out, OUTPUT_AT_MOST) if status == 0 else ""


def _has_ended(words: set[str]) -> bool:
    return bool(words & ENDED) and QUEUED_AGAIN not in words


def number_of(row: Mapping[str, Any]) -> int:
    """The number of a job, or of the array that it is a task of."""
    return queue.number(row, "array_job_id") or queue.number(row, "job_id")


def _late(job: Wanted, number: int, rows: Sequence[Mapping[str, Any]], until: str, timeout_s: float) -> Refused:
    waiting = next((one for one in queue.jobs(rows) if one.waits), None)
    why = f": {diagnosis.waits_for(waiting)} ({waiting.reason})" if waiting else ""
    known = diagnosis.job_problem(waiting) if waiting else None
    return Refused(
        f"job {number} of {job.user} has not {until} within {timeout_s:g} s{why}",
        known.remedy if known else "it stays submitted: run this again to wait longer, or remove it",
        code="job_late",
        subject=job.name,
    )


def hosts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a job runs or ran: of a job with several nodes the first."""
    told = {one_line(row.get("batch_host") or row.get("nodes") or "", 100) for row in rows}
    return sorted(name for name in told if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name))


# --- whether something is to be done ---------------------------------------------------------------------------------


def todo(job: Wanted, found: Found, again: bool) -> list[int]:
    """Numbers of the tasks that have not ended well yet; [0] for a single job."""
    told = contents(job)
    return [
        number
        for number, directory in enumerate(job.parts)
        if again or found.results.get(directory) != (told[number], 0)
    ]


def running(job: Wanted, found: Found) -> int | None:
    """The number of the same job where it waits or runs."""
    mark = MARK + content(job)
    return next((number for number, rows in found.live.items() if rows[0].get("comment") == mark), None)


def ended(
    job: Wanted, rows: Sequence[Mapping[str, Any]], results: Mapping[str, tuple[str, int]]
) -> list[dict[str, Any]]:
    """How each task ended: {name, directory, state (done, failed or open), why}.

    :param rows: what slurmctld tells of it last. Where it tells nothing any more, the result counts.
    """
    told = contents(job)
    states: dict[int, set[str]] = {}
    for row in rows:
        states[queue.number(row, "array_task_id") if job.tasks else 0] = set(queue.words(row).split())
    found = []
    for number, directory in enumerate(job.parts):
        result = results.get(directory)
        words = states.get(number, set()) & ENDED
        state, why = "open", ""
        is_known = result is not None and result[0] == told[number]
        if words:
            state = "done" if words == {"COMPLETED"} else "failed"
            why = "" if state == "done" else " ".join(sorted(words))
        if result and is_known and (not words or (words == {"FAILED"} and result[1])):
            state = "failed" if result[1] else "done"
            why = f"exit status {result[1]}" if result[1] else ""
        name = job.tasks[number].name if job.tasks else job.name
        found.append({"name": name, "directory": directory, "state": state, "why": why})
    return found


def failures(job: Wanted, tasks: Sequence[Mapping[str, Any]], output: Callable[[str], str]) -> list[Problem]:
    """A problem for each task that did not end well, with the end of its output."""
    found = []
    for task in tasks:
        if task["state"] == "done":
            continue
        last = [line for line in output(task["directory"]).splitlines() if line.strip()][-OUTPUT_LINES_TOLD:]
        what = f"it ended with {task['why']}" if task["why"] else "it is unknown how it ended"
        said = f", and said last: {one_line(' / '.join(last), 500)}" if last else ""
        found.append(
            Problem(
                "job_failed",
                task["name"],
                f"{task['name']}: {what}{said}",
                task["why"],
                f"read {task['directory']}/output.log, correct it and run this again"
                if last
                else f"check that {job.directory} is the same on all hosts, and that {job.user} may write there",
            )
        )
    return found


def at_home(job: Wanted) -> Wanted:
    """The job with its directory in the home of its user, where that begins with ~/."""
    if not job.directory.startswith("~/"):
        return job
    try:
        home = pwd.getpwnam(job.user).pw_dir.rstrip("/")
    except (KeyError, ValueError):
        # Who has no account is refused later.
        home = ""
    return replace(job, directory=home + job.directory[1:])


def with_tasks(job: Wanted, tasks: Sequence[Mapping[str, Any]]) -> Wanted:
    """The job with tasks as a module is given them."""
    return replace(
        job,
        tasks=tuple(
            Task(str(row["name"]), {str(name): str(value) for name, value in (row.get("environment") or {}).items()})
            for row in tasks
        ),
    )
