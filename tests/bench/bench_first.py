# SPDX-License-Identifier: GPL-3.0-or-later
"""The first run of site.yml on a bare machine of the lab: how much of it is not the package manager's work.

The time of tasks that run apt (whose packages build the driver by DKMS and rebuild the initramfs), that run DKMS or
that reboot is not counted, since every installation of a driver needs them. The rest is the collection's own work:
Ansible, the comparison, the files, the start of what was installed, the verification of the GPUs, and a rebuild of the
initramfs without nouveau.

Every run begins with the machine `gpu1` as its installation left it. The shortcuts of the lab are off: compilers find
nothing that an earlier machine has built, and modules and initramfs are packed as the distribution does it. Packages
come from the lab's cache, as from a mirror near by.

It needs the lab of `make lab-node`, or the one that GPUOPS_LAB_ID names. At the end its `gpu1` is finished except for
the CUDA toolkits, which would add more packages than everything else.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

from tests.bench.harness import Figure, Row
from tests.bench.lab_run import MACHINE, lab, machine
from tests.bench.site_run import run_site
from tests.lab.machines.images import SHORTCUTS

RUNS = 2
GOAL_PERCENT = 20.0
PACKAGES, DKMS, REBOOT, OURS = "packages", "DKMS", "reboot", "everything else"


def kind(data: dict[str, Any]) -> str:
    """What a task does, by the file that it is in, its module and its name."""
    file = str(data["task_path"]).rpartition("/")[2].partition(":")[0]
    if file in ("packages_apt.yml", "interrupted_apt.yml", "packages_dnf.yml", "transaction_dnf.yml"):
        return PACKAGES
    if data["task_action"] == "ansible.builtin.reboot":
        return REBOOT
    return DKMS if "DKMS" in data["task"] else OURS


def first_run() -> dict[str, float]:
    """How many seconds the run took, by kind of task; what is in no task is Ansible's own and counts as ours."""
    spent: dict[str, float] = defaultdict(float)

    def take(event: dict[str, Any]) -> None:
        data = event.get("event_data") or {}
        if event["event"].startswith("runner_on_") and "duration" in data:
            spent[kind(data)] += data["duration"]

    begin = time.monotonic()
    run_site(MACHINE, take)
    wall = time.monotonic() - begin
    return {**spent, OURS: wall - sum(seconds for what, seconds in spent.items() if what != OURS)}


def run(quick: bool) -> list[Row]:
    machine()
    taken = []
    for _number in range(1 if quick else RUNS):
        lab("reset", MACHINE)
        lab("ssh", MACHINE, "--", f"sudo rm {' '.join(SHORTCUTS)}")
        taken.append(first_run())
    rows: list[Row] = []
    for what in (PACKAGES, DKMS, REBOOT, OURS):
        seconds = [spent.get(what, 0.0) for spent in taken]
        rows.append(Figure.of(f"the first run: {what}", "wall", "s", seconds))
    shares = [100 * spent[OURS] / sum(spent.values()) for spent in taken]
    most = None if quick else GOAL_PERCENT
    what = "the first run: everything else"
    rows.append(Figure.of(what, "share of the wall", "%", shares, most))
    return rows
