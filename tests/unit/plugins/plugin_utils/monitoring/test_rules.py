# SPDX-License-Identifier: GPL-3.0-or-later
"""What holds for all rules: names, severities, metrics that exist, codes that have one alert, and the inhibition."""

from __future__ import annotations

import json
import re
from urllib.parse import urlsplit

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.agent.publish import METRICS as AGENT_METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.backup.nightly import METRICS as BACKUP_METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.health.codes import ACTIONS, CODES, remedy
from ansible_collections.baremetal.gpu.plugins.module_utils.logs import spool, store
from ansible_collections.baremetal.gpu.plugins.module_utils.monitoring.metrics import METRICS as HOST_METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.metrics import METRICS as RECONCILER_METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.registry.watch import METRICS as REGISTRY_METRICS
from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.metrics import METRICS as SLURM_METRICS
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring import gpu, rules
from ansible_collections.baremetal.gpu.plugins.plugin_utils.monitoring.rule import SEVERITIES
from tests.unit.plugins.plugin_utils.monitoring import foreign_metrics
from tests.unit.plugins.plugin_utils.monitoring.cases import CASES
from tests.unit.project.tree import ROOT

ALL = [alert for alerts in rules.ALERTS.values() for alert in alerts]
RECORDS = [record for records in rules.RECORDS.values() for record in records]
# They fire for series that are missing, which have no value.
ABSENCES = {"CephFilesystemWithoutMds", "KubernetesApiDown", "ReconcilerNoLeader", "SlurmControllerDown"}
FIRING = {case.alert: case.firing[0] for case in CASES}

# What programs of the collection give.
LOG_METRICS = {**spool.METRICS, **store.METRICS}
OURS = {
    **AGENT_METRICS,
    **SLURM_METRICS,
    **RECONCILER_METRICS,
    **HOST_METRICS,
    **LOG_METRICS,
    **REGISTRY_METRICS,
    **BACKUP_METRICS,
}
KNOWN = {
    *OURS,
    *(name for names in foreign_metrics.METRICS.values() for name in names),
    *(record.name for record in RECORDS),
}
WORDS = {"and", "or", "unless", "bool", "offset", "on", "by", "without", "ignoring", "group_left", "group_right"}


def metrics_of(expr: str) -> set[str]:
    """The names of metrics in PromQL: what is no label, string, function or word of the language."""
    bare = re.sub(r'"(\\.|[^"\\])*"', "", expr)
    bare = re.sub(r"\{[^{}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right) *\([^)]*\)", " ", bare)
    names = re.findall(r"(?<![\w.])[A-Za-z_:][\w:]*(?! *\(|[\w:])", bare)
    return set(names) - WORDS


def queries_of(template: str) -> set[str]:
    """The PromQL that a template asks: within backquotes, where a function that queries follows or precedes."""
    asked = re.findall(r"printf `([^`]*)`[^}]*\| query", template)
    asked += re.findall(r"query \(?(?:printf )?`([^`]*)`", template)
    return {query.replace("%q", '"x"') for query in asked}


def test_names_of_metrics_are_found_in_an_expression():
    expr = 'max by (a) (up{job="b c"}) / on (d) group_left (e) floor(f:g:h[5m]) > 0.5 unless on () k and vector(1)'
    assert metrics_of(expr) == {"up", "f:g:h", "k"}


def test_every_metric_of_a_rule_is_one_that_somebody_gives():
    used = set()
    for rule in (*ALL, *RECORDS):
        found = metrics_of(rule.expr)
        assert found <= KNOWN, f"{rule.name}: {sorted(found - KNOWN)}"
        used |= found
    assert {"gpu_health_reason", "slurm_node_info", "ceph_osd_up"} <= used


@pytest.mark.parametrize("alert", ALL, ids=lambda alert: alert.name)
def test_every_metric_that_an_annotation_asks_for_is_one_that_somebody_gives(alert):
    for template in (alert.summary, alert.evidence, alert.remedy):
        assert template.count("query") == len(re.findall(r"\| query|query \(?(?:printf )?`", template))
        for query in queries_of(template):
            assert metrics_of(query), query
            assert metrics_of(query) <= KNOWN, query


LABELS = {name: set(labels) for name, (_kind, labels, _help) in OURS.items()}


def test_a_rule_selects_by_labels_that_the_metric_has():
    seen = set()
    for rule in (*ALL, *RECORDS):
        for text in (rule.expr, *(queries_of(rule.evidence) if rule in ALL else ())):
            for name, inner in re.findall(r"(\w+)\{([^}]*)\}", text):
                if name in LABELS:
                    labels = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", inner))
                    assert labels <= LABELS[name] | {"host"}, f"{rule.name}: {name}"
                    seen.add(name)
    assert {"gpu_health_reason", "gpu_devices", "slurm_node_info"} <= seen


DASHBOARDS = "\n".join(path.read_text() for path in (ROOT / "roles/grafana_dashboards/files").glob("*.json"))


def test_a_join_takes_labels_from_one_series_for_each_value():
    texts = [rule.expr for rule in (*ALL, *RECORDS)]
    texts += [str(json.loads(f'"{one}"')) for one in re.findall(r'"expr": "((?:[^"\\]|\\.)*)"', DASHBOARDS)]
    joins = [join for text in texts for join in re.findall(r"on \(([^)]*)\) group_left \([^)]*\) (.*)", text)]
    assert len(joins) > 10
    for labels, one in joins:
        assert re.match(rf"\(*(0 \* )?(topk|max|min) by \({labels}\)", one), (labels, one)
    for left in [text for text in texts if "group_right" in text]:
        (labels,) = re.findall(r"on \(([^)]*)\) group_right", left)
        assert f"topk by ({labels})" in left.partition("group_right")[0], left


def test_the_list_of_foreign_metrics_has_none_that_no_rule_uses():
    asked = {query for alert in ALL for query in queries_of(alert.evidence)}
    used = set().union(*(metrics_of(text) for text in (*asked, *(rule.expr for rule in (*ALL, *RECORDS)))))
    for name in KNOWN - set(OURS) - {record.name for record in RECORDS}:
        assert name in used, name


def test_an_alert_has_one_name_and_everything_that_an_operator_needs():
    assert len(rules.BY_NAME) == len(ALL)
    for alert in ALL:
        assert re.fullmatch(r"([A-Z][a-z]+)+", alert.name)
        assert alert.severity in SEVERITIES
        assert re.fullmatch(r"(\d+[smhd])?", alert.for_), alert.name
        assert all((alert.meaning, alert.evidence, alert.remedy))
        # A list of alerts on a small screen shows the beginning of the summary.
        assert re.match(r"({{ \$labels\.(host|hostname|node) }}|[a-z]+|home of {{ \$labels\.user }}): ", alert.summary)


@pytest.mark.parametrize("alert", ALL, ids=lambda alert: alert.name)
def test_what_fires_tells_the_value(alert):
    assert "$value" in alert.evidence or "query" in alert.evidence or alert.name in ABSENCES, alert.evidence


def test_every_alert_is_tested_with_what_it_must_not_fire_for():
    fires = {case.alert for case in CASES}
    quiet = {case.alert for case in CASES if case.quiet}
    assert fires == set(rules.BY_NAME)
    assert fires - quiet == {"Watchdog"}


def test_files_are_yaml_with_a_group_of_the_files_name():
    for name, text in rules.rule_files("https://docs.example/").items():
        groups = yaml.safe_load(text)["groups"]
        assert groups == rules.rules("https://docs.example/")[name]
        assert f"{groups[-1]['name']}.yml" == name
        for rule in groups[-1]["rules"]:
            anchor = rule["alert"].lower()
            assert rule["annotations"]["runbook_url"] == f"https://docs.example/alerts.html#{anchor}"


@pytest.mark.parametrize("docs_url", ["", "https://docs.example", "https://docs.example/"])
def test_every_link_leads_there_from_wherever_a_message_is_read(docs_url):
    for alert in ALL:
        url = urlsplit(alert.rule(docs_url)["annotations"]["runbook_url"])
        assert (url.scheme, url.fragment) == ("https", alert.name.lower())
        assert url.hostname in ("docs.example", "github.com")
        assert url.path.endswith("/alerts.html" if docs_url else "/docs/alerts.md")
        assert "//" not in url.path


def matching(code: str) -> list[str]:
    """The alerts of degraded GPUs for a code, as Prometheus matches: the whole of the text."""
    found = []
    for alert in gpu.ALERTS:
        if not alert.expr.endswith("== 1") or "gpu_health_reason" not in alert.expr:
            continue
        operator, pattern = re.findall(r'code(=~|!~)"([^"]*)"', alert.expr)[0]
        if (re.fullmatch(pattern, code) is not None) == (operator == "=~"):
            found.append(alert.name)
    return found


@pytest.mark.parametrize("code", CODES)
def test_a_degraded_code_has_one_alert(code):
    (name,) = matching(code)
    assert (name == "GpuDegraded") == (code not in gpu.FAMILIES)


def test_families_have_codes_that_there_are_and_are_degraded_by_default():
    assert len(set(gpu.FAMILIES)) == len(gpu.FAMILIES)
    for code in gpu.FAMILIES:
        assert CODES[code].verdict == "degraded"


def told(alert, code, action):
    """What the alert's template gives for a code and an action: the text of its first match."""
    cases = re.findall(r"match `([^`]*)` \. }}(.*?){{ else", alert.remedy)
    text = next(text for pattern, text in cases if re.search(pattern, f"{code} {action}"))
    return re.sub(r"{{ with or .*?{{ end }}", " -i UUID", text)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("action", ACTIONS)
def test_an_alert_has_the_remedy_of_the_reason(code, action):
    fatal = "HostGpusFatal" if CODES[code].scope == "node" else "GpuFatal"
    for name in (fatal, *matching(code)):
        assert told(rules.BY_NAME[name], code, action)[1:] == remedy(code, action)[1:] + "."


@pytest.mark.parametrize("inhibition", rules.INHIBITIONS, ids=lambda inhibition: inhibition.source)
def test_an_alert_hides_only_what_is_no_more_urgent_and_has_the_same_labels(inhibition):
    source = rules.BY_NAME[inhibition.source]
    assert inhibition.source not in inhibition.targets
    for name in inhibition.targets:
        target = rules.BY_NAME[name]
        assert SEVERITIES.index(source.severity) <= SEVERITIES.index(target.severity), name
        for label in inhibition.equal:
            assert label in FIRING[source.name].labels, f"{source.name} has no {label}"
            assert label in FIRING[name].labels, f"{name} has no {label}"


def test_nothing_hides_what_hides_it():
    hides = {inhibition.source: set(inhibition.targets) for inhibition in rules.INHIBITIONS}
    assert len(hides) == len(rules.INHIBITIONS)
    for source, targets in hides.items():
        assert not [target for target in targets if source in hides.get(target, ())]


def test_a_silent_host_hides_no_page_and_not_the_watchdog():
    hidden = {
        name for inhibition in rules.INHIBITIONS if inhibition.source == "HostSilent" for name in inhibition.targets
    }
    assert {"GpuFatal", "GpuAgentSilent", "TargetDown", "CephOsdDown", "SlurmNodeDown"} <= hidden
    assert not [name for name in hidden if rules.BY_NAME[name].severity == "page"]
    assert "Watchdog" not in {name for inhibition in rules.INHIBITIONS for name in inhibition.targets}


def test_inhibit_rules_are_in_the_words_of_alertmanager():
    first = rules.inhibit_rules()[0]
    assert first["source_matchers"] == ['alertname="HostSilent"']
    (targets,) = first["target_matchers"]
    assert re.fullmatch(r'alertname=~"(\w+\|)+\w+"', targets)
    assert first["equal"] == ["host"]
