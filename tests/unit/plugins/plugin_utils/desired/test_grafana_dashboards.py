# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboards in a Grafana that is there, and nothing of Grafana otherwise."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import grafana_dashboards
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.plan import Plan

DIRECTORY = "/var/lib/grafana/baremetal-gpu"
PROVISIONING = "/etc/grafana/provisioning/dashboards"
PARAMS = {"state": "present", "directory": DIRECTORY, "provisioning_directory": PROVISIONING, "install": False}


def plan(provisioned: bool = True, dashboards: tuple[Any, ...] = (), **params: Any) -> Plan:
    facts = {"provisioned": provisioned, "dashboards": dashboards}
    return grafana_dashboards.desired({**PARAMS, **params}, facts, {})


def files(found: Plan) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in found.desired["files"]}


def test_grafana_is_told_of_a_directory_that_has_the_dashboards() -> None:
    rows = files(plan())
    (provider,) = yaml.safe_load(rows[f"{PROVISIONING}/baremetal-gpu.yaml"]["content"])["providers"]
    assert (provider["type"], provider["options"]) == ("file", {"path": DIRECTORY})
    titles = {json.loads(row["content"])["title"] for path, row in rows.items() if path.startswith(f"{DIRECTORY}/")}
    assert {"GPU cluster: fleet", "GPU cluster: jobs and users"} <= titles
    assert len(titles) == 6
    assert rows[DIRECTORY]["state"] == "directory"


def test_it_installs_nothing_and_starts_nothing_by_itself() -> None:
    found = plan().desired
    assert "packages" not in found
    assert found["units"] == [
        {"name": "grafana-server.service", "restart_on": [f"{PROVISIONING}/baremetal-gpu.yaml"]},
    ]


def test_it_installs_grafana_where_it_is_told_to() -> None:
    found = plan(provisioned=False, install=True)
    assert found.problems == ()
    assert found.desired["packages"] == [{"name": "grafana"}]
    assert found.desired["units"][0]["state"] == "started"


def test_without_a_grafana_it_says_what_to_do() -> None:
    (problem,) = plan(provisioned=False).problems
    assert problem.code == "no_grafana"
    assert PROVISIONING in problem.evidence
    assert "grafana_dashboards_install" in problem.remedy


@pytest.mark.parametrize("provisioned", [True, False])
def test_what_it_takes_away_is_what_it_brought(provisioned: bool) -> None:
    gone = files(plan(provisioned, state="absent"))
    assert {row["state"] for row in gone.values()} == {"absent"}
    # The directory may have files of others.
    assert set(gone) == set(files(plan())) - {DIRECTORY}
    assert "packages" not in plan(provisioned, state="absent", install=True).desired


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_dashboard_that_a_former_version_had_goes(state: str) -> None:
    rows = files(plan(dashboards=(f"{DIRECTORY}/former.json", f"{DIRECTORY}/fleet.json"), state=state))
    assert rows[f"{DIRECTORY}/former.json"] == {"path": f"{DIRECTORY}/former.json", "state": "absent"}
    assert rows[f"{DIRECTORY}/fleet.json"].get("state") == (None if state == "present" else "absent")


@pytest.mark.parametrize("path", ["/etc/passwd", f"{DIRECTORY}/../x.json", f"{DIRECTORY}/a b.json", DIRECTORY, 7, None])
def test_nothing_goes_that_is_not_in_the_directory(path: Any) -> None:
    assert files(plan(dashboards=(path,))) == files(plan())


def test_every_dashboard_has_an_identity_by_which_the_role_finds_it() -> None:
    told = [row for row in files(plan()).values() if row["path"].endswith(".json")]
    assert all(re.search(r'^\s*"uid": "baremetal-gpu-', row["content"], re.MULTILINE) for row in told)


@pytest.mark.parametrize("path", ["", "dashboards", "/", "/a/../etc", "/a/..", "/a b", "/a\nb", "/a/", "/a/./b", "/ä"])
@pytest.mark.parametrize("name", ["directory", "provisioning_directory"])
def test_a_path_that_is_none_is_refused(name: str, path: str) -> None:
    (problem,) = plan(**{name: path}).problems
    assert (problem.code, problem.subject) == ("wrong_setting", f"grafana_dashboards_{name}")
    assert plan(**{name: path}).desired == {}


def test_dashboards_among_the_settings_of_grafana_are_refused() -> None:
    (problem,) = plan(directory=PROVISIONING).problems
    assert problem.code == "wrong_setting"
