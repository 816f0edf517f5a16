# SPDX-License-Identifier: GPL-3.0-or-later
"""The role mesos_master in check mode on this machine, with TLS: what it would write, and that no key is shown."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.project.tree import ROOT

pytestmark = pytest.mark.slow

PLAY = """
- name: Check the masters and make what is missing on the controller
  hosts: mesos_masters
  gather_facts: false
  tasks:
    - name: Check the masters
      ansible.builtin.include_role: {name: baremetal.gpu.mesos_master, tasks_from: preflight}
    - name: Check them again, now that all is there
      ansible.builtin.include_role: {name: baremetal.gpu.mesos_master}
      when: ansible_check_mode
"""


def own_address() -> str:
    """An address of this machine by which others reach it; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("192.0.2.1", 9))
        except OSError as why:
            pytest.skip(f"this machine has no address but 127.0.0.1: {why}")
        return str(one.getsockname()[0])


class Controller:
    def __init__(self, base: Path) -> None:
        self.base = base
        host = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_host": own_address(),
            "mesos_common_zookeeper": [f"{own_address()}:2181"],
            "mesos_common_path": str(base / "mesos.tar.gz"),
            "mesos_common_sha256": "ab" * 32,
            # A port that nobody has.
            "mesos_master_port": 45150,
        }
        (base / "inventory.json").write_text(json.dumps({"mesos_masters": {"hosts": {"m1": host}}}))
        (base / "play.yml").write_text(PLAY)

    def run(self, *options: str, **variables: Any) -> str:
        """What it says. Nothing but what is the controller's is changed."""
        command = [Path(sys.executable).with_name("ansible-playbook"), "-i", self.base / "inventory.json"]
        more = ["-e", json.dumps(variables), *options, self.base / "play.yml"]
        env = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
        done = subprocess.run([*command, *more], cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout


def test_keys_are_brought_and_never_shown(tmp_path: Path) -> None:
    controller = Controller(tmp_path)
    first = controller.run("--diff", mesos_common_tls="downgrade")
    keys = sorted((tmp_path / ".secrets/mesos-tls").glob("*-key.pem"))
    assert [key.name for key in keys] == ["ca-key.pem", "m1-key.pem"]
    told = controller.run("--check", "--diff", "-vv", mesos_common_tls="required")
    for line in (
        "+LIBPROCESS_SSL_SUPPORT_DOWNGRADE=false",
        "+LIBPROCESS_SSL_KEY_FILE=/etc/baremetal-gpu/mesos/tls-master/key.pem",
        "write /etc/baremetal-gpu/mesos/tls-master/key.pem (is missing)",
    ):
        assert line in told
    assert "m1-executor" not in told
    for text in (first, told):
        assert "PRIVATE KEY" not in text
        for key in keys:
            assert not [line for line in key.read_text().splitlines() if line in text and not line.startswith("-")]
    assert "SSL" not in controller.run("--check", "--diff")
