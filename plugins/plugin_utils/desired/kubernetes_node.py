# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A node of Kubernetes: the configuration with which kubeadm has it join. It has no document of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.kubernetes_control_plane import API, registration
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

_TOKEN = re.compile(r"--token (\S+) --discovery-token-ca-cert-hash (\S+)")
_KEY = re.compile(r"^[0-9a-f]{64}$", re.MULTILINE)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param peers: ``host``, its name; ``common``, the variables of kubernetes_common; ``server``, host:port of the API
        server; ``is_control_plane``, whether it joins as a further one; ``join``, what `kubeadm token create
        --print-join-command` prints, and ``certificates``, what `kubeadm init phase upload-certs` prints, both empty
        before.
    :return: Part `config`: the document of kubeadm, empty without a token.
    """
    found, key = _TOKEN.search(peers["join"]), _KEY.search(peers["certificates"])
    if not found:
        return Plan(parts={"config": ""})
    common = peers["common"]
    bootstrap = {"apiServerEndpoint": peers["server"], "token": found[1], "caCertHashes": [found[2]]}
    document = {
        "apiVersion": API,
        "kind": "JoinConfiguration",
        "discovery": {"bootstrapToken": bootstrap},
        "nodeRegistration": registration(peers["host"], common),
    }
    if peers["is_control_plane"]:
        document["controlPlane"] = {
            "localAPIEndpoint": {"advertiseAddress": common["address"]},
            **({"certificateKey": key[0]} if key else {}),
        }
    return Plan(parts={"config": f"{json.dumps(document)}\n"})
