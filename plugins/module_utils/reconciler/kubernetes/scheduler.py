# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Kubernetes, as the reconciler is made for it: all goes through the API server."""

from __future__ import annotations

from collections.abc import Mapping

from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes import api
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Backend, Scheduler, Store
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import private
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes import plan
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.backend import KubernetesBackend
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.settings import Settings
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.store import KubernetesStore


def _api(settings: Settings) -> api.Api:
    private(settings.certificate)
    return api.Api(
        api.Settings(settings.server, settings.ca_file, settings.certificate, settings.request_timeout_s),
    )


def _backend(settings: Settings, _secrets: Mapping[str, str]) -> Backend:
    return KubernetesBackend(_api(settings))


def _store(settings: Settings, _secrets: Mapping[str, str]) -> Store:
    return KubernetesStore(settings, _api(settings))


KUBERNETES = Scheduler(Settings, plan, _backend, _store)
