# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker on the portal's own host in the place of a scheduler: a session is a container.

Whoever may use Docker's socket is root. So the hub may not: the program that works as root asks Docker, and gives the
hub the rows of `DockerOrders.look`. A container is told from others by its name and its labels, which say whose it is,
which GPUs it has and when it ends. The hub's token for a session is in a script in its user's home, and nowhere in
Docker.

There is no queue. Who wants more than there is, is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import grp
import ipaddress
import os
import pwd
import re
import secrets
import shlex
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Callable
from urllib.parse import urlsplit

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver, nvml_messages
from ansible_collections.baremetal.gpu.plugins.module_utils.health import agent_result
from ansible_collections.baremetal.gpu.plugins.module_utils.host import bounded_json
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN, Malformed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed, Problem, Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.memory import memory_mib
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_json import (
    flag,
    json_object,
    mapping_of,
    object_of,
    text,
    whole,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import DOCKER as OF_DOCKER
from ansible_collections.baremetal.gpu.plugins.module_utils.leases.lease import Lease
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import accounts, form, home_script, session
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Found
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.session import ENDED, RUNS, WAITS, Job, Session
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import container, gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import GPUS_AT_MOST
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.submission import Wanted

DOCKER = "/usr/bin/docker"
NAME = re.compile(r"portal-[a-z0-9][a-z0-9-]{0,90}", re.ASCII)
# Labels of a container.
USER, SERVER, GPUS, ENDS = (f"baremetal.gpu.portal.{name}" for name in ("user", "server", "gpus", "ends"))
LOCK = "/run/baremetal-gpu-portal-docker.lock"
# Where the server of a session listens, at the address of its container.
PORT = 8888
# Where the agent says how GPUs are.
VERDICTS = os.path.dirname(agent_result.RESULT)
PIDS = 4096
CALL_S, FETCH_S, ORDER_S = 20.0, 3500, 85
STOP_S = 10
ANSWER_AT_MOST = 1 << 20
# Of a container that Docker does not run any more.
_OVER = ("exited", "dead")
_STATE = object_of(
    {
        "Status": text("[a-z]{1,20}"),
        "OOMKilled": flag,
        "ExitCode": whole(-1, 1 << 32),
        "Error": text(at_most=300),
        "StartedAt": text(at_most=64),
    }
)
_LABELS = object_of(
    {
        USER: text(accounts.NAME.pattern),
        SERVER: text(f"(?:{form.SERVER.pattern})?"),
        GPUS: text("(?:[0-9]{1,4}(?:,[0-9]{1,4}){0,63})?"),
        ENDS: text("[0-9]{1,12}"),
    }
)
_CONTAINER = object_of(
    {
        "Name": text(f"/?(?:{NAME.pattern})"),
        "Config": object_of({"Labels": _LABELS}),
        "State": _STATE,
        "HostConfig": object_of({"NanoCpus": whole(), "Memory": whole()}),
        "NetworkSettings": object_of({"Networks": mapping_of(text(), object_of({"IPAddress": text()}))}),
    }
)
_NAMED = object_of({"Name": text()})


# --- what is done as root --------------------------------------------------------------------------------------------


class DockerOrders:
    """See `Orders`.

    :param patience: sets how many seconds this program may go on.
    """

    gives_port = True

    def __init__(
        self,
        run: Run = host_run.run,
        root: str = "/",
        lock: str = LOCK,
        clock: Callable[[], float] = time.time,
        patience: Callable[[int], object] = signal.alarm,
    ) -> None:
        self._run, self._root, self._lock, self._clock, self._patience = run, root, lock, clock, patience

    def look(self) -> Mapping[str, Any]:
        return {
            "node": os.uname().nodename,
            "cpus": os.cpu_count() or 1,
            "memory_mib": memory_mib(self._root),
            "gpus": host_gpus(self._root),
            "sessions": self._sessions(),
        }

    def submit(self, wanted: Wanted, server: str, variables: Mapping[str, str], image: str = "") -> Job:
        known = re.sub(r"[^a-z0-9]+", "-", f"{wanted.user}-{server}".lower()).strip("-")
        word = secrets.token_hex(6)
        name, path = f"portal-{known}-{word}".replace("--", "-"), f"{wanted.directory}/script-{word}"
        self._fetch(image)
        # Two at the same time must not find the same GPU free.
        with self._locked():
            minors = chosen(wanted, self.look())
            home_script.keep(wanted, f"script-{word}", script(wanted, variables), self._run)
            ends = int(self._clock()) + wanted.minutes * 60
            labels = {
                USER: wanted.user,
                SERVER: server,
                GPUS: ",".join(map(str, minors.values())),
                ENDS: str(ends),
            }
            # The files stay in the container when they are removed here.
            with tempfile.TemporaryDirectory(prefix="baremetal-gpu-portal-", dir=os.path.dirname(self._lock)) as work:
                mine = _names(pwd.getpwnam(wanted.user), work)
                argv = [*run_words(wanted, name, labels, list(minors)), *mine, *_hub(variables)]
                try:
                    self._docker([*argv, "--entrypoint=/bin/sh", image, path], 40.0)
                except CallFailed:
                    self._run([DOCKER, "rm", "--force", name], None, CALL_S)
                    raise
        return name

    def cancel(self, user: str, job: Job) -> None:
        # Another that cannot be read must not keep this one from its end.
        there = next((one for one in self._sessions(only=str(job)) if one["name"] == job), None)
        if there is None:
            return
        if there["user"] != user:
            raise Refused(
                f"{one_line(job, 100)} is not a session of {user}", code="not_yours", subject=one_line(job, 100)
            )
        self._run([DOCKER, "stop", "-t", str(STOP_S), str(job)], None, CALL_S + STOP_S)
        self._docker(["rm", "--force", "--volumes", str(job)], CALL_S, "No such container")

    def _docker(self, words: Sequence[str], timeout_s: float = CALL_S, tolerated: str = "") -> str:
        status, out, error = self._run([DOCKER, *words], None, timeout_s)
        if status and not (tolerated and tolerated in error):
            raise CallFailed(
                f"docker {words[0]}: {one_line((error or out).strip(), 300)}",
                "the operators see more with `sudo systemctl status docker` on the portal's host",
            )
        return out

    def _fetch(self, image: str) -> None:
        """An image that is there by its digest is started without its registry."""
        if "@" in image and not self._run([DOCKER, "image", "inspect", "--format={{.Id}}", image], None, CALL_S)[0]:
            return
        self._patience(FETCH_S + ORDER_S)
        status, out, error = self._run([DOCKER, "pull", "--quiet", image], None, FETCH_S)
        self._patience(ORDER_S)
        if status:
            raise CallFailed(
                f"the image {image} cannot be fetched: {one_line((error or out).strip(), 300)}",
                "choose another environment, or ask the operators to see that its registry gives it to this host",
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _sessions(self, only: str = "") -> list[dict[str, Any]]:
        found = self._docker(["ps", "--all", "--no-trunc", "--quiet", f"--filter=label={USER}"]).split()
        if not found:
            return []
        # One that was removed meanwhile is no fault.
        told = self._docker(["inspect", "--type=container", "--format={{json .}}", *found], CALL_S, "No such")
        try:
            given = [json_object(line, ANSWER_AT_MOST) for line in told.splitlines() if line.strip()]
            # An image may bring the labels, and no name.
            names = [(row, _NAMED(row, "it")["Name"].lstrip("/")) for row in given]
            ours = [row for row, name in names if NAME.fullmatch(name) and only in ("", name)]
            return [_row(_CONTAINER(row, "it")) for row in ours]
        except Malformed as why:
            # To go on without one would give its GPUs to somebody else.
            raise _unreadable("what Docker reports about a session", why) from why


def _row(given: Mapping[str, Any]) -> dict[str, Any]:
    labels, state, limits = given["Config"]["Labels"], given["State"], given["HostConfig"]
    address = given["NetworkSettings"]["Networks"].get("bridge", {}).get("IPAddress", "")
    return {
        "name": given["Name"].lstrip("/"),
        "user": labels[USER],
        "server": labels[SERVER],
        "gpus": [int(one) for one in labels[GPUS].split(",") if one],
        "ends": int(labels[ENDS]),
        "status": state["Status"],
        "out_of_memory": state["OOMKilled"],
        "exit_status": state["ExitCode"],
        "error": state["Error"],
        "started": state["StartedAt"],
        "address": address if _is_address(address) else "",
        "cpus": -(-limits["NanoCpus"] // 10**9),
        "memory_mib": limits["Memory"] >> 20,
    }


def _is_address(given: str) -> bool:
    try:
        return bool(ipaddress.ip_address(given))
    except ValueError:
        return False


def host_gpus(root: str = "/") -> list[dict[str, Any]]:
    """The GPUs that Docker can give by CDI, by minor: {name (of the device), minor, model, uuid, fault}.

    ``fault`` is why nobody gets it: the reasons of a fatal verdict. One without a verdict may be had.
    """
    path = below(root, container.SPECIFICATION)
    if not os.path.exists(path):
        return []
    try:
        told = bounded_json.parse_object(host_files.read(path, container.SIZE_AT_MOST))
        # A GPU has its index as a name, and further ones.
        rows = [row for row in told["devices"] if re.fullmatch("[0-9]{1,4}", str(row["name"]))]
        nodes = {str(row["name"]): [str(one["path"]) for one in row["containerEdits"]["deviceNodes"]] for row in rows}
    except (OSError, *MISSHAPEN) as why:
        raise _unreadable(container.SPECIFICATION, why) from why
    names: dict[int, str] = {}
    for name, paths in nodes.items():
        minors = [int(found[1]) for found in (re.fullmatch("/dev/nvidia([0-9]{1,4})", one) for one in paths) if found]
        if len(minors) == 1:
            names[minors[0]] = name
    addresses = map(os.path.basename, glob.glob(below(root, "proc/driver/nvidia/gpus/*"))[:GPUS_AT_MOST])
    written = {row.get("minor"): row for row in (driver.gpu(address, root) for address in addresses)}
    judged, _why = gpus.judged(sorted(names), root)
    return [
        {
            "name": names[one.minor],
            "minor": one.minor,
            "model": nvml_messages.slug(written.get(one.minor, {}).get("name", "")),
            "uuid": written.get(one.minor, {}).get("uuid"),
            "fault": "; ".join(f"{why.code}: {why.text}" for why in one.reasons) if one.is_fatal else "",
        }
        for one in judged
    ]


def chosen(wanted: Wanted, there: Mapping[str, Any]) -> dict[str, int]:
    """The GPUs that a session gets: name of the device -> minor. Raises Refused where there is no room for it."""
    node = _node(there)
    of_model = [row for row in there["gpus"] if not wanted.gpu_type or row["model"] == wanted.gpu_type]
    taken = _taken(there)
    free = [row for row in of_model if not row["fault"] and row["minor"] not in taken]
    short = []
    if len(free) < wanted.gpus:
        held = [f"/dev/nvidia{row['minor']} is out of order: {row['fault']}" for row in of_model if row["fault"]]
        kind = f" {wanted.gpu_type}" if wanted.gpu_type else ""
        short.append(f"{len(free)} of {len(of_model)} GPUs{kind} are free{''.join(f' ({one})' for one in held)}")
    if node["free_cpus"] < wanted.cpus:
        short.append(f"{node['free_cpus']} cores are free")
    if node["free_memory_mib"] < wanted.memory_mib:
        short.append(f"{node['free_memory_mib'] >> 10} GiB of memory are free")
    if short:
        raise Refused(
            f"there is no room for it on {node['name']}: {', and '.join(short)}",
            "ask for less, or start it when another session has ended: the page Who uses what shows when",
            code="no_room",
            subject=node["name"],
        )
    return {row["name"]: row["minor"] for row in free[: wanted.gpus]}


def _live(there: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The sessions that have what they were given."""
    return [row for row in there["sessions"] if row["status"] not in _OVER]


def _taken(there: Mapping[str, Any]) -> set[int]:
    return {minor for row in _live(there) for minor in row["gpus"]}


def run_words(wanted: Wanted, name: str, labels: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    """What Docker starts a session with, up to its image. Nothing in it is secret."""
    home, memory = home_script.home(wanted), f"{wanted.memory_mib}m"
    shown = {"HOME": home, "USER": wanted.user, "LOGNAME": wanted.user}
    mounts = [f"source={home},target={home}"]
    mounts += [f"source={path},target={path},readonly" for path in (session.MEASURE, session.JUPYTER)]
    if devices and os.path.isdir(VERDICTS):
        # As a directory: the agent replaces the file in it.
        mounts.append(f"source={VERDICTS},target={VERDICTS},readonly")
    return [
        *("run", "--detach", "--pull=never", "--restart=no", "--init", "--network=bridge", f"--name={name}"),
        *("--security-opt=no-new-privileges", "--cap-drop=ALL"),
        # Memory that is shared counts, too, and training needs more of it than Docker's default.
        *(f"--cpus={wanted.cpus}", f"--memory={memory}", f"--memory-swap={memory}", f"--shm-size={memory}"),
        f"--pids-limit={PIDS}",
        # All that it says is in its user's home.
        "--log-driver=none",
        *(f"--label={key}={value}" for key, value in labels.items()),
        *(f"--env={key}={value}" for key, value in shown.items()),
        *(f"--mount=type=bind,{one}" for one in mounts),
        f"--workdir={home}",
        *(f"--device=nvidia.com/gpu={one}" for one in devices),
    ]


def _names(row: pwd.struct_passwd, work: str) -> list[str]:
    """Who the user is in the container: the numbers, and files that have the names for them."""
    ids = os.getgrouplist(row.pw_name, row.pw_gid)
    groups = {gid: _group(gid) for gid in dict.fromkeys([0, row.pw_gid, *ids])}
    lines = {
        "passwd": ["root:x:0:0:root:/root:/bin/sh", f"{row.pw_name}:x:{row.pw_uid}:{row.pw_gid}::{row.pw_dir}:/bin/sh"],
        "group": [f"{name}:x:{gid}:" for gid, name in groups.items()],
    }
    for name, rows in lines.items():
        host_files.write(os.path.join(work, name), "".join(f"{one}\n" for one in rows), mode=0o644, durable=False)
    return [
        f"--user={row.pw_uid}:{row.pw_gid}",
        *(f"--group-add={gid}" for gid in ids if gid != row.pw_gid),
        *(f"--mount=type=bind,source={work}/{name},target=/etc/{name},readonly" for name in lines),
    ]


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"group{gid}"


def _hub(variables: Mapping[str, str]) -> list[str]:
    """How a container finds the hub, whose host may be known by its name to itself alone."""
    host = urlsplit(variables.get("JUPYTERHUB_API_URL", "")).hostname or ""
    if _is_address(host) or not re.fullmatch("[a-z0-9][a-z0-9.-]{0,252}", host, re.ASCII):
        return []
    return [f"--add-host={host}:host-gateway"]


def script(wanted: Wanted, variables: Mapping[str, str]) -> str:
    """What the container runs."""
    output = shlex.quote(f"{wanted.directory}/output.log")
    return "\n".join(
        ["umask 077", f"exec >{output} 2>&1", *home_script.head(wanted, variables, str(PORT)), wanted.command]
    )


# --- what the hub makes of it ----------------------------------------------------------------------------------------


class DockerBackend:
    """See `Backend`."""

    gives_port = True
    keeps_ended = True
    has_queue = False
    # An image that is not there yet is fetched before.
    submit_s = FETCH_S + ORDER_S

    def __init__(self, ask: Callable[[], Mapping[str, Any]], clock: Callable[[], float] = time.time) -> None:
        self._ask, self._clock = ask, clock

    def look(self) -> tuple[Found, Mapping[Job, Session]]:
        told = self._ask()
        try:
            return document(told), sessions(told, self._clock())
        except MISSHAPEN as why:
            raise _unreadable("what Docker tells", why) from why

    def address(self, one: Session) -> str:
        if not one.address:
            raise Refused(
                f"the container of {one.job} has no address",
                "the operators see whether Docker has its default network with `sudo docker network inspect bridge`",
                code="no_address",
                subject=str(one.job),
            )
        return one.address


def _unreadable(what: str, why: BaseException) -> CallFailed:
    return CallFailed(
        f"{what} cannot be read: {type(why).__name__} {one_line(why, 200)}",
        "the operators see it with `sudo docker ps --all` on the portal's host",
    )


def document(told: Mapping[str, Any]) -> Found:
    uuids = {row["minor"]: row["uuid"] for row in told["gpus"]}
    rows = _live(told)
    leases = [
        Lease(
            OF_DOCKER,
            row["name"],
            session.JOB,
            row["user"],
            told["node"],
            tuple(uuids.get(minor) for minor in row["gpus"]),
            _at(row["started"]),
            float(row["ends"]),
        )
        for row in rows
        if row["gpus"]
    ]
    return {
        "nodes": [_node(told)],
        "jobs": [_job(row, str(told["node"])) for row in rows],
        "leases": leases,
        "waiting_total": 0,
    }


def _node(told: Mapping[str, Any]) -> dict[str, Any]:
    usable = [row for row in told["gpus"] if not row["fault"]]
    models: dict[str, int] = {}
    for row in usable:
        model = row["model"] if form.MODEL.fullmatch(row["model"]) else ""
        models[model] = models.get(model, 0) + 1
    rows, cpus, memory = _live(told), int(told["cpus"]), int(told["memory_mib"])
    return {
        "name": one_line(told["node"], 100),
        "models": models,
        "gpus": len(usable),
        "gpus_used": len({row["minor"] for row in usable} & _taken(told)),
        "cpus": cpus,
        "free_cpus": max(0, cpus - sum(row["cpus"] for row in rows)),
        "memory_mib": memory,
        "free_memory_mib": max(0, memory - sum(row["memory_mib"] for row in rows)),
        "partitions": [""],
        "takes_jobs": True,
        "problem": "",
    }


def _job(row: Mapping[str, Any], node: str) -> dict[str, Any]:
    return {
        "id": row["name"],
        "name": session.JOB,
        "user": row["user"],
        "gpus": len(row["gpus"]),
        "submitted": None,
        "started": _at(row["started"]),
        "ends": float(row["ends"]),
        "partition": "",
        "waits": False,
        "waits_for": "",
        "in_line": False,
        "nodes": [{"name": node, "minors": list(row["gpus"])}],
        "holder": False,
    }


def _at(told: str) -> float | None:
    """A time as Docker writes it, in whole Unix seconds; it has more digits behind them than Python reads."""
    try:
        return datetime.fromisoformat(f"{told[:19]}+00:00").timestamp()
    except ValueError:
        return None


def sessions(told: Mapping[str, Any], now: float) -> dict[Job, Session]:
    """The sessions of everybody, by the name of their container."""
    faults = {row["minor"]: row["fault"] for row in told["gpus"] if row["fault"]}
    return {row["name"]: _session(row, str(told["node"]), faults, now) for row in told["sessions"]}


def _session(row: Mapping[str, Any], node: str, faults: Mapping[int, str], now: float) -> Session:
    job, user, server = str(row["name"]), str(row["user"]), str(row["server"])
    if row["ends"] <= now:
        code, cause, remedy = session.ENDS["TIMEOUT"]
        return Session(job, user, ENDED, ended=Problem(code, job, cause, "", remedy), server=server)
    if row["status"] in _OVER:
        return Session(job, user, ENDED, ended=ended(row, faults), server=server)
    if row["status"] == "created":
        return Session(job, user, WAITS, f"its container is being started on {node}", server=server)
    return Session(
        job, user, RUNS, node=node, ends=float(row["ends"]), server=server, port=PORT, address=row["address"]
    )


def ended(row: Mapping[str, Any], faults: Mapping[int, str]) -> Problem:
    """Why a session ended, and what its user is to do.

    :param faults: of the GPUs that have one now, by minor.
    """
    job, status, error = str(row["name"]), int(row["exit_status"]), one_line(row["error"], 300)
    evidence = f"exit status {status}{f', {error}' if error else ''}"
    # Docker also says so where a part of the session went on without the one that was ended.
    if row["out_of_memory"] and status:
        code, cause, remedy = session.ENDS["OUT_OF_MEMORY"]
        return Problem(code, job, cause, evidence, remedy)
    lost = [faults[minor] for minor in row["gpus"] if minor in faults]
    if status and lost:
        remedy = "start it again: it gets other GPUs. What you saved is in your home"
        return Problem("gpu_lost", job, f"one of its GPUs failed: {lost[0]}", evidence, remedy)
    if not status:
        code, cause, remedy = session.ENDS["COMPLETED"]
        return Problem(code, job, cause, evidence, remedy)
    remedy = "read the end of its output below, fix the cause and start it again"
    cause = f"its program ended with status {status}"
    if status == 127:
        cause = f"its image has no {session.PROGRAM}"
    elif 128 < status <= 192:
        cause = f"its program was ended by signal {status - 128}, as when Docker or the host is restarted"
        remedy = "start it again. What you saved is in your home"
    if error:
        cause = f"Docker could not run it: {error}"
    return Problem("failed", job, cause, evidence, remedy)
