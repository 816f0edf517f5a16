# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from tests.unit.sites import fact_cache, site

__all__ = ["fact_cache", "site"]
