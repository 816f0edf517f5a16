# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.project.tree import BIN, clone, run


@pytest.fixture(scope="session")
def archive(tmp_path_factory) -> Path:
    """The collection as users get it, built from what is under version control."""
    source = clone(tmp_path_factory.mktemp("source"))
    out = tmp_path_factory.mktemp("archive")
    run(BIN / "ansible-galaxy", "collection", "build", "--output-path", out, source)
    (built,) = out.glob("baremetal-gpu-*.tar.gz")
    return built


@pytest.fixture(scope="session")
def collection_tree(archive, tmp_path_factory) -> Path:
    """The same unpacked at ansible_collections/baremetal/gpu: ansible-test refuses a link there."""
    tree = tmp_path_factory.mktemp("sanity") / "ansible_collections" / "baremetal" / "gpu"
    tree.mkdir(parents=True)
    # Debian 12's Python has no filter for what it unpacks, and later ones warn without.
    run("tar", "-xf", archive, "-C", tree)
    return tree
