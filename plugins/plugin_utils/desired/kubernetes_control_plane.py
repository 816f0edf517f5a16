# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A control plane of Kubernetes: the configuration that kubeadm makes it from, and the timers that look after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.encryption import PATH as ENCRYPTION
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.settings import Settings
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.service_settings import unit_path, wrong

ROLE = "kubernetes_control_plane"
API = "kubeadm.k8s.io/v1beta4"
SOCKET = "unix:///run/containerd/containerd.sock"
# kubeadm makes a token with the cluster, and nobody needs this one.
TOKEN_LIFE = "1m0s"
# What the API server reads beside its certificates, and where it writes to.
DIRECTORY = ENCRYPTION.rpartition("/")[0]
POLICY, LOGS = f"{DIRECTORY}/audit-policy.json", "/var/log/kubernetes"
AUDIT_MIB = 100
PROGRAM = "/usr/libexec/baremetal-gpu/kubernetes-control-plane"
SETTINGS = "/etc/baremetal-gpu/kubernetes-control-plane.json"
SNAPSHOT, RENEW = "baremetal-gpu-etcd-snapshot", "baremetal-gpu-kubernetes-renew"
_PATH = re.compile(r"(?:/[A-Za-z0-9._-]+)+", re.ASCII)
_CALENDAR = re.compile(r"[A-Za-z0-9*,./:~ -]{1,60}", re.ASCII)
# Two versions of a configuration of one cluster may differ in these.
_OF_VERSION = ("apiVersion", "kind", "kubernetesVersion")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the variables of the role.
    :param peers: ``host``, its name; ``common``, the variables of kubernetes_common; ``server`` and ``kubelet``, the
        parts of its plan; ``cluster``, the configuration with which the cluster was created, None where it was not
        read.
    :return: Parts: `config`, the documents of kubeadm; `warnings`, in what the cluster is not as it would be created.
    """
    common = peers["common"]
    cluster = _cluster(params, peers)
    documents = [
        {
            "apiVersion": API,
            "kind": "InitConfiguration",
            "bootstrapTokens": [{"ttl": TOKEN_LIFE}],
            "localAPIEndpoint": {"advertiseAddress": common["address"]},
            "nodeRegistration": registration(peers["host"], common),
        },
        cluster,
        peers["kubelet"],
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            **params["kube_proxy"],
        },
    ]
    parts = {
        "config": "---\n".join(f"{json.dumps(document)}\n" for document in documents),
        "warnings": list(_warnings(cluster, peers["cluster"])),
    }
    problems = tuple(_problems(params))
    return Plan(doc.Document() if problems else _document(params, peers["host"]), problems, parts)


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
    found = {
        "apiVersion": API,
        "kind": "ClusterConfiguration",
        "clusterName": params["name"],
        "kubernetesVersion": f"v{common['version']}",
        "controlPlaneEndpoint": peers["server"],
        "networking": {"podSubnet": common["pod_subnet"], "serviceSubnet": common["service_subnet"]},
        **({"imageRepository": repository} if repository else {}),
        **params["cluster"],
    }
    server = _api_server(params, params["cluster"].get("apiServer") or {})
    return {**found, **({"apiServer": server} if server else {})}


def _api_server(params: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The API server with encryption and audit log; an argument or a volume of the operator's replaces ours."""
    arguments: dict[str, str] = {}
    volumes: list[dict[str, Any]] = []
    if params["encryption"]:
        # With a new key in the file there is nothing to restart.
        arguments |= {"encryption-provider-config": ENCRYPTION, "encryption-provider-config-automatic-reload": "true"}
    if params["audit"]:
        arguments |= {
            "audit-policy-file": POLICY,
            "audit-log-path": f"{LOGS}/audit.log",
            "audit-log-maxage": str(params["audit_days"]),
            "audit-log-maxbackup": str(params["audit_files"]),
            "audit-log-maxsize": str(AUDIT_MIB),
        }
        volumes.append({"name": "audit-log", "hostPath": LOGS, "mountPath": LOGS, "pathType": "DirectoryOrCreate"})
    if arguments:
        directory = {"hostPath": DIRECTORY, "mountPath": DIRECTORY, "readOnly": True, "pathType": "Directory"}
        volumes.append({"name": "baremetal-gpu", **directory})
    ours = {
        "extraArgs": [{"name": name, "value": value} for name, value in arguments.items()],
        "extraVolumes": volumes,
    }
    merged = {key: _merged(rows, theirs.get(key) or ()) for key, rows in ours.items()}
    return {**theirs, **{key: rows for key, rows in merged.items() if rows}}


def _merged(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    names = {row.get("name") for row in theirs}
    return [*(row for row in ours if row["name"] not in names), *theirs]


def _warnings(cluster: Mapping[str, Any], has: Any) -> Iterator[str]:
    """kubeadm reads the configuration when it creates a cluster, and never again."""
    if isinstance(has, Mapping):
        names = sorted({*_differences(cluster, has), *_dropped(cluster, has)})
        if names:
            yield (
                f"the cluster was created with other settings than those of today ({', '.join(names)}). "
                "To do: run the playbook baremetal.gpu.kubernetes_settings, which restarts the control planes one "
                "after the other, or set the variables back"
            )


def _differences(wanted: Mapping[str, Any], has: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The names of settings that the cluster does not have. What kubeadm has added is left alone."""
    for key, value in wanted.items():
        other = has.get(key)
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from _differences(value, other if isinstance(other, Mapping) else {}, f"{name}.")
        elif _is_named(value):
            yield from _differences(_by_name(value), _by_name(other), f"{name}.")
        elif other != value and key not in _OF_VERSION:
            yield name


def _dropped(wanted: Mapping[str, Any], has: Mapping[str, Any]) -> Iterator[str]:
    """The arguments of the API server that it would not be given today."""
    servers = [one.get("apiServer") or {} for one in (wanted, has)]
    ours, theirs = (_by_name(server.get("extraArgs")) for server in servers)
    yield from (f"apiServer.extraArgs.{name}" for name in theirs if name not in ours)


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) and "name" in row for row in value)


def _by_name(rows: Any) -> dict[str, Any]:
    return {row["name"]: row for row in rows} if _is_named(rows) else {}


def audit_policy() -> dict[str, Any]:
    """Who did what and when, and never with what content: that of a Secret would be in the log.

    What the programs of the cluster ask each other all the time is left out.
    """
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [
            {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets", "serviceaccounts/token"]}]},
            {"level": "None", "nonResourceURLs": ["/healthz*", "/livez*", "/readyz*", "/version", "/openapi/*"]},
            {"level": "None", "resources": [{"group": "", "resources": ["events"]}, {"group": "events.k8s.io"}]},
            {"level": "None", "resources": [{"group": "coordination.k8s.io", "resources": ["leases"]}]},
            {"level": "None", "userGroups": ["system:nodes"], "verbs": ["get", "list", "watch"]},
            {"level": "None", "users": ["system:kube-proxy"], "verbs": ["get", "list", "watch"]},
            {"level": "Metadata"},
        ],
    }


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    def variable(name: str) -> str:
        return f"{ROLE}_{name}"

    if not _PATH.fullmatch(str(params["snapshot_path"])):
        remedy = "give a path such as /mnt/backup/etcd"
        yield wrong(variable("snapshot_path"), "it is not a plain absolute path", params["snapshot_path"], remedy)
    if params["snapshot_at"] and not _CALENDAR.fullmatch(str(params["snapshot_at"])):
        remedy = "give a time such as '*-*-* 00/6:10', or '' for none"
        yield wrong(variable("snapshot_at"), "systemd does not read it", params["snapshot_at"], remedy)
    bounds = {"snapshot_keep": (1, 1000), "renew_days": (1, 180), "audit_days": (1, 3650), "audit_files": (1, 1000)}
    for name, (least, most) in bounds.items():
        if not least <= params[name] <= most:
            yield wrong(variable(name), f"it is not from {least} to {most}", params[name], f"give one such as {least}")


def _document(params: Mapping[str, Any], host: str) -> doc.Document:
    settings = {
        "host": host,
        "path": params["snapshot_path"],
        "keep": params["snapshot_keep"],
        "days": params["renew_days"],
        "clients": {Settings.certificate: USER},
    }
    units = {
        f"{SNAPSHOT}.service": {"program": PROGRAM, "settings": SETTINGS},
        f"{SNAPSHOT}.timer": {"at": params["snapshot_at"]},
        f"{RENEW}.service": {"program": PROGRAM, "settings": SETTINGS},
        f"{RENEW}.timer": {},
    }
    policy = json.dumps(audit_policy(), indent=2)
    return doc.Document(
        files=[
            *map(doc.Directory, ("/usr/libexec/baremetal-gpu", "/etc/baremetal-gpu", "/etc/kubernetes")),
            doc.Directory(DIRECTORY, "0700"),
            doc.File(POLICY, f"{policy}\n"),
            doc.Directory(LOGS, "0700"),
            doc.Directory(str(params["snapshot_path"]), "0700"),
            doc.File(PROGRAM, bundle("kubernetes.control_plane"), "0755"),
            doc.File(SETTINGS, f"{json.dumps(settings, indent=2)}\n"),
            *(doc.File(unit_path(name), render(ROLE, f"{name}.j2", **values)) for name, values in units.items()),
        ],
        units=[
            _timer(f"{SNAPSHOT}.timer") if params["snapshot_at"] else doc.Unit.stopped(f"{SNAPSHOT}.timer"),
            _timer(f"{RENEW}.timer"),
        ],
    )


def _timer(name: str) -> doc.Unit:
    return doc.Unit.running(name, [unit_path(name)])
