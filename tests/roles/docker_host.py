# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tests of Docker's host ask for, and how it is found."""

from __future__ import annotations

import json
from typing import Any

from tests.roles.conftest import ssh

DAEMON_JSON = "/etc/docker/daemon.json"
# What an operator had there before, in their own order and layout.
OPERATORS = {"labels": ["site=a"], "default-ulimits": {"nofile": {"Name": "nofile", "Hard": 4096, "Soft": 1024}}}
WANTED: dict[str, Any] = {
    "container_runtime_validate": "never",
    "container_runtime_nvidia": "none",
    "container_runtime_docker_live_restore": True,
    "container_runtime_docker_log_driver": "json-file",
    "container_runtime_docker_log_options": {"max-size": "50m"},
    "container_runtime_docker_config": {"labels": ["role=gpu"]},
}


def daemon_json(machine: str) -> dict[str, Any]:
    return json.loads(ssh(machine, f"cat {DAEMON_JSON}"))


def write(machine: str, path: str, text: str, mode: str = "0644") -> None:
    ssh(
        machine,
        f"sudo mkdir -p $(dirname {path}); sudo tee {path} >/dev/null <<'END'\n{text}\nEND\nsudo chmod {mode} {path}",
    )


def started(machine: str) -> str:
    """PID and start of the running dockerd."""
    return ssh(machine, "systemctl show docker.service -p MainPID -p ExecMainStartTimestampMonotonic --value")
