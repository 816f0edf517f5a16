# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What somebody asks of a session, within what may be asked for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.host.untrusted_text import one_line
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import images

# Of a model, as Slurm's types of GPUs have it.
MODEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,62}", re.ASCII)
# An environment of the site, by its name, or one of the user's own: a directory below the home, or an image.
ENVIRONMENT = re.compile(r"[a-z0-9][a-z0-9._-]{0,40}", re.ASCII)
OWN = re.compile(r"~(/(?!\.{1,2}(?:/|$))[A-Za-z0-9._+@=-]{1,100}){1,10}", re.ASCII)
# Where a lock of an environment in the home is kept.
LOCKS = "~/environments/"
LOCK = re.compile(rf"{LOCKS}[A-Za-z0-9][A-Za-z0-9._-]{{0,60}}\.lock", re.ASCII)
SERVER = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,28}[a-z0-9])?", re.ASCII)
VALUE_AT_MOST = 500
_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,3})?", re.ASCII)
# Field -> what it is called on the page, and the least that makes sense.
NUMBERS = {"gpus": ("GPUs", 0), "cpus": ("Cores", 1), "memory_gib": ("Memory", 1), "hours": ("Hours", 1)}


@dataclass(frozen=True)
class Limits:
    """The most that a session may ask for."""

    gpus: int = 1
    cpus: int = 8
    memory_gib: int = 64
    hours: int = 24


@dataclass(frozen=True)
class Request:
    """A session that somebody wants.

    :ivar model: of its GPUs, by Slurm's type; empty for any.
    :ivar environment: name of one of the site, a path that begins with ~/, or an image of the user's own.
    """

    gpus: int = 0
    model: str = ""
    cpus: int = 1
    memory_gib: int = 4
    hours: int = 4
    environment: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def limits_of(groups: Iterable[str], by_group: Mapping[str, Mapping[str, int]], default: Limits) -> Limits:
    """The limits for a user of these groups: of each, the most that one of them gives. That may be nothing."""
    own = [by_group[group] for group in groups if group in by_group]
    given = {field.name: [int(row[field.name]) for row in own if field.name in row] for field in fields(Limits)}
    return replace(default, **{name: max(values) for name, values in given.items() if values})


def is_own_image(image: str, place: str) -> bool:
    """Whether it is an image of the user's own: one below a place such as reg1:5000/alice/, which may be none."""
    return bool(place) and image.startswith(place) and images.IMAGE.fullmatch(image) is not None


def parse(
    given: Mapping[str, Any],
    limits: Limits,
    models: Sequence[str],
    environments: Sequence[str],
    place: str = "",
    directories: bool = True,
) -> tuple[Request, list[Problem]]:
    """The request of a form, or of the API, and what is wrong with it.

    :param given: fields of a form are lists with one text; those of the API are plain values.
    :param place: where images of the user's own are, such as reg1:5000/alice/; empty where there are none.
    :param directories: whether a directory of the user's own may be the environment.
    """
    found: list[Problem] = []
    numbers = {}
    for name, (label, least) in NUMBERS.items():
        text, most = _text(given, name), getattr(limits, name)
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not text:
            value = getattr(Request, name)
        if not least <= value <= most or value != int(value):
            found.append(
                Problem(
                    "out_of_bounds",
                    name,
                    f"{label} is {one_line(repr(text), 60)}",
                    "",
                    f"give a whole number from {least} to {most}",
                )
            )
            value = least
        numbers[name] = int(value)
    model = _text(given, "model")
    if model and (not MODEL.fullmatch(model) or model not in models):
        shown = ", ".join(models) or "no model at present"
        cause = f"there are no GPUs of the model {one_line(repr(model), 80)}"
        found.append(Problem("unknown_model", "model", cause, "", f"choose any, or one of: {shown}"))
        model = ""
    environment = _text(given, "environment") or (environments[0] if environments else "")
    own = directories and OWN.fullmatch(environment) if environment[:1] == "~" else is_own_image(environment, place)
    if not own and environment not in environments:
        cause = f"there is no environment {one_line(repr(environment), 80)}"
        yours = f"~/envs/torch{f', or an image such as {place}lectures:v1' if place else ''}"
        remedy = f"choose one of {', '.join(environments)}"
        if directories:
            remedy = f"{remedy}, or give the directory of your own, such as {yours}"
        found.append(Problem("unknown_environment", "environment", cause, "", remedy))
        environment = environments[0] if environments else ""
    return Request(model=model if numbers["gpus"] else "", environment=environment, **numbers), found


def presets(
    rows: Iterable[Mapping[str, Any]], limits: Limits, models: Sequence[str], environments: Sequence[str]
) -> list[tuple[str, Request]]:
    """Those of the site that a user may have, by their names.

    Cores, memory and hours are no more than the limits; one with more GPUs than may be asked for, or with a model that
    there is not, is left out.
    """
    found = []
    for row in rows:
        bounded = {
            name: min(row.get(name, getattr(Request, name)), getattr(limits, name))
            for name in NUMBERS
            if name != "gpus"
        }
        request, problems = parse({"gpus": 1, **row, **bounded}, limits, models, environments)
        if not problems:
            found.append((str(row["name"]), request))
    return found


def remembered(
    last: Mapping[str, Any],
    limits: Limits,
    models: Sequence[str],
    environments: Sequence[str],
    place: str = "",
    directories: bool = True,
) -> Request:
    """What the form begins with: what was asked for last, as far as it may still be asked for."""
    request, problems = parse(last, limits, models, environments, place, directories)
    # What is refused now begins at the default, which is within the limits.
    wrong = {one.subject for one in problems} & NUMBERS.keys()
    return replace(request, **{name: min(getattr(Request, name), getattr(limits, name)) for name in wrong})


def what(request: Request) -> str:
    """It in words, for whoever chooses between some."""
    gpus = f"{request.gpus} {'GPU' if request.gpus == 1 else 'GPUs'}" if request.gpus else "no GPU"
    hours = f"{request.hours} {'hour' if request.hours == 1 else 'hours'}"
    cores = f"{request.cpus} {'core' if request.cpus == 1 else 'cores'}"
    model = f" {request.model}" if request.model else ""
    return f"{gpus}{model}, {cores}, {request.memory_gib} GiB, {hours}, {request.environment}"


def _text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    if isinstance(value, (list, tuple)):
        value = value[0] if value else ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return "?" if value is not None else ""
    return str(value).strip()[:VALUE_AT_MOST]
