# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for mesos-agent: GPUs, checkpoint and reconfiguration, the way to the leading master."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import uuid
from typing import Any

import ensemble
import grammar
import web
from agent_tasks import Tasks
from web import Answer, Request

# How long an agent stays away from a master that is named by its address and was restarted: a real one was not back
# after 12 s.
RETURN_S = float(os.environ.get("STAND_IN_RETURN_S") or 13)
# src/slave/containerizer/mesos/containerizer.cpp, with the names that stand for several and those of older versions.
_ISOLATORS = (
    "appc/runtime cgroups/all cgroups/blkio cgroups/cpu cgroups/cpuset cgroups/devices cgroups/hugetlb cgroups/mem "
    "cgroups/net_cls cgroups/net_prio cgroups/perf_event cgroups/pids disk/du disk/xfs docker/runtime docker/volume "
    "environment_secret filesystem/linux filesystem/posix filesystem/shared filesystem/windows gpu/nvidia "
    "linux/capabilities linux/devices linux/nnp linux/seccomp namespaces/ipc namespaces/pid network/cni "
    "network/port_mapping network/ports posix/cpu posix/disk posix/mem posix/rlimits volume/csi volume/host_path "
    "volume/image volume/sandbox_path volume/secret xfs/disk process"
)
ISOLATORS = frozenset(_ISOLATORS.split())


def _gpu_states() -> list[str]:
    """Each GPU as "ok" or as what NVML says instead of giving its handle.

    STAND_IN_GPUS lists them (ok,GPU is lost,ok); without it the NVML library that is installed is asked.
    """
    listed = os.environ.get("STAND_IN_GPUS")
    if listed is not None:
        return [state for state in listed.split(",") if state]
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return []
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    code = nvml.nvmlInit_v2()
    if code:
        grammar.die(f"Failed to create a containerizer: nvmlInit failed: {nvml.nvmlErrorString(code).decode()}")
    count, handle, states = ctypes.c_uint(), ctypes.c_void_p(), []
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    for index in range(count.value):
        code = nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        states.append("ok" if code == 0 else nvml.nvmlErrorString(code).decode())
    nvml.nvmlShutdown()
    return states


def _device_files() -> None:
    """What the isolator needs of /dev beside the GPUs. GPUs that only a variable names have none."""
    if "STAND_IN_GPUS" in os.environ:
        return
    isolator = "Failed to create a containerizer: Could not create isolator 'gpu/nvidia'"
    if not os.path.exists("/dev/nvidiactl"):
        grammar.die(f"{isolator}: Failed to obtain device ID for '/dev/nvidiactl': No such file or directory")
    if not os.path.exists("/dev/nvidia-uvm"):
        # It makes the node itself if it can.
        made = shutil.which("nvidia-modprobe") and subprocess.run(["nvidia-modprobe", "-u", "-c", "0"]).returncode == 0
        if not made or not os.path.exists("/dev/nvidia-uvm"):
            grammar.die(f"{isolator}: Failed to obtain device ID for '/dev/nvidia-uvm': No such file or directory")


def _gpu_resources(flags: dict[str, str], resources: dict[str, Any]) -> list[int]:
    """Checks gpus, the list of GPUs and the isolators, and fills in gpus where neither is given. Gives the GPUs."""
    isolation = flags["isolation"].split(",")
    strangers = [name for name in isolation if name not in ISOLATORS]
    if strangers and not {"modules", "modules_dir"} & set(flags):
        grammar.die(f"Failed to create a containerizer: Unknown or unsupported isolator '{strangers[0]}'")
    doubled = sorted({name for name in isolation if isolation.count(name) > 1})
    if doubled:
        grammar.die(f"Failed to create a containerizer: Duplicate entries found in --isolation flag: {doubled}")
    listed, gpus = flags.get("nvidia_gpu_devices"), resources.get("gpus")
    if "gpu/nvidia" not in isolation:
        if listed is not None:
            grammar.die("'--nvidia_gpus_devices' can only be specified if the `--isolation` flag contains 'gpu/nvidia'")
        return []
    if "filesystem/linux" not in isolation:
        grammar.die("The 'filesystem/linux' isolator must be enabled in order to use the 'gpu/nvidia' isolator")
    if "cgroups/devices" not in isolation:
        grammar.abort("Check failed: the 'cgroups/devices' isolator is not enabled")
    for name in ("cgroups/devices", "filesystem/linux"):
        if isolation.index(name) > isolation.index("gpu/nvidia"):
            grammar.die(f"'{name}' must precede 'gpu/nvidia' in the --isolation flag")
    if gpus == 0 and listed is None:
        return []
    if (gpus is None) != (listed is None):
        grammar.die("The `gpus` resource and '--nvidia_gpu_devices' must be specified together")
    states = _gpu_states()
    if listed is None:
        indices = list(range(len(states)))
    else:
        indices = [int(number) for number in listed.split(",") if number]
        if len(set(indices)) != len(indices):
            grammar.die("'--nvidia_gpu_devices' contains duplicates")
        if gpus != int(gpus):
            grammar.die("The 'gpus' resource must be an unsigned integer")
        if len(indices) != gpus:
            grammar.die("'--resources' and '--nvidia_gpu_devices' specify different numbers of GPU devices")
        if gpus > len(states) or max(indices) >= len(states):
            grammar.die("The number of GPUs requested is greater than the number of GPUs available on the machine")
    if indices:
        _device_files()
    for index in indices:
        if states[index] != "ok":
            grammar.die(f"Failed to create a containerizer: nvml::deviceGetHandleByIndex: {states[index]}")
    resources["gpus"] = float(len(indices))
    return indices


class Agent(Tasks):
    def __init__(self, flags: grammar.Flags) -> None:
        super().__init__(flags)
        self.bind, ip, hostname = web.addresses(flags)
        resources = {"cpus": 4.0, "mem": 4096.0, "disk": 10000.0, "ports": "[31000-32000]"}
        resources.update(grammar.resources(flags.get("resources", "")))
        attributes = grammar.attributes(flags.get("attributes", ""))
        self.gpu_indices = sorted(_gpu_resources(flags, resources))
        self.info: dict[str, Any] = {
            "hostname": hostname,
            "ip": ip,
            "port": int(flags["port"]),
            "resources": resources,
            "attributes": attributes,
        }
        self.credential = self._credential()
        self.registered = False
        # Of this process: by it the master knows a new registration from a heartbeat.
        self.run_id = str(uuid.uuid4())
        self.silent_until = 0.0
        # Who leads, as host:port; None while nobody is known to.
        self.leader: str | None = None
        self._recover()
        self.detect()

    def _credential(self) -> dict[str, str] | None:
        if "credential" not in self.flags:
            return None
        try:
            told = json.loads(grammar.read(self.flags["credential"]))
            return {key: told[key] for key in ("principal", "secret")}
        except (ValueError, TypeError, KeyError) as why:
            grammar.die(f"Failed to parse the credential: {why!r}")

    def _recover(self) -> None:
        latest = self.meta / "latest"
        if not latest.exists():
            return
        first = json.loads((latest / "slave.info").read_text(encoding="utf-8"))
        for name in ("hostname", "port"):
            if first[name] != self.info[name]:
                grammar.die(f"Failed to perform recovery: Incompatible agent info detected. {name} changed")
        if self.flags["reconfiguration_policy"] == "equal":
            if first != self.info:
                grammar.die("Failed to perform recovery: Incompatible agent info detected.")
        else:
            self._additive(first)
        self.id = latest.resolve().name
        self.recover_tasks()

    def _additive(self, first: dict[str, Any]) -> None:
        """The check is against what was registered first, not against the last start."""
        refused = "Failed to perform recovery: Configuration change not permitted under 'additive' policy: "
        for name, value in first["resources"].items():
            now = self.info["resources"].get(name)
            if isinstance(value, str):
                if now != value and not (grammar.is_ranges(value) and grammar.holds(now, value)):
                    grammar.die(f"{refused}Value of ranges resource '{name}' changed from {value} to {now}")
            elif (now or 0.0) < value:
                grammar.die(f"{refused}Value of scalar resource '{name}' decreased from {value:g} to {now or 0:g}")
        for name, value in first["attributes"].items():
            now = self.info["attributes"].get(name)
            if now != value and not (grammar.is_ranges(value) and grammar.holds(now, value)):
                grammar.die(f"{refused}Value of attribute '{name}' changed or is gone")

    def _checkpoint(self) -> None:
        place = self.meta / self.id
        place.mkdir(parents=True, exist_ok=True)
        if not (place / "slave.info").exists():
            (place / "slave.info").write_text(json.dumps(self.info), encoding="utf-8")
        self.keep()
        latest = self.meta / "latest"
        if not latest.is_symlink():
            latest.symlink_to(self.id)

    # The way to the master.

    def detect(self) -> None:
        master = self.flags["master"]
        if not ensemble.names_zookeeper(master):
            self.leader = master.strip().rpartition("@")[2]
            return
        ensemble.Group(
            ensemble.url(master, "Failed to create a master detector"),
            "json.info_",
            grammar.seconds(self.flags["zk_session_timeout"]),
            self._detected,
            lambda why: grammar.end(f"Failed to detect a master: {why}"),
        ).start()

    def _detected(self, members: ensemble.Members | None, _: str | None) -> None:
        first = next(iter(members.values()), None) if members else None
        address = json.loads(first)["address"] if first else None
        leader = f"{address['ip']}:{address['port']}" if address else None
        if leader != self.leader:
            print(f"New master detected at master@{leader}" if leader else "Lost leading master", flush=True)
            self.leader, self.registered = leader, False
            self.news.set()

    def beat(self) -> None:
        """One registration or heartbeat. Exits where the master refuses this agent."""
        leader = self.leader
        if leader is None or time.monotonic() < self.silent_until:
            return
        if self.credential is not None and not web.sasl():
            # It asks again and again, and says so each time.
            print("Failed to authenticate: SASL(-4): no mechanism available: No worthy mechs found", file=sys.stderr)
            time.sleep(0.5)
            return
        with web.LOCK:
            self.look()
            body = {
                "agent_id": self.id,
                "run": self.run_id,
                "info": self.info,
                "tasks": list(self.tasks.values()),
                "credential": self.credential,
                "domain": "domain" in self.flags,
            }
        try:
            told = web.call(f"http://{leader}/stand-in/register", body)
        except (urllib.error.URLError, OSError):
            if self.registered and not ensemble.names_zookeeper(self.flags["master"]):
                # Nobody tells it that the master is back: it hears of that when its own ping times out.
                self.registered, self.silent_until = False, time.monotonic() + RETURN_S
                print(f"Lost connection to master@{leader}", file=sys.stderr, flush=True)
            return
        if told["answer"] == "refused":
            grammar.end(f"Master master@{leader} refused authentication")
        if told["answer"] == "shutdown":
            for task in self.tasks.values():
                self.signal(task, signal.SIGKILL)
            os._exit(0)
        if told["answer"] == "registered" and leader == self.leader:
            with web.LOCK:
                self.id, self.registered = told["agent_id"], True
                self._checkpoint()

    # Set by a signal, and seen at the next beat: a handler must not touch a lock.
    leaving = False

    def leave(self) -> None:
        self.leaving = True

    def unregister(self) -> None:
        """Ends the tasks and the program; the master forgets the agent, which keeps its checkpoint."""
        for task in self.tasks.values():
            self.signal(task, signal.SIGKILL)
        with contextlib.suppress(urllib.error.URLError, OSError):
            web.call(f"http://{self.leader}/stand-in/unregister", {"agent_id": self.id})
        os._exit(0)

    def handle(self, request: Request) -> Any:
        path = request.path
        path = path[len("/slave(1)") :] if path.startswith("/slave(1)") else path
        if path == "/health":
            return ""
        if path == "/state":
            pid = f"slave(1)@{self.info['ip']}:{self.info['port']}"
            told = {key: value for key, value in self.info.items() if key not in ("ip", "port")}
            shown = {**told, "id": self.id, "flags": self.flags.shown(), "pid": pid, **self.frameworks()}
            return {**shown, "master_hostname": self.leader.rpartition(":")[0]} if self.leader else shown
        if path == "/metrics/snapshot":
            running = sum(task["state"] == "TASK_RUNNING" for task in self.tasks.values())
            return {
                # It is 1 as soon as a leader is known, whatever that one says of this agent.
                "slave/registered": float(self.leader is not None),
                "slave/gpus_total": self.info["resources"].get("gpus", 0.0),
                "slave/tasks_running": float(running),
            }
        if path in ("/stand-in/run", "/stand-in/kill"):
            return (self.run if path.endswith("run") else self.kill)(request.json())
        raise Answer(404)


def main() -> None:
    flags = grammar.load("agent", sys.argv[1:], dict(os.environ))
    if "master" not in flags:
        grammar.die("Missing required option: --master")
    if "work_dir" not in flags:
        grammar.die("Missing required option: --work_dir")
    grammar.domain(flags)
    if not flags["default_role"]:
        grammar.die("Failed to determine agent resources: Empty role name is invalid")
    agent = Agent(flags)
    web.serve(agent.bind, agent.info["port"], agent.handle)
    # Tasks live on: the unit kills the agent's process only.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGUSR1, lambda *_: agent.leave())
    while not agent.leaving:
        agent.news.clear()
        agent.beat()
        agent.news.wait(0.5 if agent.registered else 0.1)
    agent.unregister()


if __name__ == "__main__":
    main()
