# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the archives of what a host alone knows."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

_DAY = 24 * 60 * 60

ALERTS = (
    Alert(
        "BackupOld",
        f"time() - baremetal_gpu_backup_timestamp_seconds > {2 * _DAY}",
        "ticket",
        "For two days the host has made no backup of what it alone knows. Earlier backups are kept.",
        "{{ $labels.host }}: no backup for two days",
        "The last one was made {{ $value | humanizeDuration }} ago.",
        "Read `sudo journalctl -u baremetal-gpu-backup` on {{ $labels.host }}, which says what could not be read or "
        "written, and run `sudo systemctl start baremetal-gpu-backup` there.",
        "5m",
    ),
)
