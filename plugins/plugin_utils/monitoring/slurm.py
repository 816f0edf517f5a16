# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on Slurm. States are Slurm's own words, with each flag after a plus: `IDLE+DRAIN`."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, NUMBERS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

_DOWN = r"(DOWN|ERROR|UNKNOWN)[*]?([+].*)?|.*[+](NOT_RESPONDING|FAIL)([+].*)?"
_DRAINED = r"(.*[+])?(DRAIN|DRAINED|DRAINING)([+].*)?"
_STATE = (
    "State {{ range $number, $_ := query (printf `slurm_node_info{node=%q}` $labels.node) }}{{ if $number }}; {{ end }}"
    "{{ .Labels.state }}{{ with .Labels.reason }}, reason {{ . }}{{ end }}{{ end }}."
)


def _host(by_node: str) -> str:
    return f'label_replace({by_node}, "host", "$1", "node", "(.+)")'


def _nodes(state: str) -> str:
    by_node = f'max by (node) (slurm_node_info{{state=~"{state}"}}) == 1'
    return _host(by_node)


ALERTS = (
    Alert(
        "SlurmControllerDown",
        "max(slurm_controller_up) == 0 "
        'or count(up{job="node",slurm_controller="yes"}) unless on () slurm_controller_up',
        "page",
        "No slurmctld answers on any host. Running jobs go on, but no job starts or ends properly.",
        "slurm: no slurmctld answers",
        "slurm_controller_up is 0 on all hosts, or has no series.",
        "Run `sudo systemctl start slurmctld` on its host; `sudo journalctl -u slurmctld` says why it does not answer.",
        "3m",
    ),
    Alert(
        "SlurmDatabaseDown",
        "max(slurm_database_up) == 0",
        "ticket",
        "slurmdbd does not answer. slurmctld keeps the records until it does, and loses records once its queue is "
        "full.",
        "slurm: slurmdbd does not answer",
        "slurm_database_up is {{ $value }}.",
        "Run `sudo systemctl start mariadb slurmdbd` on their host; `sudo journalctl -u mariadb -u slurmdbd` says why "
        "they ended.",
        "10m",
    ),
    Alert(
        "SlurmMetricsOld",
        "time() - slurm_last_success_timestamp_seconds > 300 and on (host) slurm_controller_up == 1",
        "ticket",
        "The file of Slurm's metrics is no longer written, so all numbers in it are old: the program was killed, or "
        "the disk is full.",
        "{{ $labels.host }}: the metrics of Slurm are old",
        "They are {{ $value | humanizeDuration }} old.",
        "See `sudo journalctl -u baremetal-gpu-slurm-metrics` on {{ $labels.host }}, and whether its disk is full.",
        "5m",
    ),
    Alert(
        "SlurmNodeDown",
        _nodes(_DOWN),
        "ticket",
        "Slurm gives no job to a node because it is down or does not answer. A node that is powered down to save "
        "energy does not count.",
        "{{ $labels.node }}: down for Slurm",
        _STATE,
        "See `sudo journalctl -u slurmd` on {{ $labels.node }}; when slurmd runs, use "
        "`sudo scontrol update nodename={{ $labels.node }} state=resume`.",
        "10m",
    ),
    Alert(
        "SlurmNodeDrainedLong",
        _nodes(_DRAINED),
        "ticket",
        "A node has been drained for more than a day: its repair, or the restore after it, was forgotten.",
        "{{ $labels.node }}: drained for more than a day",
        _STATE,
        "Repair what the reason names, then run `gpuops restore {{ $labels.node }}`.",
        "1d",
    ),
    Alert(
        "SlurmHolderStuck",
        _host("max by (node, reason) (slurm_holder_stuck) == 1"),
        "ticket",
        "The job that must keep a bad GPU out of service does not start, for example because of a limit of its "
        "account. Until it starts, the node takes no jobs and its good GPUs are idle.",
        "{{ $labels.node }}: a bad GPU cannot be taken out of service",
        "{{ $value }} job of the reconciler waits for {{ $labels.reason }}.",
        "Run `gpuops up --tags slurm`, which gives these jobs an account and a QOS that no limit reaches.",
        "2m",
    ),
    Alert(
        "SlurmGpuNotFenced",
        f"count by (host) (gpu_health_status == {NUMBERS[FATAL]}) > on (host) "
        f"{_host('max by (node) (slurm_node_fenced_gpus)')} "
        f"and on (host) {_host('max by (node) (slurm_node_available) == 1')}",
        "page",
        "Jobs can get a fatal GPU: the reconciler has not fenced it, and the health check of slurmd, which "
        "waits for 5 minutes, has not drained the node. The Prolog refuses each job that gets the GPU.",
        "{{ $labels.host }}: Slurm still gives a fatal GPU to jobs",
        "{{ $value }} GPUs are fatal, fewer are fenced, and the node takes jobs.",
        "Run `gpuops drain {{ $labels.host }}`; `sudo gpuops-reconciler status` on the controller says why the GPU is "
        "not fenced.",
        "7m",
    ),
)
