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
        "There is no leading reconciler, so no GPU is fenced and none is returned to service.",
        "reconciler: there is no leader",
        "gpuops_reconciler_leader is 0 on all hosts, or has no series.",
        "See `systemctl status baremetal-gpu-reconciler` and `sudo gpuops-reconciler status` on its hosts, and on "
        "Mesos whether they reach ZooKeeper.",
        "5m",
    ),
    Alert(
        "ReconcilerFenceLong",
        _on_host(f"time() - max by (node, uuid, step) (gpuops_reconciler_fence_timestamp_seconds) > {2 * _DAY}"),
        "ticket",
        "A fence has been in effect for more than two days: a repair was forgotten, or jobs do not end.",
        "{{ $labels.node }}: {{ with $labels.uuid }}{{ . }}{{ else }}the host{{ end }} has been fenced for days",
        "The fence is {{ $value | humanizeDuration }} old, at the step {{ $labels.step }}.",
        "Repair what `sudo gpuops-reconciler status` names on its host, then run "
        "`sudo gpuops-reconciler clear {{ $labels.node }}` there.",
    ),
    Alert(
        "ReconcilerBreakerHolds",
        "max(gpuops_reconciler_breaker_waiting_hosts) > 0",
        "page",
        "So many hosts have fatal GPUs at the same time that the reconciler takes no more of them out of service. Jobs "
        "can still start on the hosts that wait.",
        "reconciler: the fleet breaker holds",
        "{{ $value }} hosts wait to be taken out of service.",
        "Find what the hosts in `sudo gpuops-reconciler status` have in common; "
        "`sudo gpuops-reconciler clear --breaker` lets it take them out of service.",
        "2m",
    ),
    Alert(
        "ReconcilerQuarantine",
        _on_host("max by (node, uuid) (gpuops_reconciler_quarantine_info) == 1"),
        "ticket",
        "Repairs did not fix a GPU. It stays out of service until an operator clears it.",
        "{{ $labels.node }}: {{ $labels.uuid }} is in quarantine",
        "gpuops_reconciler_quarantine_info is {{ $value }}.",
        "Have the GPU replaced, then run `sudo gpuops-reconciler clear {{ $labels.node }}:{{ $labels.uuid }}`.",
    ),
    Alert(
        "ReconcilerProblems",
        "max(gpuops_reconciler_problems) > 0",
        "ticket",
        "The reconciler cannot do its work for a host: the scheduler or ZooKeeper refuses it, or its input is "
        "malformed.",
        "reconciler: it has problems",
        "{{ $value }} problems have lasted for a quarter of an hour.",
        "Do what `sudo gpuops-reconciler status` says of each problem.",
        "15m",
    ),
)
