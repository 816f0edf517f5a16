# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may open a connection to a host: the site's hosts, and users where a service is for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_network
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils import ports
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Document, Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import ROOT_OWNS, unit_path, wrong

ROLE = "firewall"
RULES = "/etc/baremetal-gpu/firewall.nft"
UNIT = "baremetal-gpu-firewall.service"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables without their prefix.
    :param peers: ``groups``, those of this host; ``hosts``, of each host of the site the name and the addresses that
        the inventory has of it, the firewall's own first; ``ports``, the values of the variables that have the ports
        of services for users, by their names, empty for the default; ``ansible_port``, where Ansible comes in.
    """
    if params["state"] == "absent":
        units = [{"name": UNIT, "enabled": False, "state": "stopped"}]
        return Plan({"units": units, "files": [{"path": path, "state": "absent"} for path in (unit_path(UNIT), RULES)]})
    problems = tuple(_problems(params, peers))
    if problems:
        return Plan(problems=problems)
    site = [_address(row) for row in peers["hosts"]] + [str(ip_network(one)) for one in params["site_networks"]]
    public = [ip_network(one) for one in params["public_networks"]]
    text = render(
        ROLE,
        "firewall.nft.j2",
        # The set of a family; nft refuses an address twice.
        site4=sorted({one for one in site if ":" not in one}),
        site6=sorted({one for one in site if ":" in one}),
        public4=[str(one) for one in public if one.version == 4],
        public6=[str(one) for one in public if one.version == 6],
        ssh=sorted({ports.SSH, int(params["ssh_port"]), int(peers["ansible_port"])}),
        users=_users(params, peers),
    )
    written = {"mode": "0644", **ROOT_OWNS}
    document: Document = {
        "packages": [{"name": "nftables"}],
        "files": [
            {"path": "/etc/baremetal-gpu", "state": "directory", "mode": "0755", **ROOT_OWNS},
            {"path": RULES, "content": text, "validate": "/usr/sbin/nft --check --file %s", **written},
            {"path": unit_path(UNIT), "content": render(ROLE, f"{UNIT}.j2", rules=RULES), **written},
        ],
        "units": [{"name": UNIT, "enabled": True, "state": "started", "reload_on": [RULES]}],
    }
    return Plan(document)


def _users(params: Mapping[str, Any], peers: Mapping[str, Any]) -> list[int]:
    """The ports of this host that are for users."""
    own = set(peers["groups"])
    found = {
        int(peers["ports"].get(variable) or default)
        for variable, (default, groups) in ports.public().items()
        if own & set(groups)
    }
    return sorted(found | {int(port) for port in params["open_ports"]})


def _address(row: Any) -> str:
    return str(row[1] or row[2] or row[0])


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    for row in peers["hosts"]:
        if not _is_network(_address(row)):
            cause = f"{row[0]} of this site has no address in the inventory, so the others would not let it in"
            remedy = f"give {row[0]} an ansible_host or firewall_address that is an IP address"
            yield Problem("no_address", str(row[0]), cause, _address(row), remedy)
    for name in ("site_networks", "public_networks"):
        for one in params[name]:
            if not _is_network(str(one)):
                yield wrong(f"firewall_{name}", "it is no network", one, "write networks such as 10.0.0.0/24")
    for name, given in (("open_ports", params["open_ports"]), ("ssh_port", [params["ssh_port"]])):
        for port in given:
            if not str(port).isdecimal() or not 0 < int(port) < 65536:
                yield wrong(f"firewall_{name}", "it is no port", port, "give numbers from 1 to 65535")


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True
