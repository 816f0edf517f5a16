# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The deprecated fields of a Marathon app, said with those that took their place.

Marathon translates them too and never gives them back, so an app that has them could not be compared with the server's.
The translation is that of mesosphere/marathon 1.10, AppNormalization.scala.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.app import spoken
from ansible_collections.baremetal.gpu.plugins.module_utils.marathon.app_schema import OF_SERVER

_ARCHIVES = (".tgz", ".tar.gz", ".tbz2", ".tar.bz2", ".txz", ".tar.xz", ".zip")
_MODES = {"HOST": "host", "BRIDGE": "container/bridge", "USER": "container"}


def canonical(app: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of an app in which marathon_app.problems found nothing, without uris, ports, ipAddress, and without
    container.docker.network and portMappings. The id begins with a slash, operators of constraints are in
    capital letters, and what is null, or the server's to set, is left out.
    """
    found = {key: copy.deepcopy(value) for key, value in spoken(app).items() if key not in OF_SERVER}
    found["id"] = "/" + found["id"].strip("/")
    if "constraints" in found:
        found["constraints"] = [[row[0], row[1].upper(), *row[2:]] for row in found["constraints"]]
    uris, ports = found.pop("uris", None), found.pop("ports", None)
    if uris:
        found["fetch"] = [{"uri": uri, "extract": uri.endswith(_ARCHIVES)} for uri in uris]
    if ports is not None:
        found.setdefault("portDefinitions", [{"port": port} for port in ports])
    address = found.pop("ipAddress", None)
    docker = (found.get("container") or {}).get("docker") or {}
    kind, mappings = docker.pop("network", None), docker.pop("portMappings", None)
    if kind or address is not None:
        network: dict[str, Any] = {"mode": _MODES.get(kind, "container")}
        if address and network["mode"] == "container" and address.get("networkName"):
            network["name"] = address["networkName"]
        if address and address.get("labels"):
            network["labels"] = address["labels"]
        found["networks"] = [network]
    told = (address or {}).get("discovery", {}).get("ports")
    if told:
        container = found.setdefault("container", {"type": "MESOS"})
        container["portMappings"] = [
            {"containerPort": port.get("number", 0), **{key: value for key, value in port.items() if key != "number"}}
            for port in told
        ]
    elif mappings:
        found["container"].setdefault("portMappings", mappings)
    return found
