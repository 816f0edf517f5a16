# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ports of a host are open, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import firewall
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ports import EVERYBODY, SITE

PARAMS = {"state": "present", "networks": [], "also": [], "ssh_from": [], "ssh_port": 22, "confirm_seconds": 60}
ADDRESSES = {"head1": "10.0.0.1", "gpu1": "10.0.0.2", "gpu2": "fd00::2"}


def peers(*groups: str, **variables: Any) -> dict[str, Any]:
    listed = {name: ["head1"] for name in groups}
    return {"host": "head1", "groups": listed, "variables": variables, "addresses": ADDRESSES}


def plan(*groups: str, **params: Any) -> Plan:
    return firewall.desired({**PARAMS, **params}, {}, peers(*groups))


def opened(*groups: str, **variables: Any) -> firewall.Opened:
    return firewall.opened(PARAMS, peers(*groups, **variables))


def test_only_the_ports_of_the_groups_of_the_host_are_open() -> None:
    assert opened() == {}
    assert opened("portals") == {
        ("tcp", EVERYBODY): [(443, 443), (2222, 2222)],
        ("tcp", SITE): [(8081, 8081), (20000, 29999)],
    }


def test_the_numbers_are_those_of_the_inventory() -> None:
    found = opened("registries", registry_port=5443, registry_caches=[{"name": "hub", "port": "5010"}])
    assert found == {("tcp", EVERYBODY): [(5443, 5443), (5010, 5010)]}
    assert opened("node_exporters", node_exporter_listen="10.0.0.1:9200") == {("tcp", SITE): [(9200, 9200)]}
    assert opened("gpu_nodes") == {}
    assert opened("gpu_nodes", gpu_agent_metrics_port=9101) == {("tcp", SITE): [(9101, 9101)]}


def test_what_listens_on_loopback_is_opened_where_it_has_another_address() -> None:
    assert opened("slurm_rests") == {}
    assert opened("slurm_rests", slurm_rest_listen="[::1]:6820") == {}
    assert opened("slurm_rests", slurm_rest_listen="10.0.0.1:6820") == {("tcp", SITE): [(6820, 6820)]}


def test_the_rules_name_the_hosts_of_the_site_and_ranges_that_do_not_overlap() -> None:
    text = plan("slurm_nodes", "portals", networks=["10.1.0.0/16", "10.1.2.3"]).parts["rules"]
    assert "elements = { 10.0.0.1/32, 10.0.0.2/32, 10.1.0.0/16, 10.1.2.3/32 }" in text
    assert "elements = { fd00::2/128 }" in text
    assert "ip saddr @site4 tcp dport { 1024-65535 } accept" in text
    assert "        tcp dport { 22 } accept" in text
    assert "        tcp dport { 443, 2222 } accept" in text


def test_the_site_adds_ports_and_says_from_where_ssh_comes() -> None:
    also = [
        {"port": 8443, "from": "everybody"},
        {"port": "53", "protocol": "udp", "from": "192.0.2.0/24"},
        {"port": 80},
    ]
    text = plan(also=also, ssh_from=["192.0.2.7", "2001:db8::/32"], ssh_port=2022).parts["rules"]
    assert "        tcp dport { 8443 } accept" in text
    assert "        ip saddr 192.0.2.0/24 udp dport { 53 } accept" in text
    assert "        ip6 saddr @site6 tcp dport { 80 } accept" in text
    assert "        ip saddr 192.0.2.7/32 tcp dport { 2022 } accept" in text
    assert "        ip6 saddr 2001:db8::/32 tcp dport { 2022 } accept" in text
    assert "dport { 22 }" not in text


def test_without_the_role_nothing_stays() -> None:
    gone = plan(state="absent")
    assert gone.parts["rules"] == ""
    assert [row["state"] for row in gone.desired["files"]] == ["absent"]


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"networks": ["10.0.0.0/99"]}, "firewall_networks"),
        ({"ssh_from": ["0.0.0.0/0 accept; }"]}, "firewall_ssh_from"),
        ({"also": [{"port": "80 } accept"}]}, "firewall_also"),
        ({"also": [{"port": 80, "from": "nobody"}]}, "firewall_also"),
        ({"also": [{"port": 80, "protocol": "sctp"}]}, "firewall_also"),
        ({"also": [{"ports": 80}]}, "firewall_also"),
        ({"also": [{"port": 70000}]}, "firewall_also"),
        ({"ssh_port": 0}, "firewall_ssh_port"),
        ({"confirm_seconds": 5}, "firewall_confirm_seconds"),
    ],
)
def test_what_cannot_be_is_told_with_its_variable(params: dict[str, Any], told: str) -> None:
    found = plan("portals", **params)
    assert {problem.subject for problem in found.problems} == {told}
    assert not found.desired


def test_a_host_without_an_address_is_refused_unless_networks_are_given() -> None:
    given = {**peers(), "addresses": {**ADDRESSES, "gpu3": "gpu3.example.org", "gpu4": ""}}
    (problem,) = firewall.desired(PARAMS, {}, given).problems
    assert problem.evidence == "gpu3 (gpu3.example.org), gpu4 ()"
    assert not firewall.desired({**PARAMS, "networks": ["10.0.0.0/8"]}, {}, given).problems
