# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of other programs, and disks that are too small."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.preflight import room


def test_a_port_of_another_program_is_named_with_it_and_a_free_one_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        row = {"port": port, "unit": "nginx.service", "setting": "registry_port"}
        (problem,) = room.taken_ports([row])
        assert problem.code == "port_taken"
        assert f"port {port} is to be that of nginx.service, and " in problem.cause
        assert "registry_port" in problem.remedy
        # Without a variable for it there is only one remedy.
        (problem,) = room.taken_ports([{**row, "setting": ""}])
        assert problem.remedy == "stop that program"
    assert room.taken_ports([row]) == []


@pytest.mark.parametrize("place", ["/opt/there", "/opt/not/there/yet"])
def test_what_does_not_fit_is_told_with_how_much_is_to_be_freed(tmp_path: Path, place: str) -> None:
    (tmp_path / "opt/there").mkdir(parents=True)
    huge = {"path": place, "mib": sys.maxsize >> 20, "what": "the portal", "unless": "/opt/done"}
    (problem,) = room.too_small([huge], str(tmp_path))
    assert (problem.code, problem.subject) == ("disk_space", place)
    assert "the portal needs" in problem.cause
    assert problem.remedy.startswith("free ")
    assert room.too_small([{**huge, "mib": 0}], str(tmp_path)) == []
    # What is there already needs no more.
    (tmp_path / "opt/done").touch()
    assert room.too_small([huge], str(tmp_path)) == []
