# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages and parts of pages that JupyterHub's own templates do not show."""

from __future__ import annotations

from functools import cache
from pathlib import Path

TEMPLATES = Path(__file__).with_name("templates")


@cache
def now() -> str:
    """Who uses what since when. It needs nothing but itself."""
    return (TEMPLATES / "now.html").read_text(encoding="utf-8")
