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
from tests.roles.conftest import DEBIAN_13, Role, lab, ssh
from tests.roles.driver_host import (
    hold_a_gpu,
    is_driven_by,
    left_behind,
    loaded,
    nothing_is_left,
    on_host,
    packages,
    transactions,
)

pytestmark = [pytest.mark.lab, pytest.mark.slow]

OLDER, NEWER, NEXT = DRIVERS
# All that the driver has; the role itself loads the first two.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
PIN = "/etc/apt/preferences.d/baremetal-gpu-nvidia.pref"


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


@pytest.mark.parametrize("place", ["url", "path"])
def test_a_key_with_another_checksum_is_refused(role: Role, nvidia: dict[str, Any], place: str, tmp_path: Path) -> None:
    """Whether the host fetches it or the controller has it."""
    wanted = {**nvidia, "nvidia_driver_repo_key_sha256": "0" * 64}
    if place == "path":
        key = tmp_path / "key.asc"
        key.write_text("a key that nobody knows\n")
        wanted["nvidia_driver_repo_key_path"] = str(key)
    before = lab("changes", DEBIAN_13)
    play = role.run(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "did not match" in message
    assert lab("changes", DEBIAN_13) == before


def test_check_mode_announces_and_changes_nothing(role: Role, nvidia: dict[str, Any]) -> None:
    before = lab("changes", DEBIAN_13)
    play = role.run(nvidia, options="--check --diff")
    assert play.rc == 0, play.tail()
    plan = play.drifts[DEBIAN_13, "nvidia_driver"]
    assert "install package nvidia-driver-cuda 570.* and hold it (is not installed)" in plan
    assert any("write pin baremetal-gpu-nvidia" in line for line in plan), plan
    assert lab("changes", DEBIAN_13) == before


def test_a_branch_is_installed_pinned_and_held(role: Role, nvidia: dict[str, Any]) -> None:
    role.converge(nvidia)
    is_driven_by(NEWER)
    held = on_host("apt-mark showhold").split()
    assert {"nvidia-driver-cuda", "nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1"} <= set(held)
    pin = on_host(f"cat {PIN}").splitlines()
    assert "Pin: version 570.*" in pin
    # Neither a plain upgrade nor one that may remove packages touches the driver, though there is a newer one. Nor
    # would they if somebody released the packages: the pin keeps the branch.
    assert NEXT in on_host("apt-cache madison nvidia-driver-cuda")
    for command in ("upgrade", "dist-upgrade", "--ignore-hold dist-upgrade"):
        assert "nvidia" not in on_host(f"sudo apt-get -s {command} | grep ^Inst || true"), command
    blacklist = on_host("apt-config dump Unattended-Upgrade::Package-Blacklist")
    assert '"^nvidia-"' in blacklist
    # Fabric Manager is for NVSwitches, and this host has none.
    assert not [name for name in packages() if "fabric" in name]
    role.is_converged(nvidia)


def test_another_branch_takes_its_place(role: Role, nvidia: dict[str, Any]) -> None:
    """The loaded modules are exchanged without a reboot: the daemon that holds the GPUs is stopped and started.

    The kernel refuses to unload them in any other order than theirs.
    """
    ssh(DEBIAN_13, "sudo modprobe -a nvidia-drm nvidia-peermem")
    assert loaded() == dict.fromkeys(MODULES, NEWER)
    wanted = {**nvidia, "nvidia_driver_branch": 580}
    announced = role.run(wanted, options="--check --diff")
    assert announced.rc == 0, announced.tail()
    plan = announced.drifts[DEBIAN_13, "nvidia_driver"]
    assert f"install package nvidia-driver-cuda {NEXT}-1 and hold it (is {NEWER}-1, not 580.*)" in plan
    assert any(line.startswith("exchange kernel module nvidia ") for line in plan), plan
    is_driven_by(NEWER)
    boot, before = on_host("cat /proc/sys/kernel/random/boot_id"), transactions()
    role.converge(wanted)
    is_driven_by(NEXT)
    assert transactions() == before + 1
    assert loaded() == dict.fromkeys(MODULES, NEXT)
    assert "Pin: version 580.*" in on_host(f"cat {PIN}").splitlines()
    assert on_host("cat /proc/sys/kernel/random/boot_id") == boot
    role.is_converged(wanted)


def test_a_process_that_holds_a_gpu_is_named(role: Role, nvidia: dict[str, Any]) -> None:
    wanted = {**nvidia, "nvidia_driver_version": OLDER}
    hold_a_gpu()
    play = role.run(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "python3 (pid " in message
    assert "converge_reboot" in message
    is_driven_by(NEXT)


def test_a_loaded_driver_that_is_not_the_installed_one(role: Role, nvidia: dict[str, Any]) -> None:
    """As after an upgrade behind the back of a running process. Only a reboot helps, or the end of the process."""
    wanted = {**nvidia, "nvidia_driver_version": OLDER}
    role.converge({**wanted, "nvidia_driver_load": False})
    assert set(packages().values()) == {f"{OLDER}-1"}
    assert loaded()["nvidia"] == NEXT
    play = role.run(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    for part in (
        "gpu1",
        f"version {NEXT} is loaded, {OLDER} is installed",
        "python3 (pid ",
        "converge_reboot: allowed",
    ):
        assert part in message
    # As soon as nothing holds the GPU any more, the next run brings it to its end.
    ssh(DEBIAN_13, "sudo systemctl stop holder")
    role.converge(wanted)
    is_driven_by(OLDER)
    role.is_converged(wanted)


def test_a_driver_that_does_not_build_shows_why(role: Role, nvidia: dict[str, Any]) -> None:
    play = role.run({**nvidia, "nvidia_driver_branch": 590, "nvidia_driver_version": BROKEN_DRIVER})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "its build ends with: " in message
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
    announced = role.run(gone, options="--check")
    assert announced.rc == 0, announced.tail()
    assert any(
        line.startswith("remove package nvidia-driver-cuda ") for line in announced.drifts[DEBIAN_13, "nvidia_driver"]
    )
    is_driven_by(NEWER)
    role.converge(gone)
    nothing_is_left()
    # The repository stays: the CUDA toolkits may come from it too.
    assert left_behind() <= {"/etc/apt/sources.list.d/nvidia-cuda.sources", "/etc/apt/keyrings/nvidia-cuda.asc"}
    role.is_converged(gone)


def installer(directory: Path, version: str) -> dict[str, Any]:
    path = directory / f"NVIDIA-Linux-x86_64-{version}.run"
    path.write_text(runfile(version))
    return {
        "nvidia_driver_method": "runfile",
        "nvidia_driver_flavour": "proprietary",
        "nvidia_driver_runfile_path": str(path),
        "nvidia_driver_runfile_sha256": sha256(runfile(version)),
    }


def is_installed_by_the_installer(version: str) -> None:
    built = on_host("sudo dkms status")
    assert f"nvidia/{version}" in built
    assert len(built.splitlines()) == 1, built
    assert loaded() == {"nvidia": version, "nvidia_uvm": version}
    assert on_host("systemctl is-active nvidia-persistenced") == "active"
    assert packages() == {}


def test_the_installer_of_another_checksum_is_refused(role: Role, tmp_path: Path) -> None:
    play = role.run({**installer(tmp_path, OLDER), "nvidia_driver_runfile_sha256": "0" * 64})
    message = " ".join(play.failures[DEBIAN_13])
    assert f"NVIDIA-Linux-x86_64-{OLDER}.run" in message
    assert "correct nvidia_driver_runfile_sha256" in message
    assert on_host("sudo dkms status; ls /var/lib/baremetal-gpu/nvidia-driver.run 2>/dev/null || true") == ""


def test_what_the_installer_says_is_passed_on(role: Role, tmp_path: Path) -> None:
    play = role.run({**installer(tmp_path, OLDER), "nvidia_driver_runfile_arguments": ["--no-such-option"]})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1" in message
    assert "Unrecognized option: '--no-such-option'" in message
    assert "/var/log/nvidia-installer.log" in message


def test_the_installer_is_run_once(role: Role, tmp_path: Path) -> None:
    wanted = installer(tmp_path, OLDER)
    announced = role.run(wanted, options="--check")
    assert announced.rc == 0, announced.tail()
    assert f"run NVIDIA's installer {OLDER} (no driver is installed)" in " ".join(announced.stdout.split())
    assert on_host("sudo dkms status") == ""
    role.converge(wanted)
    is_installed_by_the_installer(OLDER)
    role.is_converged(wanted)


def test_another_installer_takes_its_place(role: Role, tmp_path: Path) -> None:
    wanted = installer(tmp_path, NEWER)
    hold_a_gpu()
    play = role.run(wanted)
    message = " ".join(play.failures[DEBIAN_13])
    for part in ("gpu1", OLDER, "python3 (pid ", "Nothing was changed"):
        assert part in message
    is_installed_by_the_installer(OLDER)
    ssh(DEBIAN_13, "sudo systemctl stop holder")
    role.converge(wanted)
    is_installed_by_the_installer(NEWER)
    assert on_host("ls /var/lib/baremetal-gpu/pending") == ""


def test_what_the_installer_brought_goes_again(role: Role) -> None:
    """Whichever method the inventory names by now."""
    gone = {"nvidia_driver_state": "absent"}
    role.converge(gone)
    nothing_is_left()
    assert left_behind() <= {"/etc/apt/sources.list.d/nvidia-cuda.sources", "/etc/apt/keyrings/nvidia-cuda.asc"}
    assert on_host("ls /usr/bin/nvidia* /var/lib/baremetal-gpu/*.run 2>/dev/null || true") == ""
    role.is_converged(gone)
