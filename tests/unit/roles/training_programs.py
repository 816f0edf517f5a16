# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs of the training, which lie in a job's directory and not in a package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.unit.project.tree import ROOT

PROGRAMS = ROOT / "roles" / "slurm_apps" / "files" / "training"


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"training_{name}", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
