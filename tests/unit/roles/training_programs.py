# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of the training, which lie in a job's directory and not in a package."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from types import ModuleType

import pytest

from tests.unit.project.tree import ROOT

PROGRAMS = ROOT / "roles" / "slurm_apps" / "files" / "training"
PYTHON = os.environ.get("GPUOPS_TORCH_PYTHON", "/usr/bin/python3")


def skip_without_torch() -> None:
    done = subprocess.run([PYTHON, "-c", "import sklearn, torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{PYTHON} has no PyTorch and scikit-learn: {done.stderr.strip().splitlines()[-1:]}")


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"training_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
