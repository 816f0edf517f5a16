# SPDX-License-Identifier: GPL-3.0-or-later
"""The page on alerts says what the rules do, and every runbook link of an alert leads to its section."""

from __future__ import annotations

import fnmatch
import re
import sys

from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring import metrics as host_metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core import metrics as reconciler_metrics
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm import metrics as slurm_metrics
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import SEVERITIES
from tests.unit.project.tree import ROOT, run

OURS = (slurm_metrics.METRICS, reconciler_metrics.METRICS, host_metrics.METRICS)
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


def test_every_metric_that_a_program_of_ours_gives_to_the_rules_is_on_the_page_with_the_program():
    patterns = re.findall(r"`([a-z_]+\*?)`", "".join(re.findall(r"^\| (`.*?`) \| the ", ALERTS, re.MULTILINE)))
    used = set(re.findall(r"\b[a-z_]+\b", " ".join(alert.expr for alert in rules.BY_NAME.values())))
    given = [name for metrics in OURS for name in metrics if name in used]
    assert len(given) > 10
    for name in given:
        assert any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns), name
