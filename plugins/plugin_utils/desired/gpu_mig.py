# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that cuts the GPUs at every boot, from the variables of the role gpu_mig."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from posixpath import dirname
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu import mig_layout
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan, built_in
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

ROLE = "gpu_mig"
UNIT = "baremetal-gpu-mig.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/libexec/baremetal-gpu/gpu-mig"
COMMAND = "/usr/local/bin/gpu-mig"
CONFIG = "/etc/baremetal-gpu/mig.json"
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.@-]{1,200}\.(service|target|socket)\Z")
_UNITS = ("stop_units", "before", "guarded_units")


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables.
    """
    problems = tuple(_problems(params))
    if problems:
        return Plan(problems=problems)
    return Plan(_present(params) if params["layout"] else _absent(params))


def _problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        mig_layout.rules(built_in(params["layout"]), params["config"])
    except mig_layout.LayoutError as wrong:
        yield wrong.problem
    for name in _UNITS:
        for unit in params[name]:
            if not _UNIT_NAME.match(unit):
                cause = f"gpu_mig_{name} has {unit!r}, which is not a name of a unit"
                yield Problem("wrong_setting", f"gpu_mig_{name}", cause, unit, "give names such as slurmd.service")


def _guard_file(unit: str) -> str:
    return f"/etc/systemd/system/{unit}.d/baremetal-gpu-mig.conf"


def _present(params: Mapping[str, Any]) -> doc.Document:
    settings = {"layout": built_in(params["layout"]), "config": params["config"], "stop_units": params["stop_units"]}
    common = {"python": params["python"], "program": PROGRAM}
    unit = render(ROLE, "baremetal-gpu-mig.service.j2", before=params["before"], **common)
    guard = render(ROLE, "guard.conf.j2", unit=UNIT, **common)
    guards = [(dirname(_guard_file(one)), _guard_file(one)) for one in params["guarded_units"]]
    return doc.Document(
        files=[
            *map(doc.Directory, (dirname(PROGRAM), dirname(CONFIG), *(directory for directory, _file in guards))),
            doc.File(PROGRAM, bundle("gpu.mig_command"), "0755"),
            doc.Link(COMMAND, PROGRAM),
            doc.File(CONFIG, json.dumps(settings, indent=2, sort_keys=True) + "\n"),
            doc.File(UNIT_FILE, unit),
            *(doc.File(file, guard) for _directory, file in guards),
        ],
        # Not started: the role has just cut them, and a restart would cut them beside jobs.
        units=[doc.Unit(UNIT, enabled=True)],
    )


def _absent(params: Mapping[str, Any]) -> doc.Document:
    guards = [_guard_file(unit) for unit in params["guarded_units"]]
    return doc.Document(
        units=[doc.Unit.stopped(UNIT)],
        files=[*map(doc.Absent, (UNIT_FILE, COMMAND, PROGRAM, CONFIG, *guards))],
    )
