# SPDX-License-Identifier: GPL-3.0-or-later
"""The callback plugin progress against Ansible's default callback, for the same events, without a terminal.

The controller's time in the calls is measured; both show the same run."""

from __future__ import annotations

from tests.bench.harness import Comparison, Run, child, compare, paired

HOSTS = 100
GOALS: dict[str, float | None] = {"cpu_s": 1.1}


def _calls(plugin: str, hosts: int) -> Run:
    return lambda: child("tests.bench.call_callbacks", plugin, str(hosts))


def run(quick: bool = False) -> list[Comparison]:
    hosts = 10 if quick else HOSTS
    default, ours = _calls("default", hosts), _calls("baremetal.gpu.progress", hosts)
    control = paired(ours, ours, 1 if quick else 3, [ours])
    pairs = paired(default, ours, 1 if quick else 7)
    for one, other in pairs:
        if one.outcome != other.outcome:
            raise SystemExit(f"not the same run: {one.outcome} against {other.outcome}")
    return compare(f"four tasks on {hosts} hosts, {pairs[0][0].outcome}", pairs, {} if quick else GOALS, control)
