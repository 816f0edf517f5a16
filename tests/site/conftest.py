# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the tests that run playbooks on the lab."""

from __future__ import annotations

import pytest

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
