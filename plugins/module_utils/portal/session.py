# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A session as a job of Slurm: its script, what becomes of it, and why it ended."""

from __future__ import annotations

import json
import re
import secrets
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import form, identity, ssh
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.accounts import Account
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.form import Request
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.settings import DOCKER, MARATHON, Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import diagnosis, queue, submission
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import SIGNALLED
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Wanted

# Of all sessions the same, by which one question to the scheduler tells of all of them.
JOB = "portal-session"
PROGRAM = "jupyterhub-singleuser"
# What node and container of a session in an image share, with the number of its job behind it; and the file in it that
# has the image by its digest, for whoever saves it.
SHARED, IMAGE = "container", "image"
# A node on which no image can be run.
NO_IMAGES = 126
# A home that is too full for a session in an image.
FULL_HOME = 122
# Tells the hub whether the session is used.
MEASURE = "/usr/libexec/baremetal-gpu/portal-measure"
# Where JupyterLab finds what shows the portal's warnings.
JUPYTER = "/usr/share/baremetal-gpu/portal-jupyter"
VARIABLE = re.compile(r"(?:JUPYTERHUB|JPY)_[A-Z0-9_]{1,60}", re.ASCII)
VARIABLES_AT_MOST, VALUE_AT_MOST = 60, 8192
# What the hub and the session prove themselves with to each other -> the variable that has its path.
CERTIFICATES = {
    "key": "JUPYTERHUB_SSL_KEYFILE",
    "certificate": "JUPYTERHUB_SSL_CERTFILE",
    "authority": "JUPYTERHUB_SSL_CLIENT_CA",
}
PEM = re.compile(r"[A-Za-z0-9+/=\n -]{0,65536}", re.ASCII)
# Its news comes from the internet.
QUIET = ("--LabApp.news_url=None", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate")
# What measures the session asks its server, too, and has no certificate of the hub's; who asks has a token or a login.
WORDS = (*QUIET, "--ServerApp.client_ca=")
# Where another program has the port, and the scheduler does not give it.
NEXT_PORTS = f"--ServerApp.port_retries={identity.PORTS - 1}"

WAITS, RUNS, ENDED = "waits", "runs", "ended"
# Anybody's jobs may have that name. What is learned of each user's is bounded, so that nobody's hide another's.
OF_A_USER_AT_MOST, AT_MOST = 50, 2000
# By what the scheduler knows a session: a number of Slurm, or the id of an app of Marathon.
Job = Union[int, str]


@dataclass(frozen=True)
class Session:
    """What the scheduler tells of a session.

    :ivar state: waits, runs or ended.
    :ivar why: why it waits, for people.
    :ivar expected: when it is to start, in Unix seconds, where the scheduler has an idea.
    :ivar node: where it runs.
    :ivar ended: why it ended.
    :ivar server: its name; empty for the first session of its user.
    :ivar port: where its server listens, where the scheduler has chosen that.
    :ivar address: where its node is reached, where the scheduler tells it with the session.
    :ivar lives: whether the scheduler would go on with it though it has ended, and it is to be cancelled.
    """

    job: Job
    user: str
    state: str
    why: str = ""
    expected: float | None = None
    node: str = ""
    ends: float | None = None
    ended: Problem | None = None
    server: str = ""
    port: int = 0
    address: str = ""
    lives: bool = False


# --- what is submitted -----------------------------------------------------------------------------------------------


def job(
    account: Account,
    server: str,
    request: Request,
    settings: Settings,
    environment: Mapping[str, str],
    certificates: Mapping[str, str],
) -> Wanted:
    """The job of a session. Raises Refused where something of it is not as it has to be."""
    if server and not form.SERVER.fullmatch(server):
        raise _refused("server", server, "name it with lower case letters, digits and hyphens, 30 at most")
    limits = form.limits_of(account.groups, settings.limits_by_group, settings.limits)
    models = [request.model] if form.MODEL.fullmatch(request.model) else []
    place = settings.place_of(account.name)
    request, problems = form.parse(request.as_dict(), limits, models, settings.names, place, settings.directories)
    if problems:
        raise Refused(problems[0].cause, problems[0].remedy, code=problems[0].code, subject=problems[0].subject)
    image = settings.image_of(request.environment, account.name)
    if settings.scheduler == DOCKER:
        command = _in_container(environment, certificates)
    elif image:
        command = _in_image(image, environment, certificates, settings.ssh_ports)
    else:
        own = request.environment.startswith("~/")
        prefix = account.home + request.environment[1:] if own else settings.environments[request.environment]
        words = WORDS if settings.scheduler == MARATHON else (*WORDS, NEXT_PORTS)
        command = _command(prefix, environment, certificates, settings.ssh_ports, words)
    return Wanted(
        name=JOB,
        user=account.name,
        command=command,
        directory=directory(account, server),
        gpus=request.gpus,
        gpu_type=request.model,
        cpus=request.cpus,
        memory_mib=request.memory_gib << 10,
        minutes=request.hours * 60,
        partition=settings.partition,
        account=settings.account,
        qos=settings.qos,
        once=True,
    )


def directory(account: Account, server: str) -> str:
    """Where a session has its output."""
    return f"{account.home.rstrip('/')}/gpuops-jobs/{JOB}{f'-{server}' if server else ''}"


def _exports(environment: Mapping[str, str]) -> list[str]:
    """The shell's words: nothing of what is given is more than one word.

    What is secret stands in the script, which the user, root and slurmctld alone can read, and on no command line.
    """
    if len(environment) > VARIABLES_AT_MOST:
        raise _refused("environment", f"{len(environment)} variables", f"give {VARIABLES_AT_MOST} at most")
    lines = []
    for name, value in sorted(environment.items()):
        if not VARIABLE.fullmatch(name):
            raise _refused("variable", name, "give those of JupyterHub alone")
        if len(value) > VALUE_AT_MOST or not value.isprintable():
            raise _refused(name, value, f"give a line of {VALUE_AT_MOST} characters at most")
        lines.append(f"export {name}={shlex.quote(value)}")
    return lines


def _certificates(certificates: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Lines that write them into the directory $certificates, and those that tell where they are."""
    files, exports = [], []
    for name, variable in CERTIFICATES.items() if certificates else ():
        value = certificates.get(name, "")
        if not value or not PEM.fullmatch(value):
            raise _refused(name, value, "give it in the form of PEM")
        files.append(f'printf %s {shlex.quote(value)} >"$certificates/{name}.pem" || exit 1')
        exports.append(f'export {variable}="$certificates/{name}.pem"')
    return files, exports


# Whether the home takes a mebibyte more.
ROOM = """room=$(mktemp "$HOME/.portal-XXXXXXXX") && dd if=/dev/zero of="$room" bs=64k count=16 conv=fsync status=none
full=$?
rm -f -- "$room"
"""
# Jupyter ends where it cannot write. In a full home it keeps its own files on the node, and reads those of the home.
FULL = f"""{ROOM}if test $full != 0; then
echo 'the home has no room: Jupyter keeps its own files elsewhere, until the session ends'
elsewhere=$(mktemp -d) || exit 1
export JUPYTER_PATH="$JUPYTER_PATH:${{JUPYTER_DATA_DIR:-$HOME/.local/share/jupyter}}"
export JUPYTER_CONFIG_PATH="${{JUPYTER_CONFIG_DIR:-$HOME/.jupyter}}${{JUPYTER_CONFIG_PATH:+:$JUPYTER_CONFIG_PATH}}"
export JUPYTER_RUNTIME_DIR="$elsewhere/runtime" JUPYTER_DATA_DIR="$elsewhere/data"
export JUPYTER_CONFIG_DIR="$elsewhere/config" IPYTHONDIR="$elsewhere/ipython"
fi"""


def _command(
    prefix: str,
    environment: Mapping[str, str],
    certificates: Mapping[str, str],
    ssh_ports: tuple[int, int] | None,
    words: Sequence[str],
) -> str:
    """A session in the environment of a directory."""
    files, exports = _certificates(certificates)
    lines = [
        "umask 077",
        # Kernels, terminals and logins find the programs of the environment first.
        f'export PATH={shlex.quote(f"{prefix}/bin")}:"$PATH"',
        *([ssh.start(ssh_ports)] if ssh_ports else []),
        *_exports(environment),
    ]
    lines += ["certificates= elsewhere=", 'trap \'rm -rf "$certificates" "$elsewhere"\' EXIT']
    if certificates:
        lines.append("certificates=$(mktemp -d) || exit 1")
    program = shlex.quote(f"{prefix}/bin/{PROGRAM}")
    lines += [
        *files,
        *exports,
        f"test -x {program} || {{ echo {shlex.quote(f'there is no {prefix}/bin/{PROGRAM}')}; exit 127; }}",
        'cd "$HOME" || exit 1',
        f'export JUPYTER_PATH={JUPYTER}"${{JUPYTER_PATH:+:$JUPYTER_PATH}}"',
        FULL,
        # A node without it has sessions that are never stopped for being idle.
        f"if test -x {MEASURE}; then {MEASURE} >/dev/null 2>&1 & fi",
        f"{program} {' '.join(words)}",
    ]
    return "\n".join(lines) + "\n"


def _in_container(environment: Mapping[str, str], certificates: Mapping[str, str]) -> str:
    """A session in the container that runs this."""
    files, exports = _certificates(certificates)
    lines = [
        *_exports(environment),
        *(["certificates=$(mktemp -d) || exit 1"] if certificates else []),
        *files,
        *exports,
        "SHELL=$(command -v bash || echo /bin/sh); export SHELL",
        f'export JUPYTER_PATH={JUPYTER}"${{JUPYTER_PATH:+:$JUPYTER_PATH}}"',
        f"command -v {PROGRAM} >/dev/null || {{ echo 'the image has no {PROGRAM}'; exit 127; }}",
        'cd "$HOME" || exit 1',
        f"python3 -I {MEASURE} >/dev/null 2>&1 &",
        f"exec {PROGRAM} {' '.join(WORDS)}",
    ]
    return "\n".join(lines) + "\n"


# What runs in an image, whose user need not have the shell that they have on the node. $1 is what they share.
INSIDE = f""". "$1/variables"
export JUPYTER_PATH="$1/jupyter${{JUPYTER_PATH:+:$JUPYTER_PATH}}"
test -x "${{SHELL:-}}" || export SHELL=/bin/sh
command -v {PROGRAM} >/dev/null || {{ echo 'the image has no {PROGRAM}'; exit 127; }}
cd "$HOME" && exec {PROGRAM} {" ".join((*WORDS, NEXT_PORTS))}"""


def _in_image(
    image: str, environment: Mapping[str, str], certificates: Mapping[str, str], ssh_ports: tuple[int, int] | None
) -> str:
    """A session in an image. Who measures it, and the sshd, are on the node.

    What node and container share is below the session's directory, which is in the home. What is secret goes that way
    and not by the environment, which slurmstepd writes into a file that the user's group can read.
    """
    files, exports = _certificates(certificates)
    refuse = f'echo "$(uname -n) runs no images: slurm_common_containers is not set for it"; exit {NO_IMAGES}'
    lines = [
        "umask 077",
        *([ssh.start(ssh_ports)] if ssh_ports else []),
        f"command -v gpu-image >/dev/null || {{ {refuse}; }}",
        f"{ROOM}test $full = 0 || {{ echo 'the home has no room'; exit {FULL_HOME}; }}",
        # One before it on another node may not have ended yet, and removes its own.
        f'rm -rf {SHARED}-*; shared="$directory/{SHARED}-$SLURM_JOB_ID"',
        'mkdir "$shared" "$shared/certificates" && cd "$shared" || exit 1',
        "trap 'cd / && rm -rf \"$shared\"' EXIT",
        'certificates="$shared/certificates"',
        *files,
        "cat >variables <<'END' || exit 1",
        'certificates="$1/certificates"',
        *_exports(environment),
        *exports,
        "END",
        f"if test -d {JUPYTER}; then cp -R {JUPYTER} jupyter || exit 1; fi",
        f'bundle=$(gpu-image bundle {shlex.quote(image)}) && cp "$bundle/image" {IMAGE} || exit 1',
        # A node without it has sessions that are never stopped for being idle.
        f'if test -x {MEASURE}; then (set -- "$shared"; . ./variables; exec {MEASURE} >/dev/null 2>&1) & fi',
        f'gpu-image run "$(cat {IMAGE})" /bin/sh -c {shlex.quote(INSIDE)} session "$shared"',
    ]
    return "\n".join(lines) + "\n"


def _refused(subject: str, value: str, remedy: str) -> Refused:
    return Refused(f"{subject} is {one_line(repr(value), 120)}", remedy, code="invalid_session", subject=subject)


# --- what becomes of it ----------------------------------------------------------------------------------------------


def read(run: Run = host_run.run, timeout_s: float = 5.0) -> dict[Job, Session]:
    """The sessions that slurmctld remembers, by the number of their job: of each user the latest, up to a limit.

    What squeue tells of one job has 9 kB, so that it is asked for a line of each first.

    :raises CallFailed: slurmctld does not answer.
    """
    told = _lines("--states=all", "%A %U", run, timeout_s)
    pairs = (line.split() for line in told)
    owners = {int(pair[0]): pair[1] for pair in pairs if len(pair) == 2 and pair[0].isdigit()}
    has: Counter[str] = Counter()
    wanted = []
    for number in sorted(owners, reverse=True):
        has[owners[number]] += 1
        if has[owners[number]] <= OF_A_USER_AT_MOST:
            wanted.append(number)
    rows = _rows(wanted[:AT_MOST], run, timeout_s)
    found = [one for one in map(_readable, rows) if one is not None]
    return {one.job: one for one in found}


def _rows(numbers: Sequence[int], run: Run, timeout_s: float) -> list[Mapping[str, Any]]:
    if not numbers:
        return []
    argv = ["/usr/bin/squeue", "--json", "--all", "--states=all", f"--jobs={','.join(map(str, numbers))}"]
    status, out, error = run(argv, None, timeout_s)
    # All of them may have gone meanwhile.
    if status and "Invalid job id" not in error:
        raise _no_answer(error or out)
    asked = set(numbers)
    try:
        rows = [row for row in json.loads(out)["jobs"] if isinstance(row, dict)] if not status else []
        # 22.05 tells of all jobs, whatever it is asked for.
        return [row for row in rows if row.get("name") == JOB and queue.number(row, "job_id") in asked]
    except MISSHAPEN as why:
        raise CallFailed(f"squeue's answer cannot be read: {type(why).__name__}") from why


def _lines(states: str, fields: str, run: Run, timeout_s: float) -> list[str]:
    """A line of each job with the name of sessions, as squeue prints it.

    A user's text may have a newline in it, so that each line begins with a word that nobody can know before.
    """
    mark = secrets.token_hex(8)
    argv = ["/usr/bin/squeue", "--noheader", "--all", states, f"--name={JOB}", f"--format={mark} {fields}"]
    status, out, error = run(argv, None, timeout_s)
    if status:
        raise _no_answer(error or out)
    return [line.partition(" ")[2].rstrip() for line in out.split("\n") if line.startswith(f"{mark} ")]


def _no_answer(said: str) -> CallFailed:
    return CallFailed(f"squeue: {one_line(said, 300)}", "see `scontrol ping` on the host of the portal")


def running(run: Run = host_run.run, timeout_s: float = 5.0) -> list[Session]:
    """The sessions that run, of everybody; without what is of no use to who connects to them. Takes a line of each.

    :raises CallFailed: slurmctld does not answer.
    """
    found = []
    for line in _lines("--states=RUNNING", "%A %u %T %B %Z", run, timeout_s):
        number, user, state, node, *directory = line.split(" ", 4)
        if number.isdigit() and state == "RUNNING" and _HOST.fullmatch(node):
            found.append(Session(int(number), user, RUNS, node=node, server=_server("".join(directory))))
    return found


def _readable(row: Mapping[str, Any]) -> Session | None:
    try:
        return session(row)
    except MISSHAPEN:
        return None


def session(row: Mapping[str, Any]) -> Session:
    """A session from its part of the answer."""
    one = queue.job(row)
    words = set(one.words)
    if words & QUEUED_AGAIN or (queue.number(row, "restart_cnt") and not words & submission.ENDED):
        return Session(one.number, one.user, ENDED, ended=_queued_again(one.number), lives=True)
    if words & submission.ENDED:
        return Session(one.number, one.user, ENDED, ended=ended(row))
    server = _server(str(row.get("current_working_directory") or ""))
    if one.waits or "CONFIGURING" in words:
        why = diagnosis.waits_for(one) if one.waits else "its node is being prepared"
        return Session(one.number, one.user, WAITS, why, _expected(row), server=server)
    node = next(iter(submission.hosts([row])), "")
    return Session(one.number, one.user, RUNS, node=node, ends=one.ends, server=server)


def _server(directory: str) -> str:
    """Each has a directory with its name."""
    found = re.fullmatch(rf"{JOB}-({form.SERVER.pattern})", directory.rpartition("/")[2])
    return found[1] if found else ""


def _expected(row: Mapping[str, Any]) -> float | None:
    told = row.get("start_time")
    if isinstance(told, dict) and not told.get("set"):
        return None
    at = queue.number(row, "start_time")
    return float(at) if 0 < at < 1 << 32 else None


_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}", re.ASCII)
# A job has these words between its end and its new start.
QUEUED_AGAIN = {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}


def _queued_again(number: int) -> Problem:
    """A session is what somebody has a page of: its job begins anew somewhere else, with nobody in it."""
    return Problem(
        "node_failed",
        f"job {number}",
        "its node failed, or it was queued again, which ends a session",
        "restart_cnt",
        "start it again: it gets another node. What you saved is in your home",
    )


# Slurm's word for how a job ended -> our code, the cause, and what to do.
ENDS = {
    "OUT_OF_MEMORY": (
        "out_of_memory",
        "it needed more memory than it had asked for, and was ended",
        "start it again with more memory, or load less at a time",
    ),
    "TIMEOUT": ("time_over", "its time was over", "start it again; ask for more hours if you need them"),
    "DEADLINE": ("time_over", "its time was over", "start it again; ask for more hours if you need them"),
    "NODE_FAIL": ("node_failed", "its node failed", "start it again: it gets another node"),
    "BOOT_FAIL": ("node_failed", "its node did not start", "start it again: it gets another node"),
    "PREEMPTED": ("preempted", "a job of higher priority took its place", "start it again"),
    "CANCELLED": ("cancelled", "it was cancelled", "start it again; if it was not you, ask the operators why"),
    "COMPLETED": ("ended", "it ended by itself", "start it again"),
}


def ended(row: Mapping[str, Any]) -> Problem:
    """Why a session ended, and what its user is to do."""
    words = set(queue.words(row).split())
    subject = f"job {queue.number(row, 'job_id')}"
    note = one_line(row.get("admin_comment") or "", 400)
    if SIGNALLED in note:
        why = note.partition(f"{SIGNALLED}: ")[2] or note
        return Problem(
            "gpu_lost",
            subject,
            f"one of its GPUs failed: {why}",
            note,
            "start it again: it gets other GPUs. What you saved is in your home",
        )
    for word, (code, cause, remedy) in ENDS.items():
        if word in words:
            return Problem(code, subject, cause, " ".join(sorted(words)), remedy)
    status = _exit_status(row)
    cause = f"its program ended with status {status}" if status else "its program failed"
    remedy = "read the end of its output below, fix the cause and start it again"
    if status == 127:
        cause = "its environment has no jupyterhub-singleuser"
    if status == NO_IMAGES:
        cause = "its environment is an image, and its node runs none"
        remedy = "choose another environment, or ask the operators to set slurm_common_containers for the node"
    if status == FULL_HOME:
        cause = "a session in an image needs a mebibyte in the home, and yours has no room"
        remedy = "start one in an environment that is not an image, and remove there what you do not need"
    return Problem("failed", subject, cause, " ".join(sorted(words)), remedy)


def _exit_status(row: Mapping[str, Any]) -> int:
    """22.05 has the status of wait(2), later releases {return_code}."""
    told = row.get("exit_code")
    if isinstance(told, dict):
        return queue.number({"code": told.get("return_code")}, "code")
    return told >> 8 if isinstance(told, int) else 0


FORGOTTEN = Problem(
    "forgotten",
    "",
    "the scheduler does not know of it any more",
    "",
    "start it again; the operators may find in the scheduler's accounting or log how it ended",
)


UNPROVED = Problem(
    "unproved",
    "",
    "the portal has new certificates, with which it and this session do not know each other",
    "",
    "start it again. What you saved is in your home",
)


TAKEN = Problem(
    "node_failed",
    "",
    "its node was taken out of service, or a GPU of it failed",
    "",
    "start it again: it gets another node. What you saved is in your home",
)


def address(node: str, run: Run = host_run.run, timeout_s: float = 5.0) -> str:
    """Where the host of a node is reached, as slurmctld has it. Raises CallFailed."""
    status, out, error = run(["/usr/bin/scontrol", "-o", "show", "node", node], None, timeout_s)
    found = re.search(r" NodeAddr=([A-Za-z0-9.:_-]{1,253}) ", out)
    if status or found is None:
        raise CallFailed(f"scontrol: {one_line(error or out, 300)}", "see `scontrol ping` on the host of the portal")
    return found[1]
