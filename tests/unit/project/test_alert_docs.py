# SPDX-License-Identifier: GPL-3.0-or-later
"""The page on alerts says what the rules do, and every runbook link of an alert leads to its section."""

from __future__ import annotations

import re
import sys

from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import needed_metrics, rules
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import SEVERITIES
from tests.unit.project.tree import ROOT, run

ALERTS = (ROOT / "docs" / "alerts.md").read_text()


def test_the_page_of_alerts_is_what_its_tool_prints():
    assert run(sys.executable, ROOT / "tools" / "alerts.py") == ALERTS, "print it again with tools/alerts.py"


def test_every_alert_has_a_section_with_its_meaning_and_what_to_do():
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##)", ALERTS, re.MULTILINE | re.DOTALL))
    assert set(sections) == set(rules.BY_NAME)
    for name, text in sections.items():
        alert = rules.BY_NAME[name]
        assert alert.page == f"alerts.html#{name.lower()}"
        assert alert.meaning.split()[0] in text.split("- Severity")[0], name
        assert f"- Severity: {alert.severity}," in text
        assert re.search(r"^- What to do: \S", text, re.MULTILINE), name


def test_the_severities_are_explained():
    for severity in SEVERITIES:
        assert re.search(rf"^\| `{severity}` \| [A-Z]", ALERTS, re.MULTILINE)


def test_every_metric_that_others_must_give_is_on_the_page():
    for metric in needed_metrics.METRICS:
        assert f"| `{metric.name}` |" in ALERTS
