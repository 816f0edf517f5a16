# SPDX-License-Identifier: GPL-3.0-or-later
"""The real CUDA driver library answers what the simulated one is held to."""

from __future__ import annotations

import pytest

from tests.simulators.cuda_contract import GROUPS, broken

# Their errors are a program's, and the kernel logs them.
FAULTY = ("bad_accesses",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.faulty) if name in FAULTY else name for name in GROUPS]
)
def test_the_library_answers_as_measured(name):
    assert broken("libcuda.so.1", name) == []
