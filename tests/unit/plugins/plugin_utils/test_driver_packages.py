# SPDX-License-Identifier: GPL-3.0-or-later
"""The packages of a driver, with the names that the role nvidia_driver carries."""

from __future__ import annotations

import fnmatch

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.gpu.releases import DISTRO_DRIVERS
from ansible_collections.baremetal.gpu.plugins.module_utils.host.errors import Refused
from ansible_collections.baremetal.gpu.plugins.module_utils.system.distributions import SUPPORTED
from ansible_collections.baremetal.gpu.plugins.plugin_utils import driver_packages
from ansible_collections.baremetal.gpu.plugins.plugin_utils.desired.document import Document
from tests.unit.project.tree import load_yaml

DATA = load_yaml("roles/nvidia_driver/vars/main.yml")
SCHEMES, SYSTEMS = DATA["__nvidia_driver_schemes"], DATA["__nvidia_driver_systems"]

# Everything of the branch that Debian's resolver brings, read with `apt-get install -s` on Debian 12 and 13.
BROUGHT = {
    ("debian13", "550"): [
        "nvidia-legacy-check", "nvidia-support", "nvidia-alternative", "libnvidia-ptxjitcompiler1",
        "libnvidia-pkcs11-openssl3", "libcuda1", "firmware-nvidia-gsp", "nvidia-kernel-common",
        "nvidia-kernel-support", "dkms", "nvidia-kernel-dkms", "libnvidia-cfg1", "nvidia-persistenced",
        "libnvidia-ml1", "nvidia-smi", "glx-alternative-nvidia", "update-glx", "nvidia-installer-cleanup",
    ],
    ("debian12", "470"): [
        "nvidia-tesla-470-alternative", "libnvidia-tesla-470-cfg1", "nvidia-persistenced", "nvidia-kernel-common",
        "nvidia-modprobe", "nvidia-tesla-470-kernel-support", "nvidia-tesla-470-kernel-dkms", "nvidia-support",
        "libnvidia-tesla-470-ptxjitcompiler1", "libnvidia-tesla-470-cuda1", "libnvidia-tesla-470-ml1",
        "nvidia-tesla-470-smi", "dkms", "glx-alternative-nvidia",
    ],
}  # fmt: skip

# What NVIDIA's packages for Debian depend on, as apt lists it when they are installed there.
BROUGHT_BY_NVIDIA = [
    "nvidia-kernel-support", "firmware-nvidia-gsp", "nvidia-kernel-open-dkms", "nvidia-modprobe", "libnvidia-cfg1",
    "libnvidia-gpucomp", "libnvidia-ptxjitcompiler1", "libnvidia-pkcs11-openssl3", "libcuda1", "libcudadebugger1",
    "libnvidia-ml1", "nvidia-smi", "nvidia-persistenced", "nvidia-driver-cuda",
]  # fmt: skip


def packages(system, method="distro", branch="550", flavour="proprietary", **more):
    return plain_items(
        driver_packages.driver_packages(
            SCHEMES, SYSTEMS[system], method, branch, flavour, version=f"{branch}.*", **more
        )
    )


def plain_items(items):
    return Document(packages=items).plain["packages"]


def names(items, state="present"):
    return [item["name"] for item in items if item.get("state", "present") == state]


def hit(items, name):
    """Whether the document asks for a package to go, as the comparison decides it."""
    if name in names(items):
        return False
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in names(items, "absent"))


def test_every_supported_system_is_there():
    assert set(SYSTEMS) == set(SUPPORTED)
    assert {name: row["repository"] for name, row in SYSTEMS.items()} == {
        name: row["repository"] for name, row in SUPPORTED.items()
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_scheme_that_is_named_exists(system):
    for method in ("distro", "nvidia_repo"):
        assert SYSTEMS[system][method]["other"] in SCHEMES
        assert set(SYSTEMS[system][method].values()) <= set(SCHEMES)
    assert SYSTEMS[system]["family"] in DATA["__nvidia_driver_families"]


@pytest.mark.parametrize("system", ["debian12", "debian13"])
def test_the_names_agree_with_what_preflight_plans(system):
    for offer in DISTRO_DRIVERS[system]["drivers"]:
        for flavour, package in offer["dkms"].items():
            assert package in names(packages(system, branch=str(offer["branch"]), flavour=flavour))


@pytest.mark.parametrize(("system", "branch"), BROUGHT)
def test_nothing_that_the_driver_brings_is_asked_to_go(system, branch):
    items = packages(system, branch=branch)
    assert [name for name in BROUGHT[(system, branch)] if hit(items, name)] == []


@pytest.mark.parametrize(("system", "branch"), BROUGHT)
def test_absent_takes_all_that_debians_driver_brought(system, branch):
    gone = plain_items(driver_packages.no_driver_packages(SCHEMES, SYSTEMS[system]))
    # These serve others too.
    assert [name for name in BROUGHT[(system, branch)] if not hit(gone, name)] in (["dkms", "update-glx"], ["dkms"])


@pytest.mark.parametrize("system", ["debian12", "debian13"])
@pytest.mark.parametrize("branch", ["570", "580", "595"])
def test_nothing_that_nvidias_own_driver_brings_is_asked_to_go(system, branch):
    items = packages(system, "nvidia_repo", branch, "open")
    assert [name for name in BROUGHT_BY_NVIDIA if hit(items, name)] == []
    gone = plain_items(driver_packages.no_driver_packages(SCHEMES, SYSTEMS[system]))
    assert [name for name in BROUGHT_BY_NVIDIA if not hit(gone, name)] == []


def test_a_change_of_branch_takes_the_other_branch():
    items = packages("debian12", branch="470")
    gone = ["nvidia-kernel-dkms", "libcuda1", "nvidia-smi", "nvidia-tesla-535-smi", "libnvidia-tesla-450-cuda1"]
    assert [name for name in gone if not hit(items, name)] == []
    items = packages("debian12", branch="535")
    gone = ["nvidia-tesla-470-kernel-dkms", "libnvidia-tesla-470-ptxjitcompiler1", "firmware-nvidia-tesla-470-gsp"]
    assert [name for name in gone if not hit(items, name)] == []


def test_a_change_of_flavour_takes_the_other_flavour():
    items = packages("debian13", flavour="open")
    assert "nvidia-open-kernel-dkms" in names(items)
    assert hit(items, "nvidia-kernel-dkms")
    assert not hit(items, "libcuda1")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("state", ["present", "absent"])
def test_the_users_other_packages_stay(system, state):
    other = [
        "nvidia-cuda-toolkit",
        "nvidia-cuda-dev",
        "nvidia-container-toolkit",
        "nvidia-container-toolkit-base",
        "libnvidia-container1",
        "cuda-toolkit-12-4",
        "linux-headers-amd64",
        "dkms",
        "python3-pynvml",
        "libnvidia-egl-wayland1",
    ]
    if state == "present":
        branch = "470" if system == "debian12" else "550"
        items = packages(system, branch=branch)
    else:
        items = plain_items(driver_packages.no_driver_packages(SCHEMES, SYSTEMS[system]))
    assert [name for name in other if hit(items, name)] == []


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("method", ["distro", "nvidia_repo"])
@pytest.mark.parametrize("branch", ["470", "535", "550", "580", "595"])
def test_absent_takes_whatever_present_brought(system, method, branch):
    gone = plain_items(driver_packages.no_driver_packages(SCHEMES, SYSTEMS[system]))
    for item in packages(system, method, branch):
        if item.get("state") != "absent":
            assert hit(gone, item["name"]), item["name"]


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("method", ["distro", "nvidia_repo"])
def test_names_are_told_once_and_filled_in(system, method):
    items = packages(system, method, "580", fabric_manager=bool(method == "nvidia_repo"))
    listed = [item["name"] for item in items]
    assert len(listed) == len(set(listed))
    assert not [name for name in listed if "{" in name]
    assert len(items) < 250


def test_the_parts_of_a_driver_are_of_one_version_and_held():
    items = packages("debian13")
    driver = [item for item in items if "version" in item]
    assert {item["version"] for item in driver} == {"550.*"}
    assert all(item["hold"] for item in driver)
    assert {item["name"] for item in items if "version" not in item and "state" not in item} == {
        "nvidia-modprobe",
        "nvidia-persistenced",
    }


def test_options():
    assert "nvidia-persistenced" not in names(packages("debian13", persistence=False))
    assert not any(item.get("hold") for item in packages("debian13", hold=False))
    with_switches = packages("debian13", "nvidia_repo", "570", fabric_manager=True)
    assert "nvidia-fabricmanager-570" in names(with_switches)
    assert "nvidia-fabricmanager" in names(packages("debian13", "nvidia_repo", "580", fabric_manager=True))
    assert not [name for name in names(packages("debian13", "nvidia_repo", "570")) if "fabric" in name]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"branch": "535", "flavour": "open"}, "no open kernel modules, only proprietary"),
        ({"fabric_manager": True}, "set nvidia_driver_method to nvidia_repo"),
    ],
)
def test_what_there_is_not(arguments, message):
    with pytest.raises(Refused, match=message) as refused:
        packages("debian13", **arguments)
    assert refused.value.problem.remedy


def test_a_branch_without_a_scheme():
    with pytest.raises(Refused, match=r"no driver of branch 470, only of 550"):
        driver_packages.scheme_name({"550": "debian"}, "470")
