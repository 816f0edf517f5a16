#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory script: the virtual machine that `gpuops lab vm up` made for this checkout (or GPUOPS_LAB_ID)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gpuops.lab.system import LabError
from gpuops.lab.vm import Vm

if __name__ == "__main__":
    try:
        print(json.dumps(Vm().inventory(), indent=2))
    except LabError as error:
        sys.exit(f"{Path(__file__).name}: {error}")
