# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics that the rules use and that neither the GPU agent nor somebody else's exporter gives, with their labels."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """`labels` are those beside the ones of the target."""

    name: str
    labels: tuple[str, ...]
    meaning: str


METRICS = (
    Metric(
        "gpu_lease_info",
        ("scheduler", "host", "minor", "job_id", "user", "account"),
        "1 for each GPU that a job has; `host` is where the GPU is, and `host` and `minor` are those of `gpu_info`",
    ),
    Metric(
        "gpu_lease_start_timestamp_seconds",
        ("scheduler", "host", "job_id"),
        "When a job got its GPUs on a host, in Unix seconds",
    ),
    Metric(
        "baremetal_gpu_certificate_expiry_timestamp_seconds",
        ("path",),
        "When a certificate of the host ends, in Unix seconds",
    ),
    Metric("cephfs_home_used_bytes", ("user",), "What a user's home holds"),
    Metric("cephfs_home_quota_bytes", ("user",), "The quota of a user's home; 0 for none"),
    Metric("zookeeper_serving", (), "Whether the server of this host is part of a quorum and answers clients: 0 or 1"),
    Metric("zookeeper_ensemble_servers", (), "Servers that the configuration of this host's server names"),
    Metric(
        "slurm_node_info",
        ("node", "state", "reason"),
        "1 for each node; `state` is Slurm's word, with each flag after a plus (`IDLE+DRAIN`); `reason` may be missing",
    ),
    Metric("slurm_last_success_timestamp_seconds", (), "When slurmctld answered last, in Unix seconds"),
    Metric("slurm_controller_up", (), "Whether a slurmctld answers: 0 or 1"),
    Metric("slurm_database_up", (), "Whether slurmdbd answers: 0 or 1; missing on a site without accounting"),
    Metric("gpuops_reconciler_leader", (), "Whether this reconciler leads: 0 or 1"),
    Metric(
        "gpuops_reconciler_fence_timestamp_seconds",
        ("node", "uuid", "step"),
        "When a fence that is in effect began, in Unix seconds, with the step that it is at; without `uuid` for a "
        "whole host. Only the leader gives it, as all below",
    ),
    Metric("gpuops_reconciler_breaker_waiting_hosts", (), "Hosts that the fleet breaker keeps from being taken out"),
    Metric("gpuops_reconciler_quarantine_info", ("node", "uuid"), "1 for each GPU in quarantine"),
    Metric("gpuops_reconciler_problems", (), "Problems that the reconciler has now"),
)
