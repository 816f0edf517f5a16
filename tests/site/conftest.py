# SPDX-License-Identifier: GPL-3.0-or-later
"""Fixtures for the tests that run playbooks on the lab."""

from __future__ import annotations

import pytest

from tests.site.plays import lab


@pytest.fixture(scope="module")
def bare_lab() -> None:
    """The lab's machines as a fresh installation leaves them, whatever ran on them before."""
    lab("reset", "gpu1", "gpu2", "cpu1")
