# SPDX-License-Identifier: GPL-3.0-or-later
"""A site's health policy over the defaults, and what is said of one that is wrong."""

from __future__ import annotations

import copy
import json

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import policy


def test_nothing_gives_the_defaults():
    assert policy.merge(None) == policy.merge({}) == policy.DEFAULTS


def test_a_whole_policy_stays_what_it_is():
    whole = policy.merge({"xids": {31: {"verdict": "degraded"}}, "expected": {"gpus": 8, "mig": False}})
    assert policy.merge(whole) == whole
    assert policy.merge(json.loads(json.dumps(whole))) == whole


def test_only_what_the_site_gives_differs():
    defaults = copy.deepcopy(policy.DEFAULTS)
    whole = policy.merge(
        {
            "thresholds": {"retired_pages": 40, "temperature_c": 85, "pcie_replays_per_lane": {4: 2}},
            "checks": {"pcie_width": {"verdict": "fatal", "looks": 1}},
            "xids": {31: {"verdict": "degraded", "action": "reset_gpu"}},
            "expected": {"persistence_mode": None},
        }
    )
    assert whole["thresholds"]["retired_pages"] == 40
    assert whole["thresholds"]["pcie_replays_per_lane"] == {**defaults["thresholds"]["pcie_replays_per_lane"], "4": 2}
    assert whole["checks"]["pcie_width"] == {**defaults["checks"]["pcie_width"], "verdict": "fatal", "looks": 1}
    assert whole["checks"]["pcie_generation"] == defaults["checks"]["pcie_generation"]
    assert whole["xids"] == {"31": {"verdict": "degraded", "action": "reset_gpu"}}
    assert whole["expected"]["persistence_mode"] is None
    assert defaults == policy.DEFAULTS


@pytest.mark.parametrize(
    ("site", "said"),
    [
        ([], None),
        (["x"], "the health policy is ['x']: give a mapping of thresholds, checks, xids, expected"),
        ({"treshold": {}}, "treshold is not a part of it: use thresholds, checks, xids, expected"),
        ({"thresholds": 3}, "thresholds is 3: give a mapping"),
        ({"thresholds": {"retired_pages": "63"}}, "thresholds.retired_pages is '63': give a number of 0 or more"),
        ({"thresholds": {"retired_pages": None}}, "thresholds.retired_pages is None: give a number of 0 or more"),
        ({"thresholds": {"retired_pages": True}}, "thresholds.retired_pages is True: give a number of 0 or more"),
        ({"thresholds": {"temperature_margin_c": -1}}, "temperature_margin_c is -1: give a number of 0 or more"),
        ({"thresholds": {"unknown_looks": 1.5}}, "thresholds.unknown_looks is 1.5: give a whole number of 1 or more"),
        ({"thresholds": {"heat": 1}}, "thresholds.heat is not known: use one of ecc_volatile_uncorrected"),
        ({"thresholds": {"pcie_replays_per_lane": {9: 1}}}, "pcie_replays_per_lane.9 is not known: use one of 1, 2"),
        ({"thresholds": {"pcie_replays_per_lane": 1}}, "per_lane is 1: give a mapping of PCIe generations"),
        ({"thresholds": {"share_bad_s": 900}}, "share_bad_s is 900: give no more than thresholds.share_window_s"),
        ({"checks": {"pci_width": {}}}, "checks.pci_width is not a code: see docs/health-codes.md"),
        ({"checks": {"pcie_width": "off"}}, "checks.pcie_width is 'off': give a mapping of verdict, looks"),
        ({"checks": {"pcie_width": {"verdict": "bad"}}}, "is 'bad': give one of degraded, fatal, ignore"),
        ({"checks": {"pcie_width": {"looks": 0}}}, "checks.pcie_width.looks is 0: give a whole number of 1 or more"),
        ({"checks": {"pcie_width": {"poll": 1}}}, "checks.pcie_width.poll is not known: use one of verdict, looks"),
        ({"xids": {"all": {}}}, "xids.all is not a number"),
        ({"xids": {31: "fatal"}}, "xids.31 is 'fatal': give a mapping of verdict, action"),
        ({"xids": {31: {"verdict": "ok"}}}, "xids.31.verdict is 'ok': give one of degraded, fatal, application, none"),
        ({"xids": {31: {"acton": "none"}}}, "xids.31.acton is not known: use one of verdict, action"),
        ({"expected": {"gpus": "8"}}, "expected.gpus is '8': give a whole number of 0 or more"),
        ({"expected": {"mig": "off"}}, "expected.mig is 'off': give true or false"),
        ({"expected": {"nodes": 8}}, "expected.nodes is not known: use one of gpus, mig, persistence_mode"),
    ],
)
def test_what_is_wrong_is_named_with_value_and_remedy(site, said):
    if said is None:
        assert policy.merge(site) == policy.DEFAULTS
        return
    with pytest.raises(policy.PolicyError) as error:
        policy.merge(site)
    assert said in str(error.value)


def test_every_mistake_is_named_at_once():
    with pytest.raises(policy.PolicyError) as error:
        policy.merge({"thresholds": {"retired_pages": -1}, "expected": {"gpus": -1}, "xids": {"x": {}}})
    assert str(error.value).count(";") == 2
