# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether services work; systemctl is a stand-in."""

from __future__ import annotations

import socket

from ansible_collections.baremetal.gpu.plugins.module_utils.host import services

NGINX = {"unit": "nginx.service", "port": 5000}


def systemctl(state: str) -> services.Run:
    def run(argv: list[str], stdin: str | None, timeout: float) -> tuple[int, str, str]:
        assert argv == ["systemctl", "is-active", "nginx.service"]
        return (0 if state == "active" else 3), f"{state}\n", ""

    return run


def test_a_service_works_when_its_unit_runs_and_its_port_answers() -> None:
    assert services.problems([NGINX], "reg1", systemctl("active"), lambda port: port == 5000) == []
    (problem,) = services.problems([NGINX], "reg1", systemctl("failed"), lambda port: True)
    assert (problem.code, problem.cause) == ("unit_down", "nginx.service of reg1 is failed")
    assert "journalctl -u nginx.service' on reg1" in problem.remedy
    (problem,) = services.problems([NGINX], "reg1", systemctl("active"), lambda port: False)
    assert problem.cause == "nginx.service of reg1 runs, and nothing answers at its port 5000"
    # One without a port is only looked at.
    assert services.problems([{"unit": "nginx.service", "port": None}], "reg1", systemctl("active")) == []


def test_a_port_answers_where_a_connection_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert services.answers(port)
    assert not services.answers(port)
