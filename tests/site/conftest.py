# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the tests that run playbooks on the lab."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.site.kubernetes_lab import LEFT_RUNNING, MACHINES, Cluster, cluster
from tests.site.plays import lab
from tests.site.portal_lab import Portal, bare


@pytest.fixture(scope="module")
def bare_lab() -> None:
    """The lab's machines as a fresh installation leaves them, whatever ran on them before."""
    lab("reset", "gpu1", "gpu2", "cpu1")


@pytest.fixture(scope="session")
def bare_portal(tmp_path_factory: pytest.TempPathFactory) -> Portal:
    """A cluster of Slurm that can have a portal; the files of its tests share it."""
    return bare(tmp_path_factory.mktemp("portal"))


@pytest.fixture(scope="session")
def bare_kubernetes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Machines that can become a cluster of Kubernetes; the files of its tests share them."""
    kept = os.environ.get("GPUOPS_KEEP_LAB")
    with cluster(Cluster(LEFT_RUNNING if kept else tmp_path_factory.mktemp("kubernetes"))) as made:
        yield made
    if not kept:
        lab("down", *(word for name in MACHINES for word in ("--machine", name)))


@pytest.fixture(scope="session")
def kubernetes(bare_kubernetes: Cluster) -> Cluster:
    """A cluster of Kubernetes that runs."""
    if not bare_kubernetes.is_made:
        bare_kubernetes.converge("site.yml")
    return bare_kubernetes
