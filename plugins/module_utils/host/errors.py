# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people are told where something is not done."""

from __future__ import annotations


class Refused(Exception):
    """What was requested must not be done, cannot be done, or did not succeed; the message says why and what to do."""
