# SPDX-License-Identifier: GPL-3.0-or-later
"""The scenarios of Molecule that have machines of their own. tests/site runs `node`, and test_metal.py `metal`."""

from __future__ import annotations

import pytest

from tests.molecule_scenario import ROOT, Scenario

STEPS = ("create", "prepare", "converge", "idempotence", "verify", "cleanup", "destroy")
SCENARIOS = ("agent", "engines", "storage", "scheduler")
ELSEWHERE = {"node", "metal", "default"}


def test_every_scenario_is_run_by_a_test() -> None:
    assert {path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml")} == {*SCENARIOS, *ELSEWHERE}


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    # A lab of its own, whatever lab the other tests have.
    status, output = Scenario(name, {"GPUOPS_LAB_ID": None}).run("test")
    assert status == 0, output[-8000:]
    # Not only that nothing failed: each step ran, in this order.
    places = [output.rfind(f"[{name} > {step}] Executed: Successful") for step in STEPS]
    assert -1 not in places, dict(zip(STEPS, places, strict=True))
    assert places == sorted(places)
    assert " passed" in output
