# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated CUDA driver library answers as the real one does: see tests/gpu/test_cuda_contract.py."""

from __future__ import annotations

import pytest

from tests.simulators.cuda_contract import GROUPS, broken


@pytest.mark.usefixtures("measured_host")
@pytest.mark.parametrize("name", GROUPS)
def test_the_simulator_answers_as_the_real_library(built, name):
    assert broken(built / "libcuda.so.1", name) == []
