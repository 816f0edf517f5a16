# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the reconciler."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

_DAY = 24 * 60 * 60


def _on_host(expr: str) -> str:
    return f'label_replace({expr}, "host", "$1", "node", "(.+)")'


ALERTS = (
    Alert(
        "ReconcilerNoLeader",
        "sum(gpuops_reconciler_leader) == 0 "
        'or count(up{job="node",reconciler="yes"}) unless on () gpuops_reconciler_leader',
        "ticket",
        "No reconciler leads, so no GPU is fenced and none comes back.",
        "reconciler: none leads",
        "gpuops_reconciler_leader is 0 everywhere or has no series.",
        "See `systemctl status baremetal-gpu-reconciler` and `sudo gpuops-reconciler status` on its hosts, and on "
        "Mesos whether they reach ZooKeeper.",
        "5m",
    ),
    Alert(
        "ReconcilerFenceLong",
        _on_host(f"time() - max by (node, uuid, step) (gpuops_reconciler_fence_timestamp_seconds) > {2 * _DAY}"),
        "ticket",
        "A fence has been in effect for more than two days: a repair that was forgotten, or jobs that do not end.",
        "{{ $labels.node }}: {{ with $labels.uuid }}{{ . }}{{ else }}the host{{ end }} has been fenced for days",
        "The fence is {{ $value | humanizeDuration }} old, at the step {{ $labels.step }}.",
        "Repair what `sudo gpuops-reconciler status` names on its host, then run "
        "`sudo gpuops-reconciler clear {{ $labels.node }}` there.",
    ),
    Alert(
        "ReconcilerBreakerHolds",
        "max(gpuops_reconciler_breaker_waiting_hosts) > 0",
        "page",
        "So many hosts have fatal GPUs at the same time that the reconciler takes out no more of them. Jobs are "
        "started on those that wait.",
        "reconciler: the fleet breaker holds",
        "{{ $value }} hosts wait to be taken out.",
        "Find what the hosts in `sudo gpuops-reconciler status` have in common; "
        "`sudo gpuops-reconciler clear --breaker` lets them be taken out.",
        "2m",
    ),
    Alert(
        "ReconcilerQuarantine",
        _on_host("max by (node, uuid) (gpuops_reconciler_quarantine_info) == 1"),
        "ticket",
        "Repairs have not helped a GPU, and it stays out of use until an operator clears it.",
        "{{ $labels.node }}: {{ $labels.uuid }} is in quarantine",
        "gpuops_reconciler_quarantine_info is {{ $value }}.",
        "Have the GPU replaced, then run `sudo gpuops-reconciler clear {{ $labels.node }}:{{ $labels.uuid }}`.",
    ),
    Alert(
        "ReconcilerProblems",
        "max(gpuops_reconciler_problems) > 0",
        "ticket",
        "The reconciler cannot do its work for a host: what the scheduler or ZooKeeper refuses, or malformed input.",
        "reconciler: it has problems",
        "{{ $value }} problems have lasted for a quarter of an hour.",
        "Do what `sudo gpuops-reconciler status` says of each problem.",
        "15m",
    ),
)
