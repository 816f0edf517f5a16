# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on Kubernetes. States are those that kubectl prints: `Ready,SchedulingDisabled`."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, NUMBERS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

_HOUR = 60 * 60
_DAY = 24 * _HOUR
_ETCD_LOG = "`sudo crictl logs $(sudo crictl ps -a --name etcd -q | head -1)`"
_STATE = "State {{ range query (printf `kubernetes_node_info{node=%q}` $labels.node) }}{{ .Labels.state }}{{ end }}."


def _host(by_node: str) -> str:
    return f'label_replace({by_node}, "host", "$1", "node", "(.+)")'


def _nodes(state: str) -> str:
    return _host(f'max by (node) (kubernetes_node_info{{state=~"{state}"}}) == 1')


ALERTS = (
    Alert(
        "KubernetesApiDown",
        'max(kubernetes_api_up) == 0 or count(up{job="node",kubernetes_control_plane="yes"}) unless on () '
        "kubernetes_api_up",
        "page",
        "The API server answers no control plane. Running pods go on and faulty GPUs stay withheld, but no pod starts "
        "or is replaced.",
        "kubernetes: the API server does not answer",
        "kubernetes_api_up is 0 on all control planes, or has no series.",
        "Run `gpuops doctor` for the cause; on a control plane see `sudo crictl ps -a` and `sudo journalctl -u "
        "kubelet`.",
        "3m",
    ),
    Alert(
        "KubernetesEtcdQuorumLost",
        "max(kubernetes_etcd_has_leader) == 0",
        "page",
        "etcd has no leader: more than half of its members are gone, so nothing in the cluster can be changed.",
        "kubernetes: etcd has no quorum",
        "kubernetes_etcd_has_leader is {{ $value }} on all control planes.",
        f"Start the control planes that are down; {_ETCD_LOG} on each says why its member does not run. If more than "
        "half are lost for good, run `ansible-playbook baremetal.gpu.kubernetes_restore`.",
        "1m",
    ),
    Alert(
        "KubernetesEtcdMemberDown",
        "kubernetes_etcd_has_leader == 0",
        "ticket",
        "A member of etcd does not answer, or has no connection to the others. Without a further one the cluster may "
        "lose its quorum.",
        "{{ $labels.host }}: its member of etcd is not part of the quorum",
        "kubernetes_etcd_has_leader is {{ $value }}.",
        f"On {{{{ $labels.host }}}} see {_ETCD_LOG} and `df -h /var/lib/etcd`.",
        "5m",
    ),
    Alert(
        "KubernetesEtcdSlow",
        "rate(kubernetes_etcd_fsync_seconds_total[10m]) / rate(kubernetes_etcd_fsyncs_total[10m]) > 0.1",
        "ticket",
        "The disk of etcd is slower than its heartbeat of 100 ms. Members then lose their leader, and the API server "
        "answers slowly or not at all.",
        "{{ $labels.host }}: the disk of etcd is slow",
        "A write to the disk takes {{ $value | humanizeDuration }} on average.",
        "See with `iostat -x 5` on {{ $labels.host }} what else uses the disk of /var/lib/etcd; give etcd a disk "
        "of its own, or a faster one.",
        "10m",
    ),
    Alert(
        "KubernetesEtcdNearlyFull",
        "kubernetes_etcd_database_bytes / kubernetes_etcd_quota_bytes > 0.8",
        "ticket",
        "The database of etcd is near its quota. At the quota etcd refuses all writes until an operator makes room.",
        "{{ $labels.host }}: the database of etcd is nearly full",
        "{{ $value | humanizePercentage }} of the quota are used.",
        "Delete objects that are not needed (`kubectl get events,jobs -A` shows what is old). Then run `etcdctl "
        "defrag` on one control plane after the other, with the certificates in /etc/kubernetes/pki/etcd.",
        "10m",
    ),
    Alert(
        "KubernetesSnapshotOld",
        f"kubernetes_etcd_snapshot_timestamp_seconds < time() - {_DAY}",
        "ticket",
        "For a day no snapshot of etcd was written. Earlier ones are kept.",
        "{{ $labels.host }}: no snapshot of etcd for a day",
        "The newest is of {{ $value | humanizeTimestamp }}; without one it is 1970.",
        "Read `sudo journalctl -u baremetal-gpu-etcd-snapshot` on {{ $labels.host }}, and run `sudo systemctl start "
        "baremetal-gpu-etcd-snapshot` there.",
        "8h",
    ),
    Alert(
        "KubernetesNodeNotReady",
        _nodes("(NotReady|Unknown).*"),
        "ticket",
        "kubelet does not report, or cannot run pods. After five minutes the pods of the node are started elsewhere.",
        "{{ $labels.node }}: not ready for pods",
        _STATE,
        "Run `gpuops doctor {{ $labels.node }}`, which names the cause; `sudo journalctl -u kubelet` is on the node.",
        "10m",
    ),
    Alert(
        "KubernetesNodeCordonedLong",
        _nodes("Ready,SchedulingDisabled"),
        "ticket",
        "A node has been cordoned for more than a day: its repair, or the restore after it, was forgotten.",
        "{{ $labels.node }}: cordoned for more than a day",
        _STATE,
        "`gpuops status` says who cordoned it and why. Once it is repaired, run `gpuops restore {{ $labels.node }}`; "
        "for a cordon of kubectl `kubectl uncordon {{ $labels.node }}`.",
        "1d",
    ),
    Alert(
        "KubernetesGpusNotGiven",
        _host('max by (node, problem) (kubernetes_node_problem{problem=~"gpus_not_registered|gpus_not_watched"}) == 1'),
        "ticket",
        "The daemon baremetal-gpu-kubernetes of a node does not run, or kubelet does not know it: pods get no GPU "
        "there, or a fault of a GPU would not be noticed.",
        "{{ $labels.node }}: its GPUs are not given to pods",
        "{{ $labels.problem }}: {{ $value }}.",
        "See `systemctl status baremetal-gpu-kubernetes` and `sudo journalctl -u baremetal-gpu-kubernetes` on "
        "{{ $labels.node }}; `gpuops up --tags kubernetes` installs the daemon.",
        "5m",
    ),
    Alert(
        "KubernetesGpuNotWithheld",
        f"count by (host) (gpu_health_status == {NUMBERS[FATAL]}) > on (host) "
        f"{_host('max by (node) (kubernetes_node_withheld_gpus)')} "
        f"and on (host) {_host('max by (node) (kubernetes_node_available) == 1')}",
        "page",
        "Pods can get a fatal GPU: the daemon of the node has not withheld it.",
        "{{ $labels.host }}: Kubernetes still gives a fatal GPU to pods",
        "{{ $value }} GPUs are fatal, fewer are withheld, and the node takes pods.",
        "Run `gpuops drain {{ $labels.host }}`; `sudo journalctl -u baremetal-gpu-kubernetes` there says why the GPU "
        "is not withheld.",
        "3m",
    ),
    Alert(
        "KubernetesPodWaitsLong",
        f"time() - max by (namespace) (kubernetes_gpu_pod_waiting_timestamp_seconds) > {12 * _HOUR}",
        "info",
        "A pod that requests GPUs has waited for half a day.",
        "kubernetes: a pod of {{ $labels.namespace }} has waited for a GPU for half a day",
        "It has waited for {{ $value | humanizeDuration }}.",
        "`gpuops jobs` says what it waits for.",
    ),
)
