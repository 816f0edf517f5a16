# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Values that are of their flag's kind, and that a master or an agent ends at all the same.

Source: src/{master,slave}/{main,master,slave}.cpp, src/slave/containerizer/mesos/containerizer.cpp and
src/common/{roles,values}.cpp of Mesos and of ClusterD.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flag_table as mesos_flag_table

# Flags whose text must not be empty, of those that may be any text.
NOT_EMPTY = ("advertise_ip", "default_role", "hostname", "ip", "launcher_dir", "runtime_dir", "work_dir")
UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "secs": 1, "mins": 60, "hrs": 3600, "days": 86400, "weeks": 604800}
# Flag -> (least, most, as it is written). Of durations in seconds.
BOUNDS: dict[str, tuple[float, float, str]] = {
    "agent_ping_timeout": (1, 900, "from 1secs to 15mins"),
    "agent_reregister_timeout": (600, float("inf"), "10mins or more"),
    "gc_disk_headroom": (0, 1, "from 0 to 1"),
    "max_agent_ping_timeouts": (1, float("inf"), "1 or more"),
}


def problems(flags: Mapping[str, str], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """(flag, what it must be) of each that the program would end at.

    :param flags: flag -> text, each of its kind.
    :param known: the flags of this build, by which its isolators are known too.
    """
    for name in NOT_EMPTY:
        if flags.get(name, "x") == "":
            yield name, "given, and is empty"
    for name, (least, most, words) in BOUNDS.items():
        if name in flags and not least <= _number(flags[name]) <= most:
            yield name, words
    limit = flags.get("recovery_agent_removal_limit")
    if limit is not None and not (re.fullmatch(r"\d+(\.\d+)?%", limit, re.ASCII) and float(limit[:-1]) <= 100):
        yield "recovery_agent_removal_limit", "a percentage such as 20%, of 100% at most"
    for name, must in (
        ("default_role", _role(flags.get("default_role"))),
        ("domain", _domain(flags.get("domain"))),
        ("executor_environment_variables", _variables(flags.get("executor_environment_variables"))),
        ("resources", _ranges(flags.get("resources"))),
    ):
        if must:
            yield name, must
    if "isolation" in flags:
        yield from (("isolation", must) for must in _isolation(flags, known))
    elif flags.get("image_providers"):
        yield "image_providers", "beside an isolation with filesystem/linux"


def _number(text: str) -> float:
    found = re.fullmatch(r"(-?[\d.]+(?:[eE]-?\d+)?)([a-z]*)", text, re.ASCII)
    return float(found[1]) * UNITS.get(found[2], 1) if found else 0.0


def _role(text: str | None) -> str:
    if not text or text == "*":
        return ""
    wrong = [part for part in text.split("/") if not part or part in (".", "..", "*") or part[0] == "-"]
    if wrong or re.search(r"[\s\x08\\]", text):
        return "* or a role: no blank, no part that is empty, . or .. or begins with a hyphen"
    return ""


def _parsed(text: str | None) -> Any:
    """None for what is no JSON here: another check says so, or it is a file's."""
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _domain(text: str | None) -> str:
    told = _parsed(text)
    if told is None:
        return ""
    found = told.get("fault_domain") if isinstance(told, dict) else None
    for part in ("region", "zone"):
        row = found.get(part) if isinstance(found, dict) else None
        name = row.get("name") if isinstance(row, dict) else None
        if not isinstance(name, str) or not name:
            return '{"fault_domain": {"region": {"name": …}, "zone": {"name": …}}} with both names'
    return ""


def _variables(text: str | None) -> str:
    told = _parsed(text)
    if told is None or (isinstance(told, dict) and all(isinstance(value, str) for value in told.values())):
        return ""
    return "an object whose values are all text, numbers in quotes too"


def _ranges(text: str | None) -> str:
    """Of the text form; where it is JSON, or a path, it is the operator's own."""
    for low, high in re.findall(r"(\d+)\s*-\s*(\d+)", " ".join(re.findall(r"\[[^\]]*\]", text or "")), re.ASCII):
        if int(low) > int(high):
            return f"with ranges that begin before they end, which {low}-{high} does not"
    return ""


def _isolation(flags: Mapping[str, str], known: Collection[str]) -> Iterator[str]:
    names = [name for name in flags["isolation"].split(",") if name]
    extern = bool({"modules", "modules_dir"} & set(flags))
    for name in names:
        option = mesos_flag_table.ISOLATORS_BUILD.get(name)
        if option and not set(mesos_flag_table.AGENT_BUILD[option]) & set(known):
            yield f"without {name}, or {option} in mesos_common_build if the program was built with it"
        elif not option and name not in mesos_flag_table.ISOLATORS and not extern:
            yield f"of known isolators, which {name} is not"
    if "gpu/nvidia" in names:
        later = names[names.index("gpu/nvidia") :]
        after = [name for name in ("cgroups/devices", "filesystem/linux") if name in later]
        if after:
            yield f"with gpu/nvidia behind {' and '.join(after)}"
    filesystems = [name for name in names if name.startswith("filesystem/")]
    networks = [name for name in names if name.startswith("network/") and name != "network/ports"]
    for several in (filesystems, networks):
        if len(several) > 1:
            yield f"with one of {', '.join(several)}"
    if flags.get("image_providers") and "filesystem/linux" not in names:
        yield "with filesystem/linux, without which there are no image_providers"
    if flags.get("launcher") == "posix" and (flags.get("image_providers") or _of_cgroups(names)):
        yield "beside launcher=linux where it has isolators of cgroups or there are image_providers"


def _of_cgroups(names: list[str]) -> bool:
    return any(name.startswith("cgroups") for name in names)
