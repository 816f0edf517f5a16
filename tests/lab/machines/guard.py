# SPDX-License-Identifier: GPL-3.0-or-later
"""What the commands of the lab have in common."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

import typer

from .system import LabError

P = ParamSpec("P")


def guarded(function: Callable[P, None]) -> Callable[P, None]:
    """A command whose refusals are one message and exit status 1, not a traceback."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            function(*args, **kwargs)
        except LabError as error:
            typer.echo(f"tools/lab: {error}", err=True)
            raise typer.Exit(1) from error

    return call
