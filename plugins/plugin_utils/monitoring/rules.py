# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules of Prometheus and the inhibition of Alertmanager, as what their files have in them.

What the scrape configuration must give: every target has the label `host`, the name of the host in the inventory; the
jobs are called `node` (node_exporter) and `ceph`, and targets of `node` have labels for what is on the host, such as
`reconciler="yes"`. docs/alerts.md, printed by tools/alerts.py, says more and explains each rule.
"""

from __future__ import annotations

from typing import Any

from ansible.module_utils.common.yaml import yaml_dump

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import (
    backup,
    ceph,
    gpu,
    host,
    kubernetes,
    logs,
    portal,
    reconciler,
    registry,
    slurm,
    watching,
    zookeeper,
)
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, Inhibition, Record

# The name of a file of rules and of its group.
ALERTS: dict[str, tuple[Alert, ...]] = {
    "gpu": gpu.ALERTS,
    "host": host.ALERTS,
    "ceph": ceph.ALERTS,
    "zookeeper": zookeeper.ALERTS,
    "slurm": slurm.ALERTS,
    "kubernetes": kubernetes.ALERTS,
    "reconciler": reconciler.ALERTS,
    "portal": portal.ALERTS,
    "logs": logs.ALERTS,
    "registry": registry.ALERTS,
    "backup": backup.ALERTS,
    "monitoring": watching.ALERTS,
}
RECORDS: dict[str, tuple[Record, ...]] = {"gpu": gpu.RECORDS}
BY_NAME: dict[str, Alert] = {alert.name: alert for alerts in ALERTS.values() for alert in alerts}

_DEGRADED = (
    "GpuHot",
    "GpuPowerBrake",
    "GpuPcieSlow",
    "GpuNvlinkFault",
    "GpuMemoryRepairPending",
    "GpuSettingWrong",
    "GpuDegraded",
)
_OF_GPUS = (*_DEGRADED, "GpuHealthUnknown", "GpusFewerThanBefore", "GpuAllocatedUnused")
_OF_AGENT = ("GpuAgentSilent", "GpuAgentStale", "GpuProbeFailing", "GpuProbeHung")

INHIBITIONS = (
    Inhibition(
        "HostSilent",
        (
            "GpuFatal",
            "HostGpusFatal",
            *_OF_GPUS,
            *_OF_AGENT,
            "CephOsdDown",
            "CephMonDown",
            "SlurmNodeDown",
            "SlurmNodeDrainedLong",
            "SlurmHolderStuck",
            "SlurmMetricsOld",
            "KubernetesEtcdMemberDown",
            "KubernetesSnapshotOld",
            "KubernetesNodeNotReady",
            "KubernetesNodeCordonedLong",
            "KubernetesGpusNotGiven",
            "TargetDown",
            "TextfileUnreadable",
            "CertificateUnreadable",
            "HostMetricsFailing",
            "HostMetricsOld",
            "LogSenderSilent",
            "RegistryFull",
            "RegistrySpaceNotFreed",
            "BackupOld",
            "PortalStartsFail",
            "PortalSessionsUnmeasured",
            "PortalMetricsOld",
        ),
        ("host",),
        "they follow from the silent host",
    ),
    Inhibition(
        "HostGpusFatal",
        ("GpuFatal", *_OF_GPUS, "GpuProbeFailing", "GpuProbeHung"),
        ("host",),
        "a fault of the host affects all its GPUs",
    ),
    Inhibition(
        "GpuFatal", _OF_GPUS, ("host",), "the host needs a repair anyway, and its other GPUs may suffer from it"
    ),
    Inhibition("GpuAgentSilent", ("GpuAgentStale",), ("host",), "the same fault"),
    Inhibition("GpuAgentStale", ("GpuProbeFailing", "GpuProbeHung", *_OF_GPUS), ("host",), "the numbers are old"),
    Inhibition("GpuProbeHung", ("GpuProbeFailing", "GpuHealthUnknown"), ("host",), "the hang is the cause"),
    Inhibition("GpuProbeFailing", ("GpuHealthUnknown",), ("host",), "without a look there is no verdict"),
    Inhibition("GpuHealthUnknown", ("GpusFewerThanBefore",), ("host",), "a GPU that cannot be read may not be counted"),
    Inhibition("HostDiskFull", ("HostDiskFillsUp",), ("host", "device"), "it is full already"),
    Inhibition("CertificateExpiresNow", ("CertificateExpiresSoon",), ("host", "path"), "the more urgent of the two"),
    Inhibition("HostMetricsOld", ("HostMetricsFailing", "CertificateUnreadable"), ("host",), "the numbers are old"),
    Inhibition("CephHealthError", ("CephHealthWarning",), (), "the more urgent of the two"),
    Inhibition("CephCapacityCritical", ("CephCapacityLow",), (), "the more urgent of the two"),
    Inhibition("CephFilesystemWithoutMds", ("CephNoMdsOnStandby",), (), "the more urgent of the two"),
    Inhibition("ZookeeperQuorumLost", ("ZookeeperServerMissing", "ReconcilerNoLeader"), (), "the quorum is the cause"),
    Inhibition("SlurmControllerDown", ("SlurmMetricsOld", "PortalStartsFail"), (), "the controller is the cause"),
    Inhibition(
        "KubernetesEtcdQuorumLost",
        ("KubernetesApiDown", "KubernetesEtcdMemberDown", "ReconcilerNoLeader"),
        (),
        "the quorum is the cause",
    ),
    Inhibition("KubernetesApiDown", ("ReconcilerNoLeader",), (), "the API server is the cause"),
    Inhibition("KubernetesNodeNotReady", ("KubernetesGpusNotGiven",), ("host",), "the node is the cause"),
    Inhibition("PortalHubDown", ("PortalStartsFail", "PortalSessionsUnmeasured"), ("host",), "the hub is the cause"),
)


def rules(docs_url: str = "") -> dict[str, list[dict[str, Any]]]:
    """The groups of each file of rules, by the file's name.

    `docs_url` is where the site has these docs; without it the runbooks' links lead to those of the collection.
    """
    return {
        f"{name}.yml": [
            *(
                [{"name": f"{name}-records", "rules": [record.rule() for record in RECORDS[name]]}]
                if name in RECORDS
                else []
            ),
            {"name": name, "rules": [alert.rule(docs_url) for alert in alerts]},
        ]
        for name, alerts in ALERTS.items()
    }


def inhibit_rules() -> list[dict[str, Any]]:
    """What alertmanager.yml has as inhibit_rules."""
    return [inhibition.rule() for inhibition in INHIBITIONS]


def rule_files(docs_url: str = "") -> dict[str, str]:
    """The text of each file of rules, by its name."""
    return {
        name: str(yaml_dump({"groups": groups}, sort_keys=False, allow_unicode=True, width=10_000))
        for name, groups in rules(docs_url).items()
    }
