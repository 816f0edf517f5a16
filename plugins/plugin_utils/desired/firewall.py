# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ports of a host are open, and to whom: from the one list of ports, and the site's own additions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.ports import (
    ALL_HOSTS,
    EVERYBODY,
    LOOPBACK,
    PORTS,
    SITE,
    Port,
    Span,
    spans_of,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import unit_path, wrong

ROLE = "firewall"
GROUP = "firewalled"
RULES = "/etc/baremetal-gpu/firewall.nft"
UNIT = "baremetal-gpu-firewall.service"
TRIAL_S = (10, 600)
_ALSO = {"port", "protocol", "from"}
Opened = dict[tuple[str, str], list[Span]]


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of a host.

    :param params: the variables of the role.
    :param peers: ``host``, the name of this host; ``groups``, the hosts of each group; ``variables``, those of the
        inventory for this host; ``addresses``, of each host of the site, as Ansible reaches it.
    :return: With the part `rules`, what the module firewall_rules is given.
    """
    if params["state"] == "absent":
        gone = doc.Document(units=[doc.Unit.stopped(UNIT)], files=[doc.Absent(unit_path(UNIT))])
        return Plan(gone, parts={"rules": ""})
    problems = tuple(_problems(params, peers))
    if problems:
        return Plan(problems=problems, parts={"rules": ""})
    return Plan(_present(), parts={"rules": rules(params, peers)})


def rules(params: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    """The table, for nft."""
    networks = [ip_network(text, strict=False) for text in (*_addresses(peers), *params["networks"])]
    return render(
        ROLE,
        "firewall.nft.j2",
        site={version: [str(one) for one in _merged(networks, version)] for version in (4, 6)},
        ssh_from=_by_version(params["ssh_from"]),
        ssh=_shown([(int(params["ssh_port"]), int(params["ssh_port"]))]),
        opened=[
            {"protocol": protocol, "ports": _shown(spans), **_source(whom)}
            for (protocol, whom), spans in sorted(opened(params, peers).items())
        ],
    )


def opened(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Opened:
    """The ports by protocol and by who reaches them. Raises ValueError for a variable that has no port."""
    found: Opened = {}
    for port in PORTS:
        if ALL_HOSTS in port.groups or not any(peers["host"] in peers["groups"].get(name, ()) for name in port.groups):
            continue
        for whom, spans in _of(port, peers["variables"]):
            found.setdefault(("tcp", whom), []).extend(spans)
    for row in params["also"]:
        key = (str(row.get("protocol") or "tcp"), str(row.get("from") or SITE))
        found.setdefault(key, []).extend(spans_of("firewall_also", row["port"]))
    return {key: spans for key, spans in found.items() if spans}


def _of(port: Port, variables: Mapping[str, Any]) -> Iterator[tuple[str, list[Span]]]:
    spans = port.spans(variables)
    if port.whom != LOOPBACK:
        yield port.whom, spans
        return
    for name, default in port.ports:
        host = str(variables.get(name, default)).rpartition(":")[0].strip("[]")
        # Somebody has given it another address.
        if name.endswith("_listen") and host not in ("localhost", "::1") and not host.startswith("127."):
            yield SITE, list(spans_of(name, variables[name]))


def _shown(spans: Sequence[Span]) -> str:
    """Ranges that nft takes: it refuses those that overlap."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in merged)


def _source(whom: str) -> dict[str, list[str]]:
    if whom in (EVERYBODY, "everybody"):
        return {"matches": [""]}
    if whom in (SITE, "site"):
        return {"matches": ["ip saddr @site4 ", "ip6 saddr @site6 "]}
    network = ip_network(whom, strict=False)
    return {"matches": [f"{'ip' if network.version == 4 else 'ip6'} saddr {network} "]}


def _by_version(texts: Sequence[str]) -> list[str]:
    return [match for text in texts for match in _source(str(text))["matches"]] or [""]


def _merged(networks: Sequence[Any], version: int) -> list[Any]:
    return sorted({one for one in networks if one.version == version})


def _addresses(peers: Mapping[str, Any]) -> list[str]:
    return [address for address in map(str, peers["addresses"].values()) if _is_address(address)]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _problems(params: Mapping[str, Any], peers: Mapping[str, Any]) -> Iterator[Problem]:
    names = [f"{host} ({text})" for host, text in peers["addresses"].items() if not _is_address(str(text))]
    if names and not params["networks"]:
        yield Problem(
            "no_address",
            "firewall_networks",
            "hosts of the site have no address in the inventory, so nothing from them would be let in",
            ", ".join(names[:5]),
            "give ansible_host an IP address, or list the site's networks in firewall_networks",
        )
    for variable in ("networks", "ssh_from"):
        for text in params[variable]:
            yield from _wrong_network(f"firewall_{variable}", str(text))
    for row in params["also"]:
        unknown = sorted(set(row) - _ALSO)
        if unknown or "port" not in row:
            yield wrong("firewall_also", "a row has port, protocol and from", row, "give these, and no others")
            return
        if str(row.get("protocol") or "tcp") not in ("tcp", "udp"):
            yield wrong("firewall_also", "protocol is tcp or udp", row["protocol"], "give one of them")
        if str(row.get("from") or "site") not in ("everybody", "site"):
            yield from _wrong_network("firewall_also", str(row["from"]))
    if not 1 <= params["ssh_port"] <= 65535:
        yield wrong("firewall_ssh_port", "it is not a valid port", params["ssh_port"], "give the port of sshd")
    if not TRIAL_S[0] <= params["confirm_seconds"] <= TRIAL_S[1]:
        cause = f"it is not from {TRIAL_S[0]} to {TRIAL_S[1]}"
        yield wrong("firewall_confirm_seconds", cause, params["confirm_seconds"], "give a number such as 60")
    try:
        opened({**params, "also": [row for row in params["also"] if "port" in row]}, peers)
    except ValueError as why:
        yield wrong("firewall_also", str(why), "", "give a port such as 8443, or a range such as 8000-8010")


def _wrong_network(variable: str, text: str) -> Iterator[Problem]:
    try:
        ip_network(text, strict=False)
    except ValueError:
        yield wrong(variable, "it is neither an address nor a network", text, "give one such as 10.0.0.0/16")


def _present() -> doc.Document:
    return doc.Document(
        packages=[doc.Package("nftables")],
        files=[doc.Directory("/etc/baremetal-gpu"), doc.File(unit_path(UNIT), render(ROLE, f"{UNIT}.j2", rules=RULES))],
        # It is started at boot. Rules come into force on trial.
        units=[doc.Unit(UNIT, enabled=True)],
    )
