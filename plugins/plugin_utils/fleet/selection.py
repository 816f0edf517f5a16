# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Choosing GPUs by model, memory and verdict, for the filter and the tests."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.health.verdict import FATAL, FAULTS, UNKNOWN, VERDICTS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.fleet import hosts as fleet


def words(value: Any, what: str) -> list[str]:
    """A string or a list of strings as a list. Raises ValueError."""
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, (list, tuple)) or not all(isinstance(word, str) and word for word in found):
        raise ValueError(f"{what} is {value!r}; give a string or a list of strings")
    return list(found)


def mebibytes(value: Any, what: str) -> int:
    """A number of MiB, also as Jinja's arithmetic or a variable from the command line gives it. Raises ValueError."""
    try:
        if isinstance(value, bool) or int(value) != float(value) or int(value) < 0:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}; give a whole number of MiB, such as 40000") from None
    return int(value)


def known_verdicts(value: Any) -> list[str]:
    """Verdicts to choose by. Raises ValueError."""
    wanted = words(value, "verdict")
    for word in wanted:
        if word not in VERDICTS:
            raise ValueError(f"verdict is {word!r}; there are {', '.join(VERDICTS)}")
    return wanted


def devices(value: Any) -> list[dict[str, Any]]:
    """The GPUs in what a playbook has: the facts (`ansible_facts.gpu`), or a list of GPUs, or one GPU.

    Every GPU gets a `verdict`: the one it has, else the one in the facts' health report, else `unknown`.
    Raises ValueError.
    """
    if isinstance(value, dict) and ("devices" in value or "present" in value):
        try:
            listed = value.get("devices") or []
            return [{**gpu, "verdict": verdict} for gpu, verdict in zip(listed, fleet.verdicts(value), strict=True)]
        except fleet.BrokenFacts as error:
            raise ValueError(f"the facts of the GPUs are broken: {error}") from error
    listed = [value] if isinstance(value, dict) else value
    if not isinstance(listed, (list, tuple)) or not all(isinstance(gpu, dict) for gpu in listed):
        raise ValueError(
            f"expected facts of GPUs (ansible_facts.gpu), a list of GPUs or a GPU, not a {type(value).__name__}"
        )
    return [gpu if gpu.get("verdict") else {**gpu, "verdict": _own_verdict(gpu)} for gpu in listed]


def _own_verdict(gpu: dict[str, Any]) -> str:
    return FATAL if fleet.is_lost(gpu) else UNKNOWN


def is_model(gpu: dict[str, Any], patterns: Iterable[str]) -> bool:
    """Whether the slug or the name of a GPU matches one of the shell patterns. Case does not count."""
    names = [str(gpu[key]).lower() for key in ("slug", "name") if gpu.get(key)]
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names for pattern in patterns)


def has_memory(gpu: dict[str, Any], at_least: int | None, at_most: int | None = None) -> bool:
    """Whether the memory of a GPU is in the range, in MiB. Of a lost GPU it is not known, so it is not."""
    memory = gpu.get("memory_mib")
    if not isinstance(memory, int):
        return False
    return (at_least is None or memory >= at_least) and (at_most is None or memory <= at_most)


def select(
    value: Any,
    model: Any = None,
    memory_mib_min: Any = None,
    memory_mib_max: Any = None,
    verdict: Any = None,
    architecture: Any = None,
) -> list[dict[str, Any]]:
    """The GPUs that meet every condition that is given. Raises ValueError."""
    found = devices(value)
    if model is not None:
        patterns = words(model, "model")
        found = [gpu for gpu in found if is_model(gpu, patterns)]
    if memory_mib_min is not None or memory_mib_max is not None:
        least = None if memory_mib_min is None else mebibytes(memory_mib_min, "memory_mib_min")
        most = None if memory_mib_max is None else mebibytes(memory_mib_max, "memory_mib_max")
        found = [gpu for gpu in found if has_memory(gpu, least, most)]
    if verdict is not None:
        wanted = known_verdicts(verdict)
        found = [gpu for gpu in found if gpu["verdict"] in wanted]
    if architecture is not None:
        kinds = [kind.lower() for kind in words(architecture, "architecture")]
        found = [gpu for gpu in found if gpu.get("architecture") in kinds]
    return found


def verdict_of(value: Any) -> str:
    """The verdict on a node (its facts) or on a GPU. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError(f"expected the facts of a host's GPUs or one GPU, not a {type(value).__name__}")
    if "devices" in value or "present" in value:
        health = value.get("health")
        found = health.get("verdict") if isinstance(health, dict) else None
    else:
        found = devices(value)[0]["verdict"]
    return found if found in VERDICTS else UNKNOWN


def has_fault(value: Any) -> bool:
    """Whether a fault of a node (its facts) or of a GPU is known. Raises ValueError."""
    health = value.get("health") if isinstance(value, dict) else None
    try:
        return verdict_of(value) in FAULTS or (isinstance(health, dict) and fleet.has_fault(health))
    except fleet.BrokenFacts as error:
        raise ValueError(f"the facts of the GPUs are broken: {error}") from error
