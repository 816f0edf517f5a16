# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboards are what their tool makes, say what they show, and ask for metrics that somebody gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.module_utils.slurm.metrics import METRICS as SLURM_METRICS
from tests import debian_programs
from tests.unit.plugins.plugin_utils.monitoring.test_rules import KNOWN, LABELS, metrics_of
from tests.unit.project.tree import ROOT, try_run

FILES = ROOT / "roles" / "grafana_dashboards" / "files"
DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in FILES.glob("*.json")}
# What no rule uses, with where it was read.
FOREIGN = {
    # Prometheus itself makes it of the alerts that fire.
    "ALERTS",
    # /metrics of prometheus-node-exporter 1.5.0-1+b6 of Debian 12.
    "node_cpu_seconds_total",
    # /usr/share/ceph/mgr/prometheus/module.py of ceph-mgr-modules-core 16.2.15+ds-0+deb12u2 of Debian 12.
    "ceph_num_objects_degraded",
    "ceph_pool_metadata",
    "ceph_pool_rd_bytes",
    "ceph_pool_wr_bytes",
}
PANELS = [
    pytest.param(panel, id=f"{name}: {panel['title']}")
    for name, dashboard in sorted(DASHBOARDS.items())
    for panel in dashboard["panels"]
]
# What Grafana puts in the place of its variables.
PUT_IN = {"$__rate_interval": "5m", "$host": ".*", "$gpu": ".*", "$user": "alice|bob"}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel.values[0]["targets"]]


def put_in(query: str) -> str:
    for variable, value in PUT_IN.items():
        query = query.replace(variable, value)
    return query


def test_the_files_are_what_their_tool_makes() -> None:
    done = try_run((sys.executable, ROOT / "tools" / "dashboards.py", "--check"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_there_are_few_dashboards_of_few_panels() -> None:
    assert set(DASHBOARDS) == {"fleet", "node", "gpu", "jobs_and_users", "storage", "scheduler"}
    for name, dashboard in DASHBOARDS.items():
        assert 6 <= len(dashboard["panels"]) <= 10, name
        assert dashboard["uid"] == f"baremetal-gpu-{name.replace('_', '-')}"


@pytest.mark.parametrize("panel", PANELS)
def test_a_panel_says_what_it_shows_in_which_unit_and_takes_the_source_that_is_chosen(panel: dict[str, Any]) -> None:
    assert re.fullmatch(r"[A-Z].*[^.]", panel["title"])
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
    assert len(sources) > 1
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    names = [target["refId"] for target in panel["targets"]]
    assert len(set(names)) == len(names)


def test_a_variable_that_is_used_is_there() -> None:
    for name, dashboard in DASHBOARDS.items():
        there = {variable["name"] for variable in dashboard["templating"]["list"]}
        used = set(re.findall(r"\$\{?([a-z]+)\b", json.dumps([dashboard["panels"], dashboard["templating"]])))
        assert used == there, name


def test_panels_do_not_overlap() -> None:
    for name, dashboard in DASHBOARDS.items():
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in dashboard["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells), name
        assert max(x for x, _y in cells) < 24, name


def test_every_metric_is_one_that_somebody_gives() -> None:
    used = {name for query in queries() for name in metrics_of(query)}
    known = {*KNOWN, *SLURM_METRICS, *FOREIGN}
    assert not used - known
    assert not FOREIGN - used
    assert {"gpu_health_status", "slurm_node_gpus", "fleet:gpu_health_status:count", "ceph_osd_up"} <= used


def test_every_label_is_one_that_the_metric_has() -> None:
    labels = {**LABELS, **{name: set(row[1]) for name, row in SLURM_METRICS.items()}}
    seen = set()
    for query in queries():
        for name, inner in re.findall(r"(\w+)\{([^}]*)\}", query):
            if name in labels:
                asked = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", inner))
                assert asked <= labels[name] | {"host"}, query
                seen.add(name)
    assert {"gpu_utilization_ratio", "gpu_lease_info", "slurm_node_info"} <= seen


def test_promtool_takes_every_query(tmp_path: Path) -> None:
    promtool = debian_programs.path_of("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: python -m tests.needs fetches it")
    records = [{"record": f"query:{number}", "expr": put_in(query)} for number, query in enumerate(queries())]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": records}]}))
    done = subprocess.run([promtool, "check", "rules", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(records)} rules found" in done.stdout
