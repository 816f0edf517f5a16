# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A control plane of Kubernetes: the configuration that kubeadm makes it from. It has no document of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

API = "kubeadm.k8s.io/v1beta4"
SOCKET = "unix:///run/containerd/containerd.sock"
# kubeadm makes a token with the cluster, and nobody needs this one.
TOKEN_LIFE = "1m0s"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the variables of the role.
    :param peers: ``host``, its name; ``common``, the variables of kubernetes_common; ``server`` and ``kubelet``, the
        parts of its plan; ``control_planes``, the hosts of the group.
    :return: Part `config`: the documents of kubeadm.
    """
    common = peers["common"]
    documents = [
        {
            "apiVersion": API,
            "kind": "InitConfiguration",
            "bootstrapTokens": [{"ttl": TOKEN_LIFE}],
            "localAPIEndpoint": {"advertiseAddress": common["address"]},
            "nodeRegistration": registration(peers["host"], common),
        },
        _cluster(params, peers),
        peers["kubelet"],
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            **params["kube_proxy"],
        },
    ]
    return Plan(parts={"config": "---\n".join(f"{json.dumps(document)}\n" for document in documents)})


def registration(host: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """How a host joins."""
    return {
        "name": host,
        "criSocket": SOCKET,
        "kubeletExtraArgs": [{"name": "node-ip", "value": common["address"]}],
    }


def _cluster(params: Mapping[str, Any], peers: Mapping[str, Any]) -> dict[str, Any]:
    common = peers["common"]
    repository = common["image_repository"]
    return {
        "apiVersion": API,
        "kind": "ClusterConfiguration",
        "clusterName": params["name"],
        "kubernetesVersion": f"v{common['version']}",
        "controlPlaneEndpoint": peers["server"],
        "networking": {"podSubnet": common["pod_subnet"], "serviceSubnet": common["service_subnet"]},
        **({"imageRepository": repository} if repository else {}),
        **params["cluster"],
    }
