# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Mesos agent with another list of GPUs: stop it, write the list, take its checkpoint away, start it.

An agent does not come back with fewer GPUs under the id that it had, so it gets a new one. Its tasks would be lost
with the old one: who calls this has drained it, and it is looked at once more here, before and after the agent is
stopped. Each part may be done twice, so what was cut is begun again from the start.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.indices import index_by_uuid
from ansible_collections.baremetal.gpu.plugins.module_utils.host import boot
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call

# How the role mesos_agent names the GPUs beside their indices.
UUIDS = "BAREMETAL_GPU_UUIDS"
# GPUs that no agent lists, whatever their health: the operator's own, and those in MIG mode.
HELD_BACK = "BAREMETAL_GPU_HELD_BACK"
_GPUS = re.compile(r"(^|;)\s*gpus(\([^)]*\))?\s*:[^;]*")


@dataclass
class Place:
    """Where the agent is: systemd unit, work_dir, the file with its environment, and the URL of its own HTTP.

    Without a URL it is where the environment has the agent listen, with the authority that the environment names.
    """

    unit: str = "mesos-agent.service"
    work_dir: str = "/var/lib/mesos/agent"
    environment: str = "/etc/baremetal-gpu/mesos/agent.env"
    url: str = ""
    # The authority that signed the agent's certificate, where it speaks TLS.
    ca_file: str | None = None
    start_s: float = 60.0

    @property
    def pending(self) -> str:
        """A file that is there while a change goes on."""
        return os.path.join(self.work_dir, "baremetal-gpu-gpus.json")

    def answers_at(self) -> tuple[str, str | None]:
        """URL and authority of the agent's own HTTP."""
        if self.url:
            return self.url, self.ca_file
        told = settings(self.environment)
        scheme = "https" if tls_mode(told) == "required" else "http"
        # With an address the agent listens there alone, and not at the loopback.
        address = told.get("MESOS_IP") or "127.0.0.1"
        url = f"{scheme}://{f'[{address}]' if ':' in address else address}:{told.get('MESOS_PORT') or 5051}"
        return url, self.ca_file or told.get("LIBPROCESS_SSL_CA_FILE")

    @property
    def lock(self) -> str:
        """Held by who changes the agent."""
        return os.path.join(self.work_dir, "baremetal-gpu-gpus.lock")


def settings(path: str) -> dict[str, str]:
    """The variables of the agent's environment file; none where it cannot be read."""
    # A byte that is no UTF-8 spoils its own line, and not all that the host has to tell.
    rows = [line.partition("=") for line in host_files.read_text(path).split("\n") if not line.startswith("#")]
    return {name: value.strip("'\"") for name, sign, value in rows if sign}


def tls_mode(variables: Mapping[str, str]) -> str:
    """What libprocess makes of its variables: off, downgrade (both are spoken) or required."""
    on = {name for name, value in variables.items() if value in ("true", "1")}
    if "LIBPROCESS_SSL_ENABLED" not in on:
        return "off"
    return "downgrade" if "LIBPROCESS_SSL_SUPPORT_DOWNGRADE" in on else "required"


def latest(work_dir: str) -> str | None:
    """The id that the agent will come back with; None if it will register anew."""
    try:
        return os.path.basename(os.readlink(os.path.join(work_dir, "meta/slaves/latest")).rstrip("/"))
    except FileNotFoundError:
        return None
    except PermissionError as why:
        raise Refused(
            f"{_closed(str(why.filename))}: {why.strerror}", "run `gpuops up --tags mesos_agent` for this host"
        ) from why
    except OSError as why:
        raise Refused(
            f"{work_dir}/meta/slaves/latest is not a link: {why.strerror}",
            f"see `sudo ls -l {work_dir}/meta/slaves`: the agent makes the link when it registers",
        ) from why


def _closed(path: str) -> str:
    """The directory on the way to a path that this process may not enter; the path itself where it may enter all."""
    above = "/"
    for name in path.split("/")[1:]:
        if not os.access(above, os.X_OK):
            return above
        above = os.path.join(above, name)
    return path


def pending(place: Place) -> dict[str, Any] | None:
    """What a change that was cut has left, {agent_id}; None if none was, or if another agent has come since."""
    try:
        with open(place.pending, encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError, RecursionError):
        return None
    mine = isinstance(told, dict) and latest(place.work_dir) in (None, told.get("agent_id"))
    return told if mine else None


def listed(path: str, name: str = UUIDS) -> list[str] | None:
    """UUIDs of the GPUs that the agent is started with; None where its environment does not name them."""
    found = settings(path)
    return gpus_of(found, name) if name in found else None


def gpus_of(variables: Mapping[str, str], name: str = UUIDS) -> list[str]:
    """UUIDs that a variable of the agent's environment names, in its order; none where it is not there."""
    return [uuid for uuid in variables.get(name, "").split(",") if uuid]


def environment(text: str, gpus: Mapping[int, str]) -> str:
    """The environment file with these GPUs, index -> UUID. What else is in it stays, in its order."""
    lines = text.splitlines()
    names = [line.partition("=")[0] for line in lines]
    for needed in ("MESOS_RESOURCES", "MESOS_ISOLATION"):
        if needed not in names:
            raise Refused(
                f"{needed} is not in the agent's environment", "run `gpuops up --tags mesos_agent` for this host"
            )
    if gpus and "gpu/nvidia" not in lines[names.index("MESOS_ISOLATION")]:
        raise Refused(
            "the agent was started without the isolator gpu/nvidia", "run `gpuops up --tags mesos_agent` for this host"
        )
    resources = lines[names.index("MESOS_RESOURCES")].partition("=")[2]
    numbers = sorted(gpus)
    changed = {
        "MESOS_RESOURCES": _resources(resources, len(numbers)),
        "MESOS_NVIDIA_GPU_DEVICES": ",".join(str(number) for number in numbers) or None,
        UUIDS: ",".join(gpus[number] for number in numbers),
    }
    for name, value in changed.items():
        if name in names:
            place = names.index(name)
            del lines[place], names[place]
        else:
            # The role writes them by name.
            place = next((place for place, other in enumerate(names) if other > name), len(names))
        if value is not None:
            lines.insert(place, f"{name}={value}")
            names.insert(place, name)
    return "\n".join(lines) + "\n"


def _resources(value: str, gpus: int) -> str:
    quote = value[:1] if value[:1] in ("'", '"') and value[-1:] == value[:1] else ""
    inner = value[1:-1] if quote else value
    if inner.lstrip().startswith(("[", "file:", "/")):
        raise Refused("MESOS_RESOURCES is JSON or a file, which is not edited", "give name:value;name:value")
    kept = _GPUS.sub("", inner).strip("; ")
    return f"{quote}{kept}{';' if kept else ''}gpus:{gpus}{quote}"


def indices(uuids: Iterable[str], devices: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    """Today's index -> UUID of the GPUs. Raises Refused for one that does not answer."""
    today = index_by_uuid(devices)
    missing = sorted(set(uuids) - set(today))
    if missing:
        raise Refused(f"{', '.join(missing)} have no index now", "look at `gpu-agent status` on the host")
    return {today[uuid]: uuid for uuid in uuids}


def tasks_of_agent(url: str, timeout_s: float = 5.0, ca_file: str | None = None) -> list[str]:
    """Ids of the tasks that the agent itself tells of; none where it does not answer.

    :raises Refused: for an agent that speaks TLS and is not trusted, or an authority that cannot be read.
    """
    # They take megabytes, and the node's agent, which always runs, has this module for other things.
    import ssl
    import urllib.error
    import urllib.request

    try:
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=ca_file))
    except OSError as why:
        raise Refused(f"{ca_file} cannot be read: {why}", "run `gpuops up --tags mesos_agent` for this host") from why
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), https).open(
            f"{url}/state", timeout=timeout_s
        ) as answer:
            state = json.load(answer)
    except urllib.error.URLError as why:
        if isinstance(why.reason, ssl.SSLError):
            raise Refused(f"{url}: {why.reason}", "give the URL by which its certificate names it") from why
        return []
    except (OSError, ValueError, RecursionError):
        return []
    return [
        str(task["id"])
        for framework in state.get("frameworks", [])
        for executor in framework.get("executors", [])
        for task in [*executor.get("tasks", []), *executor.get("queued_tasks", [])]
    ]


def living(work_dir: str, agent_id: str | None, proc: str = "/proc") -> list[int]:
    """Processes of executors that the agent, or with None any of this host, has written down and that live: they
    outlive it.

    Source: Mesos, src/slave/paths.hpp. An executor that ended has a sentinel beside it, and none outlives a boot.
    """
    meta = os.path.join(work_dir, "meta")
    # Asked by units that are protected, too: see host/boot.py.
    booted = [_text(os.path.join(meta, "boot_id")), boot.boot_id(os.path.dirname(proc)) or ""]
    if all(booted) and booted[0] != booted[1]:
        return []
    found = []
    name = "*" if agent_id is None else glob.escape(agent_id)
    runs = os.path.join(meta, "slaves", name, "frameworks/*/executors/*/runs/*")
    for run in glob.glob(runs):
        number = _text(os.path.join(run, "pids/forked.pid"))
        ended = os.path.exists(os.path.join(run, "executor.sentinel"))
        if number.isdigit() and not ended and os.path.exists(os.path.join(proc, number)):
            found.append(int(number))
    return sorted(set(found))


def standing(place: Place, run: Call) -> dict[str, Any]:
    """The agent as this host sees it, for one that Mesos may not know: {agent_id, unit, executors, unread}.

    `agent_id` is what it would come back with; `unit` how its unit stands, `held` for one that waits for a condition;
    `executors` how many live, None where that cannot be told; `unread` what of it cannot be read and why, if anything.
    """
    told: dict[str, Any] = {"agent_id": None, "unit": _unit(place, run), "executors": None}
    try:
        told["agent_id"] = latest(place.work_dir)
        for name in ("meta", "meta/slaves"):
            # In a directory that cannot be read none would be found.
            with contextlib.suppress(FileNotFoundError):
                os.listdir(os.path.join(place.work_dir, name))
        told["executors"] = len(living(place.work_dir, None))
    except Refused as why:
        told["unread"] = why.problem.cause
    except OSError as why:
        told["unread"] = f"{_closed(str(why.filename))}: {why.strerror}"
    return told


def _unit(place: Place, run: Call) -> str:
    status, said = run(["systemctl", "show", "--property=ActiveState,Result", place.unit])
    rows = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
    state = rows.get("ActiveState", "")
    if status or state not in ("active", "activating", "deactivating", "reloading", "failed", "inactive"):
        return "unknown"
    if state == "inactive" and rows.get("Result") in ("exec-condition", "condition"):
        return "held"
    return {"reloading": "active", "deactivating": "activating"}.get(state, state)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


class Replacement:
    """`agent_id` is the drained agent, None where there is none with a checkpoint; `uuids` are the GPUs that the next
    one lists, `devices` all GPUs of this host."""

    def __init__(
        self,
        place: Place,
        agent_id: str | None,
        uuids: Iterable[str],
        devices: Iterable[Mapping[str, Any]],
        run: Call,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.place, self.agent_id, self.run, self.sleep = place, agent_id, run, sleep
        self.gpus = indices(uuids, devices)

    def differs(self) -> bool:
        """Whether the agent's environment has another list."""
        return self._text() != self._wanted()

    def _text(self) -> str:
        try:
            with open(self.place.environment, encoding="utf-8") as file:
                return file.read()
        except (OSError, ValueError) as why:
            what = getattr(why, "strerror", None) or "it is not UTF-8"
            raise Refused(
                f"{self.place.environment} cannot be read: {what}", "run `gpuops up --tags mesos_agent` for this host"
            ) from why

    def _wanted(self) -> str:
        return environment(self._text(), self.gpus)

    def check(self) -> None:
        """Raises Refused where the agent is another one than was drained, or has tasks."""
        now = latest(self.place.work_dir)
        if now not in (None, self.agent_id):
            raise Refused(f"the agent here is {now}, and {self.agent_id} was drained", "decide again")
        self._wanted()
        if now is not None:
            url, ca_file = self.place.answers_at()
            tasks = tasks_of_agent(url, ca_file=ca_file)
            if tasks:
                raise Refused(f"the agent has tasks: {', '.join(tasks)}", "drain it, or leave it")

    def carry_out(self, reboot: bool = False) -> None:
        """All of it; with `reboot` the host boots in the place of the start. Raises Refused."""
        self.check()
        wanted = self._wanted()
        # Who is cut from here on finds the agent stopped, and knows by this that it is our doing.
        host_files.write(self.place.pending, json.dumps({"agent_id": self.agent_id}) + "\n")
        self._systemctl("stop")
        alive = living(self.place.work_dir, self.agent_id) if self.agent_id else []
        if alive:
            os.unlink(self.place.pending)
            # Somebody has brought the agent back in between, and a job has started.
            self._systemctl("start")
            raise Refused(f"processes {', '.join(map(str, alive))} of its tasks live", "drain it, or leave it")
        # The list goes first: cut in between, the agent refuses to start, and gives nobody a GPU that is to go.
        mode = os.stat(self.place.environment).st_mode & 0o7777
        try:
            host_files.write(self.place.environment, wanted, mode)
        except OSError as why:
            # The list is as it was, and so the agent can go on.
            os.unlink(self.place.pending)
            self._systemctl("start")
            raise Refused(
                f"{self.place.environment} cannot be written: {why.strerror}", "make room on the disk"
            ) from why
        if latest(self.place.work_dir) is not None:
            directory = os.path.join(self.place.work_dir, "meta/slaves")
            os.unlink(os.path.join(directory, "latest"))
            _sync(directory)
        if reboot:
            os.unlink(self.place.pending)
            self._do(["systemctl", "reboot"])
            return
        self._systemctl("start")
        os.unlink(self.place.pending)
        self._wait()

    def _wait(self) -> None:
        """Until it has registered, which is when it has an id."""
        for _turn in range(max(1, int(self.place.start_s * 4))):
            if latest(self.place.work_dir) is not None:
                return
            status, _said = self.run(["systemctl", "is-failed", "--quiet", self.place.unit])
            if status == 0:
                raise Refused(
                    f"{self.place.unit} fails with the new list",
                    f"see why in `sudo journalctl -u {self.place.unit}` on the host",
                )
            self.sleep(0.25)
        raise Refused(
            f"{self.place.unit} has not registered in {self.place.start_s:g} s",
            f"see `sudo journalctl -u {self.place.unit}` on the host",
        )

    def _systemctl(self, verb: str) -> None:
        self._do(["systemctl", verb, self.place.unit])

    def _do(self, argv: list[str]) -> None:
        status, said = self.run(argv)
        if status:
            raise Refused(f"{shlex.join(argv)} ended with {status}: {said.strip()[-300:]}")


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
