# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tasks of the stand-in for mesos-agent: local processes that outlive it, with their health checks."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grammar
import library
import tls
import web

# Of an executor, wherever its agent has its programs.
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ALIVE = ("TASK_RUNNING", "TASK_KILLING")
# Runs the task and leaves its status in a file, as the executor would tell it to an agent that was restarted.
EXECUTOR = (
    'trap : TERM; "$@" & while :; do wait $!; s=$?; kill -0 $! 2>/dev/null || break; done; echo $s >"$STAND_IN_END"'
)
Task = dict[str, Any]
# Where a task in an image finds its sandbox.
SANDBOX_INSIDE = "/mnt/mesos/sandbox"
# What the stand-ins for NVIDIA's programs need inside of an image.
SIMULATORS = "/usr/lib/baremetal-gpu-simulators"


def _born(pid: int) -> str:
    """When a process started, so that another with its number is not taken for it; empty if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def image_of(task: Task) -> str:
    """The image that a task runs in; empty for none."""
    return ((task.get("container") or {}).get("docker") or {}).get("image", "")


def _container(task: Task) -> str:
    return f"mesos-{task['id']}"


class Tasks:
    def __init__(self, flags: grammar.Flags) -> None:
        self.flags = flags
        self.work, self.meta = Path(flags["work_dir"]), Path(flags["work_dir"]) / "meta/slaves"
        self.id = ""
        self.tasks: dict[str, Task] = {}
        # NVML's indices of the GPUs that may be given out.
        self.gpu_indices: list[int] = []
        # What executors find in their environment, and hand on to their tasks.
        self.executor: dict[str, str] = json.loads(flags.get("executor_environment_variables", "{}"))
        # Set when there is something to tell the master.
        self.news = threading.Event()

    def keep(self) -> None:
        part = self.meta / self.id / "tasks.part"
        ended = [key for key, task in self.tasks.items() if task["state"] not in ALIVE]
        for key in ended[:-100]:
            del self.tasks[key]
        part.write_text(json.dumps(self.tasks), encoding="utf-8")
        part.replace(part.with_name("tasks.json"))

    def frameworks(self) -> dict[str, Any]:
        """What /state tells of tasks: by framework and executor, of which each task has one of its own."""
        found: dict[str, dict[str, Any]] = {}
        for task in self.tasks.values():
            known = task.get("framework") or {}
            key = task.get("framework_id") or known.get("id", "")
            one = {"id": key, "name": known.get("name", ""), "executors": [], "completed_executors": []}
            row = {"id": task["id"], "name": task.get("name", ""), "framework_id": key, "state": task["state"]}
            row.update(executor_id="", slave_id=self.id, resources=task["resources"])
            alive = task["state"] in ALIVE
            rows = {"tasks": [row] if alive else [], "queued_tasks": [], "completed_tasks": [] if alive else [row]}
            place = "executors" if alive else "completed_executors"
            found.setdefault(key, one)[place].append({"id": task["id"], "source": task["id"], **rows})
        running = [row for row in found.values() if row["executors"]]
        return {"frameworks": running, "completed_frameworks": [row for row in found.values() if row not in running]}

    def recover_tasks(self) -> None:
        kept = self.meta / self.id / "tasks.json"
        self.tasks = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
        for task in self.tasks.values():
            if task["state"] in ALIVE and {task.get("tls", "off"), web.TLS.mode} == {"off", "required"}:
                # Its executor and this agent cannot talk.
                self.signal({**task, "state": "TASK_KILLING"}, signal.SIGKILL)
                why = "Executor did not reregister within the time"
                task.update(state="TASK_FAILED", reason="REASON_EXECUTOR_REREGISTRATION_TIMEOUT", message=why)
            elif task["state"] in ALIVE and task.get("check"):
                threading.Thread(target=self._checked, args=(task["id"],), daemon=True).start()

    def sandbox(self, task_id: str) -> Path:
        return self.work / "slaves" / self.id / task_id

    # Start and end.

    def _why_not(self, task: Task) -> str:
        """What keeps a task with a container from being started here."""
        container = task.get("container") or {}
        enabled = self.flags["containerizers"].split(",")
        if container.get("type", "MESOS").lower() not in enabled:
            return (
                f"None of the enabled containerizers ({', '.join(enabled)}) could create a container for the provided "
                "TaskInfo/ExecutorInfo message"
            )
        image = image_of(task)
        if image and container["type"] == "MESOS" and "docker" not in self.flags.get("image_providers", "").lower():
            return "Failed to launch container: Unsupported container image type: DOCKER"
        if image and not shutil.which("docker"):
            return "Failed to launch container: this stand-in runs images with Docker, which is not here"
        if not task.get("cmd") and not task.get("args"):
            return "Failed to launch container: this stand-in runs no program that only the image names"
        return ""

    def run(self, task: Task) -> dict[str, Any]:
        if task["id"] in self.tasks:
            return {}
        why = self._why_not(task)
        taken = {index for row in self.tasks.values() if row["state"] in ALIVE for index in row.get("gpu_indices", [])}
        free = [index for index in self.gpu_indices if index not in taken]
        wanted = int(task["resources"].get("gpus", 0))
        if self.gpu_indices and wanted > len(free):
            why = f"Failed to launch container: Requested {wanted} gpus but only {len(free)} available"
        # The lowest first, as the real one does it.
        row = self.tasks[task["id"]] = {**task, "state": "TASK_RUNNING", "gpu_indices": free[:wanted], "pid": 0}
        if not why:
            try:
                self._start(row)
            except OSError as error:
                why = f"Failed to launch container: {error}"
        if why:
            row.update(state="TASK_FAILED", reason="REASON_CONTAINER_LAUNCH_FAILED", message=why)
        self.keep()
        self.news.set()
        return {}

    def _start(self, task: Task) -> None:
        sandbox = self.sandbox(task["id"])
        shutil.rmtree(sandbox, ignore_errors=True)
        sandbox.mkdir(parents=True)
        argv = ["/bin/sh", "-c", task["cmd"]] if task.get("cmd") else list(task["args"])
        user = task.get("user") if self.flags["switch_user"] in ("true", "1") and os.getuid() == 0 else None
        if image_of(task):
            argv, user = self._in_image(task, argv), None
        account = None
        if user and user != "root":
            try:
                account = pwd.getpwnam(user)
            except KeyError:
                raise OSError(f"Failed to get user information for '{user}'") from None
            os.chown(sandbox, account.pw_uid, account.pw_gid)
        task["tls"] = self._executor_tls(account)
        library.needed(self._environment(task))
        with (sandbox / "stdout").open("wb") as out, (sandbox / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                ["/bin/sh", "-c", EXECUTOR, "executor", *argv],
                cwd=sandbox,
                env=self._environment(task),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                start_new_session=True,
                user=account.pw_uid if account else None,
                group=account.pw_gid if account else None,
                extra_groups=[] if account else None,
            )
        task.update(pid=process.pid, born=_born(process.pid))
        threading.Thread(target=self._reap, args=(task["id"], process), daemon=True).start()
        if task.get("check"):
            threading.Thread(target=self._checked, args=(task["id"],), daemon=True).start()

    def _in_image(self, task: Task, argv: list[str]) -> list[str]:
        """The task's command in its image. The real agent unpacks the image itself; this one has Docker do it."""
        names = {*self._environment(task)} - {"PATH", "STAND_IN_END", "MESOS_SANDBOX"}
        volumes = [
            f"{row['hostPath']}:{row['containerPath']}:{row['mode'].lower()}"
            for row in task["container"].get("volumes", [])
        ]
        if Path(SIMULATORS).is_dir():
            volumes.append(f"{SIMULATORS}:{SIMULATORS}:ro")
        words = ["docker", "run", "--rm", "--init", f"--name={_container(task)}", "--network=host"]
        words += [f"--user={task.get('user') or 'root'}", f"--workdir={SANDBOX_INSIDE}"]
        words += [f"--volume={one}" for one in (f"{self.sandbox(task['id'])}:{SANDBOX_INSIDE}", *volumes)]
        words += [f"--env={name}" for name in sorted(names)] + [f"--env=MESOS_SANDBOX={SANDBOX_INSIDE}"]
        words += [f"--device=nvidia.com/gpu={index}" for index in task["gpu_indices"]]
        return [*words, f"--entrypoint={argv[0]}", image_of(task), *argv[1:]]

    def _executor_tls(self, account: pwd.struct_passwd | None) -> str:
        """By what its executor talks with the agent. Raises OSError where it could not."""
        mode = tls.mode(self.executor)
        if {mode, web.TLS.mode} == {"off", "required"}:
            raise OSError(f"the executor speaks TLS: {mode}, the agent: {web.TLS.mode}; it could not register")
        names = [f"LIBPROCESS_SSL_{kind}_FILE" for kind in ("KEY", "CERT", "CA")] if mode != "off" else []
        for name in names:
            file = self.executor.get(name, "")
            who = {"user": account.pw_uid, "group": account.pw_gid} if account else {}
            groups = {"extra_groups": os.getgrouplist(account.pw_name, account.pw_gid)} if account else {}
            if not file or subprocess.run(["test", "-r", file], **who, **groups).returncode:
                raise OSError(f"the executor could not read {name} ({file or 'not set'})")
        return mode

    def _environment(self, task: Task) -> dict[str, str]:
        """A path, the agent's address, MESOS_… and what the task brings: nothing else of the agent's own reaches it.

        So LD_LIBRARY_PATH does not. GPUs by NVML's index.
        """
        sandbox = self.sandbox(task["id"])
        return {
            "PATH": HOST_PATH,
            **{name: os.environ[name] for name in ("LIBPROCESS_IP",) if name in os.environ},
            **self.executor,
            **task.get("env", {}),
            "MESOS_SANDBOX": str(sandbox),
            "MESOS_TASK_ID": task["id"],
            "MESOS_AGENT_ID": self.id,
            "STAND_IN_END": str(sandbox / ".end"),
            **({"STAND_IN_GPU_INDICES": ",".join(map(str, task["gpu_indices"]))} if task["gpu_indices"] else {}),
        }

    def _reap(self, task_id: str, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        with web.LOCK:
            self.look()

    def look(self) -> None:
        """Which tasks ended, those among them that an agent before this one started."""
        for task_id, task in self.tasks.items():
            if task["state"] in ALIVE and (not task.get("born") or _born(task["pid"]) != task["born"]):
                self._ended(task_id)

    def _ended(self, task_id: str) -> None:
        task, told = self.tasks[task_id], self.sandbox(task_id) / ".end"
        status = told.read_text(encoding="utf-8").strip() if told.exists() else ""
        if task["state"] == "TASK_KILLING":
            task["state"] = "TASK_FAILED" if task.get("unhealthy") else "TASK_KILLED"
        elif status == "0":
            task["state"] = "TASK_FINISHED"
        else:
            task["state"] = "TASK_FAILED"
            task["message"] = f"Command exited with status {status}" if status else "Command terminated with a signal"
        # What the task left running goes with it.
        self.signal({**task, "state": "TASK_KILLING"}, signal.SIGKILL)
        self.keep()
        self.news.set()

    def kill(self, told: dict[str, Any]) -> dict[str, Any]:
        task = self.tasks.get(told["task_id"])
        if task is None or task["state"] != "TASK_RUNNING":
            return {}
        task["state"] = "TASK_KILLING"
        self.signal(task, signal.SIGTERM)
        timer = threading.Timer(told["grace_s"], self.signal, (task, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        self.keep()
        self.news.set()
        return {}

    @staticmethod
    def signal(task: Task, number: int) -> None:
        if task["state"] in ALIVE and task.get("pid"):
            if image_of(task) and number == signal.SIGKILL:
                # Docker's client does not hand this one on.
                words = ["docker", "rm", "--force", _container(task)]
                subprocess.run(words, capture_output=True, check=False)
            try:
                os.killpg(task["pid"], number)
            except (ProcessLookupError, PermissionError):
                return

    # Health checks that Mesos does (COMMAND and MESOS_…).

    def _checked(self, task_id: str) -> None:
        task = self.tasks[task_id]
        check, started, failed = task["check"], time.monotonic(), 0
        time.sleep(check["delay_s"])
        while task["state"] == "TASK_RUNNING":
            well = self._well(task, check)
            with web.LOCK:
                if task["state"] != "TASK_RUNNING":
                    return
                failed = 0 if well else failed + 1
                young = time.monotonic() - started < check["grace_s"] and not task.get("healthy")
                if well != task.get("healthy") and (well or not young):
                    task["healthy"] = well
                    self.news.set()
                if 0 < check["failures"] <= failed and not young:
                    task.update(unhealthy=True, message="Health check failed", reason="REASON_TASK_UNHEALTHY")
                    self.kill({"task_id": task_id, "grace_s": 3.0})
            time.sleep(check["interval_s"])

    def _well(self, task: Task, check: dict[str, Any]) -> bool:
        try:
            if check["kind"] == "COMMAND":
                inside = ["docker", "exec", _container(task)] if image_of(task) else []
                done = subprocess.run(
                    [*inside, "/bin/sh", "-c", check["command"]],
                    cwd=self.sandbox(task["id"]),
                    env=self._environment(task),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=check["timeout_s"],
                )
                return done.returncode == 0
            if check["kind"] == "TCP":
                with socket.create_connection((check["host"], check["port"]), check["timeout_s"]):
                    return True
            url = f"{check['kind'].lower()}://{check['host']}:{check['port']}{check['path']}"
            with urllib.request.urlopen(url, timeout=check["timeout_s"]) as reply:
                return 200 <= int(reply.status) < 400
        except (OSError, subprocess.SubprocessError, urllib.error.URLError):
            return False
