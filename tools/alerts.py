#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print docs/alerts.md from the rules.

.venv/bin/python tools/alerts.py > docs/alerts.md
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import gpu, rules
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import Alert

TITLES = {
    "gpu": "GPUs",
    "host": "Hosts",
    "ceph": "Ceph",
    "zookeeper": "ZooKeeper",
    "slurm": "Slurm",
    "kubernetes": "Kubernetes",
    "reconciler": "Reconciler",
    "portal": "Portal",
    "logs": "Logs",
    "registry": "Registry",
    "backup": "Backup",
    "monitoring": "The monitoring itself",
}

INTRODUCTION = """\
# Alerts

What each alert means and what to do about it. An alert has these annotations:

| annotation | content |
| --- | --- |
| `summary` | the host first, then what is wrong |
| `evidence` | the value, with its unit |
| `remedy` | what to do |
| `runbook_url` | the section on this page |

The rules are data in `plugins/plugin_utils/monitoring`. `rules.rule_files(docs_url)` gives the files of rules for
Prometheus 2.42 or later, `rules.inhibit_rules()` the part of Alertmanager's configuration. This page is printed by
`tools/alerts.py` from the same data.

## How urgent

| severity | means | example |
| --- | --- | --- |
| `page` | Act now, at night too: the site or a large part of it does not work, will stop with the next fault, or it \
is unknown whether it works. | no slurmctld answers |
| `ticket` | Act within a working day. Until then, redundancy or a fence covers the fault. | a fatal GPU |
| `info` | It is shown on a dashboard. You are not called. | a job does not use its GPU |

A single fatal GPU or silent host is a ticket, because the other hosts go on; many at the same time are a page.

## What the rules need

- Every target has the label `host` with the host's name in the inventory. It is the first word of the summaries, and
  it decides which alerts hide each other. Nodes of Slurm and Kubernetes and hosts of Ceph must have the same names.
- The jobs that rules name are `node` (node_exporter with the textfile collector) and `ceph` (the mgrs' module
  `prometheus`). Each job is scraped at least once in two minutes.
- Set `honor_labels: true` only for hosts of slurmctld and control planes of Kubernetes. They report GPUs of other
  hosts, and the label `host` of these metrics must stay. From all other hosts Prometheus takes no metrics of
  schedulers, and none that name another host.
- Targets of the job `node` have labels for what writes metrics there: `slurm_controller="yes"` (Slurm),
  `kubernetes_control_plane="yes"` and `reconciler="yes"`. Without these labels no alert fires when one of them is
  silent.
- The GPU agent's metrics come from one place, the textfile or its [port](metrics.md#a-port-of-the-agent).
- Besides the [agent](metrics.md), node_exporter, Ceph, Prometheus and Alertmanager, these programs write metrics. If
  one is missing, its alerts do not fire.

| metrics | written by |
| --- | --- |
| `slurm_*` | the exporter of [Slurm](metrics.md#slurm) |
| `gpu_lease_info` | the exporter of [Slurm](metrics.md#slurm), for Kubernetes that of [hosts](metrics.md#hosts) |
| `gpuops_reconciler_*` | the [reconciler](metrics.md#the-reconciler) |
| `baremetal_gpu_log_*` | the programs that send and receive the [logs](logs.md#metrics) |
| `baremetal_gpu_*`, `zookeeper_*`, `cephfs_home_*` | the exporter of [hosts](metrics.md#hosts) |
| `portal_*`, `kubernetes_*` | the same |
"""

INHIBITED = """\
## Which alert hides which

While the alert before the colon fires, Alertmanager sends none of the alerts after it. Labels in brackets limit this
to alerts with the same values of these labels. No alert hides a more urgent one.
"""

RECORDED = """\
## Recording rules

| name | content |
| --- | --- |
"""


def filled(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


def plain(template: str) -> str:
    """A template for readers: each label as a word in capitals."""
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: found[1].upper(), template)


def section(alert: Alert) -> Iterator[str]:
    yield f"### {alert.name}\n"
    yield filled(alert.meaning) + "\n"
    yield filled(f"- Severity: {alert.severity}{f', after {alert.for_}' if alert.for_ else ', at once'}", "  ")
    codes = re.findall(r'code=~"([^"]*)"', alert.expr)
    if codes:
        links = ", ".join(f"[{code}](health-codes.md#{code})" for code in codes[0].split("|"))
        yield filled(f"- Codes: {links}", "  ")
    if "{{ if match" in alert.remedy:
        yield "- What to do: see code and action in [Health codes](health-codes.md); the alert has the same text"
    else:
        yield filled(f"- What to do: {plain(alert.remedy)}", "  ")
    yield "- Rule:\n"
    yield f"    ```text\n    {expression(alert)}\n    ```\n"


def expression(alert: Alert) -> str:
    """PromQL, with the list of all other codes cut short."""
    return alert.expr.replace("|".join(gpu.FAMILIES), "CODES OF THE ALERTS ABOVE")


def inhibition() -> Iterator[str]:
    for row in rules.INHIBITIONS:
        labels = f" ({', '.join(f'`{label}`' for label in row.equal)})" if row.equal else ""
        yield filled(f"- **{row.source}**{labels}: {', '.join(row.targets)}. Why: {row.why}.", "  ")
    yield ""


def page() -> str:
    lines = [INTRODUCTION, INHIBITED, *inhibition()]
    for name, alerts in rules.ALERTS.items():
        lines.append(f"## {TITLES[name]}\n")
        for alert in alerts:
            lines.extend(section(alert))
    records = [f"| `{record.name}` | {record.meaning} |" for rows in rules.RECORDS.values() for record in rows]
    return "\n".join([*lines, RECORDED + "\n".join(records)])


if __name__ == "__main__":
    print(page())
