# SPDX-License-Identifier: GPL-3.0-or-later
"""How gpuops makes pages of HTML, each of which is one file."""

from __future__ import annotations

import time
from pathlib import Path

import jinja2


def templates(directory: Path) -> jinja2.Environment:
    """The templates of a directory. What they are given is escaped."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(directory),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
