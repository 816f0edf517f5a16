# SPDX-License-Identifier: GPL-3.0-or-later
"""What the page of metrics says about MIG instances of jobs, asked of an agent's own metrics of simulated GPUs."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.publish import page
from tests.unit.plugins.exposition import parse
from tests.unit.plugins.promtool import PROMTOOL, needs_promtool
from tests.unit.project.tree import ROOT

HOST = ("host", "gpu1")


@pytest.fixture
def host(simulated_host):
    """A host with GPUs that MIG has cut, each instance with another use of its memory."""
    simulated_host.take("a100-sxm4-40gb-x8-mig")
    for gpu in simulated_host.scenario["devices"]:
        for number, instance in enumerate(gpu["mig"]["instances"], 1):
            instance["memory"]["used_mib"] = 100 * number
    simulated_host.save()
    return simulated_host


@needs_promtool
def test_what_each_instance_holds_is_told_with_the_job_that_has_its_gpu(host, tmp_path):
    agent = {"probe_error": None, "probe_seconds": 0.01, "probe_time": 9000.0, "stuck": 0, "xids": []}
    told = {"time": 9000.0, "uptime": 8000.0, "agent": agent, "snapshot": host.looking()(), "health": None}
    found = parse(page(told, "none"))
    (minor,) = (gpu["minor"] for gpu in host.scenario["devices"][1:2])
    rows = [
        (name, dict((*labels, HOST)), value)
        for name in ("gpu_mig_memory_bytes", "gpu_info")
        for labels, value in found[name].series.items()
    ]
    lease = {"scheduler": "slurm", "host": "gpu1", "minor": str(minor), "job_id": "7", "user": "alice"}
    rows.append(("gpu_lease_info", lease, 1.0))
    text = (ROOT / "docs" / "metrics.md").read_text()
    (expression,) = re.findall(r"```promql\n(gpu_mig_memory_bytes.*?)```", text, re.DOTALL)
    of_job = [
        {
            "labels": _series(
                "",
                {
                    "gpu": "1",
                    "uuid": host.scenario["devices"][1]["uuid"],
                    "gpu_instance": str(one["id"]),
                    "profile": one["name"],
                    "state": "used",
                    "host": "gpu1",
                    "minor": str(minor),
                    "job_id": "7",
                    "user": "alice",
                },
            ),
            "value": one["memory"]["used_mib"] << 20,
        }
        for one in host.scenario["devices"][1]["mig"]["instances"]
    ]
    assert len(of_job) == 3
    test = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": _series(name, labels), "values": f"{value}"} for name, labels, value in rows
                ],
                "promql_expr_test": [{"expr": expression, "eval_time": "0m", "exp_samples": of_job}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        [str(PROMTOOL), "test", "rules", tmp_path / "test.yml"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{pairs}}}"
