# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Slurm, as the reconciler is made for it: with slurmctld's commands, and all that is kept in its state directory."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Backend, Scheduler, Store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.backend import SlurmBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.store import FileStore
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.store import ZooKeeperStore
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.control import Slurm


def _backend(settings: Settings, _secrets: Mapping[str, str]) -> Backend:
    return SlurmBackend(Slurm(timeout_s=settings.request_timeout_s))


def _store(settings: Settings, secrets: Mapping[str, str]) -> Store:
    if settings.state_directory is None:
        return ZooKeeperStore(settings, secrets, plan)
    return FileStore(settings)


SLURM = Scheduler(Settings, plan, _backend, _store)
