# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hub knows of the cluster: one question for all who ask at the same time."""

from __future__ import annotations

import asyncio
import time

from ansible_collections.baremetal.gpu.plugins.module_utils.portal import (
    backend,
    docker_backend,
    marathon_backend,
    settings,
    slurm_backend,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.portal.backend import Backend
from baremetal_gpu_portal import gpus, who
from baremetal_gpu_portal.gpus import Gpus
from baremetal_gpu_portal.who import Look

# Prometheus itself asks the hosts every ten seconds.
MEASURED_S = 5.0


def backend_of(scheduler: str, socket: str) -> Backend:
    """:param socket: that of the program that works as root."""
    if scheduler == settings.SLURM:
        return slurm_backend.SlurmBackend()
    kind = docker_backend.DockerBackend if scheduler == settings.DOCKER else marathon_backend.MarathonBackend
    return kind(backend.asked(socket))


class Scheduler:
    """The nodes, jobs and sessions."""

    def __init__(self, backend: Backend) -> None:
        self._watch = who.Watch(backend.look)
        self._task: asyncio.Future[Look] | None = None

    async def look(self) -> Look:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(asyncio.to_thread(self._watch.look))
        return await asyncio.shield(self._task)


class Measured:
    """What each GPU does, from Prometheus, as of a few seconds ago."""

    def __init__(self, url: str) -> None:
        self._url, self._begun = url, 0.0
        self._task: asyncio.Future[None] | None = None
        self._last: Gpus = {}

    async def gpus(self) -> Gpus:
        if self._url and (self._task is None or (self._task.done() and time.monotonic() > self._begun + MEASURED_S)):
            self._begun, self._task = time.monotonic(), asyncio.ensure_future(self._ask())
        return self._last

    async def _ask(self) -> None:
        self._last = await asyncio.to_thread(gpus.ask, self._url)
