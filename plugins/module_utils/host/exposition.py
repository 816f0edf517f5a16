# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text format of Prometheus, for the textfile collector of node_exporter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# Name -> type, labels and help. Names and units are as Prometheus' conventions want them: base units; counters end in
# _total.
Metrics = Mapping[str, "tuple[str, tuple[str, ...], str]"]
# Name, labels and value. A label that is None is left out.
Sample = tuple[str, dict[str, Any], float]

# Who has which GPU, from each scheduler.
LEASES: Metrics = {
    "gpu_lease_info": (
        "gauge",
        ("scheduler", "host", "minor", "job_id", "job_name", "user", "account", "partition"),
        "A GPU that a job has; the value is always 1.",
    ),
    "gpu_lease_start_timestamp_seconds": (
        "gauge",
        ("scheduler", "host", "job_id"),
        "When a job got its GPUs on a host.",
    ),
}


def _escaped(value: Any) -> str:
    return str(value).replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def exposition(samples: Iterable[Sample], metrics: Metrics) -> str:
    """The text of samples, grouped by metric as the format wants it. A sample of another metric is left out."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in samples:
        inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items() if text is not None)
        number = int(value) if float(value).is_integer() else value
        by_name.setdefault(name, []).append(f"{name}{{{inner}}} {number}\n" if inner else f"{name} {number}\n")
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {kind}\n{''.join(by_name[name])}"
        for name, (kind, _labels, text) in metrics.items()
        if name in by_name
    )
