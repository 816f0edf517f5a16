# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The NVML index of a GPU, by its UUID."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def index_by_uuid(devices: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """UUID -> NVML index of the GPUs of gpu_facts' `devices` that have both now. An index can move at a boot."""
    return {row["uuid"]: int(row["index"]) for row in devices if row.get("uuid") and row.get("index") is not None}
