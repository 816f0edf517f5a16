# SPDX-License-Identifier: GPL-3.0-or-later
"""site.yml is cut at many points, by a kill of the playbook or of the whole machine, and run again until it is done."""

from __future__ import annotations

import random

import pytest

from tests.site.plays import INVENTORY, lab, run_and_cut, run_playbook, ssh

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MACHINE = "gpu1"
CUTS = 12
# Every fourth cut takes the machine's power; the others kill the playbook, and what it started runs on or not.
POWER_CUT_EVERY = 4


def test_a_run_that_was_cut_many_times_converges(bare_lab: None) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chosen = random.Random(seed)
    cut_at: list[str] = []
    for _run in range(2 * CUTS):
        # Later cuts fall later on the average, so that the whole of the way is covered.
        task = chosen.randint(2, 16 + 8 * len(cut_at))
        where = run_and_cut(["-i", INVENTORY, "-l", MACHINE, "playbooks/site.yml"], task, chosen.uniform(0, 4))
        if where is None:
            # It came to its end before. From a finished machine on there is little to be cut.
            lab("reset", MACHINE)
            continue
        cut_at.append(where)
        if len(cut_at) % POWER_CUT_EVERY == 0:
            lab("power-cut", MACHINE)
            lab("up")
        if len(cut_at) == CUTS:
            break
    print(f"seed {seed}; cut at: {cut_at}")
    last = run_playbook("site.yml", limit=MACHINE)
    assert last.rc == 0, f"seed {seed}, cut at {cut_at}\n{last.tail()}"
    again = run_playbook("site.yml", limit=MACHINE)
    assert again.rc == 0, again.tail()
    assert again.changed(MACHINE) == 0, again.changed_tasks
    left = ssh(MACHINE, "ls /var/lib/baremetal-gpu/pending; dpkg --audit")
    assert left.strip() == "", f"seed {seed}: left behind: {left}"
    assert len(cut_at) == CUTS, cut_at
