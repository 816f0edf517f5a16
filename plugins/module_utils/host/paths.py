# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Paths on a host whose root directory need not be /."""

from __future__ import annotations

import os


def below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
