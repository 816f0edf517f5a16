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
        "Nothing of a host's journal has reached the log host for half an hour. The host keeps what it cannot send, "
        "until its spool is full.",
        "{{ $labels.host }}: its journal does not reach the log host",
        "The log host wrote its last entry {{ $value | humanizeDuration }} ago.",
        "See `sudo journalctl -u systemd-journal-upload` on {{ $labels.host }}, and `sudo journalctl -t "
        "baremetal_gpu_log` on "
        "the log host, which names who was refused.",
        "5m",
    ),
    Alert(
        "LogEntriesDropped",
        "increase(baremetal_gpu_log_sender_dropped_entries_total[1h]) > 0",
        "ticket",
        "The spool of a host was full, and entries of its journal are lost that the log host has not got.",
        "{{ $labels.host }}: entries of its journal were dropped",
        "About {{ $value | printf `%.0f` }} entries within an hour.",
        "Mend the way to the log host, or give the spool more space by log_sender_spool; the journal of the host says "
        "from which time on entries are missing.",
    ),
)
