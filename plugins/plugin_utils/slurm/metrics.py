# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of the controller's plan that is the program which writes metrics (module_utils/slurm/exporter.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Problem
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import document as doc
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.templates import render
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import textfile

ROLE = "slurm_controller"
UNIT = "baremetal-gpu-slurm-metrics.service"
UNIT_PATH = f"/etc/systemd/system/{UNIT}"
PROGRAM = "/usr/libexec/baremetal-gpu/slurm-metrics"
COMMAND = "/usr/local/bin/baremetal-gpu-slurm-metrics"
INTERVAL_S = 15
FILE = "baremetal_gpu_slurm.prom"


def problems(params: Mapping[str, Any]) -> Iterator[Problem]:
    """What of the variables is wrong: `metrics_directory`, empty for no metrics, and `metrics_interval` in seconds."""
    directory, interval = str(params.get("metrics_directory", "")), params.get("metrics_interval", INTERVAL_S)
    yield from textfile.directory_problems("slurm_controller_metrics_directory", directory)
    if not 5 <= interval <= 3600:
        yield Problem(
            "wrong_setting",
            "slurm_controller_metrics_interval",
            "it is not from 5 to 3600 seconds",
            str(interval),
            "give seconds such as 15",
        )


def files(params: Mapping[str, Any]) -> list[doc.Entry]:
    """The files of the program and of its service."""
    directory = params.get("metrics_directory", "")
    if not directory:
        return [*map(doc.Absent, (UNIT_PATH, COMMAND, PROGRAM))]
    text = render(
        ROLE,
        f"{UNIT}.j2",
        program=PROGRAM,
        directory=directory,
        textfile=f"{directory}/{FILE}",
        interval=params.get("metrics_interval", INTERVAL_S),
    )
    return [
        doc.Directory(PROGRAM.rpartition("/")[0]),
        *textfile.directory(directory),
        doc.File(PROGRAM, bundle("slurm.exporter"), "0755"),
        doc.Link(COMMAND, PROGRAM),
        doc.File(UNIT_PATH, text),
    ]


def unit(params: Mapping[str, Any]) -> doc.Unit:
    """The service."""
    is_wanted = params.get("metrics_directory", "")
    return doc.Unit.running(UNIT, [PROGRAM, UNIT_PATH]) if is_wanted else doc.Unit.stopped(UNIT)
