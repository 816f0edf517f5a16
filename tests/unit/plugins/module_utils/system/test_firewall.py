# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on trial: with a host that is told what to answer, and with nft itself in a network of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.system import firewall
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import firewall as plans
from tests.unit.project.tree import ROOT

OLD, NEW = "table inet baremetal_gpu {\n}\n", "table inet baremetal_gpu {\n    # new\n}\n"
TIMER = f"{firewall.ROLLBACK}.timer"


class Host:
    """nft and systemd of a host. `force` are the rules that hold; the timer loads a file when it fires."""

    def __init__(self) -> None:
        self.force, self.timer, self.wrong = "", "", ""

    def run(self, argv: list[str], _stdin: str | None, _timeout: float) -> tuple[int, str, str]:
        if argv[:2] == ["nft", "--check"]:
            return (1, "", self.wrong) if self.wrong else (0, "", "")
        if argv[:2] == ["nft", "--file"]:
            self.force = Path(argv[2]).read_text().removeprefix(firewall.NO_TABLE)
        elif argv[:3] == ["nft", "list", "table"]:
            return (0, self.force, "") if self.force else (1, "", "no such table")
        elif argv[:3] == ["nft", "list", "chain"]:
            return (0 if f"chain {argv[-1]} " in self.force else 1), "", ""
        elif argv[0] == "systemd-run":
            self.timer = argv[-1]
        elif argv[:2] == ["systemctl", "is-active"]:
            return (0 if self.timer else 3), "", ""
        elif argv[:2] == ["systemctl", "stop"]:
            self.timer = ""
        elif argv == ["nft", firewall.NO_TABLE]:
            self.force = ""
        return 0, "", ""

    def fire(self) -> None:
        self.run(["nft", "--file", self.timer], None, 1)
        self.timer = ""


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def rules(host: Host, tmp_path: Path) -> firewall.Firewall:
    return firewall.Firewall(str(tmp_path / "firewall.nft"), host.run)


def test_rules_that_are_confirmed_hold_and_are_loaded_at_boot(
    host: Host, rules: firewall.Firewall, tmp_path: Path
) -> None:
    rules.apply(OLD, 60)
    assert not rules.holds(OLD)
    assert not (tmp_path / "firewall.nft").exists()
    rules.confirm(OLD)
    assert rules.holds(OLD)
    assert (host.timer, [path.name for path in tmp_path.iterdir()]) == ("", ["firewall.nft"])
    # Somebody has flushed them.
    host.force = ""
    assert not rules.holds(OLD)


def test_rules_that_nobody_confirms_go_and_the_former_ones_are_back(host: Host, rules: firewall.Firewall) -> None:
    rules.apply(OLD, 60)
    rules.confirm(OLD)
    rules.apply(NEW, 60)
    assert "# new" in host.force
    host.fire()
    assert rules.holds(OLD)
    with pytest.raises(Refused, match="the former ones are back"):
        rules.confirm(NEW)
    assert rules.holds(OLD)


def test_a_run_that_was_cut_does_not_make_its_rules_the_former_ones(host: Host, rules: firewall.Firewall) -> None:
    rules.apply(OLD, 60)
    rules.apply(NEW, 60)
    host.fire()
    assert host.force == ""


def test_rules_that_nft_does_not_take_change_nothing(host: Host, rules: firewall.Firewall) -> None:
    rules.apply(OLD, 60)
    rules.confirm(OLD)
    host.wrong = "syntax error"
    with pytest.raises(Refused, match="syntax error"):
        rules.apply(NEW, 60)
    assert rules.holds(OLD)
    assert not host.timer


def test_what_is_removed_is_gone_with_its_trial(host: Host, rules: firewall.Firewall, tmp_path: Path) -> None:
    assert not rules.remove()
    rules.apply(OLD, 60)
    rules.confirm(OLD)
    rules.apply(NEW, 60)
    assert rules.remove()
    assert (host.force, host.timer, list(tmp_path.iterdir())) == ("", "", [])


# In a network namespace of its own: 10.9.0.1 is the host, 10.9.0.2 one of the site, and 10.9.0.3 a stranger.
TRIAL = """
import os, socket, subprocess, sys, time

def call(*words):
    subprocess.run(words, check=True)

rules = sys.argv[1]
other = subprocess.Popen(["unshare", "--net", "sleep", "60"])
mine = os.readlink("/proc/self/ns/net")
while os.readlink(f"/proc/{other.pid}/ns/net") == mine:
    time.sleep(0.01)
there = ["nsenter", f"--net=/proc/{other.pid}/ns/net"]
call("ip", "link", "set", "lo", "up")
call("ip", "link", "add", "near", "type", "veth", "peer", "name", "far")
call("ip", "link", "set", "far", "netns", str(other.pid))
call("ip", "address", "add", "10.9.0.1/24", "dev", "near")
call("ip", "link", "set", "near", "up")
for address in ("10.9.0.2", "10.9.0.3"):
    call(*there, "ip", "address", "add", f"{address}/24", "dev", "far")
call(*there, "ip", "link", "set", "far", "up")
call("nft", "table inet others { chain kept { }; }")
listening = [socket.create_server(("", port)) for port in (22, 443, 6817, 9999)]
CLIENT = '''
import socket, sys
for source in ("10.9.0.2", "10.9.0.3"):
    for port in (22, 443, 6817, 9999):
        try:
            socket.create_connection(("10.9.0.1", port), 1, (source, 0)).close()
            print(source, port)
        except OSError:
            pass
'''
OPEN = '''
import socket, sys
one = socket.create_connection(("10.9.0.1", 9999), 5, ("10.9.0.3", 0))
print("open", flush=True)
sys.stdin.readline()
one.sendall(b"still")
one.close()
'''
before = subprocess.Popen([*there, sys.executable, "-c", OPEN], stdin=-1, stdout=-1, text=True)
before.stdout.readline()
call("nft", "--file", rules)
call("nft", "--file", rules)
before.stdin.write("go\\n")
before.stdin.flush()
taken, _from = listening[-1].accept()
taken.settimeout(5)
print(taken.recv(5).decode())
sys.stdout.write(subprocess.run([*there, sys.executable, "-c", CLIENT], stdout=-1, text=True).stdout)
print(socket.create_connection(("127.0.0.1", 9999), 1) and "loopback")
print(subprocess.run(["nft", "list", "tables"], stdout=-1, text=True).stdout)
call("nft", sys.argv[2])
print("removed", subprocess.run(["nft", "list", "tables"], stdout=-1, text=True).stdout)
other.kill()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a network of its own")
@pytest.mark.skipif(not shutil.which("nft") or not shutil.which("nsenter"), reason="nft or nsenter is not installed")
def test_the_kernel_lets_in_who_has_to_come_in_and_nobody_else(tmp_path: Path) -> None:
    params = {"networks": [], "also": [], "ssh_from": [], "ssh_port": 22}
    groups = {"slurm_controllers": ["head1"], "portals": ["head1"]}
    addresses = {"head1": "10.9.0.1", "gpu1": "10.9.0.2"}
    peers = {"host": "head1", "groups": groups, "variables": {}, "addresses": addresses}
    path = tmp_path / "rules.nft"
    path.write_text(firewall.stamped(plans.rules(params, peers)))
    (tmp_path / "trial.py").write_text(TRIAL)
    done = subprocess.run(
        ["unshare", "--net", sys.executable, str(tmp_path / "trial.py"), str(path), firewall.NO_TABLE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout.split("\n")
    # A connection that was open before, whoever has it.
    assert told[0] == "still"
    site = [f"10.9.0.2 {port}" for port in (22, 443, 6817)]
    stranger = [f"10.9.0.3 {port}" for port in (22, 443)]
    assert told[1:6] == [*site, *stranger]
    assert told[6] == "loopback"
    assert {"table inet others", "table inet baremetal_gpu"} <= set(told)
    assert done.stdout.endswith("removed table inet others\n\n")
