# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing versions."""

from __future__ import annotations

import re


def version_key(version: object) -> tuple[int, ...]:
    """For comparing versions such as 550.54.14; parts that are no numbers count as nothing."""
    return tuple(int(part) for part in re.findall(r"\d+", str(version)))
