# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ports of InfiniBand and RoCE adapters, as accept_info returns them; what hosts send is untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def word(told: Any) -> str:
    """The state of `4: ACTIVE`; empty for none."""
    return told.rpartition(":")[2].strip() if isinstance(told, str) else ""


def is_up(port: Mapping[str, Any]) -> bool:
    """Active, and with a link. Where the link is not known, the state alone tells."""
    return word(port.get("state")) == "ACTIVE" and word(port.get("phys_state")) in ("LinkUp", "")
