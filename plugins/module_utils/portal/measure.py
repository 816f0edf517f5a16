# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program in a session that looks whether it is used, and tells the hub.

The session's script starts it beside the server, as its user. It sees the job's own control group, the GPUs that the
job has, the verdicts of the host's agent on them, and the server's kernels and terminals, and sends that with the
session's token; a verdict at once. It says nothing, so that the session's output stays that of the session, and ends
with it.

Whoever has a page open does not use the session for that: pages ask the server for lists, and move no kernel and no
terminal.
"""

from __future__ import annotations

import glob
import http.client
import json
import os
import re
import resource
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.bounded_json import MISSHAPEN, parse
from ansible_collections.baremetal.gpu.plugins.module_utils.host.paths import below
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.portal import identity, samples
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import gpus as slurm_gpus
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.gres import GPUS_AT_MOST, Unclear

# How often GPUs are looked at: what they did is known for the last second only.
LOOK_S = 10.0
# How often the agent's verdicts are looked at. It writes a fatal one down at once.
VERDICT_S = 2.0
ANSWER_S = 10.0
ANSWER_AT_MOST = 1 << 20
NVIDIA_SMI, QUERY = "nvidia-smi", "--query-gpu=utilization.gpu,memory.used,memory.total"
# The group of the job is above those of its steps: 0::/system.slice/slurmstepd.scope/job_12/step_batch/user/task_0
# where there is one tree of groups, and 4:cpuacct:/slurm/uid_1000/job_12/step_batch where each kind has its own.
# That of a task of Mesos has the container's id: 4:cpu,cpuacct:/mesos/4a1f….
JOB = re.compile(r"[0-9]+:([^:]*):((?:/[^/]+)*/(?:job_[0-9]+|mesos/[0-9a-f]{8}-[0-9a-f-]{27}))(?:/.*)?")
SSHD = ("sshd", "sshd-session")
# How many GPUs the session has, where the scheduler does not tell it by CUDA_VISIBLE_DEVICES.
GPUS = "GPUOPS_SESSION_GPUS"
# Path at the session's server -> what is there, as JSON. Raises OSError, Malformed.
Fetch = Callable[[str], Any]
# OpenSSL's X509_V_FLAG_PARTIAL_CHAIN, for which Python 3.9 has no name: a certificate that is trusted needs no issuer.
PARTIAL_CHAIN = 0x80000


# --- the job's processes ---------------------------------------------------------------------------------------------


def group_of_job(root: str = "/") -> str:
    """The directory of the job's control group that tells of processors; empty where it has none of its own."""
    if os.path.exists(os.path.join(root, ".dockerenv")):
        # A container of Docker sees its own group, and nothing above it.
        groups = (os.path.join(root, "sys/fs/cgroup", kind) for kind in ("", "cpuacct"))
        return next((group for group in groups if cpu_s(group) is not None), "")
    for line in _text(os.path.join(root, "proc/self/cgroup")).splitlines():
        found = JOB.fullmatch(line)
        if not found or (found[1] and "cpuacct" not in found[1].split(",")):
            continue
        base = os.path.join(root, "sys/fs/cgroup", "cpuacct" if found[1] else "")
        words = found[2].split("/")[1:]
        # In a container only the end of the path is there.
        for first in range(len(words)):
            group = os.path.join(base, *words[first:])
            if cpu_s(group) is not None:
                return group
    return ""


def cpu_s(group: str) -> float | None:
    """What all processes of the job have computed, in seconds of a core."""
    found = re.search(r"^usage_usec ([0-9]{1,18})$", _text(os.path.join(group, "cpu.stat")), re.MULTILINE)
    if group and found:
        return int(found[1]) / 1e6
    found = re.fullmatch(r"([0-9]{1,20})\n", _text(os.path.join(group, "cpuacct.usage")))
    return int(found[1]) / 1e9 if group and found else None


def own_cpu_s() -> float:
    """What this program has computed, and what it has started."""
    used = [resource.getrusage(which) for which in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(row.ru_utime + row.ru_stime for row in used)


def processes(group: str) -> list[int]:
    return [
        int(line)
        for directory, _directories, _files in os.walk(group)
        for line in _text(os.path.join(directory, "cgroup.procs")).split()
        if line.isdigit()
    ]


def connections(pids: Iterable[int], root: str = "/") -> dict[int, int | None]:
    """Process of each connection of SSH in the job -> the bytes that went through it, None where nobody may know.

    A process of sshd whose parent is one, too, has a connection, and so has one with a shell or the end of rsync below
    it. The rest only wait for somebody to come.
    """
    servers: set[int] = set()
    parents: dict[int, int] = {}
    for pid in pids:
        found = re.fullmatch(
            r"[0-9]+ \((.*)\) \S+ ([0-9]+) .*", _text(os.path.join(root, f"proc/{pid}/stat")), re.DOTALL
        )
        if found:
            parents[pid] = int(found[2])
            servers |= {pid} if found[1] in SSHD else set()
    with_work = {parent for pid, parent in parents.items() if pid not in servers}
    return {pid: _moved(pid, root) for pid in servers if parents[pid] in servers or pid in with_work}


def _moved(pid: int, root: str) -> int | None:
    told = re.findall(r"^[rw]char: ([0-9]{1,20})$", _text(os.path.join(root, f"proc/{pid}/io")), re.MULTILINE)
    return sum(map(int, told)) if told else None


def traffic(before: Mapping[int, int | None], now: Mapping[int, int | None], seconds: float) -> float | None:
    """Bytes a second through all connections."""
    if None in now.values():
        return None
    moved = sum((now[pid] or 0) - (before.get(pid) or 0) for pid in now)
    return max(0.0, moved / seconds) if seconds > 0 else None


# --- its GPUs --------------------------------------------------------------------------------------------------------


def gpus(environment: Mapping[str, str], run: Run = host_run.run) -> tuple[float | None, list[dict[str, Any]]]:
    """The use of the busiest GPU of the job in the last moment, from 0 to 1, and each of them: {use, used_mib,
    total_mib}, None for what is not told.

    Slurm lets a job see no other GPUs, and Mesos a container. A part of a GPU (MIG) does not tell its use: it is unused
    while no process has it, and not known otherwise.
    """
    no_devices = environment.get("CUDA_VISIBLE_DEVICES", "") in ("", "NoDevFiles")
    if no_devices and environment.get(GPUS, "0") == "0":
        return 0.0, []
    status, out, _error = run([NVIDIA_SMI, QUERY, "--format=csv,noheader,nounits"], None, 8.0)
    rows = [_gpu(line) for line in out.splitlines() if line.strip()][: samples.GPUS_AT_MOST] if status == 0 else []
    if not rows:
        return None, []
    told = [row["use"] for row in rows if row["use"] is not None]
    busiest = max(told, default=0.0)
    if busiest or len(told) == len(rows):
        return busiest, rows
    status, out, _error = run([NVIDIA_SMI, "--query-compute-apps=pid", "--format=csv,noheader"], None, 8.0)
    return (None if status or out.strip() else 0.0), rows


def _gpu(line: str) -> dict[str, Any]:
    use, used, total = (int(one) if one.isdigit() else None for one in [*map(str.strip, line.split(",")), "", ""][:3])
    return {"use": None if use is None else min(use, 100) / 100, "used_mib": used, "total_mib": total}


def failed_gpus(environment: Mapping[str, str], root: str = "/") -> list[dict[str, str]]:
    """The session's GPUs that the host's agent has found out of order: {gpu, code}, a row for each reason."""
    try:
        judged, _why = slurm_gpus.judged(own_minors(environment, root), root)
    except Unclear:
        return []
    return [{"gpu": one.name, "code": reason.code} for one in judged for reason in one.reasons][
        : samples.FAILED_AT_MOST
    ]


def own_minors(environment: Mapping[str, str], root: str = "/") -> list[int]:
    """The minors of the session's GPUs. Raises Unclear.

    A container of Docker has the devices of its own GPUs alone; in a task of Mesos its control group denies the others.
    """
    if "SLURMD_NODENAME" in environment:
        return slurm_gpus.minors(environment.get("SLURM_JOB_GPUS", ""), environment["SLURMD_NODENAME"], root)
    there = glob.glob(below(root, "dev/nvidia[0-9]*"))[:GPUS_AT_MOST]
    own = [os.path.basename(path)[len("nvidia") :] for path in there if os.access(path, os.R_OK | os.W_OK)]
    return sorted(int(number) for number in own if number.isdecimal())


# --- its server ------------------------------------------------------------------------------------------------------


def kernels(fetch: Fetch) -> tuple[bool | None, float | None]:
    """Whether a kernel computes, and when something last went through one; None for what is not known."""
    try:
        rows = fetch("api/kernels")
        return any(row["execution_state"] == "busy" for row in rows), _latest(rows)
    except (OSError, *MISSHAPEN):
        return None, None


def terminals(fetch: Fetch) -> float | None:
    """When something last went through a terminal."""
    try:
        return _latest(fetch("api/terminals"))
    except (OSError, *MISSHAPEN) as why:
        # A server whose environment has none says so.
        return 0.0 if getattr(why, "code", None) == 404 else None


def _latest(rows: Sequence[Mapping[str, Any]]) -> float:
    return max(
        (datetime.fromisoformat(row["last_activity"].replace("Z", "+00:00")).timestamp() for row in rows), default=0.0
    )


def servers_of(environment: Mapping[str, str]) -> list[str]:
    """Where the session's server may be reached from here: it takes a later port where another program has its own."""
    given = urllib.parse.urlsplit(environment["JUPYTERHUB_SERVICE_URL"])
    first = given.port or 0
    return [f"https://127.0.0.1:{port}{given.path.rstrip('/')}/" for port in range(first, first + identity.PORTS)]


# --- all of it -------------------------------------------------------------------------------------------------------


class Session:
    """What is known of the session between two samples."""

    def __init__(
        self,
        environment: Mapping[str, str],
        fetch: Fetch,
        run: Run = host_run.run,
        root: str = "/",
        clock: Callable[[], float] = time.monotonic,
        own: Callable[[], float] = own_cpu_s,
    ) -> None:
        self._environment, self._fetch, self._run, self._root = environment, fetch, run, root
        self._clock, self._own = clock, own
        self._group = group_of_job(root)
        self._ratios: list[float | None] = []
        self._gpus: list[dict[str, Any]] = []
        self._failed: list[dict[str, str]] = []
        self._at, self._cpu, self._connections = self._now()

    def _now(self) -> tuple[float, float | None, dict[int, int | None] | None]:
        used = cpu_s(self._group)
        there = connections(processes(self._group), self._root) if self._group else None
        return self._clock(), None if used is None else used - self._own(), there

    def look(self) -> None:
        """Look at the GPUs, which is done more often than a sample is sent."""
        # One that is out of order may never answer, and keeps what is to be told of it.
        ratio, self._gpus = (None, []) if self._failed else gpus(self._environment, self._run)
        self._ratios.append(ratio)

    def has_news(self) -> bool:
        """Whether the agent has other verdicts on its GPUs than before."""
        before, self._failed = self._failed, failed_gpus(self._environment, self._root)
        return before != self._failed

    def sample(self) -> dict[str, Any]:
        """What happened since the last one."""
        at, cpu, there = self._now()
        seconds = at - self._at
        cores = moved = None
        if cpu is not None and self._cpu is not None and seconds > 0:
            cores = max(0.0, (cpu - self._cpu) / seconds)
        if there is not None and self._connections is not None:
            moved = traffic(self._connections, there, seconds)
        known = [one for one in self._ratios if one is not None]
        busiest = max(known, default=0.0)
        # One look that failed may have missed something; one that saw use has seen it.
        ratio = busiest if busiest or (self._ratios and len(known) == len(self._ratios)) else None
        busy, kernel_at = kernels(self._fetch)
        self._at, self._cpu, self._connections, self._ratios = at, cpu, there, []
        return {
            "server": self._environment.get("JUPYTERHUB_SERVER_NAME", ""),
            "gpu_ratio": ratio,
            "cores": cores,
            "kernel_busy": busy,
            "kernel_at": kernel_at,
            "terminal_at": terminals(self._fetch),
            "traffic": moved,
            **({"gpus": self._gpus} if self._gpus else {}),
            **({"failed": self._failed} if self._failed else {}),
        }


class Web:
    """The session's server and the hub. Each proves itself before the session's token is shown to it.

    Raises KeyError where the session was given no certificates.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._token = environment["JUPYTERHUB_API_TOKEN"]
        self._hub_url = environment["JUPYTERHUB_API_URL"].rstrip("/").rpartition("/")[0]
        self._servers = servers_of(environment)
        own = environment["JUPYTERHUB_SSL_CERTFILE"]
        # It takes time to load, and not every program of the bundle needs it.
        import ssl

        hub = ssl.create_default_context(cafile=environment["JUPYTERHUB_SSL_CLIENT_CA"])
        hub.load_cert_chain(own, environment["JUPYTERHUB_SSL_KEYFILE"])
        # The server has the session's own certificate, and nobody else has its key.
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        server.check_hostname = False
        server.load_verify_locations(own)
        server.verify_flags = ssl.VerifyFlags(server.verify_flags | PARTIAL_CHAIN)
        self._hub, self._server = map(_opener, (hub, server))

    def _ask(self, opener: urllib.request.OpenerDirector, url: str, data: bytes | None = None) -> Any:
        headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
        if not url.startswith("https://"):
            raise OSError("it is not an https:// address")
        try:
            with opener.open(urllib.request.Request(url, data, headers), timeout=ANSWER_S) as answer:
                return parse(answer.read(ANSWER_AT_MOST))
        except http.client.HTTPException as why:
            raise OSError(f"the answer was cut: {type(why).__name__}") from why

    def get(self, path: str) -> Any:
        """What the session's server has there. Raises OSError, Malformed."""
        failure: OSError = OSError("it has no port")
        for _number in range(len(self._servers)):
            try:
                return self._ask(self._server, f"{self._servers[0]}{path}")
            except urllib.error.HTTPError:
                raise
            except OSError as why:
                failure = why
            # The next one is asked first from now on.
            self._servers.append(self._servers.pop(0))
        raise failure

    def send(self, sample: Mapping[str, Any]) -> float:
        """In how many seconds the hub wants the next one."""
        try:
            wanted = self._ask(self._hub, f"{self._hub_url}/portal/sample", json.dumps(sample).encode())["next_s"]
            return min(max(float(wanted), 1.0), 600.0)
        except (OSError, *MISSHAPEN):
            return samples.INTERVAL_S


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """It would show the token elsewhere."""

    def redirect_request(self, *given: Any) -> None:
        return None


def _opener(context: Any) -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context), _NoRedirect
    )


def main(words: Sequence[str] | None = None, root: str = "/") -> int:
    if sys.argv[1:] if words is None else words:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    environment, parent = dict(os.environ), os.getppid()
    try:
        web = Web(environment)
    except KeyError as why:
        sys.stderr.write(f"portal-measure: this is not a session of the portal: it has no {why.args[0]}\n")
        return 1
    session = Session(environment, web.get, root=root)
    look_due, due = time.monotonic(), time.monotonic() + LOOK_S
    while os.getppid() == parent:
        has_news = session.has_news()
        # A sample without a look would say nothing of the GPUs.
        if time.monotonic() >= min(look_due, due):
            session.look()
            look_due = time.monotonic() + LOOK_S
        if has_news or time.monotonic() >= due:
            due = time.monotonic() + web.send(session.sample())
        time.sleep(min(VERDICT_S, max(1.0, due - time.monotonic())))
    return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(1 << 20)
    except OSError:
        return ""
