# SPDX-License-Identifier: GPL-3.0-or-later
"""The real library keeps the contract that the simulated one is held to in tests/unit/simulators."""

from __future__ import annotations

import ctypes

import pytest

from tests.simulators import nvml_contract


@pytest.fixture(scope="module")
def nvml():
    library = ctypes.CDLL("libnvidia-ml.so.1")
    assert library.nvmlInit_v2() == 0
    try:
        branch = nvml_contract.branch(library)
        if branch < nvml_contract.SINCE:
            pytest.skip(f"the contract is that of branch {nvml_contract.SINCE}, and this driver is of {branch}")
        yield library
    finally:
        library.nvmlShutdown()


@pytest.mark.parametrize("question", nvml_contract.QUESTIONS, ids=lambda question: question.name)
def test_the_real_library_answers_as_the_simulated_one(nvml, question):
    assert question.ask(nvml, nvml_contract.first_gpu(nvml)) == question.expected
