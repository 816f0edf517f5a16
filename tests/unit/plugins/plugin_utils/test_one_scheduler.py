# SPDX-License-Identifier: GPL-3.0-or-later
"""A host in the groups of two schedulers is refused by preflight."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.one_scheduler import two_schedulers


@pytest.mark.parametrize(
    "groups", [[], ["kubernetes_nodes", "gpu_cluster"], ["slurm_nodes", "mesos_agents"], ["kubernetes_control_planes"]]
)
def test_a_node_of_one_scheduler_is_well(groups: list[str]) -> None:
    assert two_schedulers("n1", groups) == []


def test_a_node_of_several_is_told_with_each() -> None:
    found = two_schedulers("n1", ["kubernetes_nodes", "mesos_agents", "slurm_nodes"])
    assert [one.evidence for one in found] == [
        "groups kubernetes_nodes and slurm_nodes",
        "groups kubernetes_nodes and mesos_agents",
    ]


def test_preflight_refuses_it(tmp_path: Path) -> None:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    groups = {"gpu_cluster": {"hosts": {"here": here}}, "kubernetes_nodes": {"hosts": {"here": {}}}}
    groups["slurm_nodes"] = {"hosts": {"here": {}}}
    inventory = tmp_path / "hosts.json"
    inventory.write_text(json.dumps({"all": {"children": groups}}))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory)]
    done = subprocess.run([*command, "baremetal.gpu.preflight"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "it is a node of Kubernetes and of Slurm, and both would give its GPUs to jobs" in done.stdout
    assert "Nothing was changed" in done.stdout
