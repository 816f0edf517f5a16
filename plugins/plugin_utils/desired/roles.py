# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which roles have a plan: those with a file of their name beside this one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

PACKAGE = __name__.rpartition(".")[0]
ROLES = Path(__file__).resolve().parents[3] / "roles"


@cache
def names() -> tuple[str, ...]:
    """The names of the roles, sorted."""
    files = {path.stem for path in Path(__file__).parent.glob("*.py")}
    return tuple(sorted(files & {path.name for path in ROLES.iterdir()}))


def planner(role: str) -> Callable[..., Plan]:
    """The function `desired` of a role, by one of `names()`. Its module is imported on the first call."""
    found: Callable[..., Plan] = import_module(f"{PACKAGE}.{role}").desired
    return found
