# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the registry of images."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, looked_up

_DAY = 24 * 60 * 60
_FREE = "baremetal_gpu_registry_free_bytes"

ALERTS = (
    Alert(
        "RegistryFull",
        f"{_FREE} < baremetal_gpu_registry_min_free_bytes",
        "ticket",
        "The registry has less free space than `registry_min_free`. It refuses new images; pulling still works.",
        "{{ $labels.host }}: the registry refuses new images",
        looked_up("baremetal_gpu_registry_free_bytes{host=%q} / 2^30", ("host",), "%.1f GiB")
        + " are free; the minimum is "
        + looked_up("baremetal_gpu_registry_min_free_bytes{host=%q} / 2^30", ("host",), "%.1f GiB")
        + ".",
        "Delete images that are not needed with `skopeo delete docker://HOST:PORT/NAME:TAG` and run "
        "`sudo systemctl start baremetal-gpu-registry-collect` on {{ $labels.host }}, or enlarge the file system.",
        "5m",
    ),
    Alert(
        "RegistrySpaceNotFreed",
        f"time() - baremetal_gpu_registry_collected_timestamp_seconds > {3 * _DAY}",
        "ticket",
        "For three days the registry has not freed the space of deleted images.",
        "{{ $labels.host }}: the registry does not free space",
        "The last time was {{ $value | humanizeDuration }} ago.",
        "Read `sudo journalctl -u baremetal-gpu-registry-collect` on {{ $labels.host }}: it waits until no image is "
        "being pushed, or says what it cannot read.",
        "5m",
    ),
)
