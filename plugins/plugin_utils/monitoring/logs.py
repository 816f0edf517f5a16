# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the log host and on the hosts that send their journals to it."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

ALERTS = (
    Alert(
        "LogSenderSilent",
        'label_replace(time() - max by (sender) (baremetal_gpu_log_store_written_timestamp_seconds) > 1800, "host", '
        '"$1", "sender", "(.+)")',
        "ticket",
        "No entry of a host's journal has reached the log host for half an hour. The host keeps unsent entries until "
        "its spool is full.",
        "{{ $labels.host }}: its journal does not reach the log host",
        "The log host wrote its last entry {{ $value | humanizeDuration }} ago.",
        "See `sudo journalctl -u systemd-journal-upload` on {{ $labels.host }}, and "
        "`sudo journalctl -t baremetal_gpu_log` on the log host, which names refused senders.",
        "5m",
    ),
    Alert(
        "LogEntriesDropped",
        "increase(baremetal_gpu_log_sender_dropped_entries_total[1h]) > 0",
        "ticket",
        "The spool of a host was full, so entries of its journal were dropped before they reached the log host.",
        "{{ $labels.host }}: entries of its journal were dropped",
        "About {{ $value | printf `%.0f` }} entries within an hour.",
        "Repair the connection to the log host, or give the spool more space with log_sender_spool. The journal of the "
        "host shows since when entries are missing.",
    ),
)
