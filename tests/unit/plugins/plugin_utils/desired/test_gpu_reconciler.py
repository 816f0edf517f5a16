# Copyright (c) 2026 baremetal.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role gpu_reconciler.

documents/gpu_reconciler.json has cases with the documents that the role made in Jinja.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.baremetal.gpu.plugins.filter.desired import desired as plan_of
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.core.settings import Wrong
from ansible_collections.baremetal.gpu.plugins.module_utils.reconciler.settings import settings_of
from ansible_collections.baremetal.gpu.plugins.module_utils.zookeeper.client import digest_id
from ansible_collections.baremetal.gpu.plugins.plugin_utils.bundle import bundle
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired import gpu_reconciler
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.gpu_reconciler import desired
from tests.unit.project.tree import load_yaml

CASES = json.loads((Path(__file__).parent / "documents/gpu_reconciler.json").read_text())
DEFAULTS = {
    name.removeprefix("gpu_reconciler_"): value
    for name, value in load_yaml("roles/gpu_reconciler/defaults/main.yml").items()
    # A file of the controller, which the plan does not read.
    if name != "gpu_reconciler_secrets_path"
}
# It is that of node_exporter where the host has one.
DEFAULTS["metrics_directory"] = ""
NO_SLURM = {"in_slurm": False, "slurm_state": "", "kubernetes": ""}
SITE: dict[str, Any] = {**CASES["site"]["peers"], **NO_SLURM}
GIVEN = {"zookeeper_servers": ["192.0.2.1:2181"], "masters": ["http://192.0.2.1:5050"]}
LOGIN = {"zookeeper_user": "r", "zookeeper_password": "secret-r"}


def canonical(document: dict[str, Any]) -> str:
    """As it is compared. The program stands for itself, since every change of its sources makes it another one."""
    text = json.dumps(document, sort_keys=True)
    return text.replace(json.dumps(bundle("reconciler.command")), '"bundle of reconciler.command"')


def problems(peers: dict[str, Any] = SITE, **given: Any) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = plan_of({**DEFAULTS, **given}, "gpu_reconciler", {}, peers)["problems"]
    return rows


@pytest.mark.parametrize("name", CASES)
def test_the_document_and_the_problems_are_those_of_the_case(name: str) -> None:
    case = CASES[name]
    plan = desired({**DEFAULTS, **case["params"]}, {}, {**case["peers"], **NO_SLURM})
    assert [str(problem) for problem in plan.problems] == case["problems"]
    assert canonical(plan.desired) == canonical(case.get("desired", {}))
    assert plan.parts == {part: case[part] for part in ("makes_logins", "is_operator")}


def test_hosts_are_known_by_the_names_of_their_mesos_agents_without_their_passwords() -> None:
    secrets = {"gpu-reconciler": "own", "gpu-agent-gpu1": "a", "gpu-agent-gpu2": "b", "gpu-agent-gpu3": "c"}
    plan = desired(DEFAULTS, {}, {**SITE, "secrets": secrets})
    (file,) = (file for file in plan.desired["files"] if file["path"] == gpu_reconciler.LOGINS)
    assert json.loads(file["content"]) == {
        "gpu1": digest_id("gpu-agent-gpu1", "a"),
        "two.example": digest_id("gpu-agent-gpu2", "b"),
        "three": digest_id("gpu-agent-gpu3", "c"),
    }
    assert file["sensitive"]


@pytest.mark.parametrize(
    ("given", "subject", "cause"),
    [
        ({"zookeeper_user": "r"}, "gpu_reconciler_zookeeper_user", "goes with gpu_reconciler_zookeeper_password"),
        ({**LOGIN, "zookeeper_former_user": "r"}, "gpu_reconciler_zookeeper_former_user", "goes with"),
        ({**LOGIN, "agents_password": "x"}, "gpu_reconciler_agents_user", "goes with gpu_reconciler_agents_password"),
        ({**LOGIN, "mesos_principal": "p"}, "gpu_reconciler_mesos_principal", "goes with gpu_reconciler_mesos_secret"),
        ({"agents_user": "all", "agents_password": "x"}, "gpu_reconciler_agents_user", "a login of the reconciler"),
        ({"hosts": {"gpu1": {"user": "u", "password": "x"}}}, "gpu_reconciler_hosts", "a login of the reconciler"),
        (
            {"mode": "act"},
            "gpu_reconciler_mode",
            "there is no login for ZooKeeper, where anybody could then give orders",
        ),
    ],
)
def test_a_login_that_is_half_given_or_lacking_is_refused(given: dict[str, Any], subject: str, cause: str) -> None:
    rows = problems(**GIVEN, **given)
    assert [row["subject"] for row in rows] == [subject]
    assert cause in rows[0]["cause"]
    assert rows[0]["remedy"].startswith("give ")


def test_two_hosts_with_one_login_are_refused_and_the_password_is_not_shown() -> None:
    shared = {"user": "agents", "password": "secret-a"}
    rows = problems(**GIVEN, **LOGIN, hosts={"gpu1": shared, "gpu2": shared})
    assert [(row["code"], row["cause"]) for row in rows] == [("shared_login", "gpu1 and gpu2 have the same login")]
    assert "secret-a" not in str(rows)


@pytest.mark.parametrize("login", ["u", {"user": "u"}, {"user": "a:b", "password": "x"}, {"user": "", "password": "x"}])
def test_a_host_without_a_user_or_a_password_is_refused(login: Any) -> None:
    rows = problems(**GIVEN, **LOGIN, hosts={"gpu1": login})
    assert [(row["subject"], row["remedy"]) for row in rows] == [
        ("gpu1", "give a user without a colon, and a password")
    ]


def test_two_hosts_with_the_name_of_one_mesos_agent_are_refused() -> None:
    rows = problems({**SITE, "publisher_hostnames": ["two.example", "two.example", ""]})
    assert [str(row["cause"]) for row in rows] == [
        "gpu1 and gpu2 both have two.example as the name of their Mesos agent"
    ]


def test_every_problem_of_the_settings_is_told_at_once() -> None:
    rows = problems(**GIVEN, mode="act", zookeeper_password="x", journal_files=1)
    assert [row["subject"] for row in rows][:2] == ["gpu_reconciler_zookeeper_user", "gpu_reconciler_mode"]
    assert "journal_files is 1" in rows[2]["cause"]


def test_the_authority_of_the_masters_is_read_only_where_it_is_used() -> None:
    class Unread(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            assert key != "authority"
            return super().__getitem__(key)

    assert desired(DEFAULTS, {}, Unread(SITE)).desired
    tls = {**SITE, "tls": "required", "authority": "-----BEGIN"}
    assert tls["authority"] in canonical(desired(DEFAULTS, {}, tls).desired)


def test_the_role_has_the_paths_of_the_plan() -> None:
    variables = load_yaml("roles/gpu_reconciler/vars/main.yml")
    assert variables["__gpu_reconciler_command"] == gpu_reconciler.COMMAND
    assert variables["__gpu_reconciler_credentials"] == gpu_reconciler.CREDENTIALS


SLURM = {**SITE, "host": "head1", "mesos_masters": [], "slurm_hosts": ["head1"], "masters": []}


def config_of(peers: dict[str, Any], **given: Any) -> dict[str, Any]:
    plan = desired({**DEFAULTS, **given}, {}, peers)
    (file,) = (file for file in plan.desired["files"] if file["path"] == gpu_reconciler.CONFIG)
    document: dict[str, Any] = json.loads(file["content"])
    return document


def test_a_site_with_slurm_alone_has_its_nodes_fenced_without_a_login_of_mesos() -> None:
    config = config_of(SLURM)
    assert config["scheduler"] == "slurm"
    assert "masters" not in config
    assert not desired(DEFAULTS, {}, SLURM).parts["is_operator"]


TEXTFILES = "/var/lib/prometheus/node-exporter"


def test_the_service_may_write_its_metrics_and_leaves_none_behind() -> None:
    plan = desired({**DEFAULTS, "metrics_directory": TEXTFILES}, {}, SITE)
    files = {file["path"]: file for file in plan.desired["files"]}
    path = f"{TEXTFILES}/baremetal_gpu_reconciler.prom"
    unit = files[gpu_reconciler.UNIT_PATH]["content"].splitlines()
    # A directory that is taken away must not keep the reconciler from its work.
    assert [line for line in unit if line.startswith("ReadWritePaths=")] == [f"ReadWritePaths=-{TEXTFILES}"]
    assert f"ExecStopPost=/bin/rm -f {path}" in unit
    assert files[TEXTFILES] == {"path": TEXTFILES, "state": "directory"}
    config = json.loads(files[gpu_reconciler.CONFIG]["content"])
    assert config["metrics"] == path
    assert settings_of(config, "it").metrics == path


def test_without_a_directory_the_program_and_its_unit_know_of_no_metrics() -> None:
    files = {file["path"]: file for file in desired(DEFAULTS, {}, SITE).desired["files"]}
    assert "ReadWritePaths" not in files[gpu_reconciler.UNIT_PATH]["content"]
    assert "metrics" not in json.loads(files[gpu_reconciler.CONFIG]["content"])


@pytest.mark.parametrize("directory", ["metrics", "/a b", "/a\nExecStart=/bin/sh", "/", "/%h"])
def test_a_directory_that_would_be_something_else_in_the_unit_is_refused(directory: str) -> None:
    found = {row["subject"]: row["evidence"] for row in problems(metrics_directory=directory)}
    assert found["gpu_reconciler_metrics_directory"] == directory


@pytest.mark.parametrize("metrics", ["r.prom", 7, ["/a"]])
def test_the_program_refuses_metrics_that_are_no_path(metrics: Any) -> None:
    config = {**config_of(SITE), "metrics": metrics}
    with pytest.raises(Wrong, match=r"metrics is|wrong kind"):
        settings_of(config, "it")


def test_a_site_with_both_says_which_and_has_mesos_otherwise() -> None:
    both = {**SITE, "host": "head1", "mesos_masters": ["head1"], "slurm_hosts": ["head1"]}
    assert "scheduler" not in config_of(both)
    assert config_of(both, scheduler="slurm")["scheduler"] == "slurm"


def test_a_reconciler_of_slurm_needs_its_commands() -> None:
    (problem,) = problems({**SLURM, "host": "head2"})
    assert problem["code"] == "no_slurm"
    assert "head2 is to fence the nodes of Slurm, and is neither in slurm_controllers" in problem["cause"]


# --- on a host of slurmctld -----------------------------------------------------------------------------------------

IN_SLURM: dict[str, Any] = {**SITE, "in_slurm": True, "slurm_state": "/shared/slurmctld", "mesos_masters": []}


def files_of(peers: dict[str, Any], **given: Any) -> dict[str, dict[str, Any]]:
    plan = desired({**DEFAULTS, **given}, {}, peers)
    assert not plan.problems
    return {file["path"]: file for file in plan.desired["files"]}


def test_on_a_host_of_slurmctld_it_acts_and_needs_neither_zookeeper_nor_a_package_nor_a_password() -> None:
    plan = desired(DEFAULTS, {}, IN_SLURM)
    files = files_of(IN_SLURM)
    told = json.loads(files[gpu_reconciler.CONFIG]["content"])
    settings = settings_of(told, "the settings")
    assert settings.policy.mode == "act"
    assert (settings.state_directory, settings.port) == ("/shared/slurmctld/gpuops", 6821)
    assert not {"zookeeper", "credentials", "logins", "masters"} & set(told)
    assert "packages" not in plan.desired
    assert plan.parts == {"makes_logins": False, "is_operator": False}
    # Those of a reconciler with ZooKeeper that was here before.
    assert {files[path]["state"] for path in (gpu_reconciler.CREDENTIALS, gpu_reconciler.LOGINS)} == {"absent"}


def test_its_unit_may_write_the_state_directory_and_waits_for_its_file_system() -> None:
    unit = files_of(IN_SLURM)[gpu_reconciler.UNIT_PATH]["content"]
    assert "ReadWritePaths=-/shared/slurmctld\n" in unit
    assert "RequiresMountsFor=/shared/slurmctld\n" in unit
    assert "CapabilityBoundingSet=CAP_DAC_OVERRIDE\n" in unit
    other = files_of(SITE)[gpu_reconciler.UNIT_PATH]["content"]
    assert "CapabilityBoundingSet=\n" in other
    assert "slurm" not in other


def test_before_the_cluster_was_looked_at_it_is_the_directory_of_the_package() -> None:
    config = json.loads(files_of({**IN_SLURM, "slurm_state": ""})[gpu_reconciler.CONFIG]["content"])
    assert config["state_directory"] == "/var/lib/slurm/slurmctld/gpuops"


@pytest.mark.parametrize("mode", ["dry-run", "record", "act"])
def test_a_mode_that_is_given_holds_in_slurm_too(mode: str) -> None:
    assert json.loads(files_of(IN_SLURM, mode=mode)[gpu_reconciler.CONFIG]["content"])["policy"]["mode"] == mode


def test_a_port_that_is_none_is_refused() -> None:
    assert "port is 70000" in problems(IN_SLURM, port=70000)[0]["cause"]


# --- on a control plane of Kubernetes -------------------------------------------------------------------------------

IN_KUBERNETES: dict[str, Any] = {**SITE, "kubernetes": "10.0.0.1:6443", "mesos_masters": []}


def test_in_kubernetes_it_asks_the_api_server_alone_and_acts() -> None:
    plan = desired(DEFAULTS, {}, IN_KUBERNETES)
    files = {file["path"]: file for file in plan.desired["files"]}
    settings = settings_of(json.loads(files[gpu_reconciler.CONFIG]["content"]), "it")
    assert (settings.scheduler, settings.policy.mode) == ("kubernetes", "act")
    assert settings.server == "https://10.0.0.1:6443"
    assert not plan.parts["makes_logins"]
    assert not plan.problems
    for path in (gpu_reconciler.CREDENTIALS, gpu_reconciler.LOGINS):
        assert files[path]["state"] == "absent"


def test_in_kubernetes_it_has_no_more_rights_than_it_needs() -> None:
    objects = desired(DEFAULTS, {}, IN_KUBERNETES).parts["objects"]
    granted = {
        (one["metadata"].get("namespace", "*"), resource): set(rule["verbs"])
        for one in objects
        for rule in one.get("rules", ())
        for resource in rule["resources"]
    }
    assert granted["*", "nodes"] == {"get", "list", "watch", "patch"}
    assert granted["*", "pods"] == {"list"}
    assert {where for where, resource in granted if resource in ("configmaps", "leases")} == {"baremetal-gpu"}
    assert {subject["name"] for one in objects for subject in one.get("subjects", ())} == {"baremetal-gpu:reconciler"}


def test_a_host_of_two_schedulers_is_refused() -> None:
    (problem,) = problems({**IN_KUBERNETES, "in_slurm": True, "host": "head1"})
    assert "head1 is a controller of Slurm and a control plane of Kubernetes" in problem["cause"]
