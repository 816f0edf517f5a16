# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role gpu_agent. documents/gpu_agent.json has cases with the documents that the role made in Jinja."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired as plan_of
from ansible_collections.baremetal.gpu.plugins.module_utils.agent import command, dcgm
from ansible_collections.baremetal.gpu.plugins.module_utils.drift import compare as drift
from ansible_collections.baremetal.gpu.plugins.modules import host_files
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import gpu_agent
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.gpu_agent import desired
from ansible_collections.baremetal.gpu.plugins.plugin_utils.drift_remedy import remedy
from tests.unit.plugins.drift_host import KERNEL, DriftHost
from tests.unit.project.tree import load_yaml

CASES = json.loads((Path(__file__).parent / "documents/gpu_agent.json").read_text())
DEFAULTS = {
    name.removeprefix("gpu_agent_"): value for name, value in load_yaml("roles/gpu_agent/defaults/main.yml").items()
}
ALONE: dict[str, Any] = {
    "host": "gpu1",
    "publishers": [],
    "reconcilers": [],
    "reconciler_servers": [],
    "reconciler_users": [],
    "reconciler_paths": [],
    "zookeeper": [],
    "secrets": {},
    "groups": {},
    "hostvars": {},
}


def canonical(document: dict[str, Any]) -> str:
    """As it is compared. The program stands for itself, since every change of its sources makes it another one."""
    text = json.dumps(document, sort_keys=True)
    return text.replace(json.dumps(bundle("agent.command")), '"bundle of agent.command"')


def params(peers: dict[str, Any], **given: Any) -> dict[str, Any]:
    return {**DEFAULTS, "host": peers["host"], **given}


@pytest.mark.parametrize("name", CASES)
def test_the_document_and_the_problems_are_those_of_the_case(name: str) -> None:
    case = CASES[name]
    plan = desired(params(case["peers"], **case["params"]), {}, {**ALONE, **case["peers"]})
    assert [problem.cause for problem in plan.problems] == case["problems"]
    assert all(problem.remedy for problem in plan.problems)
    assert canonical(plan.desired) == canonical(case.get("desired", {}))


def test_a_host_of_the_site_publishes_in_its_zookeeper_with_a_login_of_its_own() -> None:
    peers = {
        **ALONE,
        "publishers": ["gpu1"],
        "reconcilers": ["master"],
        "reconciler_servers": [[]],
        "reconciler_users": [""],
        "reconciler_paths": [""],
    }
    plan = desired(params(peers), {}, peers)
    assert plan.parts["uses_site"]
    files = {
        file["path"]: file
        for file in desired(
            params(peers),
            {},
            {**peers, "zookeeper": ["zk:2181"], "secrets": {"gpu-agent-gpu1": "made", "gpu-agent-gpu2": "x"}},
        ).desired["files"]
    }
    assert json.loads(files[gpu_agent.CREDENTIALS]["content"]) == {"user": "gpu-agent-gpu1", "password": "made"}
    assert json.loads(files[gpu_agent.CONFIG]["content"])["zookeeper"]["servers"] == ["zk:2181"]


@pytest.mark.parametrize(
    "change",
    [{"publishers": ["gpu2"]}, {"reconcilers": []}],
    ids=["not among the hosts with a Mesos agent", "no reconciler"],
)
def test_other_hosts_publish_nothing_unless_they_have_servers(change: dict[str, Any]) -> None:
    peers = {**ALONE, "publishers": ["gpu1"], "reconcilers": ["master"], "reconciler_servers": [[]], **change}
    plan = desired(params(peers), {}, peers)
    assert not plan.parts["uses_site"]
    assert plan == desired(params(peers), {}, ALONE)


@pytest.mark.parametrize("given", [{"reconciler_servers": [["zk:2181"]]}, {"reconciler_users": ["r"]}])
def test_a_reconciler_with_another_zookeeper_is_a_problem_before_anything_is_read_of_the_site(
    given: dict[str, Any],
) -> None:
    peers = {
        **ALONE,
        "publishers": ["gpu1"],
        "reconcilers": ["master"],
        "reconciler_servers": [[]],
        "reconciler_users": [""],
        "reconciler_paths": [""],
        **given,
    }
    plan = desired(params(peers), {}, peers)
    assert not plan.parts["uses_site"]
    assert plan.desired == {}
    assert [(problem.cause, problem.remedy) for problem in plan.problems] == [
        (
            "gpu_reconciler_zookeeper_servers or gpu_reconciler_zookeeper_user is given for master, and "
            "gpu_agent_zookeeper_servers is not given here",
            "give gpu_agent_zookeeper_servers, gpu_agent_zookeeper_user and gpu_agent_zookeeper_password too",
        )
    ]
    assert not desired(params(peers, state="absent"), {}, peers).problems
    assert not desired(params(peers, zookeeper_servers=["zk1:2181"]), {}, peers).problems


def file_of(path: str, **given: Any) -> str:
    """The content of a file of the plan."""
    (file,) = (row for row in desired(params(ALONE, **given), {}, ALONE).desired["files"] if row["path"] == path)
    content: str = file["content"]
    return content


def test_the_agent_is_told_which_names_of_the_dcgm_exporter_are_wanted() -> None:
    assert "dcgm_names" not in json.loads(file_of(gpu_agent.CONFIG))
    assert json.loads(file_of(gpu_agent.CONFIG, dcgm_names="both"))["dcgm_names"] == "both"


def test_a_port_is_opened_only_where_it_is_asked_for_and_then_on_loopback() -> None:
    assert "metrics" not in json.loads(file_of(gpu_agent.CONFIG))
    assert "PrivateNetwork=yes\n" in file_of(gpu_agent.UNIT_PATH)
    asked = {"metrics_port": 9400, "textfile_directory": "", "dcgm_names": "current"}
    config = json.loads(file_of(gpu_agent.CONFIG, **asked))
    assert config["metrics"] == {"address": "127.0.0.1", "port": 9400}
    unit = file_of(gpu_agent.UNIT_PATH, **asked)
    assert "PrivateNetwork" not in unit
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6\n" in unit


@pytest.mark.parametrize(
    ("given", "subject", "evidence"),
    [
        ({"dcgm_names": "classic", "textfile_directory": ""}, "gpu_agent_dcgm_names", "classic"),
        ({"metrics_port": 80}, "gpu_agent_metrics_port", "80"),
        ({"metrics_port": 94000}, "gpu_agent_metrics_port", "94000"),
        ({"metrics_address": "gpu1"}, "gpu_agent_metrics_address", "gpu1"),
    ],
)
def test_settings_of_the_metrics_that_do_not_work_are_problems(
    given: dict[str, Any], subject: str, evidence: str
) -> None:
    (problem,) = desired(params(ALONE, **given), {}, ALONE).problems
    assert (problem.subject, problem.evidence) == (subject, evidence)
    assert evidence in problem.cause
    assert problem.remedy


def test_the_role_has_the_names_that_the_agent_knows() -> None:
    options = load_yaml("roles/gpu_agent/meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    assert options["gpu_agent_dcgm_names"]["choices"] == list(dcgm.CHOICES)


def test_problems_name_the_variable_with_its_value_and_no_secret() -> None:
    given = params(ALONE, zookeeper_session_timeout=3, zookeeper_password="hidden")
    rows = plan_of(given, "gpu_agent", {}, ALONE)["problems"]
    assert [(row["code"], row["subject"], row["evidence"], row["remedy"]) for row in rows] == [
        ("half_a_login", "gpu_agent_zookeeper_user", "", "give both or neither"),
        ("wrong_setting", "gpu_agent_zookeeper_session_timeout", "3", "give 4 or more"),
    ]
    assert "hidden" not in str(rows)


def test_a_policy_that_cannot_be_followed_is_told_with_key_and_value() -> None:
    plan = desired(params(ALONE, policy={"checks": {"nvml_hang": {"looks": 0}}}), {}, ALONE)
    assert "checks.nvml_hang.looks is 0" in plan.problems[0].cause
    assert plan.problems[0].subject == "gpu_agent_policy"


OLD_PROGRAM, OLD_COMMAND = "/usr/libexec/baremetal-gpu/gpuops", "/usr/local/bin/gpuops"


class Files(DriftHost):
    """The files of a host, which the module host_files converges."""

    def converge(self, state: str) -> list[str]:
        """What differed before."""
        files = desired(params(ALONE, state=state), {}, ALONE).desired["files"]
        unowned = [{key: value for key, value in file.items() if key not in ("owner", "group")} for file in files]
        found = drift.inspect({"files": unowned}, self.run, root=str(self.root), kernel=KERNEL)
        entries = [
            {**entry, "path": f"{self.root}{entry['path']}"}
            for entry in remedy({"files": unowned}, found)["files"]["entries"]
        ]
        with patch_module_args({"entries": entries}), pytest.raises(SystemExit):
            host_files.main()
        return list(found["plan"])

    def points_to(self, path: str) -> str:
        return str((self.root / path.lstrip("/")).readlink())

    def has(self, path: str) -> bool:
        return os.path.lexists(f"{self.root}{path}")


@pytest.fixture
def files(tmp_path: Path) -> Files:
    host = Files(tmp_path)
    for directory in ("/etc/systemd/system", "/usr/local/bin"):
        host.directory(directory)
    return host


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_host_on_which_the_program_has_its_old_name_converges_to_the_new_one(files: Files, state: str) -> None:
    files.file(OLD_PROGRAM, "old program")
    files.link(OLD_COMMAND, OLD_PROGRAM)
    assert {f"remove {OLD_PROGRAM} (exists)", f"remove {OLD_COMMAND} (exists)"} <= set(files.converge(state))
    assert not files.has(OLD_PROGRAM)
    assert not files.has(OLD_COMMAND)
    if state == "present":
        assert files.points_to("/usr/local/bin/gpu-agent") == "/usr/libexec/baremetal-gpu/gpu-agent"
        assert (files.root / "usr/libexec/baremetal-gpu/gpu-agent").stat().st_mode & 0o111
    assert files.converge(state) == []


@pytest.mark.parametrize("state", ["present", "absent"])
@pytest.mark.parametrize("target", ["", "/opt/gpuops/bin/gpuops"], ids=["file", "link"])
def test_a_gpuops_of_somebody_else_stays(files: Files, state: str, target: str) -> None:
    if target:
        files.link(OLD_COMMAND, target)
    else:
        files.file(OLD_COMMAND, "of the controller")
    assert not any(OLD_COMMAND in line for line in files.converge(state))
    assert files.has(OLD_COMMAND)
    if target:
        assert files.points_to(OLD_COMMAND) == target
    assert files.converge(state) == []


def test_the_role_has_the_paths_of_the_plan() -> None:
    variables = load_yaml("roles/gpu_agent/vars/main.yml")
    assert variables["__gpu_agent_command"] == gpu_agent.COMMAND
    assert variables["__gpu_agent_credentials"] == gpu_agent.CREDENTIALS


SLURM: dict[str, Any] = {
    "groups": {"slurm_controllers": ["head1", "head2"], "slurm_nodes": ["gpu1"]},
    "hostvars": {
        "head1": {"slurm_common_host": {"address": "192.0.2.1"}},
        "head2": {"ansible_host": "2001:db8::2", "gpu_reconciler_port": 7000},
    },
}


def config_of(peers: dict[str, Any], **given: Any) -> dict[str, Any]:
    plan = desired(params(peers, **given), {}, peers)
    (file,) = (file for file in plan.desired["files"] if file["path"] == gpu_agent.CONFIG)
    found: dict[str, Any] = json.loads(file["content"])
    return found


def test_a_node_of_slurm_sends_its_verdicts_to_every_host_of_slurmctld() -> None:
    peers = {**ALONE, **SLURM}
    assert config_of(peers)["slurm"] == {
        "controllers": ["192.0.2.1:6821", "[2001:db8::2]:7000"],
        "host": "gpu1",
        "silent_s": 150,
    }
    unit = next(
        file["content"]
        for file in desired(params(peers), {}, peers).desired["files"]
        if file["path"] == gpu_agent.UNIT_PATH
    )
    # It needs the network.
    assert "PrivateNetwork" not in unit


def test_the_settings_that_it_gets_are_those_that_it_takes(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text(json.dumps(config_of({**ALONE, **SLURM})))
    assert command.read_config(str(path))["slurm"]["host"] == "gpu1"


@pytest.mark.parametrize(
    ("groups", "variables"),
    [
        ({"slurm_nodes": []}, {}),
        ({"slurm_controllers": []}, {}),
        ({"gpu_reconcilers": ["head1", "head2"]}, {}),
        # Its reconciler with ZooKeeper has the nodes of all controllers.
        ({"gpu_reconcilers": ["login1"]}, {}),
        ({}, {"gpu_reconciler_state": "absent"}),
        ({}, {"gpu_reconciler_scheduler": "mesos"}),
    ],
    ids=lambda value: next(iter(value), "") if isinstance(value, dict) else "",
)
def test_a_host_that_slurmctlds_hosts_do_not_hear_sends_nothing(groups: Any, variables: Any) -> None:
    hostvars = {name: {**row, **variables} for name, row in {**SLURM["hostvars"], "login1": {}}.items()}
    peers = {**ALONE, "groups": {**SLURM["groups"], **groups}, "hostvars": hostvars}
    assert "slurm" not in config_of({**peers, "reconciler_servers": [[]], "reconciler_users": [""]})


def test_beside_mesos_the_group_of_its_reconcilers_keeps_no_other_controller_from_hearing() -> None:
    groups = {**SLURM["groups"], "gpu_reconcilers": ["head1"], "mesos_masters": ["head1"]}
    assert config_of({**ALONE, **SLURM, "groups": groups})["slurm"]["controllers"] == ["[2001:db8::2]:7000"]


@pytest.mark.parametrize("orders", [["reset", "reboot"], []])
def test_a_node_of_kubernetes_may_be_reset_and_booted(orders: list[str]) -> None:
    peers = {**ALONE, "groups": {"kubernetes_nodes": [ALONE["host"]]}}
    plan = desired(params(peers, orders=orders), {}, peers)
    assert not plan.problems
    units = {unit["name"]: unit["state"] for unit in plan.desired["units"]}
    assert (units["baremetal-gpu-order.path"] == "started") == bool(orders)
