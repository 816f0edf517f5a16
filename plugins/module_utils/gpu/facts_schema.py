# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The schema of `ansible_facts.gpu`, for those who make these facts and those who read them."""

from __future__ import annotations

SCHEMA = 1
