# SPDX-License-Identifier: GPL-3.0-or-later
"""The role cuda with toolkits that stand in for NVIDIA's, and (slow) with Debian's own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.roles.conftest import DEBIAN_13, Role, ssh

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    return Role("cuda", (DEBIAN_13,))


@pytest.fixture(scope="module")
def two(repositories: dict[str, str]) -> dict[str, Any]:
    """Two toolkits side by side."""
    return {
        "cuda_method": "nvidia_repo",
        # Not in the order of their names: the first is the default.
        "cuda_versions": ["12.6", "12.4"],
        "cuda_repo_url": repositories["cuda"],
        "cuda_repo_key_url": repositories["key"],
        "cuda_repo_key_sha256": repositories["sha256"],
    }


def login(command: str) -> str:
    return ssh(DEBIAN_13, f"bash -lc '{command}'").strip()


def loader() -> str:
    """What the loader is told, and when its cache was last made."""
    return ssh(DEBIAN_13, "cat /etc/ld.so.conf.d/baremetal-gpu-cuda.conf; stat -c %y /etc/ld.so.cache")


def test_a_default_that_is_not_installed_is_refused(role: Role, two: dict[str, Any]) -> None:
    play = role.run({**two, "cuda_default": "11.8"})
    message = " ".join(play.failures[DEBIAN_13])
    assert "gpu1: cuda_default is 11.8" in message
    assert "12.6, 12.4" in message


def test_a_toolkit_that_the_driver_cannot_run_is_refused(role: Role, two: dict[str, Any]) -> None:
    play = role.run({**two, "cuda_versions": ["13.0"]})
    assert "13.0" in " ".join(play.failures[DEBIAN_13])
    assert "nvidia-cuda" not in ssh(DEBIAN_13, "ls /etc/apt/sources.list.d")


def test_two_toolkits_side_by_side(role: Role, two: dict[str, Any]) -> None:
    role.converge(two)
    assert login("which nvcc") == "/usr/local/cuda/bin/nvcc"
    assert "release 12.6" in login("nvcc --version")
    assert "release 12.4" in login("/usr/local/cuda-12.4/bin/nvcc --version")
    assert loader().startswith("/usr/local/cuda-12.6/lib64\n")
    role.is_converged(two)


def test_a_toolkit_that_does_not_compile_fails_the_host(role: Role, two: dict[str, Any]) -> None:
    ssh(DEBIAN_13, "sudo chmod 644 /usr/local/cuda-12.6/bin/nvcc")
    play = role.run({**two, "cuda_validate": "always"})
    assert "/usr/local/cuda-12.6/bin/nvcc" in " ".join(play.failures[DEBIAN_13])
    ssh(DEBIAN_13, "sudo chmod 755 /usr/local/cuda-12.6/bin/nvcc")


@pytest.mark.slow
def test_another_default(role: Role, two: dict[str, Any]) -> None:
    role.converge(two)
    before = loader()
    role.converge({**two, "cuda_default": "12.4"})
    assert "release 12.4" in login("nvcc --version")
    after = loader()
    assert after.startswith("/usr/local/cuda-12.4/lib64\n")
    assert after.splitlines()[1] != before.splitlines()[1], "the loader's cache was not made anew"
    role.is_converged({**two, "cuda_default": "12.4"})


@pytest.mark.slow
def test_one_goes_and_then_the_other(role: Role, two: dict[str, Any]) -> None:
    role.converge({**two, "cuda_versions": ["12.4"], "cuda_versions_absent": ["12.6"]})
    assert "release 12.4" in login("nvcc --version")
    assert "12-6" not in ssh(DEBIAN_13, "dpkg-query -W -f '${Package}\\n'")
    gone = {**two, "cuda_versions": ["12.4"], "cuda_state": "absent"}
    role.converge(gone)
    assert "12-4" not in ssh(DEBIAN_13, "dpkg-query -W -f '${Package}\\n'")
    left = ssh(DEBIAN_13, "ls -d /usr/local/cuda* /etc/profile.d/baremetal* /etc/ld.so.conf.d/baremetal* 2>&1 || true")
    assert "\n".join(line for line in left.splitlines() if "cannot access" not in line) == ""
    role.is_converged(gone)


@pytest.mark.slow
def test_debians_own_toolkit_compiles(role: Role) -> None:
    """1.9 GB, through the lab's apt cache."""
    role.converge({"cuda_versions": ["distro"]})
    assert "release 12.4" in login("nvcc --version")
    assert ssh(DEBIAN_13, "readlink -f /usr/local/cuda").strip() == "/usr/lib/cuda"
    role.is_converged({"cuda_versions": ["distro"]})
