# SPDX-License-Identifier: GPL-3.0-or-later
"""Metrics that the rules use and that other programs give, each list with where it was read."""

from __future__ import annotations

METRICS: dict[str, tuple[str, ...]] = {
    # /metrics of prometheus-node-exporter 1.5.0-1+b6 of Debian 12.
    "node_exporter": (
        "node_filesystem_avail_bytes",
        "node_filesystem_files",
        "node_filesystem_files_free",
        "node_filesystem_readonly",
        "node_filesystem_size_bytes",
        "node_memory_MemAvailable_bytes",
        "node_memory_MemTotal_bytes",
        "node_textfile_mtime_seconds",
        "node_textfile_scrape_error",
        "node_time_seconds",
        "node_timex_maxerror_seconds",
        "node_timex_sync_status",
    ),
    # /usr/share/ceph/mgr/prometheus/module.py of ceph-mgr-modules-core 16.2.15+ds-0+deb12u2 of Debian 12.
    "ceph": (
        "ceph_cluster_total_bytes",
        "ceph_cluster_total_used_raw_bytes",
        "ceph_fs_metadata",
        "ceph_health_detail",
        "ceph_health_status",
        "ceph_mds_metadata",
        "ceph_mon_metadata",
        "ceph_mon_quorum_status",
        "ceph_osd_metadata",
        "ceph_osd_up",
    ),
    # Prometheus 2.42.0+ds-5+deb12u1 of Debian 12, which makes `up` of each target; the rest is in its own /metrics.
    "prometheus": (
        "up",
        "prometheus_config_last_reload_successful",
        "prometheus_notifications_dropped_total",
        "prometheus_rule_evaluation_failures_total",
        "prometheus_tsdb_compactions_failed_total",
        "prometheus_tsdb_wal_corruptions_total",
    ),
    # /metrics of prometheus-alertmanager 0.25.0-1+b4 of Debian 12.
    "alertmanager": (
        "alertmanager_config_last_reload_successful",
        "alertmanager_notifications_failed_total",
    ),
}
