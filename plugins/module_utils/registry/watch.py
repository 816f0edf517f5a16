# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Measures what images take, and has nginx refuse pushes for which there is no space.

A refusal is a file with the answer that clients show: `all.json` for every new push, `writes.json` for everything that
writes, `space-NAME.json` for a namespace. nginx looks whether the file is there.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any, Callable, NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.exposition import Metrics, Sample, exposition
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import loop
from ansible_collections.baremetal.gpu.plugins.module_utils.registry import layout

# The free space is looked at in each look; what images take, in which everything is walked through, more rarely.
INTERVAL_S = 5.0
MEASURE_S = 60.0
# A large storage is not walked through all the time.
MEASURE_SHARE = 20.0
ALL, WRITES = "all", "writes"

METRICS: Metrics = {
    "baremetal_gpu_registry_bytes": ("gauge", ("namespace",), "Space that the images of a namespace take."),
    "baremetal_gpu_registry_quota_bytes": ("gauge", ("namespace",), "Space that they may take."),
    "baremetal_gpu_registry_free_bytes": ("gauge", (), "Free space of the file system of the images."),
    "baremetal_gpu_registry_min_free_bytes": ("gauge", (), "Free space below which nothing can be pushed."),
    "baremetal_gpu_registry_refuses": ("gauge", ("namespace",), "1 for a namespace to which nothing can be pushed."),
    "baremetal_gpu_registry_collected_timestamp_seconds": ("gauge", (), "When unused space was freed last."),
}


class Limits(NamedTuple):
    """:ivar quotas: bytes by namespace."""

    host: str
    min_free: int
    quotas: Mapping[str, int]


def read_limits(path: str) -> Limits:
    """:raises ValueError: if it is not what the role writes."""
    with open(path, encoding="utf-8") as file:
        content: Any = json.load(file)
    try:
        quotas = {str(name): int(size) for name, size in content["quotas"].items()}
        return Limits(str(content["host"]), int(content["min_free"]), quotas)
    except (KeyError, TypeError, AttributeError) as wrong:
        raise ValueError(f"it lacks {wrong}") from None


class Usage:
    """What namespaces take. Manifests do not change, so each is read once."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._references: dict[str, frozenset[str]] = {}
        self._sizes: dict[str, int] = {}

    def measure(self) -> dict[str, int]:
        """Bytes by namespace: of the blobs that its images need, once each, of layers that no image has, until they are
        freed, and of what is being pushed."""
        counted: dict[str, set[str]] = {}
        uploads: dict[str, int] = {}
        manifests: set[str] = set()
        for repository in layout.repositories(self._root):
            revisions = repository.revisions()
            manifests.update(revisions)
            blobs = counted.setdefault(repository.space, set())
            for digest in revisions:
                blobs |= {digest} | self._of(digest)
            blobs |= set(repository.layers())
            pushed = sum(upload.bytes for upload in repository.uploads())
            uploads[repository.space] = uploads.get(repository.space, 0) + pushed
        # What is gone is forgotten.
        self._references = {digest: self._references[digest] for digest in manifests if digest in self._references}
        everything = set[str]().union(*counted.values())
        self._sizes = {
            digest: self._sizes.get(digest) or layout.blob_bytes(self._root, digest) for digest in everything
        }
        return {space: sum(self._sizes[one] for one in blobs) + uploads[space] for space, blobs in counted.items()}

    def _of(self, digest: str) -> frozenset[str]:
        if digest not in self._references:
            self._references[digest] = layout.references(self._root, digest)
        return self._references[digest]


def free_bytes(path: str) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"


class Watch:
    """Keeps the refusals of a storage."""

    def __init__(
        self,
        root: str,
        limits_path: str,
        refused: str,
        textfile: str = "",
        collected: str = "",
        free: Callable[[str], int] = free_bytes,
        clock: Callable[[], float] = time.time,
        say: Callable[[str, str], None] = loop.say,
    ) -> None:
        self._root, self._limits_path, self._refused = root, limits_path, refused
        self._textfile, self._collected = textfile, collected
        self._free, self._clock, self._say = free, clock, say
        self._usage, self._taken, self._next = Usage(root), dict[str, int](), 0.0

    def look(self) -> str:
        """One look; the value is what went wrong."""
        wrong = ""
        try:
            limits = read_limits(self._limits_path)
        except (OSError, ValueError) as why:
            return f"{self._limits_path} cannot be read: {why}. To do: run `gpuops up --tags registry`"
        try:
            free = self._free(self._root)
            self._measure()
        except OSError as why:
            free, wrong = -1, f"the storage cannot be read: {why.filename or self._root}: {why.strerror or why}"
        self._keep(self._wanted(limits, free))
        return "; ".join(filter(None, (wrong, self._write_metrics(limits, free))))

    def _measure(self) -> None:
        begun = self._clock()
        # A clock that was set back does not stop it.
        if begun < self._next <= begun + 86400.0:
            return
        self._taken = self._usage.measure()
        took = self._clock() - begun
        self._next = begun + max(MEASURE_S, took * MEASURE_SHARE)

    def _wanted(self, limits: Limits, free: int) -> dict[str, str]:
        """Messages by the name of the refusal."""
        found, where = {}, f"registry {limits.host}"
        if free < 0:
            text = f"{where}: its storage cannot be read. Ask the operator to see systemctl status on {limits.host}"
            return {ALL: text, WRITES: text}
        if free < limits.min_free:
            text = (
                f"{where}: {gib(free)} are free; the minimum is {gib(limits.min_free)}. Delete images that are not "
                f"needed, or ask the operator to enlarge the file system of {self._root} on {limits.host}"
            )
            found[ALL] = text
            if free < limits.min_free / 10:
                found[WRITES] = text
        for space, quota in limits.quotas.items():
            taken = self._taken.get(space, 0)
            if taken >= quota:
                found[f"space-{space}"] = (
                    f"{where}: {space} has {gib(taken)} of {gib(quota)}. Delete images, whose space is freed at night, "
                    "or ask the operator for a larger quota (registry_users)"
                )
        return found

    def _keep(self, wanted: Mapping[str, str]) -> None:
        os.makedirs(self._refused, mode=0o755, exist_ok=True)
        had = {name[: -len(".json")] for name in os.listdir(self._refused) if name.endswith(".json")}
        for name, text in wanted.items():
            answer = {"errors": [{"code": "DENIED", "message": text, "detail": None}]}
            host_files.write(os.path.join(self._refused, f"{name}.json"), json.dumps(answer), durable=False)
            if name not in had:
                self._say(f"pushes are refused: {text}", loop.WARNING)
        for name in had - set(wanted):
            os.unlink(os.path.join(self._refused, f"{name}.json"))
            self._say(f"pushes are no longer refused for {name}", loop.NOTICE)

    def _write_metrics(self, limits: Limits, free: int) -> str:
        prefix = "baremetal_gpu_registry_"
        refusals = {name[len("space-") :] for name in os.listdir(self._refused) if name.startswith("space-")}
        samples: list[Sample] = [
            *((f"{prefix}bytes", {"namespace": space}, size) for space, size in sorted(self._taken.items())),
            *((f"{prefix}quota_bytes", {"namespace": space}, size) for space, size in sorted(limits.quotas.items())),
            *(
                (f"{prefix}refuses", {"namespace": space}, f"{space}.json" in refusals)
                for space in sorted(limits.quotas)
            ),
            (f"{prefix}min_free_bytes", {}, limits.min_free),
        ]
        if free >= 0:
            samples.append((f"{prefix}free_bytes", {}, free))
        # Without the record, nothing has been freed yet.
        with contextlib.suppress(OSError):
            samples.append((f"{prefix}collected_timestamp_seconds", {}, round(os.stat(self._collected).st_mtime, 3)))
        return loop.write_metrics(self._textfile, exposition(samples, METRICS))
