# Copyright (c) 2026 baremetal.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in for Marathon as a process on loopback, for the tests that talk to it over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from tests.unit.simulators.mesos_cluster import Program, free_port, until

APP: dict[str, Any] = {"id": "/jobs/smoke", "cmd": "nvidia-smi -L", "cpus": 1, "mem": 256}


class Site:
    """One Marathon. `ask` gives (status, JSON or text)."""

    def __init__(self, *flags: str, features: str = "gpu_resources", env: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        known = ["--master", "zk://127.0.0.1:2181/mesos", f"--http_port={self.port}", f"--enable_features={features}"]
        self.program = Program("marathon", [*known, *flags], {"STAND_IN_ALONE": "1", **(env or {})})
        until(lambda: self.ask("GET", "/ping")[0])

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"} if data is not None else {}
        asked = urllib.request.Request(self.url + path, data, {**kind, **(headers or {})}, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=10) as reply:
                status, text = reply.status, reply.read().decode()
        except urllib.error.HTTPError as told:
            status, text = told.code, told.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    def app(self, app_id: str = APP["id"]) -> Any:
        status, told = self.ask("GET", f"/v2/apps{app_id}")
        return told["app"] if status == 200 else None

    def settle(self) -> None:
        """Asks until no deployment is left."""
        until(lambda: self.ask("GET", "/v2/deployments")[1] == [])

    def next(self, *deployments: dict[str, Any]) -> None:
        self.ask("POST", "/stand-in/next", list(deployments))

    def changes(self) -> list[str]:
        """The calls so far that were no GET."""
        return list(self.ask("GET", "/stand-in/log")[1])

    def stop(self) -> None:
        self.program.stop()
