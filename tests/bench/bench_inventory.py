# SPDX-License-Identifier: GPL-3.0-or-later
"""The inventory plugin against the same hosts, groups and variables as static YAML; every host has eight GPUs.

The loading of the inventory is measured. A whole process also includes Ansible's own start, which both share."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.bench import made_up_fleet
from tests.bench.harness import Comparison, Run, Sample, child, compare, paired

HOSTS = 10_000
# YAML with the GPUs of all takes minutes and gigabytes; the ratio is the same for a part of them.
WITH_GPUS = 1_000
# For loading the inventory: of a whole process without the GPUs as variables, what Ansible takes to start (0.3 s and
# 50 MiB) is most, and the same on both sides.
GOALS: dict[str, float | None] = {"cpu_s": 20.0, "memory_mib": 5.0}


def _loads(source: Path, **environment: str) -> Run:
    return lambda: child("tests.bench.load_inventory", source, environment=environment)


def _same(pairs: Sequence[tuple[Sample, Sample]]) -> Sequence[tuple[Sample, Sample]]:
    """What is not the same is not compared."""
    for static, plugin in pairs:
        if static.outcome != plugin.outcome:
            raise SystemExit(f"not the same inventory: {static.outcome} against {plugin.outcome}")
    return pairs


def run(quick: bool = False) -> list[Comparison]:
    hosts = 200 if quick else HOSTS
    goals = {} if quick else GOALS
    with tempfile.TemporaryDirectory(prefix="bench-inventory-") as folder:
        place = Path(folder)
        made_up_fleet.write_snapshot(place / ".gpus.jsonl", hosts)
        made_up_fleet.write_static(place / "static.yml", hosts)
        made_up_fleet.write_plugin(place / "gpus.yml")
        few = min(hosts, WITH_GPUS)
        made_up_fleet.write_snapshot(place / ".few.jsonl", few)
        made_up_fleet.write_static(place / "static_gpus.yml", few, "gpu_gpus")
        made_up_fleet.write_plugin(place / "gpus_gpus.yml", "gpu_gpus", ".few.jsonl")
        (place / "one.yml").write_text("all:\n  hosts:\n    one:\n", encoding="utf-8")

        plugin, with_gpus = _loads(place / "gpus.yml"), _loads(place / "gpus_gpus.yml")
        control = paired(plugin, plugin, 3 if quick else 7, [plugin])
        one = _loads(place / "one.yml")
        starts = [one() for _number in range(4)]
        alone = _same(paired(_loads(place / "static.yml"), plugin, 1 if quick else 7))
        starts += [one() for _number in range(3)]
        gpus = _same(paired(_loads(place / "static_gpus.yml"), with_gpus, 1 if quick else 3, [with_gpus]))
        start = Sample.median(starts)

        cache = {"ANSIBLE_CACHE_PLUGIN": "jsonfile", "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(place / "cache")}
        child("tests.bench.fill_fact_cache", str(hosts), environment=cache)
        (place / "cached_gpus.yml").write_text("plugin: baremetal.gpu.gpus\nadd_hosts: true\n")
        cached = _same(
            paired(_loads(place / "static.yml"), _loads(place / "cached_gpus.yml", **cache), 1 if quick else 3)
        )

        fleet = f"{hosts:,} hosts"
        return [
            *compare(f"{fleet} and their groups, beyond what Ansible takes for one", alone, goals, control, start),
            *compare(f"{fleet} and their groups, the whole process", alone, {}, control),
            *compare(
                f"{fleet} and their groups, from the fact cache (jsonfile), the whole process", cached, {}, control
            ),
            *compare(f"{few:,} hosts with their GPUs as variables, beyond one", gpus, goals, control, start),
        ]
