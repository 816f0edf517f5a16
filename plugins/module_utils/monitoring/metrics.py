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
        "Whether a part of the host exporter has come to its end: certificates, homes or zookeeper.",
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
}
