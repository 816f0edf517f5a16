#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory script of the lab: the machines that `gpuops lab up` made for this checkout (or GPUOPS_LAB_ID)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from gpuops.lab.inventory import inventory
from gpuops.lab.state import Lab
from gpuops.lab.system import LabError

if __name__ == "__main__":
    try:
        print(json.dumps(inventory(Lab()), indent=2))
    except LabError as error:
        sys.exit(f"inventories/lab: {error}")
