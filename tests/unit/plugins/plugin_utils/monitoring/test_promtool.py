# SPDX-License-Identifier: GPL-3.0-or-later
"""The rules in promtool and amtool: what fires, what does not, and what the operator reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.agent import publish
from ansible_collections.baremetal.gpu.plugins.module_utils.health import verdict
from ansible_collections.baremetal.gpu.plugins.module_utils.kernel_log.xid_table import XIDS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import rules
from tests import debian_programs
from tests.unit.plugins.health_host import Host, address
from tests.unit.plugins.plugin_utils.monitoring.cases import CASES, Case, Series, named


def tool(name: str, package: str, *args: str | Path) -> str:
    """Its output; the test is skipped where it is not installed, and fails where it says no."""
    program = debian_programs.path_of(name)
    if program is None:
        pytest.skip(f"{name} of the package {package} is not here: python -m tests.needs fetches it")
    done = subprocess.run([program, *args], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def promtool(*args: str | Path) -> str:
    return tool("promtool", "prometheus", *args)


@pytest.fixture
def files(tmp_path):
    written = []
    for name, text in rules.rule_files().items():
        written.append(tmp_path / name)
        written[-1].write_text(text)
    return written


def test_promtool_takes_every_file(files):
    said = promtool("check", "rules", *files)
    assert said.count("SUCCESS") == len(files)


def group(case: Case, series: Series, firing: bool) -> dict:
    alert = rules.BY_NAME[case.alert]
    wanted = [
        {
            "exp_labels": {**one.labels, "severity": alert.severity},
            "exp_annotations": {
                "summary": one.summary,
                "evidence": one.evidence,
                "remedy": alert.remedy if one.remedy is None else one.remedy,
                "runbook_url": alert.link(),
            },
        }
        for one in case.firing
    ]
    return {
        "interval": case.interval,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"alertname": case.alert, "eval_time": case.at, "exp_alerts": wanted if firing else []},
        ],
    }


@pytest.mark.parametrize("name", rules.BY_NAME)
def test_it_fires_where_it_should_and_says_what_to_do(name, tmp_path):
    (file,) = (file for file, alerts in rules.ALERTS.items() if name in {alert.name for alert in alerts})
    cases = [case for case in CASES if case.alert == name]
    groups = [group(case, case.series, firing=True) for case in cases]
    groups += [group(case, series, firing=False) for case in cases for series in case.quiet.values()]
    (tmp_path / "rules.yml").write_text(rules.rule_files()[f"{file}.yml"])
    document = {"rule_files": ["rules.yml"], "evaluation_interval": cases[0].interval, "tests": groups}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document, allow_unicode=True))
    promtool("test", "rules", tmp_path / "test.yml")


def published(host: Host, name: str) -> list[dict[str, str]]:
    """The labels of the reasons as the agent publishes them, with those that Prometheus adds."""
    agent = {"probe_error": None, "probe_seconds": None, "probe_time": None, "stuck": 0}
    result = {"snapshot": {}, "agent": agent, "health": host.report}
    told = [labels for metric, labels, _value in publish.samples(result) if metric == "gpu_health_reason"]
    return [{"host": name, **{key: value for key, value in labels.items() if value is not None}} for labels in told]


def test_the_alert_of_every_xid_has_the_remedy_that_the_agent_gives(tmp_path):
    alerts = {verdict.FATAL: rules.BY_NAME["GpuFatal"], verdict.DEGRADED: rules.BY_NAME["GpuDegraded"]}
    series, wanted = [], {word: [] for word in alerts}
    for number in XIDS:
        host = Host()
        host.xid(number)
        for reason in host.gpu()["reasons"]:
            (labels,) = published(host, f"xid{number}")
            word, value, code = reason["verdict"], verdict.NUMBERS[reason["verdict"]], reason["code"]
            series.append({"series": named("gpu_health_reason", **labels), "values": f"{value}x20"})
            annotations = {
                "summary": f"xid{number}: GPU {address(0)} is {word}: {code}",
                "evidence": f"The verdict of {code} is {value} ({word}), {address(0)}.",
                "remedy": reason["remedy"][:1].upper() + reason["remedy"][1:] + ".",
                "runbook_url": alerts[word].link(),
            }
            labels["severity"] = alerts[word].severity
            wanted[word].append({"exp_labels": labels, "exp_annotations": annotations})
    assert all(len(rows) > 10 for rows in wanted.values())
    assert "UUID" not in str(wanted)
    cases = [{"alertname": alerts[word].name, "eval_time": "10m", "exp_alerts": rows} for word, rows in wanted.items()]
    group = {"interval": "1m", "input_series": series, "alert_rule_test": cases}
    (tmp_path / "rules.yml").write_text(rules.rule_files()["gpu.yml"])
    document = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": [group]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document, allow_unicode=True))
    promtool("test", "rules", tmp_path / "test.yml")


def test_amtool_takes_the_inhibition(tmp_path):
    config = {
        "route": {"receiver": "nobody"},
        "receivers": [{"name": "nobody"}],
        "inhibit_rules": rules.inhibit_rules(),
    }
    path = tmp_path / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    said = tool("amtool", "prometheus-alertmanager", "check-config", path)
    assert f"{len(rules.INHIBITIONS)} inhibit rules" in said
