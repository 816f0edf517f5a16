# SPDX-License-Identifier: GPL-3.0-or-later
"""Each alert has a fault in the lab that makes it fire, or a reason why it has none."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from tests.site import alert_faults
from tests.site.alert_faults import Round
from tests.unit.project.tree import ROOT

FILES = sorted(path.stem for path in Path(ROOT, "tests", "site").glob("test_alerts*.py"))
ROUNDS: list[Round] = [row for name in FILES for row in importlib.import_module(f"tests.site.{name}").ROUNDS]


def test_each_alert_is_in_exactly_one_place():
    # Several hosts may have the same fault.
    found = Counter(name for row in ROUNDS for name in row.alerts)
    found.update([*alert_faults.PROVEN_BY_PROMTOOL, *alert_faults.TESTED_ELSEWHERE])
    assert found == Counter(dict.fromkeys(rules.BY_NAME, 1))


def test_what_may_come_with_a_fault_is_an_alert():
    assert {name for row in ROUNDS for name in row.also} <= set(rules.BY_NAME)


@pytest.mark.parametrize("row", ROUNDS, ids=lambda row: "-".join(sorted(row.alerts)))
def test_no_alert_of_a_round_hides_another_that_is_to_be_told(row):
    told = {fault.alert: fault.host for fault in row.faults if fault.is_told}
    for one in rules.INHIBITIONS:
        hidden = set(one.targets) & set(told)
        if one.source in row.alerts and hidden:
            hosts = {fault.host for fault in row.faults if fault.alert == one.source}
            assert "host" in one.equal
            assert not {told[name] for name in hidden} & hosts, hidden


@pytest.mark.parametrize("row", ROUNDS, ids=lambda row: "-".join(sorted(row.alerts)))
def test_a_round_makes_its_faults_and_repairs_them(row):
    assert any(fault.make for fault in row.faults)
    for fault in row.faults:
        assert bool(fault.make) == bool(fault.repair), fault.alert
        # A command has a machine to run on.
        assert not isinstance(fault.make, str) or not fault.make or fault.on or fault.host, fault.alert
