# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts that fail again and again, the worst first, from what is remembered of them.

A host's points are the sum of three things, so that everybody can follow them:

- 10 for each acceptance in which one of its items failed;
- 2 for each run of gpuops in which it failed or was not reached;
- 1 for each hour in which an alert was firing for it, 100 at most for an alert.
"""

from __future__ import annotations

import time
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ansible_collections.baremetal.gpu.plugins.plugin_utils.accept import item
from ansible_collections.baremetal.gpu.plugins.plugin_utils.progress.text import Line
from ansible_collections.baremetal.gpu.plugins.plugin_utils.untrusted_document import mapping, text
from gpuops.run import records
from gpuops.run.table import table as columns
from gpuops.status import usage_samples

DAY_S = 86400.0
ACCEPTANCE, RUN, HOUR, HOURS_MOST = 10, 2, 1, 100
BAD = ("failed", "unreachable")
# Alerts that tell of no fault of a host.
NO_FAULT = ("Watchdog",)
STEP_MINUTES = 5
NAME_AT_MOST = 200
HOST_AT_MOST = 40


@dataclass
class Lemon:
    """What is known of a host.

    :ivar failed: acceptances in which an item of it failed, of those in which it was looked at.
    :ivar items: the items that failed, with their subject, and how often.
    :ivar runs: runs of gpuops in which it failed or was not reached.
    :ivar alerts: hours in which each alert was firing.
    :ivar last: what failed last.
    """

    host: str
    points: int = 0
    failed: int = 0
    acceptances: int = 0
    items: dict[str, int] = field(default_factory=dict)
    runs: int = 0
    alerts: dict[str, float] = field(default_factory=dict)
    last: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def rank(
    reports: Iterable[Mapping[str, Any]],
    runs: Iterable[records.Record],
    alerts: Mapping[str, Mapping[str, float]],
    since: float,
) -> list[Lemon]:
    """The hosts with points, the worst first.

    :param alerts: hours in which each alert was firing, by host.
    :param since: what is older, in seconds since the epoch, does not count.
    """
    found: dict[str, Lemon] = {}
    for report in sorted((row for row in reports if row["started"] >= since), key=lambda row: row["started"]):
        bad = [row for row in report["items"] if row["outcome"] == item.FAIL]
        for host in report["hosts"]:
            lemon = found.setdefault(host, Lemon(host))
            lemon.acceptances += 1
            rows = [row for row in bad if row["host"] == host]
            lemon.failed += bool(rows)
            names = [f"{row['id']} {row['subject']}".strip() for row in rows]
            lemon.items = dict(Counter(lemon.items) + Counter(names))
            if rows:
                lemon.last = f"{names[-1]}: {rows[-1]['evidence']}"
    for run in runs:
        for host, state in run.hosts.items():
            if run.started >= since and state in BAD and not run.check:
                found.setdefault(host, Lemon(host)).runs += 1
    for host, hours in alerts.items():
        found.setdefault(host, Lemon(host)).alerts = dict(hours)
    for lemon in found.values():
        firing = sum(min(hours, HOURS_MOST) for hours in lemon.alerts.values())
        lemon.points = ACCEPTANCE * lemon.failed + RUN * lemon.runs + round(HOUR * firing)
        lemon.items = dict(sorted(lemon.items.items(), key=lambda row: -row[1]))
    return sorted((row for row in found.values() if row.points), key=lambda row: (-row.points, row.host))


def query(days: int) -> str:
    """PromQL for the hours in which each alert was firing for each host."""
    firing = 'ALERTS{alertstate="firing",host!=""}'
    return f"sum by (host, alertname) (count_over_time({firing}[{days}d:{STEP_MINUTES}m])) * {STEP_MINUTES} / 60"


def alerts(url: str, days: int) -> dict[str, dict[str, float]]:
    """What Prometheus knows of alerts: {host: {alert: hours}}. Raises usage_samples.NoSamples."""
    words = urllib.parse.urlencode({"query": query(days), "time": f"{time.time():.3f}"})
    found: dict[str, dict[str, float]] = {}
    for row in usage_samples.result(f"{usage_samples.check(url)}/api/v1/query?{words}"):
        labels = mapping(row.get("metric"))
        host, alert = (text(labels.get(name), NAME_AT_MOST) for name in ("host", "alertname"))
        value = row.get("value")
        try:
            hours = float(value[1]) if isinstance(value, list) else -1.0
        except (IndexError, TypeError, ValueError):
            continue
        # NaN is no number of hours.
        if host and alert and alert not in NO_FAULT and 0 < hours <= days * 24 * 60:
            found.setdefault(host, {})[alert] = round(hours, 2)
    return found


def table(lemons: Sequence[Lemon], most: int, width: int) -> list[Line]:
    """What a person reads."""
    head, rows = ("HOST", "POINTS", "ACCEPTANCES", "RUNS", "ALERT HOURS", "WHAT FAILED MOST"), []
    for lemon in lemons[:most]:
        worst = [f"{name} ({count} times)" if count > 1 else name for name, count in list(lemon.items.items())[:2]]
        worst += [alert for alert, _hours in sorted(lemon.alerts.items(), key=lambda row: -row[1])[:2]]
        hours = sum(lemon.alerts.values())
        failed = f"{lemon.failed} of {lemon.acceptances} failed"
        rows.append((lemon.host, str(lemon.points), failed, str(lemon.runs), f"{hours:.1f}", ", ".join(worst)))
    return columns(head, rows, width, indent="", cut_at=HOST_AT_MOST)
