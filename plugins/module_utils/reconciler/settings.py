# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The reconciler's file of settings and that of its secrets, and the schedulers that they may name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.scheduler import Scheduler
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import (
    Settings,
    Wrong,
    private,
    read_object,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.shapes import Policy
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.scheduler import KUBERNETES
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.mesos.scheduler import MESOS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.slurm.scheduler import SLURM

CONFIG = Path("/etc/baremetal-gpu/reconciler.json")
SCHEDULERS: dict[str, Scheduler] = {"mesos": MESOS, "slurm": SLURM, "kubernetes": KUBERNETES}


def load(path: Path, mode: str | None = None) -> Settings:
    """The settings in a JSON file; `mode` takes the place of the policy's. Raises Wrong."""
    return settings_of(read_object(path), str(path), mode)


def settings_of(told: Mapping[str, Any], path: str, mode: str | None = None) -> Settings:
    """The settings as the file `path` has them. Raises Wrong."""
    try:
        return _settings_of(told, path, mode)
    except (AttributeError, TypeError, ValueError) as why:
        raise Wrong(
            f"{path} has a value of the wrong kind: {one_line(why)}",
            "run `gpuops up --tags gpu_reconciler`, which writes it",
        ) from why


def _settings_of(told: Mapping[str, Any], path: str, mode: str | None) -> Settings:
    told = dict(told)
    policy: Any = dict(told.pop("policy", {}))
    if mode is not None:
        policy["mode"] = mode
    if isinstance(policy.get("repairs"), list):
        policy["repairs"] = tuple(policy["repairs"])
    name = told.setdefault("scheduler", "mesos")
    if name not in SCHEDULERS:
        raise Wrong(f"{path}: scheduler is {name!r}", f"give one of {', '.join(SCHEDULERS)}")
    kind = SCHEDULERS[name].settings
    policy = Policy(**_known(path, "policy.", policy, Policy))
    settings = kind(**{**_known(path, "", told, kind), "policy": policy})
    settings.check(path)
    return settings


def secrets(settings: Settings) -> dict[str, str]:
    """The secrets; none without a file. Raises Wrong where other users could read them, and where one is missing."""
    told = {}
    if settings.credentials is not None:
        path = private(settings.credentials)
        told = read_object(path)
        unknown = sorted(set(told) - set(settings.SECRETS))
        if unknown or not all(isinstance(value, str) and value for value in told.values()):
            names = ", ".join(settings.SECRETS)
            raise Wrong(f"{path} is not a mapping of {names} to text", f"correct {', '.join(unknown)}")
    settings.check_secrets(told)
    return told


def _known(path: str, prefix: str, told: Mapping[str, Any], kind: type[Any]) -> dict[str, Any]:
    names = [one.name for one in fields(kind)]
    unknown = sorted(set(told) - set(names))
    if unknown:
        listed = ", ".join(prefix + name for name in unknown)
        raise Wrong(f"{path}: {listed} not known", f"use {', '.join(names)}")
    return {key: tuple(value) if key == "masters" and isinstance(value, list) else value for key, value in told.items()}
