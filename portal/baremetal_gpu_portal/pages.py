# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages and parts of pages that JupyterHub's own templates do not show. Every text is escaped in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
# Scripts and styles by the names of their files. They stand in the pages: so a page is whole, and its policy has their
# hashes.
STATIC = {path.name: Markup(path.read_text(encoding="utf-8")) for path in TEMPLATES.with_name("static").iterdir()}
_ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    undefined=StrictUndefined,
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def render(name: str, **values: Any) -> str:
    return _ENVIRONMENT.get_template(name).render(values, static=STATIC)


def now() -> str:
    """Who uses what since when. It needs nothing but itself."""
    return render("now.html")
