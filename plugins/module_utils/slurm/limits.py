# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits and other settings of QOS and associations that are known here, each with one canonical text.

A value from a list and one that sacctmgr prints have the same text if they mean the same. No value is the empty text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

# What takes a limit away, in a list.
NONE = "none"
NAME = re.compile(r"[a-z0-9_][a-z0-9_.@-]{0,62}")
# Type, and for what has several of a type its name: cpu, gres/gpu, gres/gpu:a100, license/matlab.
TRES = re.compile(r"[a-z]{1,20}(?:/[A-Za-z0-9_.:-]{1,60})?")
LARGEST = 2**31 - 2
LARGEST_OF_TRES = 2**53
_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}
_IN_MEBIBYTES = ("mem", "vmem")
_TIME = re.compile(r"(?:(\d{1,5})-)?(\d{1,6})(?::(\d{1,2}))?(?::(\d{1,2}))?")


@dataclass(frozen=True)
class Field:
    """A setting.

    :ivar canonical: its text from a value; raises ValueError with the form that a value must have.
    :ivar unset: what takes the value away as sacctmgr has it; None where that cannot be.
    :ivar blank: the text that no value stands for, such as 0 of a priority.
    """

    canonical: Callable[[Any], str]
    unset: str | None = "-1"
    blank: str = ""


# --- values ----------------------------------------------------------------------------------------------------------


def count(value: Any) -> str:
    """A whole number."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,10}", text) or int(text) > LARGEST:
        raise ValueError(f"a whole number from 0 to {LARGEST}")
    return str(int(text))


def number(value: Any) -> str:
    """A decimal number, with six decimals at most: sacctmgr prints no more."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        raise ValueError("a number such as 0.5")
    return f"{float(text):.6f}".rstrip("0").rstrip(".")


def _seconds(value: Any) -> int:
    """Of a time as Slurm writes it. A number alone is none here: YAML reads 24:00:00 without quotes as 86400."""
    text = str(value).strip()
    found = _TIME.fullmatch(text)
    if isinstance(value, (bool, int, float)) or found is None or (found[1] is None and found[4] is None):
        raise ValueError("a time in the form of D-HH:MM:SS or HH:MM:SS, in quotes")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if second > 59 or third > 59:
        raise ValueError("a time in the form of D-HH:MM:SS or HH:MM:SS, in quotes")
    return ((days * 24 + first) * 60 + second) * 60 + third


def duration(value: Any) -> str:
    """A time, to the minute, as D-HH:MM:SS."""
    minutes = -(-_seconds(value) // 60)
    if minutes > LARGEST:
        raise ValueError("a time of less than four thousand years")
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"


def seconds(value: Any) -> str:
    """A time, to the second, as their number."""
    return str(_seconds(value))


def tres(value: Any) -> str:
    """Amounts of trackable resources, sorted: cpu=8,gres/gpu=4,mem=65536. Memory is in MiB."""
    found = {}
    for part in str(value).split(","):
        kind, _equals, amount = part.strip().partition("=")
        size = re.fullmatch(r"(\d{1,16})([KMGTP]?)", amount.strip())
        if not TRES.fullmatch(kind) or size is None or kind in found:
            raise ValueError("amounts of resources such as cpu=8,mem=64G,gres/gpu=4")
        mebibytes = kind in _IN_MEBIBYTES
        units = _SUFFIXES[size[2] or ("M" if mebibytes else "")] // (_SUFFIXES["M"] if mebibytes else 1)
        if not units:
            raise ValueError("memory in M, G or T")
        found[kind] = int(size[1]) * units
        if found[kind] > LARGEST_OF_TRES:
            raise ValueError("smaller amounts of resources")
    return ",".join(f"{kind}={found[kind]}" for kind in sorted(found))


def names(value: Any) -> str:
    """Names of QOS, sorted; as a list, or with commas between them."""
    return _words(value, NAME, "a list of names")


def flags(value: Any) -> str:
    """Flags of a QOS, sorted."""
    return _words(value, re.compile("[A-Za-z]{1,40}"), "a list of Slurm's flags")


def name(value: Any) -> str:
    """One name."""
    return _words([value], NAME, "a name")


def share(value: Any) -> str:
    """A fair share: a number, or parent for that of the account."""
    return "parent" if value == "parent" else count(value)


def preempt_mode(value: Any) -> str:
    """What becomes of jobs that a QOS preempts."""
    text = str(value).lower()
    if text not in ("cluster", "cancel", "requeue", "suspend"):
        raise ValueError("one of cluster, cancel, requeue and suspend")
    return text


def _words(value: Any, pattern: re.Pattern[str], form: str) -> str:
    words = [str(one).strip() for one in (value.split(",") if isinstance(value, str) else _listed(value, form))]
    words = [one for one in words if one]
    if any(not pattern.fullmatch(one) for one in words):
        raise ValueError(form)
    return ",".join(sorted(set(words)))


def _listed(value: Any, form: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(form)
    return list(value)


# --- settings --------------------------------------------------------------------------------------------------------

_COUNT, _TIME_FIELD, _TRES_FIELD = Field(count), Field(duration), Field(tres)

QOS_FIELDS: Mapping[str, Field] = {
    "Priority": Field(count, unset="0", blank="0"),
    "Preempt": Field(names, unset=""),
    "PreemptMode": Field(preempt_mode, unset="cluster", blank="cluster"),
    "GraceTime": Field(seconds, unset="0", blank="0"),
    "Flags": Field(flags),
    "UsageFactor": Field(number, unset="1", blank="1"),
    "GrpTRES": _TRES_FIELD,
    "GrpTRESMins": _TRES_FIELD,
    "GrpJobs": _COUNT,
    "GrpSubmitJobs": _COUNT,
    "GrpWall": _TIME_FIELD,
    "MaxTRESPerJob": _TRES_FIELD,
    "MaxTRESPerNode": _TRES_FIELD,
    "MaxTRESPerUser": _TRES_FIELD,
    "MaxTRESPerAccount": _TRES_FIELD,
    "MaxTRESMinsPerJob": _TRES_FIELD,
    "MaxJobsPerUser": _COUNT,
    "MaxJobsPerAccount": _COUNT,
    "MaxSubmitJobsPerUser": _COUNT,
    "MaxSubmitJobsPerAccount": _COUNT,
    "MaxWall": _TIME_FIELD,
    "MinTRESPerJob": _TRES_FIELD,
}
ASSOCIATION_FIELDS: Mapping[str, Field] = {
    "Fairshare": Field(share, unset=None),
    "QOS": Field(names, unset=None),
    "DefaultQOS": Field(name),
    "GrpTRES": _TRES_FIELD,
    "GrpTRESMins": _TRES_FIELD,
    "GrpJobs": _COUNT,
    "GrpSubmitJobs": _COUNT,
    "GrpWall": _TIME_FIELD,
    "MaxTRES": _TRES_FIELD,
    "MaxTRESPerNode": _TRES_FIELD,
    "MaxTRESMins": _TRES_FIELD,
    "MaxJobs": _COUNT,
    "MaxSubmitJobs": _COUNT,
    "MaxWall": _TIME_FIELD,
}


def wanted(field: Field, value: Any) -> str:
    """The text of a value in a list.

    :raises ValueError: with the form that it must have.
    """
    if value is None or isinstance(value, dict):
        raise ValueError(f"a value, or {NONE} to take it away")
    if value == NONE or value == []:
        if field.unset is None:
            raise ValueError("a value; it cannot be removed")
        return field.blank
    text = field.canonical(value)
    if not text:
        raise ValueError(f"a value, or {NONE} to take it away")
    return text


def shown(field: Field, text: str) -> str:
    """The text of a value that sacctmgr prints. One that is not understood is kept, and so differs from all others."""
    if not text.strip():
        return field.blank
    try:
        return field.canonical(text)
    except ValueError:
        return text


def argument(key: str, field: Field, value: str, before: str) -> str:
    """What sacctmgr sets a value with. It adds to amounts of resources, so others are taken away by name."""
    if field.canonical is tres:
        kept = dict(part.split("=", 1) for part in value.split(",") if "=" in part)
        gone = [part.split("=", 1)[0] for part in before.split(",") if "=" in part]
        amounts = {**dict.fromkeys(gone, "-1"), **kept}
        return f"{key}={','.join(f'{kind}={amounts[kind]}' for kind in sorted(amounts))}"
    return f"{key}={field.unset if value == field.blank and field.unset is not None else value}"


def resources(fields: Mapping[str, Field], values: Mapping[str, str]) -> Iterable[str]:
    """The kinds of resources that amounts are given of."""
    for key, value in values.items():
        if fields[key].canonical is tres:
            yield from (part.split("=", 1)[0] for part in value.split(",") if part)
