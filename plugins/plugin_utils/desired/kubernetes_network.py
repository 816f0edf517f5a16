# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The network of pods: a bridge on each host, and routes to the pods of the others. For hosts in one network."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

ROLE = "kubernetes_network"
CONFIG = "/etc/cni/net.d/10-baremetal-gpu.conflist"
ROUTES = "/etc/baremetal-gpu/pod-routes"
UNIT = "baremetal-gpu-pod-routes.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
BRIDGE = "cni0"
# By this number the kernel tells these routes from those of others. iproute2 has no name for it.
PROTOCOL = 98


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the variables of the role.
    :param peers: ``host``, its name, and ``nodes``, the nodes as the API has them, empty before they were read.
    """
    if params["plugin"] == "none" or params["state"] == "absent":
        return Plan(_absent())
    ranges = {node["metadata"]["name"]: _range(node) for node in peers["nodes"]}
    own = ranges.pop(peers["host"], None)
    if not own:
        return Plan()
    routes = [row for _name, row in sorted(ranges.items()) if row]
    problems = tuple(_problems([own, *routes]))
    return Plan(doc.Document() if problems else _document(own[0], routes), problems)


def _range(node: Mapping[str, Any]) -> tuple[str, str] | None:
    """The range of a node's pods, and its address; None where it has no range yet."""
    addresses = [row["address"] for row in node["status"].get("addresses") or () if row["type"] == "InternalIP"]
    pods = node["spec"].get("podCIDR")
    return (pods, addresses[0]) if pods and addresses else None


def _problems(ranges: Sequence[tuple[str, str]]) -> Iterator[Problem]:
    for pods, address in ranges:
        try:
            ipaddress.ip_network(pods)
            ipaddress.ip_address(address)
        except ValueError:
            yield Problem(
                "no_route",
                ROLE,
                "the API server has a node whose range of pods or address is not valid",
                f"{pods} via {address}",
                "see 'kubectl get nodes -o wide'",
            )


def _document(pods: str, routes: Sequence[tuple[str, str]]) -> doc.Document:
    lines = [f"route flush proto {PROTOCOL}"]
    lines += [f"route replace {there} via {address} proto {PROTOCOL}" for there, address in routes]
    return doc.Document(
        # The plugin makes its rules of masquerading with it.
        packages=[doc.Package("iptables")],
        files=[
            doc.Directory("/etc/cni"),
            doc.Directory("/etc/cni/net.d"),
            doc.File(CONFIG, f"{json.dumps(_conflist(pods), indent=2)}\n"),
            doc.Directory("/etc/baremetal-gpu"),
            doc.File(ROUTES, "".join(f"{line}\n" for line in lines)),
            doc.File(UNIT_PATH, render(ROLE, f"{UNIT}.j2", routes=ROUTES)),
        ],
        units=[doc.Unit.running(UNIT, [ROUTES, UNIT_PATH])],
    )


def _conflist(pods: str) -> dict[str, Any]:
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}


def _absent() -> doc.Document:
    return doc.Document(
        files=[doc.Absent(path) for path in (CONFIG, ROUTES, UNIT_PATH)],
        units=[doc.Unit.stopped(UNIT)],
    )
