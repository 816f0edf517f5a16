# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules on the portal."""

from __future__ import annotations

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert, looked_up

_FAILED = 'increase(portal_session_starts_total{result="failed"}[30m])'
_STARTED = 'increase(portal_session_starts_total{result="started"}[30m])'

ALERTS = (
    Alert(
        "PortalHubDown",
        "portal_hub_up == 0",
        "page",
        "The hub of the portal does not answer: users cannot log in or start a session. Running sessions go on.",
        "{{ $labels.host }}: the hub of the portal does not answer",
        "portal_hub_up is {{ $value }}.",
        "See `sudo journalctl -u baremetal-gpu-portal` on {{ $labels.host }}, which says why the hub ended or does not "
        "answer.",
        "3m",
    ),
    Alert(
        "PortalProxyDown",
        "portal_proxy_up == 0",
        "page",
        "The proxy of the portal does not answer: users cannot reach the portal or their sessions. Running "
        "sessions go on.",
        "{{ $labels.host }}: the proxy of the portal does not answer",
        "portal_proxy_up is {{ $value }}.",
        "See `sudo journalctl -u baremetal-gpu-portal-proxy` on {{ $labels.host }}, and whether another program uses "
        "its port.",
        "3m",
    ),
    Alert(
        "PortalStartsFail",
        f"{_FAILED} > 2 unless on (host) {_STARTED} > 0",
        "ticket",
        "Sessions fail to start, and none has started within half an hour. Invalid requests and cancelled starts do "
        "not count.",
        "{{ $labels.host }}: sessions of the portal fail to start",
        "{{ $value | printf `%.0f` }} failed within half an hour, and none started.",
        "See `sudo journalctl -u baremetal-gpu-portal -u 'baremetal-gpu-portal-session@*'` on {{ $labels.host }}, "
        "which has the errors of Slurm and of the session.",
        "5m",
    ),
    Alert(
        "PortalSessionsUnmeasured",
        'portal_sessions_unmeasured{reason="silent"} > 0',
        "ticket",
        "Sessions do not report whether they are used, so they are never ended as idle and keep their GPUs. The "
        "measuring program is missing on their nodes, or it was stopped.",
        "{{ $labels.host }}: sessions of the portal are not measured",
        "{{ $value }} of "
        + looked_up('portal_sessions{host=%q,state="run"}', ("host",), "%.0f")
        + " sessions send no measurements.",
        "Run `gpuops up --tags portal` for all nodes. See on the node of a session whether "
        "/usr/libexec/baremetal-gpu/portal-measure runs in it and reaches the port of the hub.",
        "15m",
    ),
    Alert(
        "PortalMetricsOld",
        "time() - portal_told_timestamp_seconds > 300 and on (host) portal_hub_up == 1",
        "ticket",
        "The hub answers but no longer writes its metrics, so they are old: its disk is full, or a part of it hangs.",
        "{{ $labels.host }}: the metrics of the portal are old",
        "They are {{ $value | humanizeDuration }} old.",
        "See `sudo journalctl -u baremetal-gpu-portal` on {{ $labels.host }}, and whether its disk is full.",
        "5m",
    ),
)
