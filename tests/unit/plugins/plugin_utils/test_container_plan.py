# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role container_runtime makes of its variables and of a host, without a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.container_plan import plan

ROLE = Path(__file__).parents[4] / "roles" / "container_runtime"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
VARS = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
SYSTEMS = VARS["__container_runtime_systems"]
SHA256 = "0123456789abcdef" * 4
CARD = {"index": 0, "uuid": "GPU-1"}


def asked(system: str = "debian13", present: bool | None = True, containerd: str | None = None, **changed: Any) -> Any:
    """The plan for a host with cards after preflight, with other values for some of the role's variables."""
    variables = {**DEFAULTS, **{f"container_runtime_{name}": value for name, value in changed.items()}}
    assert variables.keys() == DEFAULTS.keys()
    facts = {"gpu_plan": {"os": {"key": system}}, "gpu": {"present": present, "devices": [CARD] if present else None}}
    return plan(variables, SYSTEMS, facts, containerd)


def named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = [row for row in rows if row["name"] == name]
    return found


def test_the_role_hands_over_each_of_its_variables():
    assert sorted(VARS["__container_runtime_names"]) == sorted(DEFAULTS)


def test_docker_of_debian_13_gets_the_cards_by_cdi():
    found = asked()
    assert found["file"]["path"] == "/etc/docker/daemon.json"
    assert found["file"]["values"] == {"features": {"cdi": True}}
    assert found["specification"] == {"state": "present", "engine": "docker", "devices": [CARD]}
    assert found["compared"] == {**found["desired"], "settings": [found["file"]], "cdi": found["specification"]}
    assert [row["name"] for row in found["desired"]["packages"]] == ["docker.io", "docker-cli"]
    assert [row["state"] for row in found["desired"]["repositories"]] == ["absent", "absent"]
    assert (found["check"], found["problems"], found["notes"]) == (False, [], [])
    assert found["finished"] == {**found["compared"], "notes": []}


def test_a_change_is_proven_until_that_is_done_or_nothing_is_left_to_prove():
    (proof,) = asked()["finished"]["proofs"]
    assert proof == {"name": "container_runtime", "what": "that docker runs containers within their limits"}
    assert asked(state="absent")["desired"]["proofs"] == [{"name": "container_runtime", "state": "absent"}]
    # The record of an earlier one stays for when it is wanted again.
    assert "proofs" not in asked(validate="never")["desired"]
    assert [asked(**changed)["proves"] for changed in ({}, {"state": "absent"}, {"validate": "never"})] == [
        True,
        False,
        False,
    ]


def test_docker_of_debian_12_knows_no_cdi_and_the_operator_is_told():
    found = asked("debian12")
    assert found["specification"] == {"state": "absent", "devices": [CARD]}
    (note,) = found["notes"]
    assert "This docker has no CDI" in note
    assert found["finished"]["notes"] == [note]


@pytest.mark.parametrize("changed", [{"engine": "containerd"}, {"docker_config": {"hosts": []}}])
def test_what_has_to_be_found_out_or_refused_first_is_not_told_by_a_comparison(changed: dict[str, Any]):
    assert asked(**changed)["finished"] is None


def test_the_toolkit_comes_from_the_operators_repository():
    found = asked(
        toolkit_repo_url="http://mirror/", toolkit_repo_key_url="http://mirror/key", toolkit_repo_key_sha256=SHA256
    )
    repository = named(found["desired"]["repositories"], "baremetal-gpu-container-toolkit")
    assert repository == {
        "name": "baremetal-gpu-container-toolkit",
        "uris": ["http://mirror/"],
        "suites": ["/"],
        "key": {"url": "http://mirror/key", "sha256": SHA256},
    }
    assert named(found["desired"]["packages"], "nvidia-container-toolkit")["hold"] is True
    assert found["file"]["values"]["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert found["toolkit"]["values"] == {"accept-nvidia-visible-devices-envvar-when-unprivileged": False}
    assert found["compared"]["settings"] == [found["file"], found["toolkit"]]


def test_what_the_operator_sets_in_dockers_file_is_laid_over_the_roles_own():
    found = asked(docker_live_restore="yes", docker_data_root="/data", docker_config={"features": {"buildkit": True}})
    assert found["file"]["values"] == {
        "data-root": "/data",
        "live-restore": True,
        "features": {"cdi": True, "buildkit": True},
    }


def test_dockers_own_packages_take_the_place_of_the_distributions():
    found = asked("debian12", docker_repo_url="http://mirror/", docker_repo_options={"trusted": True}, version="5:28*")
    assert found["specification"] == {"state": "present", "engine": "docker", "devices": [CARD]}
    assert named(found["desired"]["packages"], "docker-ce") == {"name": "docker-ce", "hold": False, "version": "5:28*"}
    assert named(found["desired"]["packages"], "docker.io") == {"name": "docker.io", "state": "absent"}
    assert named(found["desired"]["repositories"], "baremetal-gpu-docker")["suites"] == ["bookworm"]


def test_enterprise_linux_takes_a_base_url():
    found = asked("el9", engine="podman", toolkit_repo_url="http://mirror/", toolkit_repo_options={"gpgcheck": False})
    repository = named(found["desired"]["repositories"], "baremetal-gpu-container-toolkit")
    assert repository["baseurl"] == "http://mirror/"
    assert "uris" not in repository


@pytest.mark.parametrize("cards", [True, False, None])
def test_an_engine_that_is_to_go_leaves_its_packages_unless_they_are_to_go_too(cards: bool | None):
    found = asked(present=cards, state="absent")
    assert found["desired"]["packages"] == found["desired"]["units"] == []
    assert (found["file"]["state"], found["file"]["values"]) == ("absent", {})
    assert found["specification"]["state"] == "absent"
    assert {"name": "docker.io", "state": "absent"} in asked(state="absent", remove_packages=True)["desired"][
        "packages"
    ]


def test_nothing_is_taken_away_where_nobody_can_tell_whether_there_are_cards():
    assert asked(present=None)["specification"] is None
    assert asked(present=False)["specification"] == {"state": "absent"}


@pytest.mark.parametrize(
    ("content", "version", "plugin"),
    [
        (None, 2, "io.containerd.grpc.v1.cri"),
        ("# nothing\n", 2, "io.containerd.grpc.v1.cri"),
        ("version = 3\n", 3, "io.containerd.cri.v1.runtime"),
    ],
)
def test_a_file_of_containerd_keeps_its_version(content: str | None, version: int, plugin: str):
    found = asked(engine="containerd", containerd=content)
    assert found["file"]["values"]["version"] == version
    assert found["file"]["values"]["plugins"][plugin]["enable_cdi"] is True
    assert found["packaged"] is (content is None)
    assert found["check"] is True


@pytest.mark.parametrize("content", ["version = 1\n", "root = '/x'\n"])
def test_a_file_of_containerd_in_the_first_version_is_refused(content: str):
    (problem,) = asked(engine="containerd", containerd=content)["problems"]
    assert "is written in version 1 of its format" in problem["why"]
    assert "containerd config migrate" in problem["remedy"]


@pytest.mark.parametrize(
    ("system", "changed", "words"),
    [
        ("el9", {}, "this system has no package of its own for docker"),
        ("debian13", {"docker_config": {"hosts": []}}, "container_runtime_docker_config has the key hosts"),
        ("debian13", {"docker_default_runtime": "nvidia"}, "(container_runtime_nvidia comes out as cdi)"),
        ("debian13", {"docker_repo_url": "http://d/"}, "container_runtime_docker_repo_url is http://d/, and the key"),
        (
            "debian13",
            {"toolkit_repo_url": "http://t/", "toolkit_repo_key_sha256": SHA256},
            "container_runtime_toolkit_repo_url is http://t/, and the key",
        ),
    ],
)
def test_what_cannot_be_is_refused(system: str, changed: dict[str, Any], words: str):
    found = asked(system, **changed)
    (problem,) = found["problems"]
    assert words in problem["why"]
    assert problem["remedy"]
    assert found["check"] is True
    assert asked(system, **changed, state="absent")["problems"] == []


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_a_containerd_that_serves_no_kubelet_is_refused_unless_nobody_asks_it(name: str):
    text = f'version = 2\ndisabled_plugins = ["aufs", "{name}"]\n'
    (problem,) = asked(engine="containerd", containerd=text)["problems"]
    assert f"/etc/containerd/config.toml has, or is to have, {name} in disabled_plugins" in problem["why"]
    assert asked(engine="containerd", containerd=text, containerd_cri=False)["problems"] == []
    # It is only what lies below Docker there.
    assert asked(engine="docker", containerd=text)["problems"] == []
    wanted = {"disabled_plugins": [name]}
    assert len(asked(engine="containerd", containerd="version = 2\n", containerd_config=wanted)["problems"]) == 1
    assert asked(engine="containerd", containerd='disabled_plugins = "')["problems"] != [problem]


def test_runtimes_that_the_role_brings_are_proven():
    toolkit = {"nvidia": "toolkit"}
    assert asked(**toolkit)["runtimes"] == ["nvidia"]
    assert asked(engine="containerd", containerd="", **toolkit)["runtimes"] == ["/usr/bin/nvidia-container-runtime"]
    assert asked()["runtimes"] == asked(engine="podman", **toolkit)["runtimes"] == []


def test_a_system_is_told_from_the_distribution_where_there_was_no_preflight():
    facts = {"distribution": "Ubuntu", "distribution_version": "24.04", "distribution_major_version": "24"}
    found = plan(DEFAULTS, SYSTEMS, facts)
    assert (found["system"], found["known"], found["check"]) == ("ubuntu24.04", True, True)
    assert named(found["desired"]["packages"], "docker.io")


@pytest.mark.parametrize("facts", [{}, {"distribution": "Debian", "distribution_major_version": "11"}])
def test_a_system_that_the_role_does_not_know_is_named(facts: dict[str, Any]):
    found = plan(DEFAULTS, SYSTEMS, facts)
    assert (found["known"], found["check"]) == (False, True)
    assert found["system"] == ("debian11" if facts else "")
