# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulated library keeps the contract that the real one is measured by in tests/gpu/test_nvml_contract.py."""

from __future__ import annotations

import pytest

from tests.simulators import nvml_contract
from tests.unit.simulators.conftest import load_copy


@pytest.fixture
def nvml(built, tmp_path, measured_host):
    library = load_copy(built / "libnvidia-ml.so.1", tmp_path)
    assert library.nvmlInit_v2() == 0
    yield library
    assert library.nvmlShutdown() == 0
    assert library.nvmlShutdown() == 1


@pytest.mark.parametrize("question", nvml_contract.QUESTIONS, ids=lambda question: question.name)
def test_the_simulated_library_answers_as_the_real_one(nvml, question):
    assert question.ask(nvml, nvml_contract.first_gpu(nvml)) == question.expected


def test_each_question_has_a_name_of_its_own():
    names = [question.name for question in nvml_contract.QUESTIONS]
    assert len(set(names)) == len(names)
