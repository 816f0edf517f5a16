# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit that makes the device nodes of the NVIDIA driver, from the variables of the role gpu_device_nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from posixpath import dirname
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render

UNIT = "baremetal-gpu-device-nodes.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/libexec/baremetal-gpu/device-nodes"
# The very file that the modules use: it imports nothing but the standard library.
SOURCE = Path(__file__).resolve().parents[2] / "module_utils" / "gpu" / "device_nodes.py"


def desired(params: Mapping[str, Any], facts: Mapping[str, Any], peers: Mapping[str, Any]) -> Plan:
    """The plan of one host.

    :param params: the role's variables.
    :return: The part `finished` is the document of a host on which nothing is left to do: with the nodes that its
        loaded driver has.
    """
    present, start = params["state"] == "present", boolean(params["start"])
    document = _present(params, start) if present else _absent()
    return Plan(document, parts={"finished": {**document.plain, "device_nodes": present and start}})


def _present(params: Mapping[str, Any], start: bool) -> doc.Document:
    unit = render(
        "gpu_device_nodes",
        "device-nodes.service.j2",
        before=params["before"],
        python=params["python"],
        program=PROGRAM,
    )
    return doc.Document(
        files=[doc.Directory(dirname(PROGRAM)), doc.File(PROGRAM, _program(), "0755"), doc.File(UNIT_FILE, unit)],
        units=[doc.Unit.running(UNIT, [PROGRAM, UNIT_FILE]) if start else doc.Unit(UNIT, enabled=True)],
    )


def _absent() -> doc.Document:
    return doc.Document(units=[doc.Unit.stopped(UNIT)], files=[doc.Absent(UNIT_FILE), doc.Absent(PROGRAM)])


@cache
def _program() -> str:
    return SOURCE.read_text().rstrip() + "\n"
