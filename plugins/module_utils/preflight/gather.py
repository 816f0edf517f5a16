# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a host is like before anything is installed on it. Reads only, and asks no network unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Callable

from ansible_collections.baremetal.gpu.plugins.module_utils.container.engines import ENGINE_CONFIGS, engine_config
from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import driver
from ansible_collections.baremetal.gpu.plugins.module_utils.host.run import Call, ask
from ansible_collections.baremetal.gpu.plugins.module_utils.preflight.driver_origin import installed_method
from ansible_collections.baremetal.gpu.plugins.module_utils.system.addresses import hostname
from ansible_collections.baremetal.gpu.plugins.module_utils.system.clock import time_synchronised
from ansible_collections.baremetal.gpu.plugins.module_utils.system.disk import disk
from ansible_collections.baremetal.gpu.plugins.module_utils.system.kernels import (
    headers,
    installed_kernels,
    kernels_to_check,
)
from ansible_collections.baremetal.gpu.plugins.module_utils.system.packages import packages
from ansible_collections.baremetal.gpu.plugins.module_utils.system.release import system
from ansible_collections.baremetal.gpu.plugins.module_utils.system.repositories import repositories
from ansible_collections.baremetal.gpu.plugins.module_utils.system.secure_boot import secure_boot


def gather(
    kernels: Any = "running",
    disk_paths: Iterable[str] = (),
    find_headers: bool = True,
    root: str = "/",
    running: str | None = None,
    machine: str | None = None,
    run: Call = ask,
    resolver: Callable[[str], list[str]] | None = None,
    clock: Callable[[], int | None] | None = None,
    host: str | None = None,
) -> dict[str, Any]:
    """Everything above about one host."""
    about = system(root, machine)
    running = running or os.uname().release
    installed = installed_kernels(root)
    checked = kernels_to_check(kernels, running, installed)
    here = packages(root, run)
    return {
        "os": about,
        "kernels": {"running": running, "installed": installed, "checked": checked},
        # Searching the package indices takes a moment, and a host without GPUs builds nothing.
        "headers": headers(checked, root, about["family"], run) if find_headers else {},
        "modules": driver.modules(root),
        "secure_boot": secure_boot(root),
        "disk": disk(disk_paths, root),
        "packages": here,
        "driver_from": installed_method(here, root, about["family"]),
        "repositories": repositories(root),
        "time_synchronised": time_synchronised(root, clock),
        "hostname": hostname(root, host, resolver),
        "engine_configs": {engine: engine_config(engine, root) for engine in ENGINE_CONFIGS},
    }
