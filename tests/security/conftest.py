# SPDX-License-Identifier: GPL-3.0-or-later
"""What the attacks need: a site of gpuops on this machine, a real ZooKeeper with a reconciler, and apt's stand-ins."""

from __future__ import annotations

from tests.unit.fetch.test_manifest import apt
from tests.unit.gpuops.conftest import bench
from tests.unit.plugins.test_service_account_plants import user_ceph
from tests.unit.reconcile.conftest import site, zookeeper

__all__ = ["apt", "bench", "site", "user_ceph", "zookeeper"]
