# SPDX-License-Identifier: GPL-3.0-or-later
"""The role nvidia_driver with what NVIDIA itself offers: its repository and its installer.

Both are stand-ins; DKMS, apt and the order of everything are real. The tests run in order on one machine, each from
where the one before left it. Debian's own packages are the business of tests/site.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.repositories.__main__ import BROKEN_DRIVER, DRIVERS
from tests.repositories.driver import runfile, sha256
from tests.roles.conftest import DEBIAN_13, Role, ssh

pytestmark = pytest.mark.lab

OLDER, NEWER, NEXT = DRIVERS
HOLDER = "import os, time; held = os.open('/dev/nvidia0', os.O_PATH); time.sleep(3600)"


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("nvidia_driver", (DEBIAN_13,))


@pytest.fixture(scope="module")
def nvidia(repositories: dict[str, str]) -> dict[str, Any]:
    """NVIDIA's repository, branch 570."""
    return {
        "nvidia_driver_method": "nvidia_repo",
        "nvidia_driver_branch": 570,
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_repo_url": repositories["driver"],
        "nvidia_driver_repo_key_url": repositories["key"],
        "nvidia_driver_repo_key_sha256": repositories["sha256"],
    }


def on_host(command: str) -> str:
    return ssh(DEBIAN_13, command).strip()


def packages() -> dict[str, str]:
    """Versions of the installed packages of a driver."""
    listing = on_host("dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n'")
    rows = [line.split() for line in listing.splitlines()]
    return {row[1]: row[2] for row in rows if row[0] == "installed" and ("nvidia" in row[1] or "libcuda" in row[1])}


def is_driven_by(version: str) -> None:
    """The driver of this version, and no other, is installed, built and loaded, and its daemon runs."""
    assert {found.removesuffix("-1") for found in packages().values()} == {version}
    built = on_host("sudo dkms status")
    assert f"nvidia/{version}" in built
    assert built.count("nvidia/") == built.count(": installed"), built
    assert on_host("cat /sys/module/nvidia/version /sys/module/nvidia_uvm/version").split() == [version] * 2
    assert on_host("systemctl is-active nvidia-persistenced") == "active"


def test_a_key_with_another_checksum_is_refused(role: Role, nvidia: dict[str, Any]) -> None:
    play = role.run({**nvidia, "nvidia_driver_repo_key_sha256": "0" * 64})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "did not match" in message
    assert packages() == {}
    assert "nvidia-cuda" not in on_host("ls /etc/apt/sources.list.d /etc/apt/keyrings")


def test_a_branch_is_installed_pinned_and_held(role: Role, nvidia: dict[str, Any]) -> None:
    role.converge(nvidia)
    is_driven_by(NEWER)
    held = on_host("apt-mark showhold").split()
    assert {"nvidia-driver-cuda", "nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1"} <= set(held)
    # Neither a plain upgrade nor one that may remove packages touches the driver, though there is a newer one.
    assert NEXT in on_host("apt-cache madison nvidia-driver-cuda")
    assert "nvidia" not in on_host("sudo apt-get -s dist-upgrade | grep ^Inst || true")
    role.is_converged(nvidia)


def test_another_branch_takes_its_place(role: Role, nvidia: dict[str, Any]) -> None:
    """The loaded module is exchanged without a reboot: the daemon that holds the cards is stopped and started."""
    wanted = {**nvidia, "nvidia_driver_branch": 580}
    announced = role.run(wanted, options="--check --diff")
    assert announced.rc == 0, announced.tail()
    assert f"version {NEWER} is loaded" in announced.stdout or "580" in announced.stdout
    is_driven_by(NEWER)
    boot = on_host("cat /proc/sys/kernel/random/boot_id")
    role.converge(wanted)
    is_driven_by(NEXT)
    assert on_host("cat /proc/sys/kernel/random/boot_id") == boot
    role.is_converged(wanted)


def test_a_process_that_holds_a_card_is_named(role: Role, nvidia: dict[str, Any]) -> None:
    wanted = {**nvidia, "nvidia_driver_version": OLDER}
    ssh(DEBIAN_13, f'sudo systemd-run --unit=holder --quiet python3 -I -c "{HOLDER}"')
    play = role.run(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "python3 (pid " in message
    assert "common_reboot" in message
    assert on_host("cat /sys/module/nvidia/version") == NEXT
    # As soon as nothing holds the card any more, the next run brings it to its end.
    ssh(DEBIAN_13, "sudo systemctl stop holder")
    role.converge(wanted)
    is_driven_by(OLDER)
    role.is_converged(wanted)


def test_a_driver_that_does_not_build_shows_why(role: Role, nvidia: dict[str, Any]) -> None:
    play = role.run({**nvidia, "nvidia_driver_branch": 590, "nvidia_driver_version": BROKEN_DRIVER})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "this stand-in does not go with this kernel" in message
    # From a package that is half configured, the way back is to ask for another driver.
    role.converge(nvidia)
    is_driven_by(NEWER)
    assert on_host("dpkg --audit") == ""


def test_the_open_modules_take_the_place_of_the_others(role: Role, nvidia: dict[str, Any]) -> None:
    assert on_host("sudo modinfo -F license nvidia") == "NVIDIA"
    wanted = {**nvidia, "nvidia_driver_flavour": "open"}
    role.converge(wanted)
    is_driven_by(NEWER)
    assert on_host("sudo modinfo -F license nvidia") == "Dual MIT/GPL"
    assert "nvidia-kernel-dkms" not in packages()
    role.is_converged(wanted)


def test_absent_leaves_nothing(role: Role, nvidia: dict[str, Any]) -> None:
    gone = {**nvidia, "nvidia_driver_state": "absent"}
    role.converge(gone)
    assert packages() == {}
    assert on_host("apt-mark showhold; sudo dkms status; grep ^nvidia /proc/modules || true") == ""
    # The repository stays: the CUDA toolkits may come from it too.
    left = on_host(
        "sudo find /etc /usr/src /lib/modules/*/updates -name '*nvidia*' -not -empty -not -path '*/include/*'"
    )
    assert set(left.splitlines()) <= {
        "/etc/apt/sources.list.d/nvidia-cuda.sources",
        "/etc/apt/keyrings/nvidia-cuda.asc",
    }
    role.is_converged(gone)


@pytest.fixture
def installer(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / f"NVIDIA-Linux-x86_64-{OLDER}.run"
    path.write_text(runfile(OLDER))
    return {
        "nvidia_driver_method": "runfile",
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_runfile_path": str(path),
        "nvidia_driver_runfile_sha256": sha256(runfile(OLDER)),
    }


def test_the_installer_of_another_checksum_is_refused(role: Role, installer: dict[str, Any]) -> None:
    play = role.run({**installer, "nvidia_driver_runfile_sha256": "0" * 64})
    message = " ".join(play.failures[DEBIAN_13])
    assert f"NVIDIA-Linux-x86_64-{OLDER}.run" in message
    assert "correct nvidia_driver_runfile_sha256" in message
    assert on_host("sudo dkms status") == ""


def test_the_installer_is_run_once_and_goes_again(role: Role, installer: dict[str, Any]) -> None:
    role.converge(installer)
    assert f"nvidia/{OLDER}" in on_host("sudo dkms status")
    assert on_host("cat /sys/module/nvidia/version") == OLDER
    assert on_host("systemctl is-active nvidia-persistenced") == "active"
    role.is_converged(installer)
    gone = {**installer, "nvidia_driver_state": "absent"}
    role.converge(gone)
    left = on_host("sudo dkms status; ls /usr/bin/nvidia* 2>/dev/null; grep ^nvidia /proc/modules || true")
    assert left == ""
    role.is_converged(gone)
