# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role container_runtime, without a host."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.container_runtime import desired
from tests.unit.plugins.plugin_utils.desired.recorded_plans import canonical, plan_by_ansible, recorded, texts
from tests.unit.project.tree import ROOT

ROLE = ROOT / "roles" / "container_runtime"
DEFAULTS = {
    **yaml.safe_load((ROLE / "defaults" / "main.yml").read_text()),
    # What Ansible makes of them on a host that is in no Kubernetes cluster.
    "container_runtime_kubernetes": False,
    "container_runtime_containerd_sandbox_image": "",
}
VARS = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
SYSTEMS = VARS["__container_runtime_systems"]
SHA256 = "0123456789abcdef" * 4
GPU = {"index": 0, "uuid": "GPU-1"}
RECORDED = recorded("container_runtime")


def plan_with(facts: dict[str, Any], containerd: str | None = None, **changed: Any) -> dict[str, Any]:
    params = {name.removeprefix("container_runtime_"): value for name, value in DEFAULTS.items()}
    assert changed.keys() <= params.keys()
    file = None if containerd is None else base64.b64encode(containerd.encode()).decode()
    return desired({**params, **changed, "systems": SYSTEMS, "containerd_file": file}, facts, {}).as_dict()


def planned(
    system: str = "debian13", present: bool | None = True, containerd: str | None = None, **changed: Any
) -> dict[str, Any]:
    """The plan for a host with GPUs after preflight, with other values for some of the role's variables."""
    facts = {"gpu_plan": {"os": {"key": system}}, "gpu": {"present": present, "devices": [GPU] if present else None}}
    return plan_with(facts, containerd, **changed)


def named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (row_of_name,) = [row for row in rows if row["name"] == name]
    return row_of_name


@pytest.mark.parametrize("case", RECORDED)
def test_the_plan_is_the_recorded_one(case: str):
    record = RECORDED[case]
    plan = plan_with(record["facts"], record["containerd_file"], **record["params"])
    plan["problems"] = texts(plan["problems"])
    parts = {name: value for name, value in plan.items() if name not in ("compared", "finished")}
    assert canonical(parts) == canonical(record["plan"])


def test_the_tasks_of_the_role_read_this_plan(tmp_path):
    record = RECORDED["docker_toolkit"]
    plan, finished = plan_by_ansible(tmp_path, "container_runtime", record["params"], record["facts"])
    assert canonical(plan) == canonical(plan_with(record["facts"], **record["params"]))
    assert finished == {**plan["compared"], "notes": []}


def test_the_tasks_of_the_role_hand_over_the_file_of_containerd_that_they_have_read(tmp_path):
    record = RECORDED["containerd_version_1"]
    text = base64.b64encode(record["containerd_file"].encode()).decode()
    read = {"__container_runtime_containerd_file": {"content": text}}
    plan, finished = plan_by_ansible(tmp_path, "container_runtime", record["params"], record["facts"], **read)
    assert texts(plan["problems"]) == record["plan"]["problems"]
    assert finished is None


def test_without_an_engine_there_is_nothing_to_do_on_any_system():
    plan = plan_with({}, engine="none")
    assert (plan["finished"], plan["desired"], plan["problems"]) == ({}, {}, [])


def test_a_proof_on_each_run_is_more_than_a_comparison_tells():
    assert planned(validate="always")["finished"] is None


def test_docker_of_debian_13_gets_the_gpus_by_cdi():
    plan = planned()
    assert plan["file"]["path"] == "/etc/docker/daemon.json"
    assert plan["file"]["values"] == {"features": {"cdi": True}}
    assert plan["specification"] == {"state": "present", "engine": "docker", "devices": [GPU]}
    assert plan["compared"] == {**plan["desired"], "settings": [plan["file"]], "cdi": plan["specification"]}
    assert [row["name"] for row in plan["desired"]["packages"]] == ["docker.io", "docker-cli"]
    assert [row["state"] for row in plan["desired"]["repositories"]] == ["absent", "absent"]
    assert (plan["check"], plan["problems"], plan["notes"]) == (False, [], [])
    assert plan["finished"] == {**plan["compared"], "notes": []}


def test_a_change_is_proven_until_that_is_done_or_nothing_is_left_to_prove():
    (proof,) = planned()["finished"]["proofs"]
    assert proof == {"name": "container_runtime", "what": "that docker runs containers within their limits"}
    assert planned(state="absent")["desired"]["proofs"] == [{"name": "container_runtime", "state": "absent"}]
    # The record of an earlier one stays for when it is required again.
    assert "proofs" not in planned(validate="never")["desired"]
    assert [planned(**changed)["proves"] for changed in ({}, {"state": "absent"}, {"validate": "never"})] == [
        True,
        False,
        False,
    ]


def test_docker_of_debian_12_has_no_cdi_and_the_operator_gets_a_note():
    plan = planned("debian12")
    assert plan["specification"] == {"state": "absent", "devices": [GPU]}
    (note,) = plan["notes"]
    assert "This docker has no CDI" in note
    assert plan["finished"]["notes"] == [note]


@pytest.mark.parametrize("changed", [{"engine": "containerd"}, {"docker_config": {"hosts": []}}])
def test_a_comparison_does_not_tell_what_is_read_or_refused_first(changed: dict[str, Any]):
    assert planned(**changed)["finished"] is None


def test_the_toolkit_comes_from_the_operators_repository():
    plan = planned(
        toolkit_repo_url="http://mirror/", toolkit_repo_key_url="http://mirror/key", toolkit_repo_key_sha256=SHA256
    )
    repository = named(plan["desired"]["repositories"], "baremetal-gpu-container-toolkit")
    assert repository == {
        "name": "baremetal-gpu-container-toolkit",
        "uris": ["http://mirror/"],
        "suites": ["/"],
        "key": {"url": "http://mirror/key", "sha256": SHA256},
    }
    assert named(plan["desired"]["packages"], "nvidia-container-toolkit")["hold"] is True
    assert plan["file"]["values"]["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert plan["toolkit"]["values"] == {"accept-nvidia-visible-devices-envvar-when-unprivileged": False}
    assert plan["compared"]["settings"] == [plan["file"], plan["toolkit"]]


def test_what_the_operator_sets_in_dockers_file_is_laid_over_the_roles_own():
    plan = planned(docker_live_restore="yes", docker_data_root="/data", docker_config={"features": {"buildkit": True}})
    assert plan["file"]["values"] == {
        "data-root": "/data",
        "live-restore": True,
        "features": {"cdi": True, "buildkit": True},
    }


def test_dockers_own_packages_take_the_place_of_the_distributions():
    plan = planned("debian12", docker_repo_url="http://mirror/", docker_repo_options={"trusted": True}, version="5:28*")
    assert plan["specification"] == {"state": "present", "engine": "docker", "devices": [GPU]}
    assert named(plan["desired"]["packages"], "docker-ce") == {"name": "docker-ce", "hold": False, "version": "5:28*"}
    assert named(plan["desired"]["packages"], "docker.io") == {"name": "docker.io", "state": "absent"}
    assert named(plan["desired"]["repositories"], "baremetal-gpu-docker")["suites"] == ["bookworm"]


def test_enterprise_linux_takes_a_base_url():
    plan = planned("el9", engine="podman", toolkit_repo_url="http://mirror/", toolkit_repo_options={"gpgcheck": False})
    repository = named(plan["desired"]["repositories"], "baremetal-gpu-container-toolkit")
    assert repository["baseurl"] == "http://mirror/"
    assert "uris" not in repository


@pytest.mark.parametrize("gpus", [True, False, None])
def test_an_engine_that_is_to_go_leaves_its_packages_unless_they_are_to_go_too(gpus: bool | None):
    plan = planned(present=gpus, state="absent")
    assert plan["desired"]["packages"] == plan["desired"]["units"] == []
    assert (plan["file"]["state"], plan["file"]["values"]) == ("absent", {})
    assert plan["specification"]["state"] == "absent"
    assert {"name": "docker.io", "state": "absent"} in planned(state="absent", remove_packages=True)["desired"][
        "packages"
    ]


def test_nothing_is_taken_away_where_nobody_can_tell_whether_the_host_has_gpus():
    assert planned(present=None)["specification"] is None
    assert planned(present=False)["specification"] == {"state": "absent"}


@pytest.mark.parametrize(
    ("content", "version", "plugin"),
    [
        (None, 2, "io.containerd.grpc.v1.cri"),
        ("# nothing\n", 2, "io.containerd.grpc.v1.cri"),
        ("version = 3\n", 3, "io.containerd.cri.v1.runtime"),
    ],
)
def test_a_file_of_containerd_keeps_its_version(content: str | None, version: int, plugin: str):
    plan = planned(engine="containerd", containerd=content)
    assert plan["file"]["values"]["version"] == version
    assert plan["file"]["values"]["plugins"][plugin]["enable_cdi"] is True
    assert plan["packaged"] is (content is None)
    assert plan["check"] is True


@pytest.mark.parametrize("content", ["version = 1\n", "root = '/x'\n"])
def test_a_file_of_containerd_in_the_first_version_is_refused(content: str):
    (problem,) = planned(engine="containerd", containerd=content)["problems"]
    assert "is written in version 1 of its format" in problem["cause"]
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
    plan = planned(system, **changed)
    (problem,) = plan["problems"]
    assert words in problem["cause"]
    assert problem["remedy"]
    assert problem["code"]
    assert problem["subject"].startswith("container_runtime")
    assert plan["check"] is True
    assert planned(system, **changed, state="absent")["problems"] == []


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_a_containerd_that_serves_no_kubelet_is_refused_unless_nobody_needs_it(name: str):
    text = f'version = 2\ndisabled_plugins = ["aufs", "{name}"]\n'
    (problem,) = planned(engine="containerd", containerd=text)["problems"]
    assert f"/etc/containerd/config.toml has, or is to have, {name} in disabled_plugins" in problem["cause"]
    assert planned(engine="containerd", containerd=text, containerd_cri=False)["problems"] == []
    # It is only what lies below Docker there.
    assert planned(engine="docker", containerd=text)["problems"] == []
    config = {"disabled_plugins": [name]}
    assert len(planned(engine="containerd", containerd="version = 2\n", containerd_config=config)["problems"]) == 1
    assert planned(engine="containerd", containerd='disabled_plugins = "')["problems"] != [problem]


def test_runtimes_that_the_role_brings_are_proven():
    toolkit = {"nvidia": "toolkit"}
    assert planned(**toolkit)["runtimes"] == ["nvidia"]
    assert planned(engine="containerd", containerd="", **toolkit)["runtimes"] == ["/usr/bin/nvidia-container-runtime"]
    assert planned()["runtimes"] == planned(engine="podman", **toolkit)["runtimes"] == []


def test_without_preflight_the_distribution_names_the_system():
    facts = {"distribution": "Ubuntu", "distribution_version": "24.04", "distribution_major_version": "24"}
    plan = plan_with(facts)
    assert (plan["problems"], plan["check"]) == ([], True)
    assert named(plan["desired"]["packages"], "docker.io")


@pytest.mark.parametrize("facts", [{}, {"distribution": "Debian", "distribution_major_version": "11"}])
def test_a_system_that_the_role_does_not_know_is_named(facts: dict[str, Any]):
    plan = plan_with(facts)
    (problem,) = plan["problems"]
    assert (problem["code"], plan["check"], plan["finished"]) == ("unknown_system", True, None)
    assert problem["evidence"] == ("debian11" if facts else "")
    assert "or set container_runtime_engine to none" in problem["remedy"]


PAUSE = "registry1:5000/kubernetes/pause:3.10.2"
# containerd's file of each format with what a kubelet needs: where control groups, registries and the sandbox are set.
KUBELETS = {
    2: {
        "io.containerd.grpc.v1.cri": {
            "containerd": {
                "runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}
            },
            "registry": {"config_path": "/etc/containerd/certs.d"},
            "sandbox_image": PAUSE,
        }
    },
    3: {
        "io.containerd.cri.v1.runtime": {
            "containerd": {
                "runtimes": {"runc": {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}}
            }
        },
        "io.containerd.cri.v1.images": {
            "registry": {"config_path": "/etc/containerd/certs.d"},
            "pinned_images": {"sandbox": PAUSE},
        },
    },
}


@pytest.mark.parametrize("version", [2, 3])
def test_containerd_of_a_kubernetes_host_has_what_kubelet_needs(version: int):
    plan = planned(
        present=False,
        engine="containerd",
        kubernetes=True,
        containerd_sandbox_image=PAUSE,
        containerd_config_version=version,
    )
    assert plan["problems"] == []
    assert plan["file"]["values"] == {"version": version, "plugins": KUBELETS[version]}


def test_what_the_package_of_containerd_turns_off_is_turned_on_for_kubelet():
    packaged = '# As it comes.\ndisabled_plugins = ["cri"]\n'
    plan = planned(engine="containerd", kubernetes=True, containerd=packaged, containerd_config={})
    assert (plan["problems"], plan["file"]["remove"]) == ([], ["disabled_plugins"])
    # Others are the operator's, and where no kubelet is to come the file stays as it is.
    more = planned(engine="containerd", kubernetes=True, containerd='version = 2\ndisabled_plugins = ["cri", "zfs"]\n')
    assert [problem["code"] for problem in more["problems"]] == ["cri_disabled"]
    assert planned(engine="containerd", containerd=packaged)["problems"][0]["code"] == "cri_disabled"


def test_containerd_comes_from_dockers_repository_where_that_is_named():
    key = {"docker_repo_key_url": "http://mirror/key.asc", "docker_repo_key_sha256": SHA256}
    plan = planned(engine="containerd", docker_repo_url="http://mirror/docker", **key)
    assert [row["name"] for row in plan["desired"]["packages"]] == ["containerd.io"]
    assert named(plan["desired"]["repositories"], "baremetal-gpu-docker")["uris"] == ["http://mirror/docker"]
    assert [row["name"] for row in planned(engine="containerd")["desired"]["packages"]] == ["containerd"]
