# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What programs print, known by a part of it: our code, the cause and the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem


class Known(NamedTuple):
    """:ivar text: what is in the text, in lower case; several with | between them."""

    text: str
    code: str
    cause: str
    remedy: str


def first(table: Iterable[Known], told: str) -> Known | None:
    """The first of the table that is in a text."""
    small = told.lower()
    return next((one for one in table if any(part in small for part in one.text.split("|"))), None)


def problem(subject: str, table: Iterable[Known], told: str, otherwise: Known) -> Problem:
    """What a text means; `otherwise` for one that is not known."""
    one = first(table, told) or otherwise
    return Problem(one.code, subject, one.cause, told, one.remedy)
