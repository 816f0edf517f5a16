# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The key of a host's operating system, such as debian13, by which the roles' data is found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def planned_system(facts: Mapping[str, Any]) -> str:
    """The key as preflight has found it out; empty without preflight."""
    return str(((facts.get("gpu_plan") or {}).get("os") or {}).get("key") or "")


def system_of(facts: Mapping[str, Any]) -> str:
    """The key by preflight or, for want of that, by the facts of the distribution; empty where nothing is known."""
    found = planned_system(facts)
    if found or "distribution" not in facts:
        return found
    release = str(facts.get("distribution_major_version", ""))
    if facts["distribution"] == "Debian":
        return f"debian{release}"
    if facts["distribution"] == "Ubuntu":
        return f"ubuntu{facts.get('distribution_version', '')}"
    return f"el{release}"
