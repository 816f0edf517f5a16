# SPDX-License-Identifier: GPL-3.0-or-later
"""The real library keeps the contract on MIG that the simulated one is held to in tests/unit/simulators.

It cuts a GPU that is in MIG mode, idle and without instances, and leaves it so. It changes no mode for good.
"""

from __future__ import annotations

import os

import pytest

from tests.simulators import mig_contract

pytestmark = pytest.mark.skipif(
    not os.environ.get("GPUOPS_TEST_MIG"), reason="it cuts a GPU into instances: set GPUOPS_TEST_MIG=1 to run it"
)


@pytest.fixture(scope="module")
def gpu():
    import pynvml

    pynvml.nvmlInit()
    try:
        for place in range(pynvml.nvmlDeviceGetCount()):
            found = mig_contract.Gpu(pynvml, place)
            try:
                on = pynvml.nvmlDeviceGetMigMode(found.handle) == [1, 1]
            except pynvml.NVMLError:
                on = False
            if on and not found.devices() and not pynvml.nvmlDeviceGetComputeRunningProcesses_v3(found.handle):
                yield found
                return
        pytest.skip("no GPU here is in MIG mode, idle and without instances")
    finally:
        pynvml.nvmlShutdown()


@pytest.mark.parametrize("question", mig_contract.QUESTIONS, ids=lambda question: question.name)
def test_the_real_library_answers_as_the_simulated_one(gpu, question):
    assert question.ask(gpu) == question.expected
    assert gpu.devices() == {}
