# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.kubernetes.rights import USER, manifests
from tests import local_kubernetes
from tests.local_zookeeper import LocalZooKeeper, NotHere
from tests.unit.reconcile.site import Site


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalZooKeeper]:
    try:
        server = LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    except NotHere as why:
        pytest.skip(str(why))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def api_server() -> Iterator[local_kubernetes.LocalKubernetes]:
    """With what the reconciler may do, and nodes n1 and n2."""
    users = [USER, *(f"system:node:{name}/system:nodes" for name in ("n1", "n2"))]
    try:
        server = local_kubernetes.LocalKubernetes(users, manifests("baremetal-gpu"))
    except local_kubernetes.NotHere as why:
        pytest.skip(str(why))
    yield server
    server.close()


@pytest.fixture
def site(zookeeper: LocalZooKeeper, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(*flags: str, **settings: object) -> Site:
        made.append(Site(tmp_path, zookeeper, *flags, **settings))
        return made[-1]

    yield make
    for one in made:
        one.stop()
