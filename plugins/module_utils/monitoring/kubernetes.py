# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a control plane of Kubernetes says in numbers: its API server, its member of etcd, and the cluster's nodes and
pods.

Of several control planes, one has the metrics of the cluster, so that sums count each pod once.
"""

from __future__ import annotations

import glob
import http.client
import os
import re
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files
from ansible_collections.baremetal.gpu.plugins.module_utils.host import run as host_run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import CallFailed
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import cluster, diagnosis
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.kubectl import Kubectl
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.part import Part

# Of each question to the API server.
ANSWER_S = 6.0
ETCD_S = 5.0
BYTES_AT_MOST = 8 << 20
LABEL_AT_MOST = 100
MANIFEST = "/etc/kubernetes/manifests/etcd.yaml"
# kubeadm has etcd serve its metrics on loopback, without a login.
_URL = re.compile(r"--listen-metrics-urls=(http://[A-Za-z0-9.:\[\]-]{1,200})")
# Name in etcd's own metrics -> ours.
OF_ETCD = {
    "etcd_server_has_leader": "kubernetes_etcd_has_leader",
    "etcd_mvcc_db_total_size_in_bytes": "kubernetes_etcd_database_bytes",
    "etcd_server_quota_backend_bytes": "kubernetes_etcd_quota_bytes",
    "etcd_disk_wal_fsync_duration_seconds_sum": "kubernetes_etcd_fsync_seconds_total",
    "etcd_disk_wal_fsync_duration_seconds_count": "kubernetes_etcd_fsyncs_total",
}
_SAMPLE = re.compile(r"^([a-z_]{1,100}) ([0-9][0-9.e+-]{0,40})$", re.MULTILINE)

Ask = Callable[[str], str]


def ask(url: str) -> str:
    """The page of metrics that a server on this host gives. Raises OSError."""
    at = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=ETCD_S)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read(BYTES_AT_MOST).decode("utf-8", "replace")
    except http.client.HTTPException as why:
        raise OSError(f"no answer in HTTP: {why}") from why
    finally:
        connection.close()


def look(
    node: str, snapshots: str = "", run: Run = host_run.run, ask_etcd: Ask = ask, manifest: str = MANIFEST
) -> Part:
    """The metrics of the control plane that is the node `node`.

    :param snapshots: the directory of the snapshots of etcd; empty where none are made.
    """
    part = Part()
    if snapshots:
        times = [os.stat(path).st_mtime for path in glob.glob(f"{glob.escape(snapshots)}/*.db")]
        part.add("kubernetes_etcd_snapshot_timestamp_seconds", {}, round(max(times, default=0.0), 3))
    _etcd(part, ask_etcd, files.read_text(manifest, BYTES_AT_MOST))
    try:
        found = cluster.read(Kubectl(run, ANSWER_S))
    except CallFailed as why:
        part.add("kubernetes_api_up", {}, 0.0)
        part.complain(str(diagnosis.no_answer(why.problem.cause)))
        return part
    part.add("kubernetes_api_up", {}, 1.0)
    if node == speaker(found["nodes"]):
        part.add("kubernetes_last_success_timestamp_seconds", {}, round(time.time(), 3))
        _nodes(part, found)
        _pods(part, found["jobs"])
        _leases(part, found)
    return part


def speaker(nodes: Iterable[Mapping[str, Any]]) -> str:
    """The control plane that has the metrics of the cluster: the first that is ready, else the first."""
    rows = [row for row in nodes if row["control_plane"]]
    return next((str(row["name"]) for row in [*(row for row in rows if row["in_service"]), *rows]), "")


def _etcd(part: Part, ask_etcd: Ask, manifest: str) -> None:
    """The member of etcd on this host; nothing where etcd is elsewhere, or serves no metrics without a login."""
    url = _URL.search(manifest)
    if url is None:
        return
    try:
        told = dict(_SAMPLE.findall(ask_etcd(url[1])))
    except OSError as why:
        part.add("kubernetes_etcd_has_leader", {}, 0.0)
        part.complain(f"etcd does not answer at {url[1]}: {one_line(why.strerror or why)}")
        return
    for name, ours in OF_ETCD.items():
        if name in told:
            part.add(ours, {}, float(told[name]))


def _text(value: object) -> str:
    return one_line(value, LABEL_AT_MOST)


def _nodes(part: Part, found: Mapping[str, Any]) -> None:
    for row in found["nodes"]:
        label = {"node": _text(row["name"])}
        part.add("kubernetes_node_info", {**label, "state": _text(row["state"])}, 1.0)
        part.add("kubernetes_node_available", label, float(row["takes_jobs"]))
        if not row["gpus"]:
            continue
        part.add("kubernetes_node_withheld_gpus", label, float(row["gpus_held"]))
        rest = max(0, row["gpus"] - row["gpus_used"] - row["gpus_free"])
        held = min(row["gpus_held"], rest)
        counts = {"allocated": row["gpus_used"], "held": held, "free": row["gpus_free"], "closed": rest - held}
        for state, count in counts.items():
            part.add("kubernetes_node_gpus", {**label, "state": state}, float(count))
    names = {row["name"] for row in found["nodes"]}
    for problem in found["problems"]:
        if problem["subject"] in names:
            labels = {"node": _text(problem["subject"]), "problem": problem["code"]}
            part.add("kubernetes_node_problem", labels, 1.0)


def _pods(part: Part, pods: Iterable[Mapping[str, Any]]) -> None:
    counts: dict[tuple[str, str], int] = {}
    waits: dict[str, float] = {}
    for pod in pods:
        space, state = _text(pod["partition"]), "waiting" if pod["waits"] else "placed"
        counts[space, state] = counts.get((space, state), 0) + 1
        if pod["waits"] and pod["gpus"] and pod["submitted"]:
            waits[space] = min(waits.get(space, pod["submitted"]), pod["submitted"])
    for (space, state), count in sorted(counts.items()):
        part.add("kubernetes_pods", {"namespace": space, "state": state}, float(count))
    for space, since in sorted(waits.items()):
        part.add("kubernetes_gpu_pod_waiting_timestamp_seconds", {"namespace": space}, since)


def _leases(part: Part, found: Mapping[str, Any]) -> None:
    """Who has which GPU, with the labels that Slurm's have. The account of a pod is its namespace."""
    minors = {row["name"]: row["minors"] for row in found["nodes"]}
    for pod in found["jobs"]:
        for at in pod["nodes"] if pod["gpus"] else ():
            lease = {"scheduler": "kubernetes", "host": _text(at["name"]), "job_id": _text(pod["id"])}
            space = _text(pod["partition"])
            names = {"user": _text(pod["user"]), "account": space, "partition": space, "job_name": _text(pod["name"])}
            known = minors.get(at["name"], {})
            for uuid in at["gpus"]:
                part.add("gpu_lease_info", {**lease, "minor": known.get(uuid), **names}, 1.0)
            if pod["started"] is not None:
                part.add("gpu_lease_start_timestamp_seconds", lease, pod["started"])
