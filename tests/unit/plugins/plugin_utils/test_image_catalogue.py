# SPDX-License-Identifier: GPL-3.0-or-later
"""The catalogue of images: its rows, and what they need of nodes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils import image_catalogue
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.marathon_apps import desired
from tests.unit.project.tree import ROOT

ROW = {
    "name": "pytorch-cuda",
    "description": "PyTorch",
    "reference": "registry1:5000/catalogue/pytorch-cuda",
    "digest": f"sha256:{'a' * 64}",
    "needs": {"cuda": "13.0", "driver": "580.65"},
}


def test_a_good_row_has_no_problem() -> None:
    assert image_catalogue.problems([ROW]) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "PyTorch"}, "its name is not right"),
        ({"name": "-x"}, "its name is not right"),
        ({"digest": "sha256:1"}, "its digest is not right"),
        ({"digest": None}, "its digest is not right"),
        ({"reference": "registry1:5000/catalogue/base:latest"}, "its reference is not right"),
        ({"reference": "registry1:5000/../x"}, "its reference is not right"),
        ({"description": "two\nlines"}, "its description is not a line"),
        ({"needs": {"memory": "1"}}, "its needs are not right"),
        ({"needs": ["cuda"]}, "its needs are not right"),
        ({"needs": {"cuda": 13.0}}, "its need of CUDA is not a version"),
    ],
)
def test_each_fault_names_image_value_and_remedy(change: dict[str, Any], told: str) -> None:
    (problem,) = image_catalogue.problems([{**ROW, **change}])
    assert told in problem.cause
    assert problem.subject.startswith("image ")
    assert problem.remedy


def test_an_image_that_is_there_twice_is_named() -> None:
    (problem,) = image_catalogue.problems([ROW, dict(ROW)])
    assert problem.cause == "it is there twice"


@pytest.mark.parametrize("catalogue", [None, "base", {"base": 1}, [1], [None]])
def test_what_is_no_list_of_images_is_refused(catalogue: Any) -> None:
    assert image_catalogue.problems(catalogue)


@pytest.mark.parametrize(
    "image",
    [
        "pytorch-cuda",
        "registry1:5000/catalogue/pytorch-cuda",
        "registry1:5000/catalogue/pytorch-cuda:latest",
        f"registry1:5000/catalogue/pytorch-cuda@sha256:{'b' * 64}",
    ],
)
def test_an_image_is_found_by_its_name_and_by_its_reference(image: str) -> None:
    assert image_catalogue.find([ROW], image) == ROW


@pytest.mark.parametrize("image", ["pytorch", "registry1:5000/catalogue/pytorch-cuda2", "registry1:5000/pytorch-cuda"])
def test_another_image_is_not_of_the_catalogue(image: str) -> None:
    assert image_catalogue.find([ROW], image) is None
    assert image_catalogue.resolve(image, [ROW], {}) == (image, [])


@pytest.mark.parametrize(
    ("driver", "lacking"),
    [
        ({"version": "580.95.05", "cuda": "13.0"}, []),
        ({"version": "590.10", "cuda": "13.1"}, []),
        ({"version": "580.9", "cuda": "13.0"}, ["driver"]),
        ({"version": "550.54.14", "cuda": "12.4"}, ["CUDA", "driver"]),
        # Nobody has looked, or there is no driver: that is for others to say.
        ({"version": None, "cuda": None}, []),
        (None, []),
    ],
)
def test_needs_are_held_against_the_driver_of_each_node(driver: Any, lacking: list[str]) -> None:
    found = image_catalogue.unmet(ROW, {"node1": {"driver": driver}})
    assert [problem.subject for problem in found] == ["node1"] * len(lacking)
    assert [word for word in ("CUDA", "driver") if any(f"needs {word} " in one.cause for one in found)] == lacking


def test_only_hosts_of_the_inventory_that_nobody_has_looked_at_are_to_be_looked_at() -> None:
    hostvars = {"seen": {"ansible_facts": {"gpu": {}}}, "unseen": {"ansible_facts": {}}, "never": {}}
    hosts = ["seen", "unseen", "never", "elsewhere"]
    assert image_catalogue.to_look_at("pytorch-cuda", [ROW], hosts, hostvars) == ["unseen", "never"]
    assert image_catalogue.to_look_at("pytorch-cuda", [{**ROW, "needs": {}}], hosts, hostvars) == []
    assert image_catalogue.to_look_at("other", [ROW], hosts, hostvars) == []


def marathon(image: str, hosts: dict[str, str], **changes: Any) -> dict[str, Any]:
    """The plan of a sweep on agents of these hosts, whose drivers have so much CUDA; nothing for one not looked at."""
    defaults = yaml.safe_load((ROOT / "roles/marathon_apps/defaults/main.yml").read_text())
    params = {name.removeprefix("marathon_apps_"): value for name, value in defaults.items()}
    resources = {"gpus": 2, "cpus": 8, "mem": 16000}
    agents = [{"hostname": host, "resources": resources, "attributes": {"gpu_model": "a100"}} for host in hosts]
    known = {host: {"gpu": {"driver": {"cuda": cuda}}} if cuda else {} for host, cuda in hosts.items()}
    given = {
        **params,
        "kind": "sweep",
        "urls": ["http://m1:8080"],
        "agents": agents,
        "secrets": {},
        "masters_group": "mesos_masters",
        "image_catalogue": [{**ROW, "needs": {"cuda": "13.0"}}],
        "sweep_name": "rates",
        "sweep_command": "true",
        "sweep_parameters": {"LR": [1]},
        "sweep_image": image,
        "sweep_gpus": 1,
        **changes,
    }
    hostvars = {host: {"ansible_facts": facts} for host, facts in known.items()}
    return desired(given, {}, {"host": "m1", "groups": {}, "hostvars": hostvars}).as_dict()


def test_an_app_of_marathon_gets_an_image_of_the_catalogue_by_its_digest() -> None:
    told = marathon("pytorch-cuda", {"new": "13.0", "unseen": ""})
    assert told["problems"] == []
    assert told["look"] == ["unseen"]
    assert told["apps"][0]["container"]["docker"]["image"] == image_catalogue.exact(ROW)


def test_no_app_is_sent_where_a_node_lacks_what_its_image_needs() -> None:
    told = marathon("pytorch-cuda", {"new": "13.0", "old": "12.4"})
    assert [problem["subject"] for problem in told["problems"]] == ["old"]
    assert told["apps"] == []
    assert marathon("pytorch-cuda", {"old": "12.4"}, sweep_gpus=0)["problems"] == []
