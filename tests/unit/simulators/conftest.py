# SPDX-License-Identifier: GPL-3.0-or-later
"""The simulators, built, and a scenario that a test can change while they run."""

from __future__ import annotations

import copy
import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.simulators import generate

ROOT = Path(__file__).resolve().parents[3]
SIMULATORS = ROOT / "tests" / "simulators"


@pytest.fixture(scope="session")
def built() -> Path:
    """The directory of the built libraries."""
    subprocess.run(["make", "--silent", "-C", SIMULATORS], check=True)
    return SIMULATORS / "build"


class Scenario:
    """A scenario file of one test. What is changed in `document` counts from `write()` on."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.document: dict[str, Any] = generate.scenario(name)
        # There is no simulated kernel below a unit test.
        self.document["kernel"] = "assume-loaded"
        self.write()

    @property
    def devices(self) -> list[dict[str, Any]]:
        return self.document["devices"]

    def write(self) -> None:
        # Replaced as a whole, as the lab does it.
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(self.document), encoding="utf-8")
        fresh.replace(self.path)

    def fault(self, **rule: Any) -> None:
        self.document["faults"].append(rule)
        self.write()

    def copy(self) -> dict[str, Any]:
        return copy.deepcopy(self.document)


@pytest.fixture
def scenario(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """scenario(name) writes that scenario and makes it the current one."""

    def make(name: str) -> Scenario:
        path = tmp_path / "scenario.json"
        monkeypatch.setenv("NVML_SIMULATOR_SCENARIO", str(path))
        return Scenario(path, name)

    return make


@pytest.fixture
def measured_host(scenario):
    """A host like those on which the contracts' answers were measured: one Hopper GPU under that driver."""
    chosen = scenario("h100-sxm-x8")
    chosen.document["devices"] = chosen.devices[:1]
    chosen.document["driver"]["version"] = "580.159.04"
    chosen.write()


def load_copy(library: Path, directory: Path, name: str | None = None) -> ctypes.CDLL:
    """The library from a file of its own, so that a test begins with one that nobody has used."""
    own = directory / (name or library.name)
    shutil.copyfile(library, own)
    return ctypes.CDLL(str(own))


@pytest.fixture
def pynvml(built: Path, tmp_path: Path) -> ModuleType:
    """NVIDIA's own binding, on a fresh copy of the simulated library."""
    spec = importlib.util.find_spec("pynvml")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # It looks itself up while it is loaded.
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules.pop("pynvml")
        if before is not None:
            sys.modules["pynvml"] = before
    module.nvmlLib = load_copy(built / "libnvidia-ml.so.1", tmp_path)
    return module


@pytest.fixture
def run_python(built: Path):
    """Runs Python code in a process of its own, with the simulated libraries to be found."""

    def run(code: str, **options: Any) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(built)}
        return subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, **options
        )

    return run
