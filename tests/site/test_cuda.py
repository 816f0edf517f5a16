# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml as `make lab-node` runs it, with the distribution's CUDA toolkit: two gigabytes of real packages."""

from __future__ import annotations

import pytest

from tests.site.plays import run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def test_the_distributions_toolkit_compiles(bare_lab: None) -> None:
    play = run_playbook("site.yml", limit="gpu1")
    assert play.rc == 0, play.tail()
    assert "release 12.4" in ssh("gpu1", "nvcc --version")
    again = run_playbook("site.yml", limit="gpu1")
    assert again.rc == 0, again.tail()
    assert again.changed("gpu1") == 0, again.changed_tasks
