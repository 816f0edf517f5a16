# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.project.tree import ROOT, tracked_files


@pytest.fixture(scope="session")
def collection_tree(tmp_path_factory) -> Path:
    """What is under version control, at ansible_collections/baremetal/gpu: ansible-test refuses a link there."""
    tree = tmp_path_factory.mktemp("sanity") / "ansible_collections" / "baremetal" / "gpu"
    for path in tracked_files():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / path).read_bytes())
        target.chmod((ROOT / path).stat().st_mode)
    return tree
