# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of the role nvidia_driver, without a host."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml

from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.nvidia_driver import desired
from tests.unit.plugins.plugin_utils.desired.recorded_plans import canonical, plan_by_ansible, recorded, texts
from tests.unit.project.tree import ROOT

ROLE = ROOT / "roles" / "nvidia_driver"
DEFAULTS = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
VARS = yaml.safe_load((ROLE / "vars" / "main.yml").read_text())
TABLES = {name: VARS[f"__nvidia_driver_{name}"] for name in ("schemes", "systems", "families")}
SHA256 = "0123456789abcdef" * 4
NVIDIA = {"method": "nvidia_repo", "repo_key_url": "http://mirror/key", "repo_key_sha256": SHA256}
CHOICE = {"branch": 550, "flavour": "proprietary"}
RECORDED = recorded("nvidia_driver")


def plan_with(facts: dict[str, Any], **changed: Any) -> dict[str, Any]:
    params = {name.removeprefix("nvidia_driver_"): value for name, value in DEFAULTS.items()}
    assert changed.keys() <= params.keys()
    return desired({**params, **changed, **TABLES}, facts, {}).as_dict()


def planned(system: str = "debian13", machine: str = "x86_64", pci: Any = None, **changed: Any) -> dict[str, Any]:
    """The plan for a host after preflight, with other values for some of the role's variables."""
    facts = {"os": {"key": system, "codename": "trixie", "machine": machine}, "driver": CHOICE}
    return plan_with({"gpu_plan": facts, "gpu": {"pci": pci, "driver": {"installed": "550.54.15"}}}, **changed)


def named(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (row_of_name,) = [row for row in rows if name in (row.get("name"), row.get("path"))]
    return row_of_name


@pytest.mark.parametrize("case", RECORDED)
def test_the_plan_is_the_recorded_one(case: str):
    record = RECORDED[case]
    plan = plan_with(record["facts"], **record["params"])
    plan["problems"] = texts(plan["problems"])
    assert canonical({name: value for name, value in plan.items() if name != "finished"}) == canonical(record["plan"])


def test_the_tasks_of_the_role_read_this_plan(tmp_path):
    record = RECORDED["debian12_repository_580"]
    plan, finished = plan_by_ansible(tmp_path, "nvidia_driver", record["params"], record["facts"])
    assert canonical(plan) == canonical(plan_with(record["facts"], **record["params"]))
    assert finished == plan["desired"]


def test_what_the_variables_leave_open_is_preflights_choice():
    plan = planned()
    assert (plan["check"], plan["problems"], plan["way"]) == (False, [], "present")
    desired = plan["desired"]
    assert plan["finished"] == desired
    assert named(desired["packages"], "nvidia-kernel-dkms") == {
        "name": "nvidia-kernel-dkms",
        "version": "550.*",
        "hold": True,
        "together": True,
    }
    assert named(desired["packages"], "linux-headers-{kernel}")["kernels"] == "installed"
    assert "kernels" not in named(desired["packages"], r"linux-headers-\1")
    assert desired["repositories"] == [
        {
            "name": "baremetal-gpu-components",
            "extend": ["trixie", "trixie-updates", "trixie-security"],
            "components": ["contrib", "non-free", "non-free-firmware"],
        }
    ]
    assert named(desired["pins"], "baremetal-gpu-nvidia")["state"] == "absent"
    assert named(desired["kernel_modules"], "nvidia")["current"] is True
    assert [row["name"] for row in desired["units"]] == ["nvidia-persistenced.service"]


def test_a_driver_is_left_alone_by_unattended_upgrades_as_long_as_it_is_held():
    path = "/etc/apt/apt.conf.d/52baremetal-gpu-nvidia"
    assert '\n  "^libnvidia-";\n' in named(planned()["desired"]["files"], path)["content"]
    assert named(planned(hold=False)["desired"]["files"], path) == {"path": path, "state": "absent"}
    assert [row for row in planned("el9", "x86_64", **NVIDIA)["desired"]["files"] if row["path"] == path] == []


@pytest.mark.parametrize("off", [False, "false"])
def test_what_must_not_run_is_neither_loaded_nor_started(off: Any):
    desired = planned(load=off, persistence=off)["desired"]
    assert desired["kernel_modules"] == []
    assert named(desired["files"], "/etc/modules-load.d/baremetal-gpu-nvidia.conf")["state"] == "absent"
    unit = named(desired["units"], "nvidia-persistenced.service")
    assert (unit["enabled"], unit["state"]) == (False, "stopped")
    # A directory that may hold settings of the operator's own.
    assert not [row for row in desired["files"] if row.get("state") == "directory"]


def test_nvidias_repository_is_that_of_the_system_and_the_machine_with_its_key():
    document = planned("debian12", "aarch64", **NVIDIA)["desired"]
    repository = named(document["repositories"], "nvidia-cuda")
    assert repository["uris"] == ["https://developer.download.nvidia.com/compute/cuda/repos/debian12/sbsa/"]
    assert repository["key"] == {
        "dest": "/etc/apt/keyrings/nvidia-cuda.asc",
        "sha256": SHA256,
        "url": "http://mirror/key",
    }
    pin = named(document["pins"], "baremetal-gpu-nvidia")
    assert (pin["state"], pin["pin"]) == ("present", "version 550.*")


def test_enterprise_linux_names_the_stream_of_the_driver():
    document = planned("el9", repo_url="http://mirror/", **{**NVIDIA, "repo_key_path": "/key"}, flavour="open")[
        "desired"
    ]
    assert named(document["repositories"], "nvidia-cuda")["key"]["path"] == "/key"
    assert named(document["repositories"], "nvidia-cuda")["baseurl"] == "http://mirror/"
    stream = named(document["files"], "/etc/dnf/modules.d/nvidia-driver.module")
    assert stream["content"].endswith("stream=550-open\n")
    assert stream["early"] is True
    assert document["pins"] == []
    assert not [
        row for row in planned("el10", **NVIDIA)["desired"]["files"] if row["path"].startswith("/etc/dnf/modules.d")
    ]


@pytest.mark.parametrize(
    ("version", "branch", "pattern"),
    [("550.163.01", "auto", "550.163.01*"), ("550.163.01-2", "535", "550.163.01-2"), ("550.*", "auto", "550.*")],
)
def test_the_revision_of_a_version_may_be_left_out(version: str, branch: str, pattern: str):
    document = planned(version=version, branch=branch)["desired"]
    assert named(document["packages"], "libcuda1")["version"] == pattern


def test_fabric_manager_is_for_nvswitches():
    switches = [{"kind": "gpu"}, {"kind": "nvswitch"}]
    document = planned("debian12", pci=switches, **NVIDIA)["desired"]
    assert [row["name"] for row in document["units"]][1:] == ["nvidia-fabricmanager.service"]
    assert named(document["packages"], "nvidia-fabricmanager-550")["hold"] is True
    # Debian has none. Nothing is begun then, and the message is one for operators.
    plan = planned(pci=switches)
    assert plan["check"] is True
    assert texts(plan["problems"]) == [
        "the host has NVSwitches, whose Fabric Manager this source of drivers does not have [distro]. To do: set "
        "nvidia_driver_method to nvidia_repo"
    ]
    assert plan["desired"] == {}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"branch": "535", "flavour": "open"}, "branch 535 of this system has no open kernel modules"),
        ({"method": "nvidia_repo"}, "nvidia_driver_repo_key_sha256 is not set, so the key of NVIDIA's repository"),
        (
            {**NVIDIA, "machine": "riscv64"},
            "no repository for machines of type riscv64. To do: set nvidia_driver_repo_url",
        ),
        ({"method": "runfile"}, "nvidia_driver_runfile_sha256 and either nvidia_driver_runfile_url or"),
        (
            {"method": "runfile", "runfile_sha256": SHA256, "runfile_url": "http://mirror/driver.run"},
            "is not in its name [http://mirror/driver.run]. To do: set nvidia_driver_version",
        ),
        (
            {"system": "debian11"},
            "the operating system debian11 is not supported. To do: use one of debian12, debian13",
        ),
    ],
)
def test_a_driver_that_cannot_be_has_a_problem_and_nothing_is_planned(changed: dict[str, Any], message: str):
    plan = planned(**changed)
    assert [text for text in texts(plan["problems"]) if message in text], plan["problems"]
    assert all(problem["code"] and problem["subject"] and problem["remedy"] for problem in plan["problems"])
    assert (plan["check"], plan["finished"], plan["desired"], plan["runfile"]) == (True, None, {}, {})


def test_without_preflight_the_host_is_checked_first():
    plan = plan_with({"distribution": "Ubuntu", "distribution_version": "24.04"})
    assert (plan["check"], plan["finished"]) == (True, None)
    assert "no driver branch and flavour were found for the GPUs" in plan["problems"][0]["cause"]
    # A driver that the variables name needs no GPU.
    plan = plan_with({"distribution": "Ubuntu", "distribution_version": "24.04"}, branch="580", flavour="open")
    assert (plan["check"], plan["problems"]) == (True, [])
    assert named(plan["desired"]["packages"], "nvidia-dkms-580-server-open")["version"] == "580.*"


INSTALLER = {
    "method": "runfile",
    "runfile_sha256": SHA256,
    "runfile_url": "http://mirror/NVIDIA-Linux-x86_64-550.163.01.run",
}


def test_nvidias_installer_is_due_for_another_version():
    plan = planned(**INSTALLER, runfile_arguments=["--tmpdir=/data"])
    assert plan["finished"] is None
    assert plan["way"] == "present_runfile"
    installer = plan["runfile"]
    assert (installer["version"], installer["due"]) == ("550.163.01", True)
    assert installer["command"][-2:] == ["--kernel-module-type=proprietary", "--tmpdir=/data"]
    file = named(installer["desired"]["files"], "/var/lib/baremetal-gpu/nvidia-driver.run")
    assert (file["url"], file["sha256"]) == (INSTALLER["runfile_url"], SHA256)
    assert named(installer["desired"]["packages"], "gcc") == {"name": "gcc"}
    assert named(installer["desired"]["packages"], "nvidia-smi")["state"] == "absent"
    assert [row["name"] for row in installer["unload"]["kernel_modules"]][-1] == "nvidia"
    # Of the packages that the distribution has of the driver, none is desired beside it.
    assert not [row for row in plan["desired"]["packages"] if "nvidia" in row["name"]]
    assert planned(**INSTALLER, version="550.54.15")["runfile"]["due"] is False


def test_a_driver_that_is_to_go_needs_no_branch():
    plan = planned(state="absent", branch="auto", method="nvidia_repo")
    assert (plan["problems"], plan["way"], plan["runfile"]) == ([], "absent", {})
    # The uninstaller of an installer may have something left to remove.
    assert plan["finished"] is None
    desired = plan["desired"]
    assert "repositories" not in desired
    assert {row["state"] for key in ("packages", "files", "pins") for row in desired[key]} == {"absent"}
    assert [(row["state"], row["required"]) for row in desired["kernel_modules"]] == [("unloaded", False)] * 5


BRIDGED = [{"kind": "gpu", "device": "2901"}, {"kind": "nvswitch_bridge", "driver": "mlx5_core"}]


@pytest.mark.parametrize("system", ["debian12", "ubuntu24.04", "el9"])
def test_switches_behind_bridges_get_a_subnet_manager_too(system: str):
    document = planned(system, pci=BRIDGED, **NVIDIA, branch="580", flavour="open")["desired"]
    assert [row["name"] for row in document["units"]][1:] == ["nvidia-fabricmanager.service"]
    names = [row["name"] for row in document["packages"] if row.get("state") != "absent"]
    assert {"nvlsm", "infiniband-diags"} < set(names)
    assert any(name.startswith("nvidia-fabricmanager") for name in names)
    # Its versions are its own.
    assert named(document["packages"], "nvlsm") == {"name": "nvlsm"}
    assert named(document["kernel_modules"], "ib_umad")["state"] == "loaded"
    load = named(document["files"], "/etc/modules-load.d/baremetal-gpu-nvidia.conf")
    assert load["content"].endswith("nvidia-uvm\nib_umad\n")


def test_a_source_without_a_subnet_manager_is_refused():
    plan = planned("ubuntu24.04", pci=BRIDGED, branch="580", flavour="open")
    (problem,) = texts(plan["problems"])
    assert "NVLink Subnet Manager (nvlsm)" in problem
    assert problem.endswith("set nvidia_driver_method to nvidia_repo")


def test_nobodys_infiniband_tools_are_removed_with_a_driver():
    for changed in ({"state": "absent"}, {}):
        rows = planned("debian13", **changed)["desired"]["packages"]
        assert not [row for row in rows if row["name"] in ("nvlsm", "infiniband-diags")]


@pytest.mark.parametrize("switches", [[{"kind": "nvswitch", "driver": "vfio-pci"}], [{"kind": "bridge"}]])
def test_switches_of_others_get_no_fabric_manager(switches: Any):
    plan = planned(pci=[{"kind": "gpu"}, *switches])
    assert plan["problems"] == []
    assert [row["name"] for row in plan["desired"]["units"]] == ["nvidia-persistenced.service"]


def test_only_the_drivers_own_version_is_looked_for_in_dkms():
    assert planned()["desired"]["dkms"] == [{"name": "nvidia*", "kernels": "installed", "version": "550.*"}]
    assert planned(version="550.163.01")["desired"]["dkms"][0]["version"] == "550.163.01*"


def test_a_third_partys_module_does_not_announce_another_driver():
    patterns = named(planned()["desired"]["kernel_modules"], "nvidia")["packages"]
    own = ["nvidia-kernel-dkms", "nvidia-tesla-535-kernel-dkms", "nvidia-dkms-580-server-open", "kmod-nvidia-open-dkms"]
    for name in own:
        assert any(fnmatchcase(name, pattern) for pattern in patterns), name
    for name in ("nvidia-fs-dkms", "nvidia-peer-memory-dkms", "nvidia-gds-dkms"):
        assert not any(fnmatchcase(name, pattern) for pattern in patterns), name
