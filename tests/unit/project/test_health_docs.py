# SPDX-License-Identifier: GPL-3.0-or-later
"""The pages on health say what the rules do."""

from __future__ import annotations

import json
import re
import sys

from ansible_collections.baremetal.gpu.plugins.module_utils.health import codes as health_codes
from ansible_collections.baremetal.gpu.plugins.module_utils.health import policy
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log import xid_table
from tests.unit.project.tree import ROOT, run

CODES = (ROOT / "docs" / "health-codes.md").read_text()
HEALTH = (ROOT / "docs" / "health.md").read_text()


def test_the_page_of_codes_is_what_its_tool_prints():
    assert run(sys.executable, ROOT / "tools" / "health_codes.py") == CODES, "print it again with tools/health_codes.py"


def test_every_code_is_explained_with_all_that_one_needs():
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", CODES, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(health_codes.CODES)
    for code, text in sections.items():
        row = health_codes.CODES[code]
        for name in ("Threshold", "Verdict", "Action", "What to do", "Ends"):
            assert re.search(rf"^- {name}: \S", text, re.MULTILINE), f"{code} lacks {name}"
        assert f"- Verdict: {row.verdict}," in text
        assert f"- Action: `{row.action}`" in text


def test_every_xid_is_in_the_table():
    assert [int(number) for number in re.findall(r"^\| (\d+) \|", CODES, re.MULTILINE)] == list(xid_table.XIDS)


def test_every_threshold_named_by_a_code_is_one_of_the_policy():
    named = {
        name.removeprefix("expected.")
        for row in health_codes.CODES.values()
        for name in re.findall(r"`([\w.]+)`", row.threshold)
    }
    assert named <= {*policy.DEFAULTS["thresholds"], *policy.DEFAULTS["expected"]}


def test_every_key_of_the_policy_is_explained_with_its_default():
    table = HEALTH.split("| key | default | |")[1].split("\n\n")[0]
    explained = set(re.findall(r"`((?:thresholds|expected)\.\w+)`", table))
    keys = {f"{part}.{key}" for part in ("thresholds", "expected") for key in policy.DEFAULTS[part]}
    assert explained == keys
    for line in table.splitlines():
        names = re.findall(r"`(thresholds|expected)\.(\w+)`", line)
        defaults = [policy.DEFAULTS[part][key] for part, key in names]
        shown = line.split("|")[2].strip() if names else ""
        if names and not isinstance(defaults[0], dict):
            written = [json.dumps(value) for value in defaults]
            assert shown in (", ".join(written), written[0]), line


def test_the_actions_are_explained():
    assert set(re.findall(r"^\| `(\w+)` \|", HEALTH, re.MULTILINE)) >= set(health_codes.ACTIONS)
