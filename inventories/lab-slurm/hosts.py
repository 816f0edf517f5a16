#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-3.0-or-later
"""Inventory script of `make lab-slurm`: the lab's machines as a cluster of Slurm.

Those with GPUs are nodes. The others run slurmctld, slurmdbd and the logins.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Not as tests.lab.machines: the Python that runs this may have another package of the name tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "lab"))

from machines.inventory import slurm_inventory
from machines.state import Lab
from machines.system import LabError

if __name__ == "__main__":
    try:
        print(json.dumps(slurm_inventory(Lab()), indent=2))
    except LabError as error:
        sys.exit(f"inventories/lab-slurm: {error}")
