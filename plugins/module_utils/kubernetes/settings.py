# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gives a control plane that is there other settings: kubeadm writes the manifests of its static pods anew."""

from __future__ import annotations

import time
from typing import Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.backup.etcd import MANIFESTS
from ansible_collections.baremetal.gpu.plugins.module_utils.host import files as host_files
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Run
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.containers import (
    PROGRAMS,
    await_restart,
    call,
    containers,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.kubernetes.membership import config_file

# What was there before, and so whatever an operator has changed in it.
KEPT = "/var/lib/baremetal-gpu/manifests"


def change(config: str, run: Run, root: str = "", wait: Callable[[float], None] = time.sleep) -> list[str]:
    """Write the manifests of this configuration; the programs that were started anew. Raises CallFailed and OSError."""
    # etcd is not changed in passing.
    names = PROGRAMS[1:]
    before = {name: host_files.read_text(f"{root}{MANIFESTS}/{name}.yaml") for name in names}
    running = {name: containers(run, name) for name in names}
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    host_files.make_directories(f"{root}{KEPT}", 0o700)
    for name, text in before.items():
        host_files.write(f"{root}{KEPT}/{name}-{stamp}.yaml", text, 0o600)
    with_config(run, config, ["kubeadm", "init", "phase", "control-plane", "all"])
    changed = [name for name in names if host_files.read_text(f"{root}{MANIFESTS}/{name}.yaml") != before[name]]
    for name in changed:
        await_restart(run, name, running[name], wait)
    for name in set(names) - set(changed):
        host_files.remove(f"{root}{KEPT}/{name}-{stamp}.yaml")
    return changed


def record(config: str, run: Run) -> None:
    """Let kubeadm know the configuration for later, once all control planes have it. Raises CallFailed."""
    with_config(run, config, ["kubeadm", "init", "phase", "upload-config", "kubeadm"])


def with_config(run: Run, config: str, argv: list[str]) -> str:
    with config_file(config) as path:
        return call(run, [*argv, f"--config={path}"])
