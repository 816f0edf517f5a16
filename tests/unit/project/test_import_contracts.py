# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may import whom: the contracts of pyproject.toml hold, and each of them is broken by what it is there for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.project.tree import ROOT

PLUGINS = "ansible_collections.baremetal.gpu.plugins"
LAYERS = "What runs on hosts is in layers"
ALONE = "What runs on hosts knows neither Ansible, nor the controller, nor gpuops"
CONTROLLER = "The collection does not know gpuops"
ROOMS = "The schedulers of the reconciler do not know each other, and its core knows none"
CORE = "The core of the reconciler knows the programs of no scheduler"
GPUOPS = "gpuops is in layers"
PRODUCT = "The product does not know its tests"
HUB = "The portal's package is in layers"
HUB_ALONE = "Only the portal's package knows JupyterHub, and nothing knows that package"
DECIDES = "The portal's package knows neither Ansible, nor the controller, nor gpuops"


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """lint-imports over a tree that has the collection under the name that Ansible gives it."""
    program = Path(sys.executable).with_name("lint-imports")
    paths = f"{tree}:{tree}/collections:{tree}/portal"
    environment = {**os.environ, "PYTHONPATH": paths, "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        [program, "--config", tree / "pyproject.toml", "--no-cache"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "gpuops", tmp_path / "gpuops", ignore=names)
    shutil.copytree(ROOT / "portal", tmp_path / "portal", ignore=names)
    shutil.copytree(ROOT / "plugins", tmp_path / "collections/ansible_collections/baremetal/gpu/plugins", ignore=names)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_contracts_hold(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    for contract in (LAYERS, ALONE, CONTROLLER, ROOMS, CORE, GPUOPS, PRODUCT, HUB, HUB_ALONE, DECIDES):
        assert f"{contract} KEPT" in done.stdout


@pytest.mark.parametrize(
    ("importer", "imported", "contract"),
    [
        ("module_utils/host/files.py", f"{PLUGINS}.module_utils.config.merge", LAYERS),
        ("module_utils/config/merge.py", f"{PLUGINS}.module_utils.system.kernels", LAYERS),
        ("module_utils/system/kernels.py", f"{PLUGINS}.module_utils.gpu.driver", LAYERS),
        ("module_utils/kernel_log/xid.py", f"{PLUGINS}.module_utils.gpu.pci", LAYERS),
        ("module_utils/mesos/flags.py", f"{PLUGINS}.module_utils.marathon.app_schema", LAYERS),
        ("module_utils/health/rules.py", f"{PLUGINS}.module_utils.ceph.client", LAYERS),
        ("module_utils/drift/packages.py", f"{PLUGINS}.module_utils.preflight.report", LAYERS),
        ("module_utils/health/codes.py", f"{PLUGINS}.module_utils.agent.state", LAYERS),
        ("module_utils/agent/state.py", f"{PLUGINS}.module_utils.reconciler.zookeeper.store", LAYERS),
        ("module_utils/reconciler/zookeeper/store.py", f"{PLUGINS}.module_utils.agent.state", LAYERS),
        ("module_utils/reconciler/core/driver.py", f"{PLUGINS}.module_utils.reconciler.slurm.plan", ROOMS),
        ("module_utils/reconciler/slurm/plan.py", f"{PLUGINS}.module_utils.reconciler.mesos.plan", ROOMS),
        ("module_utils/reconciler/kubernetes/plan.py", f"{PLUGINS}.module_utils.reconciler.slurm.plan", ROOMS),
        ("module_utils/reconciler/core/metrics.py", f"{PLUGINS}.module_utils.slurm.control", CORE),
        ("module_utils/reconciler/core/metrics.py", f"{PLUGINS}.module_utils.kubernetes.api", CORE),
        ("module_utils/gpu/facts.py", "ansible.module_utils.basic", ALONE),
        ("module_utils/gpu/facts.py", f"{PLUGINS}.plugin_utils.allocatable", ALONE),
        ("module_utils/gpu/facts.py", "gpuops", ALONE),
        ("plugin_utils/mesos/plan.py", "gpuops.cli", CONTROLLER),
        ("plugin_utils/mesos/plan.py", "tests.simulators.mesos", PRODUCT),
        ("module_utils/gpu/facts.py", "tests.lab.machines.state", PRODUCT),
        ("portal/baremetal_gpu_portal/people.py", "baremetal_gpu_portal.spawner", HUB),
        ("portal/baremetal_gpu_portal/shared.py", "baremetal_gpu_portal.orders", HUB),
        ("portal/baremetal_gpu_portal/people.py", f"{PLUGINS}.plugin_utils.portal_package", DECIDES),
        ("module_utils/portal/session.py", "jupyterhub.spawner", HUB_ALONE),
        ("gpuops/users/invitations.py", "baremetal_gpu_portal.guard", HUB_ALONE),
        ("portal/baremetal_gpu_portal/people.py", "tests.unit.roles.portal_site", PRODUCT),
        ("gpuops/cli.py", "tests.lab.machines.cli", PRODUCT),
        ("gpuops/site/secrecy.py", "gpuops.run.records", GPUOPS),
        ("gpuops/run/session.py", "gpuops.commands.up", GPUOPS),
        ("gpuops/run/events.py", "gpuops.status.document", GPUOPS),
        ("gpuops/status/look.py", "gpuops.commands.options", GPUOPS),
        ("gpuops/plan/host_plans.py", "gpuops.doctor.findings", GPUOPS),
        ("gpuops/doctor/findings.py", "gpuops.report.page", GPUOPS),
    ],
)
def test_an_import_against_them_is_found(tree: Path, importer: str, imported: str, contract: str) -> None:
    plugins = tree / "collections/ansible_collections/baremetal/gpu/plugins"
    path = (tree if importer.startswith(("gpuops/", "portal/")) else plugins) / importer
    package, _dot, name = imported.rpartition(".")
    # Where nobody looks: in a function.
    line = f"from {package} import {name}" if package else f"import {name}"
    path.write_text(f"{path.read_text()}\n\ndef _late() -> None:\n    {line}\n")
    done = lint(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{contract} BROKEN" in done.stdout


def test_a_module_of_gpuops_without_a_layer_is_found(tree: Path) -> None:
    (tree / "gpuops/helpers.py").write_text("")
    done = lint(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "helpers" in done.stdout + done.stderr


def test_a_package_without_a_layer_is_found(tree: Path) -> None:
    package = tree / "collections/ansible_collections/baremetal/gpu/plugins/module_utils/gpus"
    package.mkdir()
    (package / "__init__.py").write_text("")
    done = lint(tree)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{LAYERS} BROKEN" in done.stdout or "gpus" in done.stdout + done.stderr
