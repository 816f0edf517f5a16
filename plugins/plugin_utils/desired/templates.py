# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Contents of files from the templates of a role, rendered from a plan's own values.

The settings of Jinja are those of the module template, so that a template gives the same text here and there.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

ROLES = Path(__file__).resolve().parents[3] / "roles"


def render(role: str, name: str, /, **values: Any) -> str:
    """The text of `roles/ROLE/templates/NAME`.

    :raises jinja2.UndefinedError: the template uses a value that is not among `values`.
    """
    return _template(role, name).render(values)


@cache
def _template(role: str, name: str) -> Template:
    return _environment(role).get_template(name)


@cache
def _environment(role: str) -> Environment:
    # The files are text of configurations, not of pages.
    return Environment(
        loader=FileSystemLoader(ROLES / role / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
