# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the command `docker`: it starts nothing, and keeps what it was told in memory.

It is strict: an option that it does not know, a mount of nothing, an image, a GPU or a container that is not there are
refused as Docker 26 refuses them. What it tells has Docker's words and more than its readers want.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

FLAGS = ("detach", "init")
ONCE = ("pull", "restart", "network", "name", "cpus", "memory", "memory-swap", "shm-size", "pids-limit", "log-driver")
ONCE = (*ONCE, "workdir", "entrypoint", "user")
OFTEN = ("security-opt", "cap-drop", "label", "env", "mount", "device", "group-add", "add-host")


class Wrong(Exception):
    """How the command ends: its exit status, and what it says."""


class Words(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Wrong(125, f"docker: {message}")


def _wants() -> Words:
    words = Words(add_help=False, allow_abbrev=False)
    for name in FLAGS:
        words.add_argument(f"--{name}", action="store_true")
    for name in ONCE:
        words.add_argument(f"--{name}")
    for name in OFTEN:
        words.add_argument(f"--{name}", action="append", default=[])
    words.add_argument("image")
    words.add_argument("words", nargs=argparse.REMAINDER)
    return words


def _mib(given: str) -> int:
    found = re.fullmatch("([0-9]+)m", given)
    if not found:
        raise Wrong(125, f"docker: invalid size: {given!r}")
    return int(found[1]) << 20


class StandInDocker:
    """As a `Run`, for argument vectors that begin with the path of `docker`.

    :ivar images: those that are there; `registry` has those that can be fetched.
    :ivar containers: by name, as `docker inspect` tells them.
    :ivar calls: all argument vectors.
    :ivar fails: what the start of a container fails with.
    """

    def __init__(self, registry: Sequence[str] = (), devices: Sequence[str] = ("0", "1")) -> None:
        self.registry, self.devices = list(registry), list(devices)
        self.images: list[str] = []
        self.containers: dict[str, dict[str, Any]] = {}
        self.calls: list[list[str]] = []
        self.fails = ""
        self._numbers = itertools.count(1)

    def __call__(self, argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        assert argv[0] == "/usr/bin/docker"
        assert timeout > 0
        self.calls.append(argv)
        try:
            return 0, self._do(argv[1:]), ""
        except Wrong as why:
            return why.args[0], why.args[2] if len(why.args) > 2 else "", why.args[1]

    def done(self, what: str) -> list[list[str]]:
        return [argv for argv in self.calls if argv[1] == what]

    def ends(self, name: str, status: int, out_of_memory: bool = False) -> None:
        """What becomes of a container."""
        state = {"Status": "exited", "Running": False, "OOMKilled": out_of_memory, "ExitCode": status}
        self.containers[name]["State"].update(state)

    def _do(self, words: list[str]) -> str:
        if words[:1] == ["run"]:
            return self._start(words[1:])
        if words[:4] == ["ps", "--all", "--no-trunc", "--quiet"] and len(words) == 5:
            label = words[4].removeprefix("--filter=label=")
            rows = self.containers.values()
            return "".join(f"{row['Id']}\n" for row in rows if label in (row["Config"]["Labels"] or {}))
        if words[:3] == ["inspect", "--type=container", "--format={{json .}}"]:
            return self._inspect(words[3:])
        if words[:3] == ["image", "inspect", "--format={{.Id}}"] and len(words) == 4:
            if words[3] not in self.images:
                raise Wrong(1, f"Error response from daemon: No such image: {words[3]}")
            return "sha256:0\n"
        if words[:2] == ["pull", "--quiet"] and len(words) == 3:
            if words[2] not in self.registry:
                raise Wrong(1, "Error response from daemon: manifest unknown")
            self.images.append(words[2])
            return f"{words[2]}\n"
        if words[:2] == ["stop", "-t"] and len(words) == 4:
            if self._known(words[3])["State"]["Status"] == "running":
                self.ends(words[3], 143)
            return f"{words[3]}\n"
        if words[:2] == ["rm", "--force"]:
            names = [word for word in words[2:] if word != "--volumes"]
            for name in names:
                self._known(name)
                del self.containers[name]
            return "".join(f"{name}\n" for name in names)
        raise Wrong(125, f"docker: unknown: {words}")

    def _known(self, name: str) -> dict[str, Any]:
        if name not in self.containers:
            raise Wrong(1, f"Error response from daemon: No such container: {name}")
        return self.containers[name]

    def _inspect(self, ids: Sequence[str]) -> str:
        known = {row["Id"]: row for row in self.containers.values()}
        out = "".join(f"{json.dumps(known[one])}\n" for one in ids if one in known)
        missing = [one for one in ids if one not in known]
        if missing:
            raise Wrong(1, f"Error: No such container: {missing[0]}", out)
        return out

    def _start(self, words: list[str]) -> str:
        wanted = vars(_wants().parse_args(words))
        if wanted["image"] not in self.images:
            raise Wrong(125, f"docker: Error response from daemon: No such image: {wanted['image']}")
        if wanted["name"] in self.containers:
            raise Wrong(125, f"docker: Error response from daemon: Conflict. The name {wanted['name']} is in use")
        for mount in wanted["mount"]:
            given = dict(one.partition("=")[::2] for one in mount.split(","))
            if set(given) - {"type", "source", "target", "readonly"} or given.get("type") != "bind":
                raise Wrong(125, f"docker: invalid argument {mount!r}")
            if not os.path.exists(given["source"]):
                raise Wrong(125, f"docker: bind source path does not exist: {given['source']}")
        number = next(self._numbers)
        row: dict[str, Any] = {
            "Id": f"{number:064x}",
            "Name": f"/{wanted['name']}",
            "Created": "2026-01-01T09:59:59.000000001Z",
            "Config": {
                "Labels": dict(one.partition("=")[::2] for one in wanted["label"]),
                "Env": wanted["env"],
                "User": wanted["user"],
            },
            "State": {
                "Status": "created",
                "Running": False,
                "OOMKilled": False,
                "ExitCode": 0,
                "Error": "",
                "StartedAt": "0001-01-01T00:00:00Z",
                "FinishedAt": "0001-01-01T00:00:00Z",
            },
            "HostConfig": {"NanoCpus": int(float(wanted["cpus"]) * 10**9), "Memory": _mib(wanted["memory"])},
            "NetworkSettings": {"Networks": {wanted["network"]: {"IPAddress": "", "Gateway": ""}}},
            "Asked": wanted,
        }
        self.containers[wanted["name"]] = row
        for device in wanted["device"]:
            if device.removeprefix("nvidia.com/gpu=") not in self.devices:
                raise Wrong(125, f"docker: Error response from daemon: unresolvable CDI devices {device}")
        if self.fails:
            raise Wrong(127, f"docker: Error response from daemon: {self.fails}")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.123456789Z")
        row["State"].update(Status="running", Running=True, StartedAt=now)
        row["NetworkSettings"]["Networks"][wanted["network"]]["IPAddress"] = f"172.17.0.{number + 1}"
        return f"{row['Id']}\n"
