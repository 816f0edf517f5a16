# SPDX-License-Identifier: GPL-3.0-or-later
"""What people find on a host: real packages of Debian 12 and 13, and modules of toolkits that are played."""

from __future__ import annotations

import pytest

from tests.roles.conftest import DEBIAN_12, DEBIAN_13, MACHINES, Role, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

TOOLKIT = """sudo mkdir -p /usr/local/cuda-{0}/bin && printf '#!/bin/sh\\necho {0}\\n' >/tmp/nvcc \
&& sudo install /tmp/nvcc /usr/local/cuda-{0}/bin/nvcc"""


@pytest.fixture(scope="module")
def role(bare: None) -> Role:
    for machine in MACHINES:
        for version in ("11.8", "12.4"):
            ssh(machine, TOOLKIT.format(version))
        ssh(machine, "sudo ln -s cuda-11.8 /usr/local/cuda")
    return Role("user_software", MACHINES)


def login(machine: str, command: str) -> str:
    return ssh(machine, f"bash -lc '{command}' 2>&1", check=False)


def test_programs_and_modules_are_there(role: Role) -> None:
    role.converge()
    for machine in MACHINES:
        assert login(machine, "module load cuda/12.4 && nvcc") == "12.4\n"
        # That behind /usr/local/cuda.
        assert login(machine, "module load cuda && nvcc") == "11.8\n"
        assert login(machine, "module load cuda/12.4 && module load cuda/11.8 2>/dev/null; nvcc") == "11.8\n"
        said = login(machine, "module -t avail")
        assert {"cuda/11.8", "cuda/12.4", "openmpi/", "gcc/"} <= {
            word if word.startswith("cuda") else f"{word.split('/')[0]}/" for word in said.split()
        }, said
        assert "Open MPI" in login(machine, "module load openmpi && mpirun --version")
        assert login(machine, "module load gcc && $CC --version").startswith("gcc-")
    assert ssh(DEBIAN_13, "command -v perf").strip()
    assert ssh(DEBIAN_12, "command -v tmux").strip()


@pytest.mark.parametrize("machine", MACHINES)
def test_a_script_that_a_login_submits_has_modules(role: Role, machine: str) -> None:
    """As sbatch runs it: another bash, with the environment of the login."""
    ssh(machine, "printf '#!/bin/bash\\nmodule load cuda/12.4\\nnvcc\\n' >/tmp/job && chmod +x /tmp/job")
    assert login(machine, "/tmp/job") == "12.4\n"


def test_a_second_run_changes_nothing(role: Role) -> None:
    role.is_converged()


def test_a_toolkit_that_is_gone_has_no_module(role: Role) -> None:
    ssh(DEBIAN_12, "sudo rm -r /usr/local/cuda-12.4")
    role.converge(only=DEBIAN_12)
    assert "cuda/12.4" not in login(DEBIAN_12, "module -t avail")
    assert login(DEBIAN_12, "module load cuda/11.8 && nvcc") == "11.8\n"
