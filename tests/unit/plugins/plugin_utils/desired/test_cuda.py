# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role cuda, without a host."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.cuda import desired
from tests.unit.plugins.plugin_utils.desired.recorded_plans import canonical, plan_by_ansible, recorded, texts
from tests.unit.plugins.plugin_utils.desired.test_nvidia_driver import planned as planned_driver
from tests.unit.project.tree import ROOT

ROLE = ROOT / "roles" / "cuda"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
VARS = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
TABLES = {name: VARS[f"__cuda_{name}"] for name in ("systems", "distro_packages", "distro_removed", "repo_removed")}
# Unless they are set, they are the driver's.
SHARED = {"repo_url": "", "repo_key_url": "", "repo_key_path": "", "repo_key_sha256": "", "repo_options": {}}
KEY = {"repo_key_url": "http://mirror/key", "repo_key_sha256": "0123456789abcdef" * 4}
TWO = {"method": "nvidia_repo", "versions": ["12.6", "12.4"], **KEY}
RECORDED = recorded("cuda")


def plan_with(facts: dict[str, Any], **changed: Any) -> dict[str, Any]:
    params = {**{name.removeprefix("cuda_"): value for name, value in DEFAULTS.items()}, **SHARED}
    assert changed.keys() <= params.keys()
    return desired({**params, **changed, **TABLES}, facts, {}).as_dict()


def facts_of(system: str = "debian13", branch: int = 550, machine: str = "x86_64") -> dict[str, Any]:
    return {"gpu_plan": {"os": {"key": system, "machine": machine}, "driver": {"branch": branch}}}


def names(rows: list[dict[str, Any]], state: str = "present") -> list[str]:
    return [row["name"] for row in rows if row.get("state", "present") == state]


@pytest.mark.parametrize("case", RECORDED)
def test_the_plan_is_the_recorded_one(case: str):
    record = RECORDED[case]
    plan = plan_with(record["facts"], **record["params"])
    plan["problems"] = texts(plan["problems"])
    assert canonical({name: value for name, value in plan.items() if name != "finished"}) == canonical(record["plan"])


def test_the_tasks_of_the_role_read_this_plan_and_take_the_repository_of_the_driver(tmp_path):
    record = RECORDED["repository_el9"]
    params = {**record["params"]}
    del params["repo_url"]
    driver = {"nvidia_driver_repo_url": "http://mirror/"}
    plan, finished = plan_by_ansible(tmp_path, "cuda", params, record["facts"], **driver)
    assert canonical(plan) == canonical(plan_with(record["facts"], **record["params"]))
    assert finished == plan["desired"]


def test_the_first_version_is_the_default_of_logins():
    plan = plan_with(facts_of(), **TWO)
    assert names(plan["desired"]["packages"]) == ["cuda-toolkit-12-6", "cuda-toolkit-12-4"]
    assert plan["login"] == "/usr/local/cuda-12.6/bin/nvcc"
    assert plan["desired"]["alternatives"][0]["path"] == "/usr/local/cuda-12.6"
    assert plan["compilers"] == ["/usr/local/cuda-12.6/bin/nvcc", "/usr/local/cuda-12.4/bin/nvcc"]


def test_the_distributions_toolkit_is_left_out_where_it_would_bring_the_library_of_another_driver():
    plan = plan_with(facts_of(branch=535))
    assert (plan["desired"], plan["finished"], plan["proves"]) == ({}, {}, False)
    assert names(plan_with(facts_of(branch=550))["desired"]["packages"]) == ["nvidia-cuda-toolkit"]


def test_one_version_goes_while_the_other_stays():
    document = plan_with(facts_of(), **{**TWO, "versions": ["12.4"], "versions_absent": ["12.6"]})["desired"]
    assert names(document["packages"]) == ["cuda-toolkit-12-4"]
    assert "cuda-*-12-6" in names(document["packages"], "absent")
    assert {"name": "cuda", "path": "/usr/local/cuda-12.6", "state": "absent"} in document["alternatives"]


def test_a_removed_toolkit_leaves_neither_files_nor_a_proof():
    document = plan_with(facts_of(), state="absent")["desired"]
    assert {row["state"] for key in ("packages", "files", "alternatives") for row in document[key]} == {"absent"}
    assert document["repositories"] == document["units"] == []
    assert document["proofs"] == [{"name": "cuda", "state": "absent"}]


def test_a_proof_that_is_never_made_keeps_its_record():
    assert "proofs" not in plan_with(facts_of(), validate="never")["desired"]
    # It is made on each run, so a comparison does not tell that nothing is left to do.
    assert plan_with(facts_of(), validate="always")["finished"] is None


@pytest.mark.parametrize(("system", "machine"), [("debian12", "aarch64"), ("ubuntu24.04", "x86_64"), ("el9", "x86_64")])
def test_the_repository_is_field_by_field_the_drivers(system: str, machine: str):
    """apt refuses two entries of one repository that differ."""
    choice = {"branch": "580", "flavour": "open"}
    driver = planned_driver(system, machine, method="nvidia_repo", **choice, **KEY)
    (repository,) = plan_with(facts_of(system, machine=machine), **TWO)["desired"]["repositories"]
    assert repository in driver["desired"]["repositories"]


@pytest.mark.parametrize(
    ("system", "changed", "text"),
    [
        (
            "debian11",
            {},
            "no CUDA toolkit is known for debian11. To do: use one of debian12, debian13, ubuntu22.04, ubuntu24.04, "
            "el8, el9, el10",
        ),
        (
            "debian13",
            {**TWO, "default": "11.8"},
            "cuda_default is 11.8, which is not among cuda_versions (12.6, 12.4). To do: add it there or choose "
            "another",
        ),
        (
            "debian13",
            {**TWO, "versions_absent": ["12.4"]},
            "cuda_versions names 12.4, and so does cuda_versions_absent",
        ),
        ("el9", {}, "this system has no CUDA toolkit of its own [el9]. To do: name versions in cuda_versions"),
        ("debian13", {"versions": ["12.4", "12.6"], **KEY}, "the distribution has CUDA 12.4 only, and cuda_versions"),
        ("debian13", {**TWO, "repo_key_sha256": ""}, "cuda_repo_key_sha256 is not set, so the key of the repository"),
    ],
)
def test_toolkits_that_cannot_be_have_a_problem_and_nothing_is_planned(system: str, changed: dict[str, Any], text: str):
    plan = plan_with(facts_of(system), **changed)
    (problem,) = plan["problems"]
    assert texts([problem])[0].startswith(text)
    assert problem["code"]
    assert problem["subject"].startswith("cuda")
    assert problem["remedy"]
    assert (plan["check"], plan["finished"], plan["desired"]) == (True, None, {})


def test_a_machine_without_a_repository_of_nvidia_needs_one_of_the_operators_own():
    facts = facts_of(machine="riscv64")
    assert texts(plan_with(facts, **TWO)["problems"]) == [
        "NVIDIA has no repository for machines of type riscv64. To do: set cuda_repo_url to one of your own"
    ]
    assert plan_with(facts, **TWO, repo_url="http://mirror/")["problems"] == []
