# SPDX-License-Identifier: GPL-3.0-or-later
"""The program on slurmctld's host that writes metrics, and how it is kept in bounds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import slurm_controller
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan
from ansible_collections.baremetal.gpu.plugins.plugin_utils.slurm import metrics

CLUSTER = {**dict.fromkeys(slurm_controller.FILES, ""), "gres": {}, "has_rest": False, "state": None}
TEXTFILES = "/var/lib/prometheus/node-exporter"


def plan(directory: str = TEXTFILES, interval: int = 15) -> Plan:
    params = {"metrics_directory": directory, "metrics_interval": interval}
    return slurm_controller.desired(params, {}, {"cluster": CLUSTER, "nodes": {}, "has": []})


def files(made: Plan) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in made.desired["files"]}


def units(made: Plan) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in made.desired["units"]}


def test_without_a_directory_there_is_no_program_and_no_service() -> None:
    made = plan("")
    paths = (metrics.UNIT_PATH, metrics.COMMAND, metrics.PROGRAM)
    assert [files(made)[path]["state"] for path in paths] == ["absent"] * 3
    unit = units(made)[metrics.UNIT]
    assert (unit["enabled"], unit["state"]) == (False, "stopped")
    assert units(made)[slurm_controller.SLURMCTLD]["state"] == "started"


def test_the_service_writes_into_that_directory_alone_and_leaves_nothing_there() -> None:
    made = plan(interval=30)
    unit = files(made)[metrics.UNIT_PATH]["content"].splitlines()
    file = f"{TEXTFILES}/baremetal_gpu_slurm.prom"
    assert f"ExecStart={metrics.PROGRAM} --textfile {file} --interval 30" in unit
    assert [line for line in unit if line.startswith("ReadWritePaths=")] == [f"ReadWritePaths={TEXTFILES}"]
    assert f"ExecStopPost=/bin/rm -f {file}" in unit
    assert {"CapabilityBoundingSet=", "ProtectSystem=strict", "NoNewPrivileges=yes"} <= set(unit)
    # Whose the directory is, is left as it is.
    assert files(made)[TEXTFILES] == {"path": TEXTFILES, "state": "directory"}


def test_a_new_program_or_unit_restarts_the_service_and_not_slurmctld() -> None:
    made = units(plan())
    own = {metrics.PROGRAM, metrics.UNIT_PATH}
    assert set(made[metrics.UNIT]["restart_on"]) == own
    assert not own & set(made[slurm_controller.SLURMCTLD]["restart_on"])


def test_the_program_runs_with_nothing_installed(tmp_path: Path) -> None:
    program = tmp_path / "slurm-metrics"
    program.write_text(files(plan())[metrics.PROGRAM]["content"])
    done = subprocess.run([sys.executable, "-I", program, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--once" in done.stdout


@pytest.mark.parametrize("directory", ["metrics", "/a b", "/a\nExecStart=/bin/sh", "/a;b", "/", "/%h"])
def test_a_directory_that_would_be_something_else_in_a_unit_is_refused(directory: str) -> None:
    (problem,) = plan(directory).problems
    assert (problem.subject, problem.evidence) == ("slurm_controller_metrics_directory", directory)
    assert plan(directory).desired == {}


@pytest.mark.parametrize("interval", [0, 4, 3601])
def test_an_interval_out_of_bounds_is_refused(interval: int) -> None:
    (problem,) = plan(interval=interval).problems
    assert problem.subject == "slurm_controller_metrics_interval"
