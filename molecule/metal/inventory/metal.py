#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory script: the virtual machine that `tools/lab vm up` made for this checkout (or GPUOPS_LAB_ID)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Not as tests.lab.machines: the Python that runs this may have another package of the name tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "lab"))

from machines.system import LabError
from machines.vm import Vm

if __name__ == "__main__":
    try:
        print(json.dumps(Vm().inventory(), indent=2))
    except LabError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
