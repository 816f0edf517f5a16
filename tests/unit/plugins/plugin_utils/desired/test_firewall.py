# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules of nftables from the inventory: who is let in, and that a kernel takes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired
from ansible_collections.baremetal.gpu.plugins.plugin_utils import ports
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import firewall
from tests.unit.project.tree import ROOT, load_yaml

PARAMS: dict[str, Any] = {
    "state": "present",
    "site_networks": [],
    "public_networks": [],
    "open_ports": [],
    "ssh_port": 22,
}
HOSTS = [["head1", "", "10.0.0.1"], ["gpu1", "10.1.0.11", "192.0.2.11"], ["gpu2", "", "fd00::12"]]
PEERS: dict[str, Any] = {"groups": ["gpu_cluster"], "hosts": HOSTS, "ports": {}, "ansible_port": "22"}


def plan(params: Any = (), peers: Any = ()) -> dict[str, Any]:
    return desired({**PARAMS, **dict(params)}, "firewall", {}, {**PEERS, **dict(peers)})


def rules(params: Any = (), peers: Any = ()) -> str:
    made = plan(params, peers)
    assert made["problems"] == []
    (text,) = [row["content"] for row in made["desired"]["files"] if row["path"] == firewall.RULES]
    return str(text)


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_the_sites_hosts_are_let_in_by_their_addresses() -> None:
    text = lines(rules({"site_networks": ["172.17.0.0/16"]}))
    assert "elements = { 10.0.0.1, 10.1.0.11, 172.17.0.0/16 }" in text
    assert "elements = { fd00::12 }" in text
    assert "type filter hook input priority filter; policy drop;" in text


def test_users_reach_what_is_for_them_on_the_hosts_that_have_it() -> None:
    assert not any("services for users" in line for line in lines(rules()))
    both = {"groups": ["portals", "registries"], "ports": {"portal_port": 8443, "registry_port": ""}}
    assert 'tcp dport { 2222, 5000, 8443 } accept comment "services for users"' in lines(rules((), both))
    only = rules({"public_networks": ["10.20.0.0/16", "fd01::/64"], "open_ports": [8888]})
    assert 'ip saddr { 10.20.0.0/16 } tcp dport { 8888 } accept comment "services for users"' in lines(only)
    assert 'ip6 saddr { fd01::/64 } tcp dport { 8888 } accept comment "services for users"' in lines(only)


def test_nobody_is_locked_out() -> None:
    """Wherever sshd is said to be, and where Ansible comes in."""
    text = lines(rules({"ssh_port": 2022}, {"ansible_port": "20022"}))
    assert 'tcp dport { 22, 2022, 20022 } accept comment "SSH"' in text
    assert text.index("ct state established,related accept") < text.index('counter comment "dropped"')


def test_the_ports_are_those_of_the_roles() -> None:
    for variable, (default, groups) in ports.public().items():
        role = variable.partition("_")[0]
        assert load_yaml(f"roles/{role}/defaults/main.yml")[variable] == default
        assert groups
    known = (ROOT / "roles/firewall/vars/main.yml").read_text()
    assert all(f"    {variable}: " in known for variable in ports.public())


@pytest.mark.parametrize(
    ("params", "peers", "code"),
    [
        ({}, {"hosts": [["head1", "", "head1.example.org"]]}, "no_address"),
        ({}, {"hosts": [["head1", "", ""]]}, "no_address"),
        ({"site_networks": ["10.0.0.1/24"]}, {}, "wrong_setting"),
        ({"public_networks": ["0.0.0.0/0; }"]}, {}, "wrong_setting"),
        ({"open_ports": [0]}, {}, "wrong_setting"),
        ({"open_ports": ["22 } drop"]}, {}, "wrong_setting"),
        ({"ssh_port": 65536}, {}, "wrong_setting"),
    ],
)
def test_what_cannot_be_is_refused(params: Any, peers: Any, code: str) -> None:
    made = plan(params, peers)
    assert [problem["code"] for problem in made["problems"]] == [code]
    assert made["desired"] == {}


def test_rules_that_are_not_wanted_go() -> None:
    document = plan({"state": "absent"})["desired"]
    assert document["units"] == [{"name": firewall.UNIT, "enabled": False, "state": "stopped"}]
    assert {row["state"] for row in document["files"]} == {"absent"}


@pytest.mark.parametrize(
    "params", [{}, {"public_networks": ["10.20.0.0/16", "fd01::/64"], "site_networks": ["10.0.0.0/8", "10.1.0.0/16"]}]
)
def test_a_kernel_takes_the_rules_and_lets_in_the_site_alone(tmp_path: Path, params: Any) -> None:
    program, unshare = shutil.which("nft", path="/usr/sbin:/usr/bin"), shutil.which("unshare")
    if not program or not unshare or os.geteuid() != 0:
        pytest.skip("there is no nft on this machine, or no root to make a network for it")
    file = tmp_path / "rules.nft"
    file.write_text(rules(params, {"groups": ["portals"]}))
    # Twice, as at a reload.
    script = f"{program} -f {file} && {program} -f {file} && {program} list ruleset"
    done = subprocess.run([unshare, "--net", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("table inet baremetal_gpu") == 1
    assert "policy drop" in done.stdout
    assert "tcp dport { 443, 2222 }" in done.stdout
