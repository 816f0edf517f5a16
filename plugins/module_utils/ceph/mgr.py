# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules of Ceph's manager: what is wanted of them against 'mgr module ls'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused


def is_on(found: Mapping[str, Any], name: str) -> bool:
    """Whether a module is on, by itself or always."""
    return name in found["enabled_modules"] or name in found["always_on_modules"]


def is_unknown(found: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether no manager has told yet which modules it has, as for seconds after the first one's start.

    One that has told knows dozens, and no cluster has all of them on.
    """
    return not found["disabled_modules"] and not all(is_on(found, name) for name in names)


def plan(found: Mapping[str, Any], names: Sequence[str], enabled: bool) -> list[Step]:
    """What switches the modules on or off.

    :raises Refused: for a module that is not there, cannot be loaded, or is always on.
    """
    others = {module["name"]: module for module in found["disabled_modules"]}
    steps = []
    for name in names:
        if is_on(found, name) == enabled:
            continue
        if not enabled:
            if name in found["always_on_modules"]:
                raise Refused(f"the module {name} is always on", "leave it")
            steps.append(Step(f"switch the module {name} off", ("mgr", "module", "disable", name)))
            continue
        if not others:
            raise Refused(
                "no manager has reported its modules",
                "run 'sudo systemctl start ceph-mgr.target' on "
                "a host of ceph_mgrs; 'sudo ceph -s' shows whether one runs",
            )
        module = others.get(name)
        if not module:
            raise Refused(f"the manager has no module {name}", "install the package that brings it to all managers")
        if not module["can_run"]:
            raise Refused(
                f"the manager cannot load the module {name}: {module['error_string']}",
                "install what it misses on all managers and restart them",
            )
        steps.append(Step(f"switch the module {name} on", ("mgr", "module", "enable", name)))
    return steps
