# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the monitoring itself."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

ALERTS = (
    Alert(
        "Watchdog",
        "vector(1)",
        "info",
        "This alert always fires. Send it to a receiver outside of the site that calls you when it stops arriving: "
        "then Prometheus, Alertmanager or the internet access of the site is broken.",
        "monitoring: it works",
        "The value is always {{ $value }}.",
        "Nothing. Act when this alert stops arriving.",
    ),
    Alert(
        "TargetDown",
        # In Ceph 18.2 a mgr on standby does not listen.
        'up{job!~"node|ceph"} == 0',
        "ticket",
        "A program that Prometheus scrapes does not answer. For hosts there is HostSilent. For the mgrs of Ceph, of "
        "which one on standby may not answer, there is CephSilent.",
        "{{ $labels.host }}: {{ $labels.job }} does not answer Prometheus",
        "up of {{ $labels.instance }} is {{ $value }}.",
        "See whether the program runs on {{ $labels.host }}, and whether its port can be reached from Prometheus.",
        "10m",
    ),
    Alert(
        "TextfileUnreadable",
        "node_textfile_scrape_error == 1",
        "ticket",
        "node_exporter cannot read a file of metrics, so the metrics in it are missing.",
        "{{ $labels.host }}: node_exporter cannot read a file of metrics",
        "node_textfile_scrape_error is {{ $value }}.",
        "See `sudo journalctl -u prometheus-node-exporter` on {{ $labels.host }}, which names the file.",
        "10m",
    ),
    Alert(
        "RuleEvaluationFailing",
        "increase(prometheus_rule_evaluation_failures_total[15m]) > 0",
        "ticket",
        "Prometheus cannot evaluate a rule. Its alert cannot fire.",
        "{{ $labels.host }}: Prometheus cannot evaluate a rule",
        "{{ $value | printf `%.0f` }} failures within 15 minutes in {{ $labels.rule_group }}.",
        "See `sudo journalctl -u prometheus` on {{ $labels.host }}, which names the rule and the cause.",
        "5m",
    ),
    Alert(
        "PrometheusReloadFailed",
        "prometheus_config_last_reload_successful == 0 or alertmanager_config_last_reload_successful == 0",
        "ticket",
        "Prometheus or Alertmanager refuses its new configuration and goes on with the old one.",
        "{{ $labels.host }}: {{ $labels.job }} refuses its configuration",
        "config_last_reload_successful is {{ $value }}.",
        "See `sudo journalctl -u prometheus -u prometheus-alertmanager` on {{ $labels.host }}, which names the line.",
        "5m",
    ),
    Alert(
        "PrometheusStorageFaulty",
        "increase(prometheus_tsdb_wal_corruptions_total[1h]) > 0 "
        "or increase(prometheus_tsdb_compactions_failed_total[1h]) > 0",
        "ticket",
        "Prometheus cannot write its data properly: a full disk, or a faulty one.",
        "{{ $labels.host }}: Prometheus cannot write its data",
        "{{ $value | printf `%.0f` }} failures within an hour.",
        "See `sudo journalctl -u prometheus` on {{ $labels.host }}, and the space and the health of its disk.",
    ),
    Alert(
        "AlertsNotSent",
        # A reload drops some. The watchdog is sent each minute, so that there is always something to drop.
        "rate(prometheus_notifications_dropped_total[3m]) > 0",
        "page",
        "Prometheus cannot hand its alerts to any Alertmanager.",
        "{{ $labels.host }}: alerts do not reach Alertmanager",
        "{{ $value | humanize }} alerts per second are dropped.",
        "Run `sudo systemctl start prometheus-alertmanager`, and see whether Prometheus reaches its port.",
        "5m",
    ),
    Alert(
        "NotificationsFailing",
        "rate(alertmanager_notifications_failed_total[5m]) > 0",
        "page",
        "Alertmanager cannot deliver notifications to a receiver. This alert may still arrive through another one.",
        "{{ $labels.host }}: notifications by {{ $labels.integration }} fail",
        "{{ $value | humanize }} notifications per second fail.",
        "See `sudo journalctl -u prometheus-alertmanager` on {{ $labels.host }}, and whether the receiver can be "
        "reached.",
        "10m",
    ),
)
