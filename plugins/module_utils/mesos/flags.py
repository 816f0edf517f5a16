# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of mesos-master, mesos-agent and Marathon: checked against the data, and written as an environment file.

Mesos passes over a variable that it does not know, a misspelt one included, and stops at a bad value. So every name and
value is checked before a file is written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import flag_table as mesos_flag_table
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import limits as mesos_limits
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import marathon_flag_table
from ansible_collections.baremetal.gpu.plugins.module_utils.mesos import values as mesos_values

PROGRAMS = ("master", "agent", "marathon")
FLAVOURS = ("apache", "clusterd")
# Flags that must not be seen on a command line or in a file that all may read, unless they name a file.
SECRETS = ("ssl_keystore_password", "http_credentials", "mesos_authentication_secret", "metrics_datadog_api_key")
_MUST = {
    "master": ("work_dir",),
    "agent": ("work_dir", "master"),
    "marathon": ("master",),
}
_EXCLUSIVE = (
    ("modules", "modules_dir"),
    ("ip", "ip_discovery_command"),
    ("ip6", "ip6_discovery_command"),
    ("master", "master_detector"),
)
_ISOLATION_FOR_GPUS = ("filesystem/linux", "cgroups/devices")
_WITHOUT_DUPLICATES = ("isolation", "image_providers", "containerizers", "nvidia_gpu_devices", "enable_features")


@dataclass(frozen=True)
class Flag:
    """A flag: its name, the kind of its value (see mesos_values) and, if it takes only some, its values."""

    name: str
    kind: str
    choices: tuple[str, ...] = ()


def is_older(version: str, than: tuple[int, ...]) -> bool:
    """Whether a version such as 1.11.0 is below another. Raises ValueError for what is none."""
    found = re.match(r"\d+(\.\d+)*", version)
    if not found:
        raise ValueError(f"version {version!r} is not one: give it as in 1.11.0")
    return tuple(int(part) for part in found.group().split(".")) < than


def known(
    program: str, flavour: str = "apache", version: str = "1.11.0", build: tuple[str, ...] = ()
) -> dict[str, Flag]:
    """Name -> flag, for a program of a flavour and version; old names too.

    `build` names the options that the program was built with, such as ENABLE_SECCOMP_ISOLATOR. ClusterD calls itself
    1.11.0, but has grown from what Apache never released as 1.12.0.
    """
    if program not in PROGRAMS or flavour not in FLAVOURS:
        raise ValueError(f"no data for {program} of {flavour}: programs are {PROGRAMS}, flavours {FLAVOURS}")
    if program == "marathon":
        kinds, choices, aliases = marathon_flag_table.FLAGS, marathon_flag_table.CHOICES, {}
        absent = set(marathon_flag_table.NEW) if is_older(version, (1, 11)) else set()
    else:
        master = program == "master"
        kinds = mesos_flag_table.MASTER_FLAGS if master else mesos_flag_table.AGENT_FLAGS
        choices = mesos_flag_table.MASTER_CHOICES if master else mesos_flag_table.AGENT_CHOICES
        aliases = mesos_flag_table.MASTER_ALIASES if master else mesos_flag_table.AGENT_ALIASES
        options = mesos_flag_table.MASTER_BUILD if master else mesos_flag_table.AGENT_BUILD
        new = () if master else mesos_flag_table.AGENT_NEW
        absent = set(new) if flavour == "apache" and is_older(version, (1, 12)) else set()
        absent |= {name for option, names in options.items() if option not in build for name in names}
    flags = {
        name: Flag(name, kind, choices.get(name, ()))
        for kind, names in kinds.items()
        for name in names
        if name not in absent
    }
    flags.update({old: flags[name] for old, name in aliases.items() if name in flags})
    return flags


def _wrong(cause: str, remedy: str) -> Problem:
    return Problem("invalid_flag", "mesos", cause, "", remedy)


def problems(program: str, settings: Mapping[str, Any], flags: Mapping[str, Flag]) -> list[Problem]:
    """What is wrong with the settings (flag -> value)."""
    found: list[Problem] = []
    given: dict[str, str] = {}
    for name, value in settings.items():
        flag = flags.get(name)
        if flag is None:
            near = difflib.get_close_matches(name, flags, 1)
            hint = f"write {near[0]}" if near else "take it out"
            found.append(_wrong(f"{program} of this flavour and version has no flag {name}", hint))
            continue
        if flag.name in given:
            found.append(
                _wrong(f"{program} is given {flag.name} twice, as {given[flag.name]} and as {name}", "keep one")
            )
        given[flag.name] = name
        shown = "(hidden)" if flag.name in SECRETS or ("://" in str(value) and "@" in str(value)) else repr(value)
        must = mesos_values.problem(flag.kind, value, _choices(flag, value))
        if must:
            found.append(_wrong(f"{program} flag {name} is {shown}", f"it must be {must}"))
        elif flag.name in _WITHOUT_DUPLICATES:
            parts = [part for part in str(value).split(",") if part]
            doubled = sorted({part for part in parts if parts.count(part) > 1})
            if doubled:
                found.append(_wrong(f"{program} flag {name} names {', '.join(doubled)} twice", "name it once"))
    effective = {flag: mesos_values.text_of(settings[name]) for flag, name in given.items()}
    found += [
        _wrong(f"{program} needs the flag {name}, and it is not set", "set it")
        for name in _MUST[program]
        if name not in effective and not (name == "master" and "master_detector" in effective)
    ]
    found += [
        _wrong(f"{program} is given {one} and {other}, which exclude each other", "keep one")
        for one, other in _EXCLUSIVE
        if one in effective and other in effective
    ]
    if program != "marathon":
        found += [
            _wrong(f"{program} flag {name} is {effective[name]!r}", f"it must be {must}")
            for name, must in mesos_limits.problems(effective, flags)
        ]
    if program == "agent":
        found += _agent_problems(effective)
    if program == "master" and "zk" in effective and "quorum" not in effective:
        found.append(_wrong("master is given zk without quorum", "set quorum to a majority of the masters"))
    return found


def _choices(flag: Flag, value: Any) -> tuple[str, ...]:
    """Flags that take a list of choices are checked by part."""
    if flag.name in ("image_providers", "containerizers"):
        return (str(value),) if set(str(value).split(",")) <= set(flag.choices) else flag.choices
    return flag.choices


def _agent_problems(flags: Mapping[str, str]) -> list[Problem]:
    found = []
    isolation = flags.get("isolation", "").split(",")
    gpus = gpus_of(flags.get("resources", ""))
    devices = flags.get("nvidia_gpu_devices")
    if "gpu/nvidia" in isolation:
        found += [
            _wrong(f"isolation has gpu/nvidia without {name}", f"add {name} to isolation")
            for name in _ISOLATION_FOR_GPUS
            if name not in isolation
        ]
        if (gpus or 0) > 0 and devices is None:
            found.append(_wrong(f"resources have gpus:{gpus:g} without nvidia_gpu_devices", "set both or neither"))
        if devices is not None and gpus is None:
            found.append(_wrong(f"nvidia_gpu_devices is {devices} without gpus in resources", "set both or neither"))
        if devices is not None and gpus is not None and len([one for one in devices.split(",") if one]) != gpus:
            found.append(
                _wrong(f"nvidia_gpu_devices is {devices}, but resources have gpus:{gpus:g}", "make the counts equal")
            )
    elif devices is not None:
        found.append(
            _wrong(
                f"nvidia_gpu_devices is {devices!r} without the isolator gpu/nvidia",
                "add gpu/nvidia, filesystem/linux and cgroups/devices to isolation",
            )
        )
    elif (gpus or 0) > 0:
        found.append(
            _wrong(
                f"resources have gpus:{gpus:g} without the isolator gpu/nvidia, so tasks would be promised GPUs "
                "that they cannot open",
                "add gpu/nvidia, filesystem/linux and cgroups/devices to isolation",
            )
        )
    for pair in filter(None, flags.get("attributes", "").split(";")):
        name, colon, value = pair.partition(":")
        if not colon or not value or not re.fullmatch(r"[A-Za-z0-9_/.-]+", name + value, re.ASCII):
            found.append(
                _wrong(
                    f"attribute {pair!r} is not name:value with letters, digits and _ / . - only; brackets and "
                    "braces crash the agent",
                    "rewrite it",
                )
            )
    return found


def gpus_of(resources: str) -> float | None:
    """How many GPUs a resources text has, None if it does not say. Entries of one name are added, as the agent does."""
    found = re.findall(r"(?:^|;)\s*gpus\s*(?:\([^)]*\))?\s*:\s*([0-9.]+)\s*(?=;|$)", resources, re.ASCII)
    return sum(float(number) for number in found) if found else None


def environment_problems(program: str, environment: Mapping[str, Any], flags: Mapping[str, Flag]) -> list[Problem]:
    """As `problems`, for variables (MESOS_X, MARATHON_X, LIBPROCESS_X); others are not looked at."""
    prefix = "MARATHON_" if program == "marathon" else "MESOS_"
    found = []
    settings: dict[str, Any] = {}
    by_variable = {prefix + name.upper(): name for name in flags}
    for name, value in environment.items():
        if name in by_variable:
            settings[by_variable[name]] = value
        elif name.startswith(prefix):
            near = difflib.get_close_matches(name, by_variable, 1)
            hint = f"write {near[0]}" if near else "take it out"
            what = "stops at" if program == "marathon" else "passes over"
            found.append(_wrong(f"{program} has no flag for {name} and {what} it", hint))
        elif name in mesos_flag_table.NOT_VARIABLES:
            found.append(_wrong(f"nothing reads {name}", f"write {mesos_flag_table.NOT_VARIABLES[name]}"))
        elif name.startswith("LIBPROCESS_"):
            kind = mesos_flag_table.LIBPROCESS.get(name)
            if kind is None:
                near = difflib.get_close_matches(name, mesos_flag_table.LIBPROCESS, 1)
                hint = f"write {near[0]}" if near else "take it out"
                found.append(_wrong(f"nothing reads {name}", hint))
                continue
            must = mesos_values.problem(kind, value, mesos_flag_table.LIBPROCESS_CHOICES.get(name, ()))
            if must:
                found.append(_wrong(f"{name} is {value!r}", f"it must be {must}"))
    return found + problems(program, settings, flags)


def render(
    program: str, settings: Mapping[str, Any], libprocess: Mapping[str, Any] | None = None
) -> tuple[str, list[str]]:
    """(text of the environment file for systemd, arguments for what no variable can say).

    Marathon's toggles and its two flags with capital letters cannot be had from a variable. Call `problems` first.
    """
    flags = known(
        program, "clusterd", "1.12.0", tuple({**mesos_flag_table.MASTER_BUILD, **mesos_flag_table.AGENT_BUILD})
    )
    prefix = "MARATHON_" if program == "marathon" else "MESOS_"
    variables: dict[str, str] = {}
    arguments = []
    for name in sorted(settings):
        flag, value = flags[name], mesos_values.text_of(settings[name])
        if flag.kind in ("toggle", "presence"):
            if value in ("true", "1"):
                arguments.append(f"--{name}")
            elif flag.kind == "toggle":
                arguments.append(f"--disable_{name}")
        elif name != name.lower():
            arguments += [f"--{name}", value]
        else:
            variables[prefix + name.upper()] = value
    variables.update({name: mesos_values.text_of(value) for name, value in (libprocess or {}).items()})
    return "".join(f"{name}={_quoted(value)}\n" for name, value in sorted(variables.items())), arguments


def _quoted(value: str) -> str:
    """A value as systemd.exec(5) reads it from an EnvironmentFile."""
    if re.fullmatch(r"[A-Za-z0-9_./:,;@%+=-]+", value, re.ASCII):
        return value
    return '"' + re.sub(r'([\\"$`])', r"\\\1", value) + '"'
