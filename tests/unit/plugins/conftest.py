# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ansible_collections.baremetal.gpu.plugins.module_utils.health import rules
from tests.unit.plugins.fake_host import FakeHost
from tests.unit.plugins.service_account import Account, shadow_in
from tests.unit.plugins.simulated_host import SIMULATORS, Looker, SimulatedHost


@pytest.fixture(autouse=True)
def _errors_of_checks_surface(request, monkeypatch):
    """On a host an error in a health check is told, and the other checks go on. In a test it is raised."""

    def failed(_code, error):
        raise error

    if "checks_may_fail" not in request.fixturenames:
        monkeypatch.setattr(rules, "failed", failed)


@pytest.fixture
def checks_may_fail():
    """For a test of what a host does with such an error."""


@pytest.fixture
def fake_host(tmp_path):
    return FakeHost(tmp_path)


@pytest.fixture
def account(tmp_path):
    return Account(tmp_path / "zookeeper")


@pytest.fixture
def shadow(tmp_path):
    return shadow_in(tmp_path)


@pytest.fixture(scope="session")
def cuda_library():
    """The simulated CUDA driver library, built where it is not."""
    simulators = Path(__file__).resolve().parents[2] / "simulators"
    done = subprocess.run(
        ["make", "-s", "-C", str(simulators), "build/libcuda.so.1"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return simulators / "build" / "libcuda.so.1"


@pytest.fixture(scope="session")
def nvml_library():
    """The directory of the simulated NVML library, built where it is not."""
    done = subprocess.run(
        ["make", "-s", "-C", str(SIMULATORS), "build/libnvidia-ml.so.1"], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return SIMULATORS / "build"


@pytest.fixture(scope="session")
def looker(tmp_path_factory, nvml_library):
    """The process that takes looks for simulated_host."""
    process = Looker(nvml_library, tmp_path_factory.mktemp("looker"))
    yield process
    process.close()


@pytest.fixture
def simulated_host(tmp_path, looker):
    return SimulatedHost(tmp_path, looker)
