# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nftables on a machine of the lab: what is open, and that a mistake shuts nobody out."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ports import CHOSEN, PORTS
from tests.site.plays import INVENTORY, Play, lab, run_playbook, ssh, until

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MACHINE = "gpu2"
# Above 1023 a host of the site is let in everywhere: jobs listen at ports that the kernel chooses.
OPEN, CLOSED = 9100, 899
LISTEN = "sudo systemd-run --collect --unit=lab-port-{0} python3 -m http.server {0}"


def run(base: Path, options: str = "", **variables: Any) -> Play:
    groups = {name: {"hosts": {MACHINE: {}}} for name in ("firewalled", "node_exporters")}
    (base / "firewalled.yml").write_text(json.dumps(groups))
    inventories = f"-i {INVENTORY} -i {base / 'firewalled.yml'}"
    return run_playbook("firewall.yml", limit=MACHINE, extra_vars=variables, options=f"{inventories} {options}")


def answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 3).close()
    except OSError:
        return False
    return True


def test_only_what_the_host_needs_is_open_and_nobody_is_shut_out(tmp_path: Path) -> None:
    address = ssh(MACHINE, "hostname -I").split()[0]
    for port in (OPEN, CLOSED):
        ssh(MACHINE, LISTEN.format(port))
        until(lambda port=port: answers(address, port), 60, lambda: "nobody listens")
    ssh(MACHINE, "sudo apt-get update >/dev/null && sudo apt-get install -y nftables >/dev/null")
    ssh(MACHINE, "sudo nft add table inet others")
    before = lab("changes", MACHINE)
    assert run(tmp_path, "--check --diff").changed(MACHINE)
    assert lab("changes", MACHINE) == before

    # This machine is where Ansible runs, and a host of the site for the moment.
    mine = ssh(MACHINE, "echo $SSH_CLIENT").split()[0]
    play = run(tmp_path, firewall_networks=[mine])
    assert play.rc == 0, play.tail()
    assert (answers(address, OPEN), answers(address, CLOSED)) == (True, False)
    again = run(tmp_path, firewall_networks=[mine])
    assert (again.rc, again.changed(MACHINE)) == (0, 0), again.tail()

    # A mistake: SSH is let in from nowhere. The new connection is not made, and the former rules come back.
    held = ssh(MACHINE, "sudo nft list table inet baremetal_gpu")
    shut = run(tmp_path, firewall_networks=[mine], firewall_ssh_from=["192.0.2.1"], firewall_confirm_seconds=15)
    assert shut.rc != 0
    until(lambda: answers(address, 22), 60, lambda: "SSH stays closed")
    assert ssh(MACHINE, "sudo nft list table inet baremetal_gpu") == held
    ssh(MACHINE, "sudo systemctl restart baremetal-gpu-firewall.service")
    assert ssh(MACHINE, "sudo nft list table inet baremetal_gpu") == held

    gone = run(tmp_path, firewall_state="absent")
    assert gone.rc == 0, gone.tail()
    assert answers(address, CLOSED)
    assert ssh(MACHINE, "sudo nft list tables").split() == ["table", "inet", "others"]
    for port in (OPEN, CLOSED):
        ssh(MACHINE, f"sudo systemctl stop lab-port-{port}")


def test_what_listens_in_the_lab_is_in_the_list() -> None:
    """Whatever runs there at the moment: sockets of TCP that others than the machine itself can reach."""
    spans = {span for port in PORTS for span in port.spans({})} - {CHOSEN}
    unknown = []
    for machine in ("gpu1", "gpu2", "cpu1"):
        for line in ssh(machine, "sudo ss --no-header --tcp --listening --numeric --processes").splitlines():
            address, _colon, port = line.split()[3].rpartition(":")
            if address.strip("[]") not in ("127.0.0.1", "::1", "[::1]", "127.0.0.54", "127.0.0.53%lo"):
                unknown += [] if any(first <= int(port) <= last for first, last in spans) else [f"{machine}: {line}"]
    assert not unknown
