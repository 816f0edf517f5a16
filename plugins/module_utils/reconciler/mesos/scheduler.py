# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mesos, as the reconciler is made for it: with its masters' API, and all that is kept in ZooKeeper."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos.operator import Operator, http_transport
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Backend, Scheduler, Store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.backend import MesosBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.zookeeper.store import ZooKeeperStore


def _backend(settings: Settings, secrets: Mapping[str, str]) -> Backend:
    transport = http_transport(settings.request_timeout_s, settings.ca_file)
    login = secrets.get("mesos_principal"), secrets.get("mesos_secret")
    return MesosBackend(Operator(settings.masters, transport, *login))


def _store(settings: Settings, secrets: Mapping[str, str]) -> Store:
    return ZooKeeperStore(settings, secrets, plan)


MESOS = Scheduler(Settings, plan, _backend, _store)
