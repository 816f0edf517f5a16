# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The metrics of the host exporter."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics

METRICS: Metrics = {
    "baremetal_gpu_host_part_success": (
        "gauge",
        ("part",),
        "Whether a part of the host exporter has come to its end: certificates, homes, portal or zookeeper.",
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
