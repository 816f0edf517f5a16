# SPDX-License-Identifier: GPL-3.0-or-later
"""The role nvidia_driver where the host asks for more: NVSwitches, a reboot, Debian's own packages to be removed.

The tests run in order on one machine, each from where the one before left it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.repositories.__main__ import DEBIAN_DRIVER, DRIVERS
from tests.roles.conftest import DEBIAN_13, Role, lab, ssh
from tests.roles.driver_host import (
    hold_a_gpu,
    is_driven_by,
    left_behind,
    loaded,
    nothing_is_left,
    on_host,
    packages,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OLDER, NEWER, NEXT = DRIVERS
SCENARIO, WITH_SWITCHES = "a100-sxm4-40gb-x2", "h100-sxm-x8"


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("nvidia_driver", (DEBIAN_13,))


@pytest.fixture(scope="module")
def debian(repositories: dict[str, str]) -> dict[str, Any]:
    """Debian's own driver. Only its kernel module is a stand-in, because the real one takes minutes to build."""
    source = f"Types: deb\nURIs: {repositories['debian']}\nSuites: /\nSigned-By: /etc/apt/keyrings/stand-in.asc\n"
    fetch = f"import urllib.request as r; print(r.urlopen('{repositories['key']}').read().decode())"
    ssh(DEBIAN_13, f'python3 -c "{fetch}" | sudo tee /etc/apt/keyrings/stand-in.asc')
    ssh(DEBIAN_13, f"printf '{source}' | sudo tee /etc/apt/sources.list.d/stand-in.sources; sudo apt-get update")
    return {"nvidia_driver_method": "distro", "nvidia_driver_branch": 550, "nvidia_driver_flavour": "proprietary"}


@pytest.fixture(scope="module")
def nvidia(repositories: dict[str, str]) -> dict[str, Any]:
    """NVIDIA's repository, branch 570."""
    return {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_branch": 570,
        "nvidia_driver_flavour": "open",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
    }


@pytest.fixture
def switches() -> Iterator[None]:
    lab("scenario", DEBIAN_13, WITH_SWITCHES)
    yield
    lab("scenario", DEBIAN_13, SCENARIO)


def test_debians_own_driver_goes_without_a_trace(role: Role, debian: dict[str, Any]) -> None:
    role.converge(debian)
    assert loaded() == {"nvidia": DEBIAN_DRIVER, "nvidia_uvm": DEBIAN_DRIVER}
    assert packages()["libcuda1"].startswith(DEBIAN_DRIVER)
    gone = {**debian, "nvidia_driver_state": "absent"}
    role.converge(gone)
    nothing_is_left()
    assert left_behind() == set()
    role.is_converged(gone)


def is_served_by(package: str, version: str) -> None:
    """Fabric Manager of this version, from this package and no other, is held and runs."""
    is_driven_by(version)
    assert [name for name in packages() if "fabric" in name] == [package]
    assert package in on_host("apt-mark showhold").split()
    assert on_host("systemctl is-enabled nvidia-fabricmanager; systemctl is-active nvidia-fabricmanager").split() == [
        "enabled",
        "active",
    ]


def test_nvswitches_get_their_fabric_manager(role: Role, nvidia: dict[str, Any], switches: None) -> None:
    """Its package has another name in the next branch, and takes the place of the one before in one transaction."""
    role.converge(nvidia)
    is_served_by("nvidia-fabricmanager-570", NEWER)
    role.is_converged(nvidia)
    wanted = {**nvidia, "nvidia_driver_branch": 580}
    role.converge(wanted)
    is_served_by("nvidia-fabricmanager", NEXT)
    role.is_converged(wanted)


def test_a_reboot_exchanges_a_driver_that_is_in_use(role: Role, nvidia: dict[str, Any]) -> None:
    hold_a_gpu()
    boot = on_host("cat /proc/sys/kernel/random/boot_id")
    wanted = {**nvidia, "nvidia_driver_version": OLDER, "converge_reboot": "allowed"}
    play = role.converge(wanted)
    assert "has to reboot: nvidia: " in " ".join(play.stdout.split())
    is_driven_by(OLDER)
    assert on_host("cat /proc/sys/kernel/random/boot_id") != boot
    role.is_converged(wanted)


@pytest.fixture
def older_driver(role: Role, nvidia: dict[str, Any]) -> None:
    """Not the newest of its branch, and no Fabric Manager: the host has no NVSwitches yet."""
    role.converge({**nvidia, "nvidia_driver_version": OLDER})


def test_fabric_manager_comes_at_the_drivers_version_and_goes_with_it(
    role: Role, nvidia: dict[str, Any], older_driver: None, switches: None
) -> None:
    role.converge(nvidia)
    is_served_by("nvidia-fabricmanager-570", OLDER)
    role.is_converged(nvidia)
    gone = {**nvidia, "nvidia_driver_state": "absent"}
    role.converge(gone)
    nothing_is_left()
    role.is_converged(gone)
