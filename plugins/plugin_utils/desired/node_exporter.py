# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""node_exporter, which serves the metrics of a host, and of what runs there, to Prometheus alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import portal as told
from ansible_collections.baremetal.gpu.plugins.plugin_utils import certificate_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import portal, zookeeper
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import host_exporter, settings, tls

ROLE = "node_exporter"
PACKAGE = "prometheus-node-exporter"
UNIT = f"{PACKAGE}.service"
ARGUMENTS = f"/etc/default/{PACKAGE}"
WEB = "/etc/prometheus/node-exporter-web.yml"
# Where Debian's package reads metrics of other programs.
TEXTFILES = "/var/lib/prometheus/node-exporter"
# Leases count for the use of GPUs by minutes.
WITH_LEASES_S = 30
# Those that kubeadm and kubelet keep.
OF_KUBERNETES = ("/etc/kubernetes/pki/*.crt", "/etc/kubernetes/pki/etcd/*.crt", "/var/lib/kubelet/pki/*-current.pem")
# By default whatever is mounted below /mnt and /media is left out, too, and people mount disks there.
NOT_DISKS = (
    "--collector.filesystem.mount-points-exclude="
    "^/(dev|proc|run|sys|var/lib/docker/.+|var/lib/containers/storage/.+)($|/)"
)


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: ``state``, ``listen`` (address:port), ``tls`` ("required" or "off"), ``certificates`` (paths or
        patterns), ``zookeeper`` (host and port of this host's server, or nothing), ``homes`` (a directory or empty),
        ``portal`` (hub_port and port of this host's portal, or nothing), ``kubernetes`` (node and snapshots of a
        control plane, or nothing) and ``has_kubernetes``, whether the host is of a cluster.
    :param peers: ``host``, its name in the inventory, and ``certificates``, what cluster_certificates has returned,
        empty before, and ``has_prometheus``, whether Prometheus is on the host.
    """
    if params["state"] == "absent":
        return Plan(_absent(has_prometheus=peers["has_prometheus"]))
    more = _of_host(params)
    problems = (*_problems(params), *host_exporter.problems(more, "node_exporter_"))
    if problems:
        return Plan(problems=problems)
    has_tls = params["tls"] == "required"
    words = [f"--web.listen-address={params['listen']}", NOT_DISKS, *([f"--web.config.file={WEB}"] if has_tls else [])]
    files, units = host_exporter.files_and_units(more)
    certificates = tls.files(peers["certificates"], peers["host"]) if has_tls and peers["certificates"] else []
    return Plan(
        doc.Document(
            packages=[doc.Package(PACKAGE)],
            files=[
                # Before the package, which starts the daemon at once, on all addresses.
                doc.File(ARGUMENTS, settings.arguments(ROLE, words), early=True),
                doc.Directory("/etc/prometheus"),
                *certificates,
                *([doc.File(WEB, _web())] if has_tls else []),
                *files,
            ],
            units=[doc.Unit.running(UNIT, [ARGUMENTS, WEB, tls.AUTHORITY, PACKAGE]), *units],
        )
    )


def _of_host(params: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the program that tells of certificates, ZooKeeper, homes, the portal and Kubernetes."""
    own = [tls.CERTIFICATE] if params["tls"] == "required" else []
    # Those of the logs, which may be there.
    own.append("/etc/baremetal-gpu/log-*/certificate.pem")
    own += OF_KUBERNETES if params["has_kubernetes"] else []
    own += [f"{portal.TLS}/{certificate_files.CERTIFICATE}"] if params["portal"] else []
    return {
        "directory": TEXTFILES,
        "certificates": [*own, *params["certificates"]],
        "zookeeper": {**params["zookeeper"], "config": zookeeper.CONFIG} if params["zookeeper"] else {},
        "homes": {"root": params["homes"]} if params["homes"] else {},
        "portal": {**params["portal"], "told": told.TOLD} if params["portal"] else {},
        "kubernetes": params["kubernetes"],
        **({"interval_s": WITH_LEASES_S} if params["kubernetes"] else {}),
    }


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    listen = str(params["listen"])
    if settings.split_listen(listen) is None:
        yield Problem(
            "wrong_setting",
            "node_exporter_listen",
            "it is not an address with a port",
            listen,
            "give one such as :9100",
        )
    elif params["tls"] == "off" and not settings.is_loopback(listen):
        yield Problem(
            "not_loopback",
            "node_exporter_tls",
            "without TLS everybody in the network reads who uses which GPU",
            listen,
            "leave node_exporter_tls at required, or let node_exporter_listen be 127.0.0.1:9100",
        )


def _web() -> str:
    """Go reads the certificate and the key anew for each connection, so that a renewed one needs no restart."""
    return settings.yaml_text(
        ROLE,
        {
            "tls_server_config": {
                "cert_file": tls.CERTIFICATE,
                "key_file": tls.KEY,
                "client_auth_type": "RequireAndVerifyClientCert",
                "client_ca_file": tls.AUTHORITY,
                "min_version": "TLS13",
            }
        },
    )


def _absent(has_prometheus: bool) -> doc.Document:
    files, units = host_exporter.files_and_units({"directory": TEXTFILES})
    return doc.Document(
        units=[doc.Unit.stopped(UNIT), *units],
        packages=[doc.Package(PACKAGE, "absent")],
        files=[doc.Absent(WEB), doc.Absent(ARGUMENTS), *([] if has_prometheus else tls.absent()), *files],
    )
