# SPDX-License-Identifier: GPL-3.0-or-later
"""A day of a made-up cluster on which many users' jobs follow each other on the same GPUs, with their use known.

Times are seconds since the beginning. Slurm and each host are looked at every 15 seconds and scraped every 60, each at
moments of its own: what Prometheus knows at a full minute is what was so at the last look before the last scrape.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import metrics

LOOK_S, SCRAPE_S = 15, 60
# How long before a full minute each is scraped.
SCRAPED = {"head1": 44, **{f"gpu{number}": 5 * number - 5 for number in range(1, 13)}}
# Users with these beginnings use their GPUs always, never, or at times.
BUSY, IDLE, MIXED = "busy", "idle", "mixed"
USERS = [f"{kind}{number}" for kind, count in ((BUSY, 6), (IDLE, 6), (MIXED, 8)) for number in range(count)]
MODELS = {f"gpu{number}": "NVIDIA A100-SXM4-40GB" if number < 9 else "Tesla T4" for number in range(1, 13)}
GPUS_OF_HOST = 4
TYPES = {"NVIDIA A100-SXM4-40GB": "a100", "Tesla T4": "t4"}


@dataclass(frozen=True)
class MadeUpJob:
    """:ivar busy: when it uses all of its GPUs."""

    number: int
    user: str
    host: str
    minors: tuple[int, ...]
    start: int
    end: int
    busy: tuple[tuple[int, int], ...]

    @property
    def account(self) -> str:
        return f"group{self.number % 3}"

    @property
    def gpu_seconds(self) -> int:
        return (self.end - self.start) * len(self.minors)

    @property
    def used_gpu_seconds(self) -> int:
        return sum(end - begin for begin, end in self.busy) * len(self.minors)

    def uses(self, moment: float) -> bool:
        return any(begin <= moment < end for begin, end in self.busy)

    def row(self) -> dict[str, object]:
        """As `slurm.cluster.count` has it."""
        return {
            "id": str(self.number),
            "name": "train",
            "user": self.user,
            "account": self.account,
            "partition": "all",
            "state": "RUNNING",
            "holder": False,
            "waits": False,
            "started": float(self.start),
            "nodes": [{"name": self.host, "minors": list(self.minors)}],
        }


def made_up(count: int, seed: int = 1) -> list[MadeUpJob]:
    chance = random.Random(seed)
    free = {(host, minor): 60 for host in MODELS for minor in range(GPUS_OF_HOST)}
    found = []
    for number in range(1, count + 1):
        user = chance.choice(USERS)
        wants = chance.choice((1, 1, 1, 2, 4))
        by_host = {
            host: sorted(range(GPUS_OF_HOST), key=lambda minor, host=host: free[host, minor])[:wants] for host in MODELS
        }
        host = min(by_host, key=lambda host: max(free[host, minor] for minor in by_host[host]))
        # The next job often begins in the second in which the last one ends.
        start = max(free[host, minor] for minor in by_host[host]) + chance.choice((0, 0, 1, 7, 40, 300))
        end = start + int(min(max(chance.lognormvariate(8.4, 0.7), 300), 6 * 3600))
        for minor in by_host[host]:
            free[host, minor] = end
        found.append(
            MadeUpJob(number, user, host, tuple(sorted(by_host[host])), start, end, _busy(user, start, end, chance))
        )
    return found


def _busy(user: str, start: int, end: int, chance: random.Random) -> tuple[tuple[int, int], ...]:
    if user.startswith(IDLE):
        return ()
    if user.startswith(BUSY):
        return ((start, end),)
    found, at = [], start + chance.randrange(600)
    while at < end:
        until = min(at + chance.randrange(120, 3600), end)
        found.append((at, until))
        at = until + chance.randrange(120, 3600)
    return tuple(found)


def uuid(host: str, minor: int) -> str:
    return f"GPU-{host}-{minor}"


# Name and labels.
Name = tuple[str, tuple[tuple[str, str], ...]]


def scrapes(jobs: list[MadeUpJob]) -> Iterator[tuple[int, dict[Name, float]]]:
    """What each scrape tells, by its time."""
    last = max(job.end for job in jobs) + 600
    for at in range(0, last, SCRAPE_S):
        found: dict[Name, float] = {}

        def tell(name: str, value: float, host: str, target: str, /, found: dict[Name, float] = found, **labels: str):
            told = {"host": host, "instance": f"{target}:9100", "job": "node", **labels}
            found[name, tuple(told.items())] = value

        looks = {
            name: max(at - ago - (at - ago + 4 * number) % LOOK_S, 0)
            for number, (name, ago) in enumerate(SCRAPED.items())
        }
        slurm = looks["head1"]
        running = [job for job in jobs if job.start <= slurm < job.end]
        document = {"nodes": [], "partitions": [], "waiting": {}, "jobs": [job.row() for job in running]}
        for name, labels, value in metrics.samples(document):
            if name.startswith("gpu_lease"):
                texts = {key: str(text) for key, text in labels.items() if key != "host" and text is not None}
                tell(name, value, labels["host"], "head1", **texts)
        tell("slurm_last_success_timestamp_seconds", slurm, "head1", "head1")
        for host, model in MODELS.items():
            tell("gpu_probe_last_success_timestamp_seconds", looks[host], host, host)
            uses = {
                minor
                for job in jobs
                if job.host == host and job.start <= looks[host] < job.end and job.uses(looks[host])
                for minor in job.minors
            }
            for minor in range(GPUS_OF_HOST):
                gpu = {"uuid": uuid(host, minor), "gpu": str(minor)}
                tell("gpu_info", 1, host, host, **gpu, minor=str(minor), model=model)
                tell("gpu_utilization_ratio", 0.9 if minor in uses else 0.0, host, host, **gpu, unit="gpu")
        yield at, found


def series(jobs: list[MadeUpJob]) -> dict[str, str]:
    """The same as promtool reads it: each series ends in the scrape that does not tell it any more."""
    values: dict[Name, dict[int, float]] = {}
    number = 0
    for number, (_at, found) in enumerate(scrapes(jobs)):
        for name, value in found.items():
            values.setdefault(name, {})[number] = value
    return {_text(name): _notation([told.get(at) for at in range(number + 1)]) for name, told in values.items()}


def _text(name: Name) -> str:
    metric, labels = name
    return f"{metric}{{{','.join(f'{key}={chr(34)}{value}{chr(34)}' for key, value in labels)}}}"


def _notation(values: list[float | None]) -> str:
    words: list[str] = []
    at = 0
    while at < len(values):
        until = at
        while until < len(values) and values[until] == values[at]:
            until += 1
        length, value = until - at, values[at]
        if value is not None:
            words.append(f"{value:g}x{length - 1}" if value < 1e5 else f"{value:.0f}x{length - 1}")
        elif at:
            words.append("stale" if length == 1 else f"stale _x{length - 1}")
        else:
            words.append(f"_x{length}")
        at = until
    return " ".join(words)
