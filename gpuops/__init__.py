# SPDX-License-Identifier: GPL-3.0-or-later
"""The command of baremetal.gpu."""

from __future__ import annotations

# The one place of the version number; galaxy.yml repeats it and a test compares the two.
__version__ = "0.1.0"
