# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics of the host exporter."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import LEASES, Metrics

METRICS: Metrics = {
    "baremetal_gpu_host_part_success": (
        "gauge",
        ("part",),
        "Whether a part of the host exporter has come to its end: certificates, homes, kubernetes, portal or "
        "zookeeper.",
    ),
    "baremetal_gpu_certificate_expiry_timestamp_seconds": (
        "gauge",
        ("path",),
        "When a certificate ends; of several in a file the one that ends first.",
    ),
    "baremetal_gpu_certificate_readable": ("gauge", ("path",), "Whether a file of certificates could be read."),
    "zookeeper_serving": (
        "gauge",
        (),
        "Whether the server of this host is part of a quorum and answers clients.",
    ),
    "zookeeper_ensemble_servers": ("gauge", (), "Servers that the configuration of the server of this host names."),
    "cephfs_home_used_bytes": ("gauge", ("user",), "What a home that is mounted here holds."),
    "cephfs_home_quota_bytes": ("gauge", ("user",), "The quota of a home that is mounted here; 0 for none."),
    "kubernetes_api_up": ("gauge", (), "Whether the API server answers this control plane."),
    "kubernetes_last_success_timestamp_seconds": (
        "gauge",
        (),
        "When the API server answered the control plane that has the metrics of the cluster.",
    ),
    "kubernetes_etcd_has_leader": (
        "gauge",
        (),
        "Whether the member of etcd on this host answers and knows a leader; without a quorum there is none.",
    ),
    "kubernetes_etcd_database_bytes": ("gauge", (), "Size of the database of etcd on this host."),
    "kubernetes_etcd_quota_bytes": ("gauge", (), "Size at which etcd refuses writes."),
    "kubernetes_etcd_fsync_seconds_total": ("counter", (), "Time that etcd has waited for its disk."),
    "kubernetes_etcd_fsyncs_total": ("counter", (), "How often etcd has waited for its disk."),
    "kubernetes_etcd_snapshot_timestamp_seconds": (
        "gauge",
        (),
        "When the newest snapshot of etcd on this host was written; 0 where there is none.",
    ),
    "kubernetes_node_info": (
        "gauge",
        ("node", "state"),
        "State of a node as kubectl prints it; the value is always 1.",
    ),
    "kubernetes_node_problem": (
        "gauge",
        ("node", "problem"),
        "A problem of a node, by the code that gpuops doctor shows; the value is always 1.",
    ),
    "kubernetes_node_available": (
        "gauge",
        ("node",),
        "Whether a pod can be placed on a node: it is ready, not cordoned, and no taint closes it.",
    ),
    "kubernetes_node_gpus": (
        "gauge",
        ("node", "state"),
        "GPUs of a node: allocated to pods, held out of service, free, or closed: the node takes no pods.",
    ),
    "kubernetes_node_withheld_gpus": (
        "gauge",
        ("node",),
        "GPUs of a node that no further pod gets, also those that a pod still has.",
    ),
    "kubernetes_pods": (
        "gauge",
        ("namespace", "state"),
        "Pods of users that have a node (placed) or wait; of those that wait, the 500 oldest.",
    ),
    "kubernetes_gpu_pod_waiting_timestamp_seconds": (
        "gauge",
        ("namespace",),
        "When the oldest pod of a namespace was made that requests GPUs and has no node.",
    ),
    **LEASES,
    "portal_hub_up": ("gauge", (), "Whether the hub of the portal answers."),
    "portal_proxy_up": ("gauge", (), "Whether the proxy of the portal answers."),
    "portal_told_timestamp_seconds": ("gauge", (), "When the hub wrote down the numbers below."),
    "portal_sessions": ("gauge", ("state",), "Sessions that run or wait."),
    "portal_sessions_unmeasured": (
        "gauge",
        ("reason",),
        "Sessions that run and would not be ended for being idle: silent ones send no measurements, of unknown ones "
        "something cannot be measured.",
    ),
    "portal_session_starts_total": (
        "counter",
        ("result",),
        "Starts of sessions since the hub has started: started, failed, refused, or cancelled before.",
    ),
    "portal_idle_warnings_total": ("counter", (), "Warnings of users whose sessions are idle."),
    "portal_idle_stops_total": ("counter", (), "Sessions that were ended for being idle."),
    "portal_notices_failed_total": ("counter", (), "Warnings that webhook or mail did not take."),
}
