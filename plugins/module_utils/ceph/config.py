# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ceph's central configuration: settings by section and mask, compared as the option's type reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.client import Ceph
from ansible_collections.baremetal.gpu.plugins.module_utils.ceph.step import Step, find, size_in_bytes
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused

TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
# Seconds in each unit that an option of a period may be written with.
PERIODS = {"": 1, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "hr": 3600, "d": 86400, "day": 86400, "w": 604800}
SECTIONS = ("global", "mon", "mgr", "osd", "mds", "client")


def parsed(value: Any, kind: str) -> Any:
    """A value as an option of that type (as 'ceph config help' names it) reads it; text where it cannot be read."""
    text = "" if value is None else str(value).strip()
    if kind == "bool" or isinstance(value, bool):
        low = text.lower()
        return True if low in TRUE else False if low in FALSE else text
    try:
        if kind in ("int", "uint"):
            return int(text)
        if kind == "size":
            return size_in_bytes(text)
        if kind == "float":
            return float(text)
        if kind in ("secs", "millisecs"):
            number, unit = re.fullmatch(r"(\d+)\s*([a-z]*)", text.lower()).groups()  # type: ignore[union-attr]
            return int(number) * PERIODS[unit if unit in PERIODS else unit.rstrip("s")]
    except (ValueError, KeyError, AttributeError, Refused):
        pass
    return text


def check_who(who: str) -> None:
    """:raises Refused: for a section that Ceph does not have."""
    section = who.partition("/")[0]
    if section.partition(".")[0] not in SECTIONS:
        raise Refused(
            f"{who!r} is not a section", f"name one of {', '.join(SECTIONS)}, such as osd, osd.3, osd/class:ssd"
        )


def read(ceph: Ceph) -> dict[tuple[str, str], str]:
    """What is set: (section with mask, option) -> value."""
    return by_place(ceph.json("config", "dump"))


def by_place(dump: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    """The answer of 'config dump' by section with mask, and option."""
    found = {}
    for entry in dump:
        mask = entry.get("mask") or ""
        found[(f"{entry['section']}/{mask}" if mask else entry["section"], entry["name"])] = str(entry["value"])
    return found


def kinds(ceph: Ceph, names: set[str]) -> dict[str, str]:
    """Types of options; those of a mgr's modules may be unknown, which leaves them text."""
    answers = {name: find(ceph, "config", "help", name) for name in sorted(names)}
    unknown = [name for name, answer in answers.items() if answer is None and not name.startswith("mgr/")]
    if unknown:
        raise Refused(f"this Ceph has no option {', '.join(unknown)}", "see 'sudo ceph config ls' for those it has")
    return {name: answer["type"] if answer else "str" for name, answer in answers.items()}


def plan(
    found: Mapping[tuple[str, str], str], wanted: Mapping[str, Mapping[str, Any]], kind_of: Mapping[str, str]
) -> list[Step]:
    """What brings the settings {section: {option: value}} there; None takes a setting out."""
    steps = []
    for who, options in wanted.items():
        check_who(who)
        for name, value in options.items():
            there = found.get((who, name))
            if value is None:
                if there is not None:
                    steps.append(Step(f"take out {name} of {who}, now {there}", ("config", "rm", who, name)))
                continue
            kind = kind_of.get(name, "str")
            meant = parsed(value, kind)
            if there is None or parsed(there, kind) != meant:
                # The monitors know no other words for it, though the options' files do.
                text = str(meant).lower() if isinstance(meant, bool) else str(value)
                was = "" if there is None else f", now {there}"
                steps.append(Step(f"set {name} of {who} to {text}{was}", ("config", "set", who, name, text)))
    return steps
