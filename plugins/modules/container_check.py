#!/usr/bin/python
# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_check
short_description: Prove that a container engine runs containers within their limits
version_added: 0.1.0
description:
  - Runs a container with a limit of memory and of CPU time, reads the limits inside it, and tests them. A program that
    needs more memory must be killed, and one that uses all the CPU time it can get must stay within its share.
  - Also runs a program with each of O(runtimes), and checks with O(cri) that containerd serves clients of the Container
    Runtime Interface.
  - Has systemd reload its units in between, after which the limits must still apply.
  - Needs no registry. The container's programs are those of the host, mounted read-only into an image of empty
    directories. Container and image are removed afterwards, also if the check fails.
options:
  engine:
    description: The engine.
    type: str
    choices: [docker, podman, containerd]
    default: docker
  runtimes:
    description:
      - Further runtimes that must run a program. For Docker their names, such as V(nvidia); for containerd the programs
        that replace runc.
    type: list
    elements: str
    default: []
  cri:
    description:
      - Whether containerd must serve the Container Runtime Interface, which a kubelet uses. C(ctr), which this module
        uses, works without it.
    type: bool
    default: true
  memory_mib:
    description: Limit of memory.
    type: int
    default: 64
  cpus:
    description: Limit of CPU time, in processors.
    type: float
    default: 0.5
  daemon_reload:
    description: Whether to have systemd reload its units while the container runs.
    type: bool
    default: true
  timeout:
    description: Seconds in which the engine must answer, and each of its commands must end.
    type: int
    default: 60
extends_documentation_fragment: [baremetal.gpu.attributes.looks]
attributes:
  check_mode:
    description: Does nothing there.
    support: none
author:
  - baremetal.gpu contributors (@baremetal-gpu)
"""

EXAMPLES = r"""
- name: Prove that Docker works
  baremetal.gpu.container_check:

- name: Prove it with the limits of a real job
  baremetal.gpu.container_check:
    engine: podman
    memory_mib: 4096
    cpus: 8
"""

RETURN = r"""
version:
  description: Version of the engine.
  returned: success
  type: str
  sample: 26.1.5+dfsg1
memory_limit_bytes:
  description: The limit of memory as it is read inside the container.
  returned: success
  type: int
cpu_limit:
  description: The limit of CPU time as it is read inside the container, in processors.
  returned: success
  type: float
cpu_used:
  description: What a program got that wanted a whole processor, in processors.
  returned: success
  type: float
"""

import io
import json
import os
import shutil
import tarfile
import tempfile
import time
import uuid
from collections.abc import Sequence

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line

# Made as they are on the host: a link into /usr, or a directory onto which the host's is mounted.
PROGRAM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64")
EMPTY_DIRECTORIES = ("usr", "etc", "proc", "sys", "dev", "run", "tmp", "var")
READ_LIMITS = """
cd /sys/fs/cgroup
if [ -e memory.max ]; then cat memory.max cpu.max; else
  cat memory/memory.limit_in_bytes
  echo "$(cat cpu/cpu.cfs_quota_us) $(cat cpu/cpu.cfs_period_us)"
fi
"""
# `times` prints what the shell and then what its ended children have used, user and system time each.
BURN = "timeout 2 sh -c 'while :; do :; done'; times"
KILLED = 137
# The service, and from containerd 2 on its parts.
CRI_PLUGINS = ("io.containerd.grpc.v1", "io.containerd.cri.v1")
CRI_SOCKET = "unix:///run/containerd/containerd.sock"


class Trouble(Exception):
    """The engine does not do what it should; the text says what and what to look at."""


class Engine:
    """A container engine by its command line."""

    unit = ""

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self.name = f"baremetal-gpu-check-{uuid.uuid4().hex[:12]}"
        self.links = [name for name in PROGRAM_DIRECTORIES if os.path.islink("/" + name)]
        self.mounts = [
            "/" + name
            for name in ("usr", *PROGRAM_DIRECTORIES)
            if os.path.isdir("/" + name) and not os.path.islink("/" + name)
        ]

    def call(self, *command: str, stdin: bytes = b"", accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        try:
            status, stdout, stderr = host_run.execute(command, self.timeout, stdin=stdin)
        except FileNotFoundError:
            raise Trouble(f"the command {command[0]} is not installed; install the engine first") from None
        except host_run.TimedOut:
            raise Trouble(f"`{' '.join(command)}` did not end within {self.timeout} s") from None
        out = host_run.text(stdout)
        if status not in accept:
            error = host_run.text(stderr).strip() or out.strip()
            raise Trouble(f"`{' '.join(command)}` ended with {status}: {error}")
        return status, out

    def tree(self) -> bytes:
        """A tar of empty directories and the host's links between them."""
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name in [*EMPTY_DIRECTORIES, *(path[1:] for path in self.mounts if path != "/usr")]:
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(entry)
            for name in self.links:
                entry = tarfile.TarInfo(name)
                entry.type, entry.linkname = tarfile.SYMTYPE, os.readlink("/" + name)
                archive.addfile(entry)
        return stream.getvalue()

    def version(self) -> str:
        raise NotImplementedError

    def start(self, memory_mib: int, cpus: float) -> None:
        raise NotImplementedError

    def inside(self, script: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        raise NotImplementedError

    def run_with(self, runtime: str) -> None:
        """Run a program with another runtime than that of other containers, after `start`."""
        raise Trouble(f"there are no further runtimes to try, and {runtime} was asked for")

    def serve_cri(self) -> None:
        """See that clients of the Container Runtime Interface are served, where the engine is there for that."""

    def remove(self) -> None:
        raise NotImplementedError

    def limits(self) -> tuple[int, float]:
        """Bytes of memory and number of processors, as the container sees them."""
        _rc, out = self.inside(READ_LIMITS)
        return read_limits(out)

    def wait(self) -> str:
        """The engine's version, once it answers."""
        end = time.monotonic() + self.timeout
        while True:
            try:
                return self.version()
            except Trouble as trouble:
                if time.monotonic() > end or "is not installed" in str(trouble):
                    raise
            time.sleep(1)


class Docker(Engine):
    unit = "docker.service"
    command = "docker"
    version_format = "{{.Server.Version}}"

    def version(self) -> str:
        return self.call(self.command, "version", "--format", self.version_format)[1].strip()

    def start(self, memory_mib: int, cpus: float) -> None:
        self.call(self.command, "import", "-", self.name, stdin=self.tree())
        mounts = [f"--volume={path}:{path}:ro" for path in self.mounts]
        limits = [f"--memory={memory_mib}m", f"--memory-swap={memory_mib}m", f"--cpus={cpus}"]
        # The first program of a container takes no notice of a request to end, and would be waited for.
        options = ["--detach", f"--name={self.name}", "--network=none", "--stop-timeout=0", *limits, *mounts]
        self.call(self.command, "run", *options, self.name, "/usr/bin/sleep", "600")

    def run_with(self, runtime: str) -> None:
        mounts = [f"--volume={path}:{path}:ro" for path in self.mounts]
        options = ["--rm", f"--name={self.name}-other", "--network=none", f"--runtime={runtime}", *mounts]
        try:
            self.call(self.command, "run", *options, self.name, "/usr/bin/true")
        except Trouble as trouble:
            self.call(self.command, "rm", "--force", f"{self.name}-other", accept=(0, 1))
            raise Trouble(f"the runtime {runtime} runs no container: {trouble}") from None

    def inside(self, script: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        return self.call(self.command, "exec", self.name, "/bin/sh", "-c", script, accept=accept)

    def remove(self) -> None:
        self.call(self.command, "rm", "--force", self.name, accept=(0, 1))
        self.call(self.command, "rmi", "--force", self.name, accept=(0, 1))


class Podman(Docker):
    unit = ""
    command = "podman"
    version_format = "{{.Client.Version}}"


class Containerd(Engine):
    """containerd by its own `ctr`: from a directory instead of an image, limits read from outside."""

    unit = "containerd.service"

    def version(self) -> str:
        out = self.call("ctr", "version")[1]
        return out.split("Server:", 1)[-1].split("Version:", 1)[-1].split("\n", 1)[0].strip()

    def start(self, memory_mib: int, cpus: float) -> None:
        self.directory = tempfile.mkdtemp(prefix="baremetal-gpu-check-")
        os.chmod(self.directory, 0o755)
        with tarfile.open(fileobj=io.BytesIO(self.tree())) as archive:
            archive.extractall(self.directory)
        mounts = [f"--mount=type=bind,src={path},dst={path},options=rbind:ro" for path in self.mounts]
        limits = [f"--memory-limit={memory_mib << 20}", f"--cpus={cpus}"]
        self.call(
            "ctr", "run", "--detach", "--rootfs", *limits, *mounts, self.directory, self.name, "/usr/bin/sleep", "600"
        )

    def run_with(self, runtime: str) -> None:
        name = f"{self.name}-other"
        mounts = [f"--mount=type=bind,src={path},dst={path},options=rbind:ro" for path in self.mounts]
        options = ["--rm", "--rootfs", f"--runc-binary={runtime}", *mounts]
        try:
            self.call("ctr", "run", *options, self.directory, name, "/usr/bin/true")
        except Trouble as trouble:
            self.call("ctr", "tasks", "delete", "--force", name, accept=(0, 1))
            self.call("ctr", "containers", "delete", name, accept=(0, 1))
            raise Trouble(f"the runtime {runtime} runs no container: {trouble}") from None

    def serve_cri(self) -> None:
        rows = [line.split() for line in self.call("ctr", "plugins", "ls")[1].splitlines()]
        plugins = [
            (row[1], row[-1])
            for row in rows
            if len(row) > 2 and row[0] in CRI_PLUGINS and (row[0] != CRI_PLUGINS[0] or row[1] == "cri")
        ]
        if not any(name == "cri" and status != "skip" for name, status in plugins):
            raise Trouble(
                "it serves no client of the Container Runtime Interface, such as a kubelet, since its plugin cri is "
                "not loaded; remove it from disabled_plugins in /etc/containerd/config.toml and in what that imports, "
                "and restart containerd, or set container_runtime_containerd_cri to false if it is not needed"
            )
        for name, status in plugins:
            if status != "ok":
                told = self.call("ctr", "plugins", "ls", "--detailed", f"id=={name}", accept=tuple(range(256)))[1]
                raise Trouble(
                    "it serves no client of the Container Runtime Interface, such as a kubelet, since its plugin "
                    f"{name} has the status {status}: {one_line(told.strip(), 1000)}"
                )
        if shutil.which("crictl"):
            self.ask_as_a_kubelet()

    def ask_as_a_kubelet(self) -> None:
        endpoint = ["--runtime-endpoint", CRI_SOCKET, "--timeout", f"{self.timeout}s"]
        out = self.call("crictl", *endpoint, "info", "--output", "json")[1]
        try:
            rows = {row["type"]: row for row in json.loads(out)["status"]["conditions"]}
            ready = rows["RuntimeReady"]
        except (ValueError, RecursionError, KeyError, TypeError):
            raise Trouble(f"`crictl info` says nothing of RuntimeReady: {one_line(out)}") from None
        if ready.get("status") is not True:
            raise Trouble(f"by its Container Runtime Interface it says that it is not ready: {one_line(ready)}")

    def inside(self, script: str, accept: tuple[int, ...] = (0,)) -> tuple[int, str]:
        job = uuid.uuid4().hex[:8]
        return self.call("ctr", "tasks", "exec", f"--exec-id={job}", self.name, "/bin/sh", "-c", script, accept=accept)

    def limits(self) -> tuple[int, float]:
        _rc, out = self.call("ctr", "tasks", "list")
        pid = next(line.split()[1] for line in out.splitlines() if line.split()[:1] == [self.name])
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as stream:
            groups = {line.split(":")[1]: line.strip().split(":", 2)[2] for line in stream}
        if set(groups) == {""}:
            script = READ_LIMITS.replace("/sys/fs/cgroup\n", f"/sys/fs/cgroup{groups['']}\n")
        else:
            cpu = next(name for name in groups if "cpu" in name.split(","))
            script = READ_LIMITS.replace("memory/", f"memory{groups['memory']}/").replace("cpu/", f"cpu{groups[cpu]}/")
        return read_limits(self.call("/bin/sh", "-c", script)[1])

    def remove(self) -> None:
        self.call("ctr", "tasks", "delete", "--force", self.name, accept=(0, 1))
        self.call("ctr", "containers", "delete", self.name, accept=(0, 1))
        for name in self.links:
            os.unlink(os.path.join(self.directory, name))
        for root, directories, _files in os.walk(self.directory, topdown=False):
            for name in directories:
                os.rmdir(os.path.join(root, name))
        os.rmdir(self.directory)


ENGINES = {"docker": Docker, "podman": Podman, "containerd": Containerd}


def read_limits(text: str) -> tuple[int, float]:
    """What READ_LIMITS prints, as bytes and processors; no limit is infinity, which JSON has not, so 0."""
    lines = text.split("\n")
    memory = lines[0].strip()
    quota, period = lines[1].split()
    return (
        int(memory) if memory.isdigit() else 0,
        0.0 if quota in ("max", "-1") else int(quota) / int(period),
    )


def read_times(text: str) -> float:
    """Seconds of CPU time in the output of the shell's `times`: minutes and seconds, user and system, two lines."""
    total = 0.0
    for word in text.split():
        minutes, seconds = word.rstrip("s").split("m")
        total += int(minutes) * 60 + float(seconds)
    return total


def compare(engine: Engine, memory_mib: int, cpus: float, when: str) -> tuple[int, float]:
    memory, processors = engine.limits()
    if memory != memory_mib << 20:
        raise Trouble(
            f"{when} the container has a memory limit of {memory} bytes instead of {memory_mib << 20}; look at the "
            f"cgroup driver of the engine and at the mounts of /sys/fs/cgroup"
        )
    if abs(processors - cpus) > 0.01:
        raise Trouble(
            f"{when} the container has a CPU limit of {processors:g} instead of {cpus:g} processors; look at the "
            f"cgroup driver of the engine and at the mounts of /sys/fs/cgroup"
        )
    return memory, processors


def check(
    engine: Engine, memory_mib: int, cpus: float, daemon_reload: bool, runtimes: Sequence[str] = (), cri: bool = True
) -> dict[str, object]:
    version = engine.wait()
    if cri:
        engine.serve_cri()
    try:
        engine.start(memory_mib, cpus)
        memory, processors = compare(engine, memory_mib, cpus, "at its start")
        if daemon_reload:
            engine.call("systemctl", "daemon-reload")
            memory, processors = compare(engine, memory_mib, cpus, "after systemctl daemon-reload")
        greedy = f"dd if=/dev/zero of=/dev/null bs={memory_mib * 2}M count=1 2>/dev/null"
        rc, _out = engine.inside(greedy, accept=tuple(range(256)))
        if rc == 0:
            raise Trouble(f"a program in the container could take {memory_mib * 2} MiB; its limit is {memory_mib} MiB")
        if rc != KILLED:
            raise Trouble(f"a program beyond the memory limit ended with {rc} instead of being killed ({KILLED})")
        began = time.monotonic()
        _rc, out = engine.inside(BURN, accept=(0, 124))
        used = read_times(out) / (time.monotonic() - began)
        if cpus < 1 and used > cpus * 1.4:
            raise Trouble(f"a program in the container used {used:.2f} processors; its limit is {cpus:g}")
        for runtime in runtimes:
            engine.run_with(runtime)
    finally:
        engine.remove()
    return {
        "version": version,
        "memory_limit_bytes": memory,
        "cpu_limit": processors,
        "cpu_used": round(used, 3),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": list(ENGINES), "default": "docker"},
            "runtimes": {"type": "list", "elements": "str", "default": []},
            "cri": {"type": "bool", "default": True},
            "memory_mib": {"type": "int", "default": 64},
            "cpus": {"type": "float", "default": 0.5},
            "daemon_reload": {"type": "bool", "default": True},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=False,
    )
    params = module.params
    engine = ENGINES[params["engine"]](params["timeout"])
    try:
        result = check(
            engine,
            params["memory_mib"],
            params["cpus"],
            params["daemon_reload"],
            params["runtimes"],
            params["cri"],
        )
    except Trouble as trouble:
        hint = f" Its log: journalctl -u {engine.unit}." if engine.unit else ""
        module.fail_json(msg=f"{params['engine']} does not run containers as it should: {trouble}.{hint}")
        return
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
