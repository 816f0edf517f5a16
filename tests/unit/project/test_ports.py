# SPDX-License-Identifier: GPL-3.0-or-later
"""The one list of ports, held against the roles and the page that is made of it."""

from __future__ import annotations

import re
from typing import Any

import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.ports import PORTS
from tests.unit.project.tree import ROOT
from tools.ports import PAGE, renewed

# Variables of ports at which no program of their role listens, with the one that does or why there is none.
OF_OTHERS = {
    "mesos_common_zookeeper_port": "zookeeper_client_port",
    "firewall_ssh_port": "sshd's, which is opened by a rule of its own",
    "accept_network_port": "in a row of the range that the kernel chooses from",
}
_PORT = re.compile(r"_(?:port|ports|listen|port_first|port_last)")


def defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted((ROOT / "roles").glob("*/defaults/main.yml")):
        found |= yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    return found


def test_the_table_of_the_page_is_the_list() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert "| port | service |" in page
    assert renewed(page) == page, "run tools/ports.py"


def test_the_list_has_the_defaults_of_the_roles() -> None:
    known = defaults()
    rows = [pair for port in PORTS for pair in (*port.ports, port.until) if pair[0]]
    assert dict(rows) == {name: known[name] for name, _default in rows}


def test_the_list_has_every_variable_of_a_port() -> None:
    names = {name for name in defaults() if re.search(f"{_PORT.pattern}$", name)}
    listed = {name for port in PORTS for name, _default in (*port.ports, port.until)}
    # What is a list of addresses has its port beside it.
    assert names - listed - set(OF_OTHERS) - {"registry_listen", "log_host_listen"} == set()


def test_each_row_has_a_number_or_says_why_not() -> None:
    for port in PORTS:
        assert port.spans({}) or port.shown, port.service
